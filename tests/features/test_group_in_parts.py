"""Groups where messages and facts are apart: in random histories, with deaths at any call."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import (
    Flow,
    Queueable,
    QueueManager,
    batch,
    bulk,
    chain,
    dispatch,
    job_status,
    manager,
)
from qframe.config import GroupSettings
from qframe.connection import Connection
from qframe.contracts.flow import NodeState
from qframe.contracts.status import State
from qframe.contracts.step import Push, Set, Step
from qframe.dispatch.pending import PendingDispatch
from qframe.drivers import claims
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.failed.retry import retry
from qframe.features import group_lines, in_line
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.testing import drain
from tests.features.flow_hands import Hands, states
from tests.features.test_group import (
    RAN,
    SETTINGS,
    History,
    Only,
    Sync,
    admitted,
    held,
    left,
    number,
    started,
    take,
)

_SETTINGS = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def connect(fresh: Path, **groups: Any) -> Connection:
    RAN.clear()
    made = QueueManager(
        {
            "root": fresh,
            "default": "jobs",
            "connections": {"jobs": {"driver": "memory"}, "facts": {"driver": "memory"}},
            "store": {"driver": "facts"},
            "jobs": ["tests.features.test_group"],
            "groups": {"mail": groups} if groups else {},
        }
    )
    manager.use(made)
    return made.connection()


class Apart(History):
    """As the others, with the clocks of both backends."""

    def __init__(self, connection: Connection, seed: int, settings: GroupSettings) -> None:
        super().__init__(connection, seed, settings)
        self.hands = Hands(connection, seed)

    def wait(self, seconds: float = 5) -> None:
        assert isinstance(self.connection.backend, OrderedBackend)
        facts = self.connection.backend.facts
        facts.timing.skew += seconds
        super().wait(seconds)


class Deadly(Apart):
    """Dispatchers and workers die at any call; so a job may run again, and late."""

    def run(self, moves: int) -> None:
        for _ in range(moves):
            kinds = ["push", "push", "bulk", "take", "take", "end", "end", "again"]
            known = len(self.pushed)
            dead = True
            with self.hands.dying(self.random.choice([0, 0, 1, 2, 3, 4, 5, 6])):
                getattr(self, self.random.choice(kinds))()
                dead = False
            if dead:
                del self.pushed[known:]  # it was not accepted, and may run all the same
                self.connection.context.kept.clear()  # what the process knew
                self.wait(10)
        self.drain()

    def begins(self, job: ReservedJob) -> None:
        self.running.append(job)

    def drain(self) -> None:
        self.work()
        if left(self.connection):
            # A dispatcher that died may leave a place that nobody uses, until the next dispatch.
            for shop in (1, 2, 3):
                dispatch(Sync(shop=shop, number=1000)).send()
                self.pushed.append((shop, 1000))
            self.work()
        assert not left(self.connection)

    def work(self) -> None:
        """Let one good worker do the rest."""
        idle = 0
        while idle < 3:
            while self.running:
                self.end()
            self.wait(70)
            idle += 1
            while (job := held(self.connection)) is not None:
                idle = 0
                self.handle(job)
                while self.running:
                    self.end()
        assert {*self.pushed} <= {*self.ended}, "what was accepted has run"

    def take(self) -> None:
        job = held(self.connection)
        if job is not None:
            self.handle(job)

    def handle(self, job: ReservedJob) -> None:
        if job.payload["job"].startswith("qframe."):
            self.hands.run(job)
        elif (reason := job.skip_reason()) is not None:
            job.settle(End(State.SKIPPED, remark=reason))
            if "done before" in reason:
                self.ended.append(number(job))
        elif admitted(job):
            self.begins(job)


class Stalling(Deadly):
    """Dispatchers stand still at any call, for longer than they may, while others go on."""

    def __init__(self, connection: Connection, seed: int, settings: GroupSettings) -> None:
        super().__init__(connection, seed, settings)
        self.count = 0
        self.refused: list[tuple[PendingDispatch, tuple[int, int]]] = []
        self.before: dict[tuple[int, int], set[tuple[int, int]]] = {}
        """By job: those of its group that were accepted before its dispatch began."""

    def run(self, moves: int) -> None:
        for _ in range(moves):
            kinds = [
                "push",
                "push",
                "bulk",
                "repeat",
                "take",
                "take",
                "take",
                "end",
                "end",
                "again",
            ]
            kind = self.random.choice(kinds)
            if kind in {"push", "bulk", "repeat"}:
                with self.hands.interrupted(self.random.randrange(7), self.others):
                    getattr(self, kind)()
            else:
                getattr(self, kind)()
        self.drain()

    def others(self) -> None:
        self.wait(self.random.choice([0, 3, 10]))
        for _ in range(self.random.randrange(1, 6)):
            getattr(self, self.random.choice(["push", "take", "take", "end"]))()

    def job(self) -> Sync:
        self.count += 1
        made = Sync(shop=self.random.randrange(1, 4), number=self.count)
        self.before[made.shop, made.number] = {*self.pushed}
        return made

    def push(self) -> None:
        made = self.job()
        self.send(dispatch(made), (made.shop, made.number))

    def repeat(self) -> None:
        if self.refused:
            pending, key = self.refused.pop()
            self.before[key] = {*self.pushed}
            self.send(pending, key)

    def send(self, pending: PendingDispatch, key: tuple[int, int]) -> None:
        try:
            pending.send()
        except BackendUnavailable:
            self.refused.append((pending, key))
        else:
            self.pushed.append(key)

    def bulk(self) -> None:
        made = [self.job() for _ in range(self.random.randrange(1, 6))]
        with suppress(BackendUnavailable):
            bulk(made)
            self.pushed += [(each.shop, each.number) for each in made]

    def begins(self, job: ReservedJob) -> None:
        History.begins(self, job)

    def earlier(self, key: tuple[int, int]) -> set[tuple[int, int]]:
        return self.before.get(key, set())


@_SETTINGS
def test_a_dispatcher_that_stands_still_loses_no_job_and_breaks_neither_limit_nor_order(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    for seed in range(40):
        history = Stalling(connect(fresh, **settings), seed, GroupSettings(**settings))
        clock = SimpleNamespace(sleep=lambda _, passing=history.hands.let_pass: passing(1))
        monkeypatch.setattr(claims, "time", clock)
        history.run(50)


@_SETTINGS
def test_no_history_loses_a_job_or_exceeds_a_limit(fresh: Path, settings: dict[str, Any]) -> None:
    for seed in range(40):
        Apart(connect(fresh, **settings), seed, GroupSettings(**settings)).run(60)


@_SETTINGS
def test_no_death_loses_a_job_or_stops_a_group(fresh: Path, settings: dict[str, Any]) -> None:
    for seed in range(60):
        Deadly(connect(fresh, **settings), seed, GroupSettings(**settings)).run(50)


# -- each move ------------------------------------------------------------------------------------


@pytest.fixture
def strict(fresh: Path) -> Connection:
    return connect(fresh, order="strict")


def pushes_fail(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(connection.backend, OrderedBackend)
    messages = connection.backend.messages

    def refusing(*_steps: Step) -> Any:
        error = BackendUnavailable("away")
        error.in_doubt = False
        raise error

    monkeypatch.setattr(messages, "apply", refusing)


def test_one_job_beside_a_thousand_of_another_group_is_the_second(fresh: Path) -> None:
    here = connect(fresh)
    bulk([Sync(shop=1, number=number) for number in range(1000)])
    dispatch(Sync(shop=2)).send()
    assert here.size("mail") == 1001
    assert here.backend.sizes("mail").ready == 2, "the others are in line"
    assert take(here, 2) == [(1, 0), (2, 0)]
    drain(queues="mail")
    assert [(1, number) for number in range(1, 1000)] == RAN
    assert not left(here)


def test_a_dispatch_that_fails_leaves_its_group_usable(
    strict: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:
        pushes_fail(strict, away)
        with pytest.raises(BackendUnavailable):
            dispatch(Sync(shop=1)).send()
    dispatch(Sync(shop=1, number=1)).send()
    dispatch(Sync(shop=1, number=2)).send()
    assert take(strict, 2) == [(1, 1), (1, 2)]
    assert held(strict) is None
    assert not left(strict)


def test_jobs_in_line_behind_a_dispatch_that_failed_go_on_with_the_next(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk puts jobs in line before its first one is pushed."""
    here = connect(fresh, order="strict")
    with monkeypatch.context() as away:
        pushes_fail(here, away)
        with pytest.raises(BackendUnavailable):
            bulk([Sync(shop=1, number=number) for number in range(3)])
    here.context.kept.clear()  # another process
    dispatch(Sync(shop=1, number=3)).send()
    drain(queues="mail")
    assert RAN[-1] == (1, 3)
    assert (1, 0) not in RAN
    assert not left(here)


def test_a_failed_job_keeps_its_group_waiting_until_it_is_retried_or_forgotten(
    strict: Connection,
) -> None:
    bulk([Sync(shop=1, number=number) for number in range(4)])
    started(strict).settle(End(State.FAILED, error=ValueError("no")))
    assert held(strict) is None
    (record,) = strict.failed.all()
    current = manager.current()
    assert current is not None
    assert retry(current, strict.failed, record)
    assert take(strict, 2) == [(1, 0), (1, 1)]
    started(strict).settle(End(State.FAILED, error=ValueError("no")))
    assert held(strict) is None
    (record,) = strict.failed.all()
    assert strict.failed.forget(record)
    drain(queues="mail")
    assert RAN == [(1, 3)]
    assert not left(strict)


def test_delayed_jobs_line_up_when_they_are_due(fresh: Path) -> None:
    here = connect(fresh, concurrency=1)
    for place in range(5):
        dispatch(Sync(shop=1, number=place)).delay(10).send()
    dispatch(Sync(shop=2)).delay(11).send()
    here.backend.timing.skew += 12
    drain(queues="mail")
    assert RAN.index((2, 0)) <= 1
    RAN.remove((2, 0))
    assert [(1, place) for place in range(5)] == RAN
    assert not left(here)


def test_a_clear_empties_the_line(strict: Connection) -> None:
    bulk([Sync(shop=1, number=number) for number in range(3)])
    assert strict.clear("mail") == 3
    dispatch(Sync(shop=1, number=7)).send()
    assert take(strict, 1) == [(1, 7)]
    assert not left(strict)


def test_a_clear_where_no_search_is_lets_groups_begin_anew(
    fresh: Path, request: pytest.FixtureRequest
) -> None:
    made = QueueManager(
        {
            "root": fresh,
            "default": "here",
            "connections": {
                "here": {
                    "driver": "beanstalkd",
                    "port": request.getfixturevalue("beanstalkd_server").port,
                }
            },
            "groups": {"mail": {"order": "strict"}},
        }
    )
    manager.use(made)
    here = made.connection()
    bulk([Sync(shop=1, number=number) for number in range(3)])
    assert here.clear("mail") == 3
    dispatch(Sync(shop=1, number=7)).send()
    assert take(here, 1) == [(1, 7)]
    assert not left(here)


# -- with other features --------------------------------------------------------------------------


class Part(Queueable):
    """A node, link, member or item, in a group."""

    queue = "mail"
    group = "shop:{shop}"

    shop: int
    number: int
    seen: Any = None

    def handle(self) -> list[int]:
        RAN.append((self.shop, self.number))
        return [self.number, self.number + 1]


class GroupHands(Hands):
    """As the others, for jobs that wait for their groups."""

    def run(self, job: ReservedJob) -> None:
        if (reason := job.skip_reason()) is not None:
            job.settle(End(State.SKIPPED, remark=reason))
        elif (postponed := job.wait_reason()) is not None:
            job.settle(End(State.WAITING, postponed.delay))
        else:
            super().run(job)

    def work(self, deaths: list[int]) -> None:
        """Work until nothing is left; each number is after how many calls a worker dies."""
        left, idle = iter(deaths), 0
        while idle < 30:
            with self.dying(next(left, 0)):
                jobs = self.connection.reserve([self.random.choice(["mail", "default"])])
                idle = 0 if jobs else idle + 1
                if jobs:
                    self.run(jobs[0])
                else:
                    self.let_pass(100)
            self.connection.context.kept.clear()


@_SETTINGS
def test_flows_chains_and_batches_in_groups_end_whoever_dies(
    fresh: Path, settings: dict[str, Any]
) -> None:
    for seed in range(15):
        here = connect(fresh, **settings)
        hands = GroupHands(here, seed)
        flow = Flow()
        first = flow.add(Part(shop=1, number=1))
        every = flow.map(Part, over=first.result, shop=1)
        links = flow.add(chain([Part(shop=1, number=10), Part(shop=2, number=11)]), after=[first])
        some = flow.add(batch([Part(shop=1, number=20), Part(shop=1, number=21)]))
        flow.add(Part(shop=2, number=30, seen=[every.result, links.result]), after=[some])
        run = flow.dispatch()
        batch([Part(shop=1, number=40), Part(shop=1, number=41)]).then(
            Part(shop=1, number=50)
        ).dispatch()
        chain([Part(shop=1, number=60), Part(shop=2, number=61)]).dispatch()
        hands.work([hands.random.choice([0, 0, *range(9)]) for _ in range(80)])
        assert {*states(run)} == {NodeState.DONE}
        assert {number for _, number in RAN} == {
            1, 2, 10, 11, 20, 21, 30, 40, 41, 50, 60, 61
        }  # fmt: skip
        assert not left(here)


@_SETTINGS
def test_the_result_of_a_job_outlives_a_worker_that_dies_in_its_end(
    fresh: Path, settings: dict[str, Any]
) -> None:
    for calls in range(1, 12):
        here = connect(fresh, **settings)
        uuid = dispatch(Part(shop=1, number=1)).track().send()
        dispatch(Part(shop=1, number=2)).send()
        GroupHands(here, seed=1).work([calls])
        status = job_status(uuid)
        assert status is not None
        assert (status.state, status.result) == (State.COMPLETE, [1, 2]), calls


# -- after a break, and beside other programs -----------------------------------------------------


def let_pass(connection: Connection, seconds: float) -> None:
    Hands(connection).let_pass(seconds)


def run_all(connection: Connection) -> list[tuple[int, int]]:
    """Let one worker do everything; return what ran."""
    ran, idle = list[tuple[int, int]](), 0
    while idle < 3:
        job = held(connection)
        if job is None:
            idle += 1
            let_pass(connection, 70)
        elif job.payload["job"].startswith("qframe."):
            Hands(connection).run(job)
        elif (reason := job.skip_reason()) is not None:
            job.settle(End(State.SKIPPED, remark=reason))
        elif admitted(job):
            ran.append(number(job))
            job.settle(End(State.COMPLETE))
    return ran


def test_a_dispatcher_that_died_hours_ago_does_not_stop_its_group(strict: Connection) -> None:
    with Hands(strict).dying(2):
        dispatch(Sync(shop=1)).send()
    strict.context.kept.clear()
    let_pass(strict, 7200)
    dispatch(Sync(shop=1, number=1)).send()
    assert run_all(strict) == [(1, 1)]
    assert not left(strict)


def test_a_dispatch_that_is_repeated_runs_though_it_stood_in_line(
    strict: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = dispatch(Sync(shop=1))
    with monkeypatch.context() as away:
        pushes_fail(strict, away)
        with pytest.raises(BackendUnavailable):
            pending.send()
    dispatch(Sync(shop=1, number=1)).send()
    pending.send()
    assert run_all(strict) == [(1, 1), (1, 0)]
    assert not left(strict)


def test_a_void_message_that_ends_late_leaves_its_repeated_dispatch_alone(
    strict: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = dispatch(Sync(shop=1))
    assert isinstance(strict.backend, OrderedBackend)
    messages = strict.backend.messages
    apply = messages.apply

    def unanswered(*steps: Step) -> Any:
        apply(*steps)
        raise BackendUnavailable("no answer")

    with monkeypatch.context() as away:
        away.setattr(messages, "apply", unanswered)
        with pytest.raises(BackendUnavailable):
            pending.send()
    void = held(strict)
    assert void is not None
    reason = void.skip_reason()
    assert reason is not None
    assert reason.startswith("never dispatched")
    dispatch(Sync(shop=1, number=1)).send()
    pending.send()
    void.settle(End(State.SKIPPED, remark=reason))
    assert run_all(strict) == [(1, 1), (1, 0)]
    assert not left(strict)


def test_a_payload_that_is_pushed_again_after_its_job_is_done_runs_again(
    strict: Connection,
) -> None:
    raw = strict.envelope(Sync(shop=1)).raw
    for _ in range(2):
        strict.push_raw(raw, "mail")
        assert run_all(strict) == [(1, 0)]
    dispatch(Sync(shop=1, number=1)).send()
    strict.push_raw(raw, "mail")
    assert run_all(strict) == [(1, 1), (1, 0)]
    assert not left(strict)


def test_a_failed_job_that_another_program_pushes_again_runs(strict: Connection) -> None:
    bulk([Sync(shop=1, number=number) for number in range(3)])
    job = started(strict)
    job.settle(End(State.FAILED, error=ValueError("no")))
    strict.backend.apply(Step(None, Push("mail", job.raw_body)))
    assert run_all(strict) == [(1, 0), (1, 1), (1, 2)]
    assert not left(strict)


@pytest.mark.parametrize("how", ["remove", "clear"])
def test_a_job_that_leaves_the_line_to_be_cancelled_is_not_lost_to_a_faster_worker(
    strict: Connection, how: str
) -> None:
    dispatch(Sync(shop=1)).send()
    uuid = dispatch(Only(shop=1, number=1)).delay(1).send()
    let_pass(strict, 2)
    first = started(strict)
    job = held(strict)
    assert job is not None
    assert not admitted(job)
    if how == "remove":
        found, _ = in_line.find(strict.context, ["mail"], uuid)
        assert found is not None
        assert not in_line.remove(strict.context, found)
    else:
        group_lines.clear(strict.context, "mail")
    job = held(strict)
    assert job is not None
    assert not admitted(job)
    first.settle(End(State.COMPLETE))
    assert run_all(strict) == [(1, 1)]
    assert not left(strict)


@pytest.mark.parametrize("has_store", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("through", ["jobs", "another"])
def test_a_failed_job_that_is_kept_elsewhere_is_forgotten_and_its_group_goes_on(
    fresh: Path, has_store: bool, through: str
) -> None:
    """Several connections may share the place, and any of them forget it."""
    names = ("another", "jobs", "facts", "failures")
    made = QueueManager(
        {
            "root": fresh,
            "default": "jobs",
            "connections": {name: {"driver": "memory"} for name in names},
            **({"store": {"driver": "facts"}} if has_store else {}),
            "failed": {"driver": "failures"},
            "groups": {"mail": {"order": "strict"}},
        }
    )
    manager.use(made)
    here = made.connection()
    bulk([Sync(shop=1, number=number) for number in range(3)])
    started(here).settle(End(State.FAILED, error=ValueError("no")))
    store = made.failed_store(through)
    (record,) = store.all()
    assert store.forget(record)
    assert run_all(here) == [(1, 1), (1, 2)]
    assert not left(here)


_WRONG = [
    '["a","w",0,1e15,[],0]', '["a","w",0,5,[],1e308]', '["a","w",-5,5,[],0]', '["a","w",9,5,[],0]',
    '["a","w",0,0,[],NaN]', '["a","w",0,1,[],1e12]',
]  # fmt: skip


@pytest.mark.parametrize("text", [*_WRONG, '["a","w",0,90000,[],0]'])
@pytest.mark.parametrize("settings", [{"order": "strict"}, {"rate": "10/s"}], ids=str)
def test_a_state_that_somebody_changed_stops_neither_worker_nor_group(
    fresh: Path, text: str, settings: dict[str, Any]
) -> None:
    here = connect(fresh, **settings)
    dispatch(Sync(shop=1)).send()
    (key,) = left(here)
    here.backend.apply(Step(None, Set(key, text)))
    here.context.kept.clear()
    hands = Hands(here)
    with hands.dying(0):
        assert run_all(here) == [(1, 0)]
    assert hands.largest < 1100
    dispatch(Sync(shop=1, number=1)).send()
    assert run_all(here) == [(1, 1)]
    assert not left(here)
