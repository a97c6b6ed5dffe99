"""Groups of jobs: turns, limits and order in random histories, and each move alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from qframe import Queueable, QueueManager, batch, bulk, chain, dispatch, dispatch_sync, manager
from qframe.config import GroupSettings
from qframe.connection import Connection
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import State
from qframe.contracts.step import Delete, Push, Set, Step, Unset
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import ConfigurationError, InvalidJob, JobDefinitionError
from qframe.failed.retry import retry
from qframe.features import group_lines
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.testing import drain, fake
from tests.conftest import settings_of
from tests.support.process import wait_for

RAN: list[tuple[int, int]] = []


class Sync(Queueable):
    shop: int
    number: int = 0
    group = "shop:{shop}"
    queue = "mail"

    def handle(self) -> None:
        RAN.append((self.shop, self.number))


class Named(Queueable):
    shop: int
    queue = "mail"

    def group(self) -> str:
        return f"of {self.shop}"

    def handle(self) -> None:
        RAN.append((self.shop, -1))


class Plain(Queueable):
    number: int = 0
    queue = "mail"

    def handle(self) -> None:
        RAN.append((0, self.number))


class Only(Sync):
    unique = True


class Waits(Queueable):
    queue = "mail"
    group = "naps"

    def handle(self) -> None:
        value = self.step("a", lambda: 7)
        self.sleep("nap", 0.01)
        RAN.append((value, self.attempts))


def connect(fresh: Path, backend: dict[str, Any], **groups: Any) -> Connection:
    """Give a connection on a backend, with these settings for the groups of `mail`."""
    RAN.clear()
    settings = {"mail": groups} if groups else {}
    made = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {"here": {**backend, "retry_after": 60}},
            "jobs": [__name__],
            "groups": settings,
        }
    )
    manager.use(made)
    return made.connection()


@pytest.fixture(params=["database", "redis"])
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(request)


def queues() -> QueueManager:
    current = manager.current()
    assert current is not None
    return current


def left(connection: Connection) -> list[str]:
    """Give the keys of what is kept of groups, but for the mark of their queue."""
    return [key for key, _ in connection.backend.scan("group") if not key.startswith("groups:")]


def held(connection: Connection) -> ReservedJob | None:
    return next(iter(connection.reserve(["mail"])), None)


def started(connection: Connection) -> ReservedJob:
    """Take the next job that may run, as a worker does, and start it."""
    for _ in range(1000):
        job = held(connection)
        assert job is not None
        if admitted(job):
            return job
    raise AssertionError("every job waits")


def admitted(job: ReservedJob) -> bool:
    reason = job.wait_reason()
    if reason is not None:
        job.settle(End(State.WAITING, reason.delay))
        return False
    (result,) = job.context.backend.apply(job.start_plan())
    assert result.applied
    return True


def number(job: ReservedJob) -> tuple[int, int]:
    return job.payload["data"]["shop"], job.payload["data"]["number"]


# -- random histories -----------------------------------------------------------------------------


class History:
    """Random moves of jobs of several groups, by workers that may die; checks after each."""

    def __init__(self, connection: Connection, seed: int, settings: GroupSettings) -> None:
        self.connection = connection
        self.random = random.Random(seed)
        self.settings = settings
        self.pushed: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.running: list[ReservedJob] = []
        self.pending: Counter[tuple[int, int]] = Counter()

    def run(self, moves: int) -> None:
        for _ in range(moves):
            kinds = ["push", "push", "bulk", "late", "take", "take", "take", "end", "end", "again"]
            kinds += ["die", "die held", "wait", "die admitted"]
            getattr(self, self.random.choice(kinds).replace(" ", "_"))()
        self.drain()

    def job(self) -> Sync:
        made = Sync(shop=self.random.randrange(1, 4), number=len(self.pushed))
        self.pushed.append((made.shop, made.number))
        return made

    def push(self) -> None:
        dispatch(self.job()).send()

    def bulk(self) -> None:
        bulk([self.job() for _ in range(self.random.randrange(1, 6))])

    def late(self) -> None:
        if self.settings.order == "strict":  # it is pushed when it is due
            return
        dispatch(self.job()).delay(self.random.randrange(1, 5)).send()

    def take(self) -> None:
        job = held(self.connection)
        if job is not None and admitted(job):
            self.begins(job)

    def begins(self, job: ReservedJob) -> None:
        self.running.append(job)
        if self.settings.at_once:
            of = Counter(number(each)[0] for each in self.running)
            assert max(of.values()) <= self.settings.at_once, of
        if self.settings.order == "strict":
            earlier = {each for each in self.earlier(number(job)) if each[0] == number(job)[0]}
            assert earlier <= {*self.ended}, "an earlier one of its group has not ended"

    def earlier(self, key: tuple[int, int]) -> Iterable[tuple[int, int]]:
        """Give the jobs that were pushed before a job."""
        return [each for each in self.pushed if each < key]

    def one(self) -> ReservedJob | None:
        if not self.running:
            return None
        return self.running.pop(self.random.randrange(len(self.running)))

    def end(self) -> None:
        job = self.one()
        if job is not None:
            job.settle(End(State.COMPLETE))
            self.ended.append(number(job))

    def again(self) -> None:
        job = self.one()
        if job is not None:
            job.settle(End(State.RELEASED, self.random.choice([0, 0, 3]), how="released"))

    def die(self) -> None:
        if self.one() is not None:
            self.wait(70)

    def die_held(self) -> None:
        held(self.connection)
        self.wait(3)

    def die_admitted(self) -> None:
        """Die when the group is asked, before the start."""
        job = held(self.connection)
        if job is not None:
            job.wait_reason()
            self.wait(3)

    def wait(self, seconds: float = 5) -> None:
        for _ in range(int(seconds / 50)):
            self.connection.backend.timing.skew += 50
            for job in self.running:
                job.renew()
        self.connection.backend.timing.skew += seconds % 50
        for job in self.running:
            job.renew()

    def drain(self) -> None:
        """Let one good worker do the rest."""
        for _ in range(20):
            while self.running:
                self.end()
            self.wait(70)
            for _ in range(4 * len(self.pushed)):
                self.take()
                self.end()
        assert sorted(self.ended) == sorted(self.pushed), "each ended once"
        assert held(self.connection) is None
        assert not left(self.connection)


SETTINGS: list[dict[str, Any]] = [{}, {"concurrency": 1}, {"concurrency": 3}, {"order": "strict"}]
_SETTINGS = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@_SETTINGS
def test_no_history_loses_a_job_or_exceeds_a_limit(fresh: Path, settings: dict[str, Any]) -> None:
    for seed in range(60):
        connection = connect(fresh, {"driver": "memory"}, **settings)
        assert isinstance(connection.backend, MemoryBackend)
        History(connection, seed, GroupSettings(**settings)).run(60)


@_SETTINGS
def test_no_history_does_on_a_server(
    fresh: Path, backend: dict[str, Any], settings: dict[str, Any]
) -> None:
    connection = connect(fresh, backend, **settings)
    History(connection, 7, GroupSettings(**settings)).run(150)


# -- each move ------------------------------------------------------------------------------------


@pytest.fixture
def here(fresh: Path) -> Connection:
    return connect(fresh, {"driver": "memory"})


def take(connection: Connection, count: int) -> list[tuple[int, int]]:
    """Run so many jobs; give them in order."""
    found = []
    for _ in range(count):
        job = started(connection)
        found.append(number(job))
        job.settle(End(State.COMPLETE))
    return found


def test_one_job_beside_a_thousand_of_another_group_is_the_second(here: Connection) -> None:
    bulk([Sync(shop=1, number=number) for number in range(1000)])
    dispatch(Sync(shop=2)).send()
    dispatch(Plain(number=5)).send()
    assert here.size("mail") == 1002
    assert here.backend.sizes("mail").ready == 3, "the others are in line"
    assert take(here, 2) == [(1, 0), (2, 0)]
    drain(queues="mail")
    assert [(0, 5), *((1, number) for number in range(1, 1000))] == RAN
    assert not left(here)


@pytest.mark.slow
@pytest.mark.long
def test_one_job_beside_a_hundred_thousand_of_another_group_is_the_second(
    fresh: Path, backend: dict[str, Any]
) -> None:
    here = connect(fresh, backend)
    bulk(Sync(shop=1, number=number) for number in range(100_000))
    dispatch(Sync(shop=2)).send()
    assert here.size("mail") == 100_001
    assert here.backend.sizes("mail").ready == 2
    began = time.monotonic()
    assert take(here, 3) == [(1, 0), (2, 0), (1, 1)]
    assert time.monotonic() - began < 1, "a turn does not get slower with the backlog"
    assert here.clear("mail") == 99_998
    assert not left(here)


def test_groups_take_turns(here: Connection) -> None:
    bulk([Sync(shop=shop, number=number) for shop in (1, 2, 3) for number in range(3)])
    drain(queues="mail")
    assert [(shop, number) for number in range(3) for shop in (1, 2, 3)] == RAN


def test_without_a_limit_all_jobs_of_a_group_may_run_at_once(here: Connection) -> None:
    bulk([Sync(shop=1, number=number) for number in range(5)])
    jobs = [started(here) for _ in range(5)]
    assert [number(job)[1] for job in jobs] == [0, 1, 2, 3, 4]
    for job in jobs:
        job.settle(End(State.COMPLETE))
    assert not left(here)


def test_a_limit_holds_and_each_end_lets_the_next_in(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, concurrency=2)
    bulk([Sync(shop=1, number=number) for number in range(5)])
    first, second = started(here), started(here)
    assert held(here) is None
    second.settle(End(State.FAILED, error=ValueError("no")))
    third = started(here)
    assert number(third) == (1, 2)
    third.settle(End(State.RELEASED, 60, how="released"))
    assert held(here) is None, "one that is tried again keeps its place"
    first.settle(End(State.COMPLETE))
    assert take(here, 2) == [(1, 3), (1, 4)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_delayed_jobs_line_up_when_they_are_due(fresh: Path, settings: dict[str, Any]) -> None:
    here = connect(fresh, {"driver": "memory"}, **settings)
    for number in range(20):
        dispatch(Sync(shop=1, number=number)).delay(10).send()
    dispatch(Sync(shop=2)).delay(11).send()
    assert held(here) is None
    here.backend.timing.skew += 12
    drain(queues="mail")
    assert RAN.index((2, 0)) <= (GroupSettings(**settings).at_once or 1)
    RAN.remove((2, 0))
    assert [(1, number) for number in range(20)] == RAN
    assert not left(here)


def test_chains_and_batches_have_groups(here: Connection) -> None:
    chain(
        [Sync(shop=1), Sync(shop=1, number=1), Plain(number=2), Sync(shop=2, number=3)]
    ).dispatch()
    batch([Sync(shop=3, number=number) for number in range(4)]).then(Plain(number=9)).dispatch()
    drain(queues="mail")
    drain()
    drain(queues="mail")
    assert sorted(RAN) == [
        (0, 2), (0, 9), (1, 0), (1, 1), (2, 3), (3, 0), (3, 1), (3, 2), (3, 3)
    ]  # fmt: skip
    assert not left(here)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_job_with_steps_keeps_them(fresh: Path, settings: dict[str, Any]) -> None:
    here = connect(fresh, {"driver": "memory"}, **settings)
    dispatch(Waits()).send()
    dispatch(Waits()).send()

    def is_done() -> bool:
        here.backend.timing.skew += 5
        return drain(queues="mail").done > 0 and len(RAN) == 2

    wait_for(is_done, "both to end")
    assert [value for value, _ in RAN] == [7, 7]
    assert not left(here)


def test_a_unique_job_of_a_group_has_its_lock_in_line_too(here: Connection) -> None:
    dispatch(Sync(shop=1)).send()
    first = dispatch(Only(shop=1, number=1)).send()
    assert dispatch(Only(shop=1, number=1)).send() == first
    drain(queues="mail")
    assert RAN == [(1, 0), (1, 1)]
    assert dispatch(Only(shop=1, number=1)).send() != first


def test_a_job_is_put_into_a_group_at_its_dispatch(here: Connection) -> None:
    for number in range(3):
        dispatch(Plain(number=number)).in_group("a").send()
    dispatch(Sync(shop=1)).in_group("b").send()
    dispatch(Named(shop=4)).send()
    assert [each.line.name for each in group_lines.lines(here.context, "mail")] != []
    drain(queues="mail")
    assert RAN == [(0, 0), (1, 0), (4, -1), (0, 1), (0, 2)]


def test_two_queues_have_their_own_groups(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, concurrency=1)
    for queue in ("mail", "other"):
        for number in range(2):
            dispatch(Sync(shop=1, number=number)).on_queue(queue).send()
    assert len(here.reserve(["mail"], 2)) == 1
    assert len(here.reserve(["other"], 2)) == 1


def test_a_guess_that_is_wrong_costs_another_try(fresh: Path, backend: dict[str, Any]) -> None:
    here = connect(fresh, backend, concurrency=1)
    dispatch(Sync(shop=1)).send()
    here.context.kept.clear()
    bulk([Sync(shop=1, number=number) for number in (1, 2, 3)])
    here.context.kept.clear()
    dispatch(Sync(shop=1, number=4)).send()
    assert take(here, 5) == [(1, number) for number in range(5)]
    assert not left(here)


def test_signed_jobs_stand_in_line_with_their_signature(fresh: Path) -> None:
    connect(fresh, {"driver": "memory"})
    settings = {**queues().settings.model_dump(exclude_unset=True), "signing_key": "k" * 20}
    manager.use(QueueManager(settings))
    bulk([Sync(shop=1, number=number) for number in range(3)])
    drain(queues="mail")
    assert RAN == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("has_place", [True, False])
def test_a_job_of_a_wrong_signature_holds_only_its_group_until_it_is_forgotten(
    fresh: Path, settings: dict[str, Any], has_place: bool
) -> None:
    connect(fresh, {"driver": "memory"}, **{"concurrency": 1, **settings})
    given = {**queues().settings.model_dump(exclude_unset=True), "signing_key": "k" * 20}
    manager.use(QueueManager(given))
    here = queues().connection()
    bulk([Sync(shop=1, number=10 + number) for number in range(5)])
    bulk([Sync(shop=2, number=number) for number in range(6)])
    if has_place:
        job, bad = held(here), 10
        assert job is not None
        raw = job.raw_body.replace(b'"number":10', b'"number":99')
        assert raw != job.raw_body
        here.backend.apply(Step(job.reservation, Delete(), Push("mail", raw)))
    else:
        (found,) = (
            each for each in group_lines.lines(here.context, "mail") if each.line.name[-1] == "1"
        )
        key, bad = f"grouped:{found.key.removeprefix('group:')}:{found.line.first}", 0
        (text,) = here.backend.read(key)
        assert text is not None
        before, name, behind = text.partition('"number":')
        bad, forged = int(behind[:2]), f"{before}{name}99{behind[2:]}"
        here.backend.apply(Step(None, Set(key, forged)))
    ran, refused = list[tuple[int, int]](), 0
    while (job := held(here)) is not None:
        if job.refusal is not None:
            job.settle(End(State.FAILED, error=job.refusal))
            refused += 1
        elif admitted(job):
            ran.append(number(job))
            job.settle(End(State.COMPLETE))
    assert refused == 1
    assert [each for each in ran if each[0] == 2] == [(2, number) for number in range(6)]
    (record,) = here.failed.all()
    assert here.failed.forget(record)
    ran += take(
        here, sum(each.line.waiting + 1 for each in group_lines.lines(here.context, "mail"))
    )
    assert [each for each in ran if each[0] == 1] == [
        (1, number) for number in range(10, 15) if number != bad
    ]
    assert not left(here)


@pytest.mark.parametrize("settings", [{}, {"concurrency": 1}], ids=str)
def test_a_job_that_has_begun_is_not_put_in_line_where_its_attempts_would_be_lost(
    fresh: Path, settings: dict[str, Any]
) -> None:
    here = connect(fresh, {"driver": "memory"}, **settings)
    dispatch(Sync(shop=1)).send()
    job = started(here)
    if settings:  # else it has no place since its start
        here.backend.apply(Step(None, *(Unset(key) for key in left(here))))
    bulk([Sync(shop=1, number=number) for number in (1, 2, 3)])
    job.settle(End(State.RELEASED, 0, how="released"))
    seen = []
    for _ in range(20):
        here.backend.timing.skew += 2
        found = held(here)
        if found is not None and number(found) == (1, 0):
            assert (found.attempts(), len(found.history.attempts)) == (1, 1)
        if found is not None and admitted(found):
            seen.append(number(found))
            found.settle(End(State.COMPLETE))
    assert sorted(seen) == [(1, number) for number in range(4)]
    assert not left(here)


def test_jobs_that_run_at_once_have_no_groups(fresh: Path) -> None:
    connect(fresh, {"driver": "sync"}, concurrency=1)
    dispatch(Sync(shop=1)).send()
    dispatch(Plain(number=3)).in_group("a").send()
    dispatch_sync(Sync(shop=1, number=1))
    assert RAN == [(1, 0), (0, 3), (1, 1)]


def test_a_fake_knows_groups(here: Connection) -> None:
    del here
    with fake() as faked:
        dispatch(Sync(shop=1)).send()
        dispatch(Plain(number=3)).in_group("a").send()
    assert len(faked.jobs(Sync)) == len(faked.jobs(Plain)) == 1


def test_a_job_of_a_transaction_takes_its_turn_when_it_is_committed(
    fresh: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    here = connect(fresh, {"driver": "database", "url": url}, concurrency=1)
    dispatch(Sync(shop=1)).send()
    engine = create_engine(url)
    with engine.begin() as transaction:
        for number in (1, 2):
            dispatch(Sync(shop=1, number=number)).within(transaction).send()
    engine.dispose()
    job = started(here)
    for each in here.reserve(["mail"], 5):
        assert not admitted(each)
    assert here.size("mail") == 3
    job.settle(End(State.COMPLETE))
    assert take(here, 2) == [(1, 1), (1, 2)]
    assert not left(here)


async def _awaited() -> list[str]:
    return [await dispatch(Sync(shop=1, number=number)) for number in range(5)]


def test_awaited_dispatches_stand_in_line(here: Connection) -> None:
    assert len({*asyncio.run(_awaited())}) == 5
    drain(queues="mail")
    assert [*RAN] == [(1, number) for number in range(5)]
    assert not left(here)


# -- strict order ---------------------------------------------------------------------------------


def test_in_strict_order_a_failed_job_keeps_its_group_waiting(
    fresh: Path, backend: dict[str, Any]
) -> None:
    here = connect(fresh, backend, order="strict")
    bulk([Sync(shop=shop, number=number) for shop in (1, 2) for number in range(3)])
    job = started(here)
    assert number(job) == (1, 0)
    job.settle(End(State.FAILED, error=ValueError("no")))
    assert take(here, 3) == [(2, 0), (2, 1), (2, 2)]
    assert held(here) is None
    (record,) = here.failed.all()
    dispatch(Sync(shop=1, number=3)).send()
    assert held(here) is None
    assert retry(queues(), here.failed, record)
    assert take(here, 4) == [(1, number) for number in range(4)]
    assert not left(here)


def test_a_priority_breaks_no_strict_order(fresh: Path, backend: dict[str, Any]) -> None:
    here = connect(fresh, backend, order="strict")
    for place, priority in enumerate((5, 9, 0)):
        dispatch(Sync(shop=1, number=place)).priority(priority).send()
        dispatch(Sync(shop=2, number=place)).priority(9).send()
    ran = take(here, 6)
    for shop in (1, 2):
        assert [each for each in ran if each[0] == shop] == [(shop, 0), (shop, 1), (shop, 2)]
    assert ran[0] == (1, 0), "among groups it counts"
    assert not left(here)


def test_a_failed_job_that_is_forgotten_lets_its_group_go_on(
    fresh: Path, backend: dict[str, Any]
) -> None:
    here = connect(fresh, backend, order="strict")
    bulk([Sync(shop=1, number=number) for number in range(3)])
    started(here).settle(End(State.FAILED, error=ValueError("no")))
    (record,) = here.failed.all()
    assert here.failed.forget(record)
    assert not here.failed.forget(record)
    assert take(here, 2) == [(1, 1), (1, 2)]
    assert not left(here)


def test_a_failed_job_is_skipped_where_that_is_wanted(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, order="strict", on_failure="skip")
    bulk([Sync(shop=1, number=number) for number in range(3)])
    started(here).settle(End(State.FAILED, error=ValueError("no")))
    assert take(here, 2) == [(1, 1), (1, 2)]
    (record,) = here.failed.all()
    assert retry(queues(), here.failed, record)
    assert take(here, 1) == [(1, 0)]
    assert not left(here)


# -- a rate ---------------------------------------------------------------------------------------


def test_a_rate_spreads_the_starts_of_each_group(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, rate="1/m")
    bulk([Sync(shop=shop, number=number) for shop in (1, 2) for number in range(3)])
    assert take(here, 2) == [(1, 0), (2, 0)]
    assert held(here) is None
    here.backend.timing.skew += 50
    assert held(here) is None
    here.backend.timing.skew += 11
    assert take(here, 2) == [(1, 1), (2, 1)]
    assert held(here) is None


def test_a_rate_counts_starts_of_a_group_that_was_empty(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, rate="1/m")
    dispatch(Sync(shop=1)).send()
    assert take(here, 1) == [(1, 0)]
    dispatch(Sync(shop=1, number=1)).send()
    assert held(here) is None
    here.backend.timing.skew += 61
    assert take(here, 1) == [(1, 1)]
    here.backend.timing.skew += 200
    assert not left(here)


# -- operating ------------------------------------------------------------------------------------


def test_a_job_in_line_is_counted_cancelled_and_cleared(
    fresh: Path, backend: dict[str, Any]
) -> None:
    here = connect(fresh, backend, concurrency=1)
    ids = bulk([Sync(shop=1, number=number) for number in range(300)])
    assert here.size("mail") == 300
    assert here.cancel(ids[7]) is Cancelling.REMOVED
    assert here.cancel(ids[7]) is Cancelling.ABSENT
    assert take(here, 8) == [(1, number) for number in range(9) if number != 7]
    assert here.clear("mail") == 291
    assert here.size("mail") == 0
    assert not left(here)
    dispatch(Sync(shop=1)).send()
    assert take(here, 1) == [(1, 0)]


def test_a_job_in_line_is_cancelled_while_its_group_is_at_work(
    here: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bulk([Sync(shop=1, number=number) for number in range(5)])
    apply, changed = here.backend.apply, list[bool]()

    def meanwhile(*steps: Step) -> Any:
        if not changed:
            changed.append(True)
            dispatch(Sync(shop=1, number=5)).send()
        return apply(*steps)

    monkeypatch.setattr(here.backend, "apply", meanwhile)
    assert here.cancel(ids[3]) is Cancelling.REMOVED
    assert changed
    assert take(here, 5) == [(1, number) for number in range(6) if number != 3]
    assert not left(here)


def test_a_queue_of_which_all_jobs_are_in_line_behind_a_failed_one_is_found(
    fresh: Path, backend: dict[str, Any]
) -> None:
    here = connect(fresh, backend, order="strict")
    ids = bulk([Sync(shop=1, number=number) for number in range(3)])
    started(here).settle(End(State.FAILED, error=ValueError("no")))
    assert here.queues() == []
    assert group_lines.waiting_queues(here.context) == {"mail"}
    assert here.cancel(ids[1]) is Cancelling.REMOVED
    here.failed.flush()
    assert take(here, 1) == [(1, 2)]
    assert group_lines.waiting_queues(here.context) == set()
    assert not left(here)


def test_a_group_whose_message_is_gone_starts_again_after_a_clear(here: Connection) -> None:
    bulk([Sync(shop=1, number=number) for number in range(3)])
    here.backend.purge("mail")
    assert held(here) is None
    assert here.clear("mail") == 2
    dispatch(Sync(shop=1)).send()
    assert take(here, 1) == [(1, 0)]


def test_a_clear_leaves_what_runs_or_has_failed_its_place(fresh: Path) -> None:
    here = connect(fresh, {"driver": "memory"}, order="strict")
    bulk([Sync(shop=shop, number=number) for shop in (1, 2, 3) for number in range(3)])
    bulk([Only(shop=3, number=7)])
    running = started(here)
    started(here).settle(End(State.FAILED, error=ValueError("no")))
    assert here.clear("mail") == 8
    for shop in (1, 2, 3):
        dispatch(Sync(shop=shop, number=9)).send()
    assert dispatch(Only(shop=3, number=7)).is_duplicate is False, "its lock is free"
    assert take(here, 2) == [(3, 9), (3, 7)]
    assert held(here) is None
    running.settle(End(State.COMPLETE))
    assert take(here, 1) == [(1, 9)]
    here.failed.flush()
    assert take(here, 1) == [(2, 9)]
    assert not left(here)


def test_a_state_that_cannot_be_read_is_begun_anew(here: Connection) -> None:
    dispatch(Sync(shop=1)).send()
    (key,) = left(here)
    here.backend.apply(Step(None, Set(key, "[1")))
    dispatch(Sync(shop=1, number=1)).send()
    assert sorted(take(here, 2)) == [(1, 0), (1, 1)]
    assert not left(here)


def test_what_another_program_pushes_takes_its_turn(here: Connection) -> None:
    raw = here.envelope(Sync(shop=1)).raw
    for _ in range(2):
        here.backend.apply(Step(None, Push("mail", raw)))
    assert take(here, 2) == [(1, 0), (1, 0)]
    assert not left(here)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a" * 201, "a\n", 7, None])
def test_what_is_no_name_is_refused(here: Connection, name: Any) -> None:
    del here
    with pytest.raises(InvalidJob, match="a group is named by a text"):
        dispatch(Plain()).in_group(name)


def test_a_format_names_fields() -> None:
    with pytest.raises(JobDefinitionError, match="'store' is no field of the job"):

        class Wrong(Queueable):
            shop: int
            group = "shop:{store}"

            def handle(self) -> None: ...

    with pytest.raises(JobDefinitionError, match=r"group: 'shop:\{shop'"):

        class Open(Queueable):
            shop: int
            group = "shop:{shop"

            def handle(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rate": "10"}, "takes a number for each second"),
        ({"rate": "0/s"}, "takes a number for each second"),
        ({"concurrency": 0}, "concurrency"),
        ({"order": "fifo"}, "order"),
        ({"order": "strict", "concurrency": 2}, "one job of a group at a time"),
        ({"on_failure": "skip"}, "is for order"),
        ({"wieght": 2}, "wieght"),
    ],
)
def test_settings_that_are_wrong_are_refused(
    fresh: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        connect(fresh, {"driver": "memory"}, **settings)
