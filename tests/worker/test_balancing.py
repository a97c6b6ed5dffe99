"""What a supervisor makes of its queues and its pool: looked at, decided, kept for the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields

import pytest

from qframe import Queueable, QueueManager
from qframe.config import Settings, SupervisorSettings
from qframe.console.supervise import described
from qframe.drivers.store import pause_key
from qframe.worker import WorkerOptions, roster
from qframe.worker.balance import BalancePlan
from qframe.worker.pool import balancing
from qframe.worker.pool.balancing import Balancing, ScaleChange
from qframe.worker.pool.tally import GroupTally

PLAN = BalancePlan(queues=("a", "b"), most=9, shift=5)


class Nothing(Queueable):
    def handle(self) -> None: ...


class Pool:
    """What a pool looks like from its presence."""

    slots = 1
    paused = False

    def __init__(self) -> None:
        self.seen: Mapping[str, GroupTally] = {
            "a": GroupTally(processes=1),
            "b": GroupTally(processes=1),
        }
        self.sizes: dict[str, int] = {}

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def scale(self, size: int, slots: int) -> None:
        raise AssertionError("a supervisor is not scaled")

    def share(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)


class Supervised(Balancing):
    """One that is told when to look, and has no thread."""

    def __init__(self, queues: QueueManager, pool: Pool, plan: BalancePlan = PLAN) -> None:
        self.changes: list[ScaleChange] = []
        entry = roster.introduced_pool(WorkerOptions(name="mail"), "memory", 2, 2, 9)
        super().__init__(
            lambda: queues.connection("memory"), lambda: None, entry, plan, 0, self.changes.append
        )
        self._pool = pool


@pytest.fixture
def queues() -> QueueManager:
    return QueueManager(Settings(default="memory"))


def test_it_has_done_what_is_needed_and_says_why(queues: QueueManager) -> None:
    queues.connection("memory").bulk([Nothing() for _ in range(40)], "a")
    pool = Pool()
    supervised = Supervised(queues, pool)
    supervised.apply_orders()
    assert pool.sizes == {"a": 4, "b": 1}
    assert supervised.changes == [ScaleChange("a", 1, 4, "40 ready, 0/s arrive, 1 s each: needs 4")]
    assert supervised.entry.shares == {"a": 4, "b": 1}
    assert supervised.entry.size == 5


def test_what_is_paused_keeps_the_least(queues: QueueManager) -> None:
    connection = queues.connection("memory")
    connection.bulk([Nothing() for _ in range(40)], "a")
    connection.store.set(pause_key("memory", "a"), "1")
    pool = Pool()
    supervised = Supervised(queues, pool)
    supervised.apply_orders()
    assert pool.sizes == {"a": 1, "b": 1}
    connection.store.delete(pause_key("memory", "a"))
    supervised.apply_orders()
    assert pool.sizes["a"] == 4
    assert "0/s arrive" in supervised.changes[0].why, "it has not arrived all at once"
    pool.paused = True
    supervised.apply_orders()
    assert supervised.entry.why["a"].startswith("0 ready")


def test_how_long_jobs_run_is_kept_for_the_next(queues: QueueManager) -> None:
    pool = Pool()
    supervised = Supervised(queues, pool)
    supervised.apply_orders()
    pool.seen = {**pool.seen, "a": GroupTally(10, 10, 50.0, (), 1)}
    supervised.apply_orders()
    supervised.leave()
    again = Supervised(queues, Pool())
    again.apply_orders()
    assert "5 s each" in again.entry.why["a"]


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", '{"a": 1}', '["x", 1, 2]'])
def test_what_cannot_be_read_is_nothing(queues: QueueManager, text: str) -> None:
    queues.connection("memory").store.set("balance:memory|a", text)
    supervised = Supervised(queues, Pool())
    supervised.apply_orders()
    assert "1 s each" in supervised.entry.why["a"]
    assert balancing._read(text).weight == 0


def test_off_is_one_group_of_all_queues() -> None:
    told = SupervisorSettings(queues=["a", "b"], balance="off", max_processes=4)
    queues = QueueManager(Settings(default="memory", supervisors={"all": told}))
    _, plan = described("all", queues)
    assert plan.queues == ("a,b",)
    connection = queues.connection("memory")
    for queue in "ab":
        connection.bulk([Nothing() for _ in range(15)], queue)
    pool = Pool()
    pool.seen = {"a,b": GroupTally(processes=1)}
    Supervised(queues, pool, plan).apply_orders()
    assert pool.sizes == {"a,b": 3}


def test_workers_are_told_the_same_where_nothing_is_said() -> None:
    for each in fields(WorkerOptions):
        known = SupervisorSettings.model_fields.get(each.name)
        if known is None or each.name in {"queues", "backoff", "connection"}:
            continue
        assert each.default is not MISSING
        assert known.default == each.default, each.name
