"""What stands of a push that was broken off, where jobs and facts are in different places."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pytest

from qframe import Flow, Queueable
from qframe.config import ConnectionSettings, GroupSettings
from qframe.connection import Connection
from qframe.contracts.backend import Backend
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Set, Step
from qframe.drivers import claims
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.features import chain, status
from qframe.features.all import FEATURES
from qframe.features.base import End, Plan
from qframe.features.batch import BatchMember
from qframe.features.chain import ChainPlan
from qframe.features.context import Context
from qframe.features.flows import FlowStore
from qframe.features.reserved import ReservedJob
from qframe.schedules.definition import Schedule
from qframe.schedules.options import ScheduleOptions
from qframe.schedules.releases import Releases
from qframe.schedules.scheduler import Scheduler
from qframe.schedules.state import ScheduleKeys
from tests.features.test_batch import Benches
from tests.features.test_chain import link, ordered
from tests.support.breaking import Fault, Faulty
from tests.support.clock import Clock

LOCK = "unique:app.Demo:1"
UNIQUE: dict[str, Any] = {"unique": {"key": LOCK, "for": 3600, "until": "handled"}}
STARTED: dict[str, Any] = {"unique": {"key": LOCK, "for": 3600, "until": "started"}}
DEBOUNCED: dict[str, Any] = {"debounce": {"key": "debounce:app.Demo:1", "for": 3600}}
ONCE: dict[str, Any] = {"once": {"key": "once:app.Demo:1", "for": 3600}}
TRACKED: dict[str, Any] = {"track": 86400}
GROUPED: dict[str, Any] = {"group": "shop"}
STRICT = "strict"
"""A queue where a group runs one job at a time."""
QUEUES = ("q", "default", STRICT, "run", "told")
MOST = 60

Push = Callable[["World", str], str]
"""Dispatches the job of a name; gives which is there instead, or ""."""


class Named(Queueable):
    """A job by its name: its uuid is made at its dispatch."""

    name: str

    def handle(self) -> None: ...


class Single(Named):
    unique = True
    track = True

    def unique_id(self) -> int:
        return 1


class World(Benches):
    """Messages and facts that outlive the processes which dispatch and work."""

    def __init__(self, backend: OrderedBackend | None = None) -> None:
        self.ordered = backend or ordered()
        self.parts: Sequence[Backend] = (
            self.ordered.messages, self.ordered.facts, self.ordered.failed,
        )  # fmt: skip
        super().__init__(self.ordered)
        self.context.groups = {STRICT: GroupSettings(order="strict")}
        self.clock = Clock()
        self.schedules: list[Schedule] = []

    @cached_property
    def connection(self) -> Connection:
        return Connection(self.context, ConnectionSettings(driver="memory"))

    def host(self) -> Scheduler:
        """Give one that makes the runs of all schedules, and knows nothing yet."""
        keys, store = ScheduleKeys(self.connection.name), self.connection.store
        return Scheduler(
            self.connection, self.schedules, Releases(store, keys, {__name__: "1"}), keys,
            rows=lambda _: [], clock=self.clock,
        )  # fmt: skip

    def let_schedules_pass(self) -> None:
        """Let a scheduler make what is due, and push what another one has left."""
        host = self.host()
        for _ in range(8 if self.schedules else 0):
            host.turn()
            self.clock.now += 1

    def let_pass(self, seconds: float) -> None:
        """Let time pass everywhere."""
        for part in self.parts:
            part.timing.skew += seconds

    def work(self, *queues: str) -> list[str]:
        """Work as a worker does until nothing is left; gives the uuids of what ran."""
        names = queues or QUEUES
        before = len(self.ran)
        while job := next((job for name in names if (job := self.reserve(name))), None):
            if self.begins(job):
                if job.payload["job"].startswith("qframe."):
                    self.handle(job)
                else:
                    self.ran.append(job.payload["data"].get("name", job.uuid))
                job.settle(End(State.COMPLETE))
        return self.ran[before:]

    def begins(self, job: ReservedJob) -> bool:
        """Start a held job, or do with it what is to be done instead."""
        if skip_reason := job.skip_reason():
            job.settle(End(State.SKIPPED, remark=skip_reason))
        elif waits := job.wait_reason():
            job.settle(End(State.WAITING, waits.delay, waits.why))
        else:
            assert self.backend.apply(job.start_plan())[0].applied
            return True
        return False

    def drain(self, *queues: str) -> list[str]:
        """Do so, with all that is delayed or to be pushed by a scheduler."""
        ran = self.work(*queues)
        self.let_schedules_pass()
        self.let_pass(60)
        return ran + self.work(*queues)

    def operations(self, name: str) -> list[Any]:
        """Give the step that pushes a unique job."""
        plan = Plan()
        self.context.plan_push(self.pushing(name, **UNIQUE), plan)
        return plan.operations

    def facts(self, prefix: str) -> dict[str, str]:
        return dict(self.backend.scan(prefix))

    def waiting(self) -> list[str]:
        """Name the jobs whose status says that they wait."""
        said = {key: json.loads(text) for key, text in self.facts("status:").items()}
        return [key for key, told in said.items() if told["state"] == State.WAITING]


def pushes(delay: float = 0.0, queue: str = "q", **keys: Any) -> Push:
    return lambda world, name: world.push(name, queue, delay, **keys)


def schedules(
    kind: type[Named] = Named, *, alone: bool = False, queue: str = "default", **keys: Any
) -> Push:
    """Let a scheduler make the one run of a new schedule."""

    def push(world: World, name: str) -> str:
        at = datetime.fromtimestamp(world.clock.now + 1, UTC)
        made = Schedule(kind(name=name), ScheduleOptions(), "here", __name__).at(at).name(name)
        made = (made.without_overlapping() if alone else made).on_queue(queue)
        world.schedules.append(made.finished("UTC"))
        world.connection.payload_keys = keys
        host = world.host()
        host.turn()
        world.clock.now += 1
        host.turn()
        return ""

    return push


def flows(kind: type[Named] = Named) -> Push:
    """Dispatch a flow: two jobs after a first one, and one after both."""

    def push(world: World, name: str) -> str:
        made = Flow()
        first = made.add(kind(name=name))
        middle = [made.add(Named(name=f"{name}{number}"), after=[first]) for number in (2, 3)]
        made.add(Named(name=f"{name}4"), after=middle)
        world.connection.start_flow(made._plan(world.connection, name))
        return ""

    return push


def chains(**keys: Any) -> Push:
    """Dispatch a chain of two, the first with these keys; "another": that one was passed over."""

    def push(world: World, name: str) -> str:
        said = {"id": name}
        links = link(world, name, chain=said, **keys), link(world, f"{name}2", chain=said)
        chain.start(world.context, ChainPlan(name, [None] * 2, links))
        (head,) = world.backend.read(f"chain:{name}")
        return "" if head is not None and f'"at":"{name}"' in head else "another"

    return push


def batches(delay: float = 0.0, **keys: Any) -> Push:
    """Dispatch a batch of two, one with these keys."""

    def push(world: World, name: str) -> str:
        def first(number: int) -> ChainPlan:
            said = {**keys, **BatchMember(name, number).keys()}
            return ChainPlan("", [None], [link(world, name, delay=delay, chain=None, **said)])

        members = first, world.maker(f"{name}2", batch=name)
        world.batches.start(world.plan(*members, batch=name, follow=["then", "finally"]))
        return ""

    return push


def bulk(world: World, name: str) -> str:
    """Push two unique jobs together, and a plain one."""
    other: dict[str, Any] = {"unique": {**UNIQUE["unique"], "key": f"{LOCK}other"}}
    jobs = [
        world.pushing(name, **UNIQUE), world.pushing(f"{name}2", **other, **TRACKED),
        world.pushing(f"{name}3"),
    ]  # fmt: skip
    plans = [Plan() for _ in jobs]
    for job, plan in zip(jobs, plans, strict=True):
        world.context.plan_push(job, plan)
    results = world.backend.apply(*plans)
    held = [world.context.pushed(*each) for each in zip(jobs, plans, results, strict=True)]
    return held[0]


SCHEDULED: dict[str, Push] = {
    "schedule": schedules(),
    "schedule of unique jobs": schedules(Single),
    "schedule without overlaps": schedules(alone=True, **TRACKED),
    "schedule of jobs with keys": schedules(**ONCE),
    "schedule of a group": schedules(queue=STRICT, **GROUPED, **TRACKED),
}
IN_GROUPS: dict[str, Push] = {
    "group": pushes(**GROUPED),
    "group in order": pushes(queue=STRICT, **GROUPED, **TRACKED),
    "group, delayed": pushes(delay=5, **GROUPED, **TRACKED),
    "group of unique jobs": pushes(queue=STRICT, **GROUPED, **UNIQUE),
}
ONE_AT_A_TIME: dict[str, Push] = {
    "unique": pushes(**UNIQUE),
    "unique until it starts": pushes(**STARTED),
    "unique, delayed and tracked": pushes(delay=5, **UNIQUE, **TRACKED),
    "chain": chains(**UNIQUE),
    "bulk": bulk,
}
KINDS: dict[str, Push] = {
    **ONE_AT_A_TIME,
    "plain": pushes(),
    "tracked": pushes(**TRACKED),
    "once": pushes(**ONCE),
    "once, delayed and tracked": pushes(delay=5, **ONCE, **TRACKED),
    "unique and once": pushes(**UNIQUE, **ONCE),
    "debounced": pushes(delay=5, **DEBOUNCED),
    "debounced and tracked": pushes(delay=5, **DEBOUNCED, **TRACKED),
    "debounced without a delay": pushes(**DEBOUNCED),
    "debounced and tracked, without a delay": pushes(**DEBOUNCED, **TRACKED),
    "chain of plain jobs": chains(),
    "chain of debounced jobs": chains(delay=5, **DEBOUNCED, **TRACKED),
    "batch": batches(),
    "batch of unique jobs": batches(**UNIQUE, **TRACKED),
    "chain of jobs with keys": chains(**ONCE),
    "batch of jobs with keys": batches(**ONCE),
    "batch of debounced jobs": batches(delay=5, **DEBOUNCED),
    "chain of debounced jobs without a delay": chains(**DEBOUNCED),
    "batch of debounced jobs without a delay": batches(**DEBOUNCED),
    "chain in a group": chains(**GROUPED),
    "batch in a group": batches(**GROUPED, **TRACKED),
    "flow": flows(),
    "flow of unique jobs": flows(Single),
    **IN_GROUPS,
    **SCHEDULED,
}
faults = pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)


def broken(
    push: Push, fault: Fault, *before: tuple[Push, str], make: Callable[[], World] = World
) -> Iterator[tuple[World, bool]]:
    """Break a dispatch off at each of its calls in turn; gives the worlds, and whether it returned.

    The last one is not broken off.
    """
    for place in range(MOST):
        world = make()
        for earlier, name in before:
            assert earlier(world, name) == ""
        with Faulty(world.parts, place, fault) as faulty:
            push(world, "a")
        yield world, faulty.raised is None
        if faulty.broken is None:
            return
    pytest.fail("it never ended")


@faults
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_accepted_runs_and_nothing_says_that_it_waits(kind: str, fault: Fault) -> None:
    for world, accepted in broken(KINDS[kind], fault):
        ran = world.drain()
        assert "a" in ran or not accepted
        assert world.waiting() == []
        held = world.facts("unique:").values()
        assert all(claims.is_unproven(each) for each in held)
        if accepted:
            assert not held
            assert ran.count("a") == 1


@faults
@pytest.mark.parametrize("kind", ONE_AT_A_TIME)
def test_the_next_dispatch_is_no_duplicate_of_a_job_that_never_was(kind: str, fault: Fault) -> None:
    """At once, or, of a dispatcher that was killed or could not withdraw, when it had its time."""
    for world, accepted in broken(KINDS[kind], fault):
        if fault.is_deadly or fault is Fault.DOWN:
            world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        holder = KINDS[kind](world, "b")
        ran = world.drain()
        assert ("a" in ran) == bool(holder), "a duplicate of what ran, or else alone"
        assert ("b" in ran) == (not holder)
        assert holder or not accepted
        assert world.facts("unique:") == {}
        assert world.waiting() == []


@faults
@pytest.mark.parametrize("kind", ONE_AT_A_TIME)
def test_nor_is_one_that_comes_after_the_workers(kind: str, fault: Fault) -> None:
    for world, _ in broken(KINDS[kind], fault):
        first = world.drain()
        holder = KINDS[kind](world, "b")
        second = world.drain()
        assert (holder, "b" in second) == ("", True)
        assert [*first, *second].count("a") <= 1


@faults
@pytest.mark.parametrize("kind", ["unique", "unique, delayed and tracked", "bulk"])
def test_the_same_job_may_be_sent_again(kind: str, fault: Fault) -> None:
    for world, accepted in broken(KINDS[kind], fault):
        assert KINDS[kind](world, "a") == ""
        ran = world.drain()
        assert "a" in ran
        assert ran.count("a") == 1 or not accepted
        assert world.facts("unique:") == {}


@faults
@pytest.mark.parametrize("kind", [each for each in KINDS if "debounced" in each])
def test_a_debounced_job_is_left_out_only_for_one_that_is_there(kind: str, fault: Fault) -> None:
    first = pushes(delay=5, **DEBOUNCED)
    for world, accepted in broken(KINDS[kind], fault, (first, "e")):
        ran = world.drain()
        assert "a" in ran or not accepted
        assert {"a", "e"} & {*ran}
        assert not accepted or "e" not in ran
        assert KINDS[kind](world, "b") == ""
        assert "b" in world.drain()


@faults
def test_while_messages_are_away_every_dispatch_says_so(fault: Fault) -> None:
    """Not one of them is taken for a duplicate, also when the first was killed before."""
    if fault is Fault.DOWN:
        return
    for world, accepted in broken(KINDS["unique"], fault):
        if accepted or world.facts("unique:").get(LOCK) == "a":
            continue
        world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        for name in "bc":
            with Faulty([world.ordered.messages], 0, Fault.DOWN) as faulty:
                KINDS["unique"](world, name)
            assert isinstance(faulty.raised, BackendUnavailable)
        assert KINDS["unique"](world, "d") == ""
        assert world.drain() == ["d"]


@faults
@pytest.mark.parametrize("keys", [UNIQUE, TRACKED, {**UNIQUE, **TRACKED}, DEBOUNCED])
def test_a_retry_that_is_broken_off_keeps_the_failed_job_or_runs_it(
    keys: dict[str, Any], fault: Fault
) -> None:
    retried = {**keys, status.RETRIED: 1}

    def push(world: World, name: str) -> str:
        made = dataclasses.replace(world.pushing(name, **retried), retried=True)
        return world.context.push(made)

    def failed(world: World, name: str) -> str:
        world.push(name, **keys)
        world.let_pass(2)  # a debounced one waits until it is named
        world.run(state=State.FAILED)
        return ""

    for world, accepted in broken(push, fault, (failed, "a")):
        if not accepted:
            assert push(world, "a") == ""
        assert "a" in world.drain()
        assert world.waiting() == []
        assert world.facts("unique:") == {}


@faults
@pytest.mark.parametrize(
    "kind", ["unique", "once", "bulk", "group in order", "flow of unique jobs"]
)
def test_a_job_that_may_run_is_in_doubt(kind: str, fault: Fault) -> None:
    """Else a failover would push it once more elsewhere, and a flow or chain be forgotten."""
    for place in range(MOST):
        world = World()
        with Faulty(world.parts, place, fault) as faulty:
            KINDS[kind](world, "a")
        if isinstance(faulty.raised, BackendUnavailable) and not faulty.raised.in_doubt:
            assert world.drain() == []
        if faulty.broken is None:
            break


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_chain_is_kept_where_its_first_link_may_have_been_pushed(*, in_doubt: bool) -> None:
    world = World()
    error = BackendUnavailable("cut off")
    error.in_doubt = in_doubt
    apply = world.ordered.messages.apply

    def cut(*steps: Step) -> Any:
        if in_doubt:
            apply(*steps)
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.ordered.messages, "apply", cut)
        with pytest.raises(BackendUnavailable):
            chains()(world, "a")
    assert world.drain() == (["a", "a2"] if in_doubt else [])
    assert world.facts("chain:") == {}


@faults
@pytest.mark.parametrize("kind", [each for each in KINDS if each.startswith("batch")])
def test_a_batch_ends_that_its_dispatcher_could_close(kind: str, fault: Fault) -> None:
    for world, accepted in broken(KINDS[kind], fault):
        ran = world.drain()
        if accepted or not (fault.is_deadly or fault is Fault.DOWN):
            assert all(each.is_finished for each in world.batches.all())
            assert "finally" in ran or not world.facts("batches:")
        assert "then" in ran or not accepted


@faults
@pytest.mark.parametrize("kind", [each for each in KINDS if each.startswith("flow")])
def test_a_flow_whose_first_job_runs_ends(kind: str, fault: Fault) -> None:
    for world, accepted in broken(KINDS[kind], fault):
        ran = world.drain()
        assert ran in ([], ["a", "a2", "a3", "a4"])
        assert ran or not accepted
        assert not ran or all(each.is_finished for each in FlowStore(world.context).all())


@faults
@pytest.mark.parametrize("kind", SCHEDULED)
def test_a_run_of_a_schedule_is_made_once_by_whoever_comes_next(kind: str, fault: Fault) -> None:
    for world, _ in broken(SCHEDULED[kind], fault):
        assert world.drain().count("a") == 1
        assert world.facts("unique:") == {}
        locks = [key for key in world.facts("schedule:") if ":lock:" in key]
        assert locks == []


@faults
@pytest.mark.parametrize("kind", IN_GROUPS)
def test_no_group_waits_for_a_job_that_never_was(kind: str, fault: Fault) -> None:
    """Neither the jobs that are in line before it, nor those that come later."""
    push, queue = IN_GROUPS[kind], STRICT if "order" in kind or "unique" in kind else "q"
    plain = pushes(queue=queue, **GROUPED)
    for world, accepted in broken(push, fault, (plain, "d"), (plain, "e")):
        if fault.is_deadly or fault is Fault.DOWN:
            world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        plain(world, "b")
        ran = world.drain()
        assert {"d", "e", "b"} <= {*ran}
        assert "a" in ran or not accepted
        assert len(ran) == len({*ran}) or not accepted
        plain(world, "c")
        assert "c" in world.drain()


# -- two at once ----------------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    return World()


def between(world: World, act: Callable[[], Any], *, after: bool = True) -> None:
    """Do something right behind the next push, or before it: the dispatcher is slow."""
    messages = world.ordered.messages
    apply = messages.apply

    def slow(*steps: Step) -> Any:
        del messages.apply
        if not after:
            act()
        results = apply(*steps)
        if after:
            act()
        return results

    messages.apply = slow  # type: ignore[method-assign]


@pytest.mark.parametrize("keys", [UNIQUE, STARTED])
def test_a_worker_may_have_done_the_job_before_its_dispatch_returns(
    world: World, keys: dict[str, Any]
) -> None:
    ran: list[str] = []
    between(world, lambda: ran.extend(world.work()))
    assert world.push("a", **keys, **TRACKED) == ""
    assert ran == ["a"]
    assert world.facts("unique:") == {}
    assert world.waiting() == []
    assert world.push("b", **keys) == ""


def test_one_that_comes_meanwhile_waits_for_what_becomes_of_the_first(world: World) -> None:
    began, held = threading.Event(), list[str]()

    def another() -> None:
        began.set()
        held.append(world.push("b", **UNIQUE))

    second = threading.Thread(target=another)

    def meanwhile() -> None:
        second.start()
        began.wait()

    between(world, meanwhile)
    assert world.push("a", **UNIQUE) == ""
    second.join()
    assert held == ["a"]
    assert world.drain() == ["a"]


@pytest.mark.parametrize("after", [True, False])
def test_a_dispatcher_that_takes_too_long_gives_way_and_its_job_never_runs(
    world: World, *, after: bool
) -> None:
    def another() -> None:
        world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        assert world.push("b", **UNIQUE) == ""

    between(world, another, after=after)
    assert world.push("a", **UNIQUE) == "b"
    assert world.drain() == ["b"]
    assert world.facts("unique:") == {}


def test_where_the_other_is_not_pushed_yet_it_says_that_its_own_is_not_run(world: World) -> None:
    def another() -> None:
        world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
        with Faulty(world.parts, 4, Fault.KILLED) as faulty:  # looked, withdrew, claimed
            world.push("b", **UNIQUE)
        assert faulty.was_killed
        assert world.facts("unique:") == {LOCK: claims.unproven("b")}

    between(world, another)
    with pytest.raises(BackendUnavailable, match="this one is never run"):
        world.push("a", **UNIQUE)
    world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
    assert world.push("c", **UNIQUE) == ""
    assert world.drain() == ["c"]


def test_two_of_one_bulk_are_one_job(world: World) -> None:
    jobs = [world.pushing(name, **UNIQUE) for name in "ab"]
    plans = [Plan() for _ in jobs]
    for job, plan in zip(jobs, plans, strict=True):
        world.context.plan_push(job, plan)
    results = world.backend.apply(*plans)
    held = [world.context.pushed(*each) for each in zip(jobs, plans, results, strict=True)]
    assert held == ["", "a"]
    assert world.drain() == ["a"]


def test_a_debounced_job_that_came_up_before_it_was_named_is_pushed_again(world: World) -> None:
    """Its dispatcher stood still for longer than it was delayed: it may be skipped by then."""
    assert world.push("e", delay=5, **DEBOUNCED) == ""
    world.let_pass(6)
    assert world.work() == ["e"]

    def late() -> None:
        world.let_pass(6)
        assert world.work() == []

    between(world, late)
    assert world.push("a", delay=5, **DEBOUNCED) == ""
    assert world.drain() == ["a"]


@pytest.mark.parametrize("dispatch", [pushes(**DEBOUNCED), batches(**DEBOUNCED)])
def test_one_without_a_delay_waits_until_it_is_named(world: World, dispatch: Push) -> None:
    """A worker that asks meanwhile would skip it for the one that it replaces."""
    assert world.push("e", delay=5, **DEBOUNCED) == ""
    ran: list[str] = []
    between(world, lambda: ran.extend(world.work()))
    assert dispatch(world, "a") == ""
    ran += world.drain()
    assert ("a" in ran, "e" in ran) == (True, False)


def test_a_lock_that_ended_while_its_job_waited_is_no_withdrawal(world: World) -> None:
    assert world.push("a", **UNIQUE) == ""
    world.ordered.facts.timing.skew += 3601
    assert world.push("b", **UNIQUE) == ""
    assert world.drain() == ["a", "b"]


@pytest.mark.parametrize("fault", [Fault.KILLED, Fault.KILLED_UNHEARD])
def test_a_connection_whose_step_is_one_thing_and_that_shares_the_store(
    world: World, fault: Fault
) -> None:
    """It recognizes what the other one left as nobody's."""
    shared = Context("other", world.ordered.facts, FEATURES, world.context.keyring, None, 60, 99999)
    with Faulty(world.parts, 1, fault):  # the push
        world.push("a", **UNIQUE)
    world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
    assert shared.push(world.pushing("b", **UNIQUE)) == ""
    assert world.push("c", **UNIQUE) == "b"
    assert world.drain() == []
    assert shared.backend.sizes("q").ready == 1


def test_a_link_waits_for_a_claim_too(world: World) -> None:
    chain.start(
        world.context, ChainPlan("c", [None] * 2, [link(world, "a"), link(world, "b", **UNIQUE)])
    )
    with Faulty(world.parts, 1, Fault.KILLED):
        world.push("x", **UNIQUE)
    world.ordered.facts.timing.skew += claims.PUSHED_WITHIN + 1
    assert world.drain() == ["a", "b"]
    assert world.facts("unique:") == {}


def test_a_run_of_a_schedule_that_stood_in_line_is_made(world: World) -> None:
    """A job in line comes back as another message."""
    schedules(queue=STRICT, **GROUPED)(world, "a")
    assert world.push("b", STRICT, **GROUPED) == ""
    assert world.drain() == ["b", "a"]


def test_the_second_message_of_a_run_touches_nothing_of_the_first(world: World) -> None:
    with Faulty([world.ordered.messages], 0, Fault.UNHEARD) as faulty:
        schedules(Single)(world, "a")
    assert faulty.broken
    job = world.reserve("default")
    assert job is not None
    assert world.begins(job)
    world.let_schedules_pass()
    before = world.facts("unique:"), world.facts("status:")
    assert world.work() == []
    assert (world.facts("unique:"), world.facts("status:")) == before
    assert [*before[0].values()] == [job.uuid]
    job.settle(End(State.COMPLETE))
    assert world.facts("unique:") == {}


def test_a_value_of_others_that_looks_like_a_claim_is_left(world: World) -> None:
    world.ordered.facts.apply(Step(None, Set("mine", claims.unproven("x"))))
    step = Step(None, *world.operations("a"), Expect("mine", None), Set("mine", "2"))
    (result,) = world.backend.apply(step)
    assert (result.key, result.holds) == ("mine", claims.unproven("x"))
    assert world.facts("mine") == {"mine": claims.unproven("x")}


def test_an_id_that_looks_like_a_claim_takes_no_lock(world: World) -> None:
    """Else the next dispatch would withdraw the claim of another job."""
    assert world.push(claims.unproven("a"), **UNIQUE) == ""
    assert world.facts("unique:") == {}
    assert world.push("a", **UNIQUE) == ""
    assert world.push("b", **UNIQUE) == "a"
    assert world.drain() == [claims.unproven("a"), "a"]
