"""Undo of jobs of flows: the flow goes on as if nobody had removed them, also after a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import Flow, FlowRun, Queueable, QueueManager, batch, dispatch, manager
from qframe.connection import Connection
from qframe.contracts.browsing import Place
from qframe.contracts.flow import NodeState
from qframe.contracts.step import Set, Step, Unset
from qframe.failed.retry import retry
from qframe.features import binned
from qframe.features import flow as feature
from qframe.features.reserved import ReservedJob
from qframe.operations import undo as undoing
from qframe.operations.bin import BinAction
from qframe.operations.bin_forecast import BinForecast
from qframe.testing import drain
from tests.conftest import settings_of
from tests.features.flow_hands import Hands, states
from tests.support import here

D, F, W, P, C = (
    NodeState.DONE, NodeState.FAILED, NodeState.WAITING, NodeState.PUSHED, NodeState.CANCELLED,
)  # fmt: skip
RAN: list[Any] = []


class Node(Queueable):
    number: int
    before: Sequence[int | None] = []
    queue = "mail"
    fails: ClassVar[set[int]] = set()

    def handle(self) -> int:
        RAN.append((self.number, *self.before))
        if self.number in self.fails:
            raise ValueError(self.number)
        return self.number


class First(Node):
    queue = "first"


class Later(Node):
    queue = "later"


class Lined(Node):
    group = "g"


class Lists(Queueable):
    size: int
    queue = "first"

    def handle(self) -> list[int]:
        return [*range(self.size)]


class Each(Queueable):
    item: int
    queue = "mail"

    def handle(self) -> int:
        RAN.append(self.item)
        if self.item in Node.fails:
            raise ValueError(self.item)
        return self.item * 10


class Caught(Queueable):
    queue = "first"

    def handle(self) -> None:
        RAN.append("caught")


@pytest.fixture(params=["memory", "database", "redis", "postgresql"])
def connection(request: pytest.FixtureRequest, fresh: Path) -> Connection:
    return connected(fresh, settings_of(request))


@pytest.fixture
def memory(fresh: Path) -> Connection:
    return connected(fresh, {"driver": "memory"})


@pytest.fixture(params=["joint", "ordered"])
def made(request: pytest.FixtureRequest, fresh: Path) -> Callable[[], Connection]:
    """Makes a fresh connection in memory; in parts, with the facts elsewhere."""

    def make() -> Connection:
        connections = {"here": {"driver": "memory"}, "facts": {"driver": "memory"}}
        settings: dict[str, Any] = {"root": fresh, "default": "here", "connections": connections}
        if request.param == "ordered":
            settings["store"] = {"driver": "facts"}
        queues = QueueManager(settings)
        manager.use(queues)
        RAN.clear()
        Node.fails = set()
        return queues.connection()

    return make


def connected(fresh: Path, backend: dict[str, Any], **more: Any) -> Connection:
    RAN.clear()
    Node.fails = set()
    return here.connected(fresh, backend, __name__, **more)


def clear(connection: Connection, queue: str = "mail") -> BinAction:
    act = BinAction(manager.default(), "clear", f"here:{queue}", "ops")
    act.at(connection).clear(queue)
    act.close()
    return act


def undo(connection: Connection, act: BinAction) -> undoing.Undone:
    done = undoing.Undone()
    undoing.undo(connection, act.id, done)
    return done


def fan_out(size: int = 5) -> FlowRun:
    """A flow in which several are behind the first, and one behind these."""
    flow = Flow("fan out")
    first = flow.add(First(number=0))
    some = [flow.add(Node(number=n, before=[first.result])) for n in range(1, size + 1)]
    last = flow.add(Node(number=9, before=[each.result for each in some]))
    flow.add(Node(number=10, before=[last.result]))
    return flow.dispatch()


def fresh_states(run: FlowRun) -> list[NodeState]:
    return states(run.fresh())


def kept_of(connection: Connection, run: FlowRun) -> list[str]:
    return [key for key, _ in connection.backend.scan(f"flow:{run.id}:c:")]


def run_waiting(connection: Connection, text: bytes) -> int:
    """Run the waiting jobs with a text in them. Returns how many there were."""
    found = connection.backend.browse("mail", Place.READY).found
    chosen = [each for each in found if text in each.raw_body]
    for each in chosen:
        reservation = connection.backend.take(each)
        assert reservation is not None
        Hands(connection).run(ReservedJob(connection.context, reservation))
    return len(chosen)


@pytest.mark.parametrize("has_worked", [True, False], ids=["cancelled", "not yet"])
def test_siblings_come_back_and_the_flow_ends_as_it_would_have(
    connection: Connection, has_worked: bool
) -> None:
    run = fan_out()
    drain(queues="first")
    act = clear(connection)
    assert act.kept == 5
    assert fresh_states(run) == [D, C, C, C, C, C, W, W]
    if has_worked:
        drain()  # the internal jobs that cancel what follows
        assert fresh_states(run) == [D, C, C, C, C, C, C, C]
        assert run.fresh().is_finished
    done = undo(connection, act)
    assert (done.back, done.left, done.troubles) == (5, 0, [])
    assert fresh_states(run) == [D, P, P, P, P, P, W, W]
    record = run.fresh().record
    assert (record.settled, record.failed, record.finished_at) == (1, 0, None)
    assert run.fresh().state == "running"
    assert kept_of(connection, run) == []
    drain()
    assert fresh_states(run) == [D] * 8
    assert (run.fresh().state, run.result(0), run.result(7)) == ("done", 0, 10)
    assert sorted(RAN) == [
        (0,), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (9, 1, 2, 3, 4, 5), (10, 9),
    ]  # fmt: skip
    assert undo(connection, act).back == 0


def test_what_another_act_has_cancelled_too_waits_for_both(connection: Connection) -> None:
    run = fan_out(2)
    drain(queues="first")
    first, second = connection.backend.browse("mail", Place.READY).found
    acts = []
    for found in (first, second):
        act = BinAction(manager.default(), "cancel", "here:mail", "ops")
        assert act.at(connection).remove(found)
        act.close()
        acts.append(act)
        drain(queues="first,default")
    assert fresh_states(run) == [D, C, C, C, C]
    assert undo(connection, acts[1]).back == 1
    assert fresh_states(run) == [D, C, P, C, C]
    assert undo(connection, acts[0]).back == 1
    assert fresh_states(run) == [D, P, P, W, W]
    drain()
    assert fresh_states(run) == [D] * 5


def test_what_a_failure_has_cancelled_stays_so(memory: Connection) -> None:
    flow = Flow()
    fails = flow.add(First(number=1), on_failure="cancel")
    removed = flow.add(Node(number=2))
    flow.add(Node(number=3), after=[fails, removed])
    flow.add(Node(number=4), after=[removed])
    run = flow.dispatch()
    Node.fails = {1}
    act = clear(memory)
    drain()
    assert fresh_states(run) == [F, C, C, C]
    assert undo(memory, act).back == 1
    assert fresh_states(run) == [F, P, C, W]
    drain()
    assert fresh_states(run) == [F, D, C, D]


def test_jobs_of_a_map_come_back(connection: Connection) -> None:
    flow = Flow("map")
    listed = flow.add(Lists(size=4))
    each = flow.map(Each, over=listed.result)
    flow.add(Node(number=1, before=each.result))
    run = flow.on_queue("mail").dispatch()
    drain(queues="first")
    act = clear(connection)  # the job that begins the map
    assert fresh_states(run) == [D, C, W]
    assert undo(connection, act).back == 1
    assert run_waiting(connection, b"ExpandFlowMap") == 1
    act = clear(connection)
    drain()
    assert fresh_states(run) == [D, C, C]
    assert undo(connection, act).back == 4
    assert fresh_states(run) == [D, P, W]
    assert run.nodes()[1].ended == 0
    drain()
    assert fresh_states(run) == [D] * 3
    assert (run.result(1), RAN[-1]) == ([0, 10, 20, 30], (1, 0, 10, 20, 30))


def test_a_map_of_which_one_stays_removed_is_cancelled_again(memory: Connection) -> None:
    flow = Flow()
    each = flow.map(Each, over=flow.add(Lists(size=2)).result)
    flow.add(Node(number=1, before=each.result))
    run = flow.on_queue("mail").dispatch()
    drain(queues="first")
    assert run_waiting(memory, b"ExpandFlowMap") == 1
    gone, found = memory.backend.browse("mail", Place.READY).found
    memory.remove(gone)
    act = BinAction(manager.default(), "cancel", "here:mail", "ops")
    assert act.at(memory).remove(found)
    drain()
    assert fresh_states(run) == [D, C, C]
    assert undo(memory, act).back == 1
    assert fresh_states(run) == [D, P, W]
    drain()
    assert fresh_states(run) == [D, C, C]
    assert RAN == [1]


def test_a_chain_a_batch_and_a_group_come_back(connection: Connection) -> None:
    flow = Flow("nested")
    chained = flow.add([Node(number=1), Node(number=2)])
    batched = flow.add(batch([Node(number=3), Node(number=4)]).on_queue("mail"))
    grouped = [flow.add(Lined(number=n)) for n in (5, 6)]
    flow.add(Node(number=7, before=[chained.result]), after=[batched, *grouped])
    run = flow.on_queue("mail").dispatch()
    for _ in range(2):  # what begins, then the members of the batch
        act = clear(connection)
        drain(queues="default")
        assert undo(connection, act).left == 0
        waiting = connection.backend.browse("mail", Place.READY).found
        starts = [each for each in waiting if b"StartBatch" in each.raw_body]
        for each in starts:
            reservation = connection.backend.take(each)
            assert reservation is not None
            Hands(connection).run(ReservedJob(connection.context, reservation))
    drain()
    assert fresh_states(run) == [D] * 5
    assert sorted(RAN) == [(1,), (2,), (3,), (4,), (5,), (6,), (7, 2)]


@pytest.mark.parametrize(
    ("on_failure", "wanted"), [("block", [D, D]), ("continue", [D, D]), ("cancel", [D, C])]
)
def test_members_of_a_batch_in_a_flow_come_back(
    memory: Connection, on_failure: Any, wanted: list[NodeState]
) -> None:
    flow = Flow()
    members = batch([Node(number=1), Node(number=2)]).on_queue("mail")
    flow.add(First(number=3), after=[flow.add(members, on_failure=on_failure)])
    run = flow.on_queue("default").dispatch()
    drain(queues="default")
    act = clear(memory)
    drain()
    assert fresh_states(run)[0] is F
    assert undo(memory, act).back == 2
    drain()
    assert (fresh_states(run), run.fresh().state) == (wanted, "done")
    assert sorted(RAN[-2:] if on_failure == "continue" else RAN[:2]) == [(1,), (2,)]


def test_an_undo_that_is_killed_where_steps_are_not_atomic_loses_nothing(
    fresh: Path,
) -> None:
    connections = {"here": {"driver": "memory"}, "facts": {"driver": "memory"}}
    queues = QueueManager(
        {"root": fresh, "default": "here", "connections": connections, "store": {"driver": "facts"}}
    )
    manager.use(queues)
    connection, hands = queues.connection(), Hands(queues.connection())
    dispatch(Node(number=1)).send()
    act = clear(connection)
    with hands.dying(2):
        undo(connection, act)
    assert connection.sizes("mail").total == 0
    done = undo(connection, act)
    assert (done.back, done.left) == (1, 0)
    assert connection.sizes("mail").ready == 1
    act = clear(connection)
    mark = Set(f"undoing:{binned.entry_key('here', act.id, '000000001')}", "", 5)
    connection.backend.apply(Step(None, mark))  # another undo is at it
    done = undo(connection, act)
    assert (done.back, done.left) == (0, 1)
    assert done.troubles[0].endswith(
        "of mail: another undo is bringing it back; repeat this one in 5 s"
    )


def test_a_retried_job_comes_back_and_may_fail_again(connection: Connection) -> None:
    flow = Flow().catch(Caught())
    fails = flow.add(Node(number=1))
    flow.add(Node(number=2, before=[fails.result]))
    run = flow.dispatch()
    Node.fails = {1}
    drain()
    assert (fresh_states(run), RAN) == ([F, W], [(1,), "caught"])
    assert run.retry() == 1
    act = clear(connection)
    drain()
    assert (fresh_states(run), run.fresh().state) == ([C, C], "done")
    assert undo(connection, act).back == 1
    assert (fresh_states(run), run.fresh().state) == ([P, W], "running")
    drain()
    assert (fresh_states(run), run.fresh().state) == ([F, W], "failed")
    assert run.failed_jobs() == [run.nodes()[0].uuid]
    Node.fails = set()
    assert run.retry() == 1
    drain()
    assert (fresh_states(run), run.fresh().state) == ([D, D], "done")
    assert RAN == [(1,), "caught", (1,), (1,), (2, 1)]


def test_a_failed_job_of_a_flow_comes_back_as_failed(connection: Connection) -> None:
    flow = Flow()
    flow.add(Node(number=2, before=[flow.add(Node(number=1)).result]))
    run = flow.dispatch()
    Node.fails = {1}
    drain()
    (record,) = connection.failed.all()
    act = BinAction(manager.default(), "flush", "all", "ops")
    assert act.forget(connection.failed, record)
    act.close()
    assert run.retry() == 0
    assert undo(connection, act).back == 1
    assert fresh_states(run) == [F, W]
    Node.fails = set()
    assert run.retry() == 1
    drain()
    assert fresh_states(run) == [D, D]


def test_what_had_gone_on_past_a_failure_does_not_wait_again(connection: Connection) -> None:
    flow = Flow()
    fails = flow.add(Node(number=1), on_failure="continue")
    goes_on = flow.add(First(number=2, before=[fails.result]))
    flow.add(First(number=3, before=[goes_on.result]), after=[fails])
    run = flow.on_queue("default").dispatch()
    Node.fails = {1}
    drain(queues="mail")
    assert run_retry(connection) == 1
    act = clear(connection)
    assert fresh_states(run) == [C, P, W]
    drain(queues="default")
    assert fresh_states(run) == [C, P, C]
    assert undo(connection, act).back == 1
    assert fresh_states(run) == [F, P, W]
    drain(queues="first,default")
    assert fresh_states(run) == [F, D, D]
    assert RAN == [(1,), (2, None), (3, 2)]
    Node.fails = set()
    drain()
    assert (fresh_states(run), RAN[-1]) == ([D, D, D], (1,))


def run_retry(connection: Connection) -> int:
    return sum(
        retry(manager.default(), connection.failed, each) for each in connection.failed.all()
    )


def test_a_flow_that_was_cancelled_meanwhile_stays_cancelled(connection: Connection) -> None:
    run = fan_out(2)
    drain(queues="first")
    act = clear(connection)
    assert run.cancel()
    done = undo(connection, act)
    assert (done.back, done.left) == (0, 2)
    assert done.troubles[0].endswith(" of mail: its flow was cancelled meanwhile")
    drain()
    assert fresh_states(run) == [D, C, C, C, C]
    assert undo(connection, act).left == 2


def test_a_flow_that_is_not_kept_any_more_is_told(memory: Connection) -> None:
    run = fan_out(1)
    drain(queues="first")
    act = clear(memory)
    memory.backend.apply(Step(None, Unset(feature.flow_key(run.id))))
    done = undo(memory, act)
    assert (done.back, done.left) == (0, 1)
    assert done.troubles[0].endswith(" of mail: its flow is not kept any more")


def test_a_job_of_a_cancelled_flow_is_removed_for_good_and_the_question_says_so(
    memory: Connection,
) -> None:
    fan_out(3)
    drain(queues="first")
    forecast = BinForecast(manager.default())
    forecast.add_queue(memory, "mail")
    assert forecast.words() == " (undo brings back 3 within 60 min)"
    run = fan_out(2)
    drain(queues="first")
    assert run.cancel()
    forecast = BinForecast(manager.default())
    forecast.add_queue(memory, "mail")
    assert forecast.words() == (
        " (undo brings back 3 within 60 min; 2 jobs for good: of a flow that was cancelled)"
    )
    act = clear(memory)
    assert act.kept == 3
    assert act.told().endswith("; 2 for good: of a flow that was cancelled")
    assert undo(memory, act).back == 3


def test_what_a_flow_needs_to_go_on_is_not_forecast(memory: Connection) -> None:
    flow = Flow()
    flow.add(Node(number=2), after=[flow.add(Node(number=1)), flow.add(Node(number=3))])
    run = flow.on_queue("mail").dispatch()
    for _ in range(2):
        (job,) = memory.reserve(["mail"])
        Hands(memory).run(job)
    forecast = BinForecast(manager.default())
    forecast.add_queue(memory, "mail")
    assert (memory.sizes("mail").ready, forecast.kept) == (1, 0)
    assert clear(memory).kept == 0
    drain()
    assert fresh_states(run) == [D, D, D]


def test_without_a_bin_nothing_is_kept_of_what_is_cancelled(memory: Connection) -> None:
    run = fan_out()
    drain(queues="first")
    act = BinAction(manager.default(), "clear", "here:mail", "ops", is_on=False)
    act.at(memory).clear("mail")
    drain()
    assert (kept_of(memory, run), memory.backend.scan(f"flow:{run.id}:b:")) == ([], [])


def test_what_is_cancelled_is_kept_as_long_as_the_bin_and_purged_with_it(
    memory: Connection,
) -> None:
    run = fan_out()
    drain(queues="first")
    act = clear(memory)
    drain()
    assert len(kept_of(memory, run)) == 2
    undoing.purge(memory)
    assert kept_of(memory, run) == []
    run = fan_out()
    drain(queues="first")
    act = clear(memory)
    drain()
    memory.backend.timing.skew += 3600 + 301
    assert (kept_of(memory, run), undo(memory, act).back) == ([], 0)


def test_a_flow_that_had_ended_is_kept_as_long_as_one_that_runs(memory: Connection) -> None:
    run = fan_out(1)
    drain(queues="first")
    act = clear(memory)
    drain()
    keys = feature.flow_key(run.id), feature.edges_key(run.id, 0)
    ttls = [each.ttl or 0.0 for each in memory.backend.copy(*keys) if each is not None]
    assert max(ttls) <= feature.KEPT_AFTER
    undo(memory, act)
    ttls = [each.ttl or 0.0 for each in memory.backend.copy(*keys) if each is not None]
    assert min(ttls) > feature.KEPT - 60
    drain()
    ttls = [each.ttl or 0.0 for each in memory.backend.copy(*keys) if each is not None]
    assert max(ttls) <= feature.KEPT_AFTER


def test_a_refused_job_changes_no_flow(fresh: Path) -> None:
    """A payload that anybody may have pushed names a node that was really removed."""
    memory = connected(fresh, {"driver": "memory"}, signing_key="k" * 32)
    run = fan_out(1)
    drain(queues="first")
    (found,) = memory.backend.browse("mail", Place.READY).found
    memory.remove(found)
    drain()
    assert fresh_states(run) == [D, C, C, C]
    memory.push_raw(found.raw_body.replace(b'"number":1', b'"number":7'), "mail")
    act = clear(memory)
    undo(memory, act)
    drain()
    assert fresh_states(run) == [D, C, C, C]


# -- crashes and others at once -------------------------------------------------------------------


def dag(seed: int) -> FlowRun:
    """A random flow whose nodes with even numbers are in `mail`, the others in `first`."""
    choice, flow = random.Random(seed), Flow("dag")
    Node.fails = {*choice.sample(range(9), seed % 3)}
    for number in range(9):
        some = sorted(choice.sample(range(number), min(number, choice.choice([0, 1, 1, 2, 3]))))
        job = (First if number % 2 else Node)(number=number)
        on_failure: Any = choice.choice(["block", "continue", "cancel"])
        flow.add(job, after=[flow.nodes[each] for each in some], on_failure=on_failure)
    return flow.dispatch()


def undisturbed(connection: Connection, seed: int) -> tuple[list[NodeState], int, int, bool]:
    """How the flow ends if nobody removes anything."""
    run = dag(seed)
    Hands(connection, seed).drain()
    return outcome(run)


def outcome(run: FlowRun) -> tuple[list[NodeState], int, int, bool]:
    record = run.fresh().record
    return fresh_states(run), record.settled, record.failed, record.is_finished


def check_runs(connection: Connection, run: FlowRun) -> None:
    """Each job has run that should have; once, where steps are atomic."""
    ran = [number for number, *_ in RAN]
    assert {*ran} == {each.number for each in run.nodes() if each.state in {D, F}}
    if connection.context.joint:
        assert len(ran) == len({*ran})


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_call_nothing_is_lost(made: Callable[[], Connection], seed: int) -> None:
    wanted = undisturbed(made(), seed)
    for calls in range(1, 25):
        connection, choice = made(), random.Random(seed)
        run, hands = dag(seed), Hands(connection, seed)
        work_some(hands, choice, 4)
        act = BinAction(manager.default(), "clear", "here:mail", "ops")
        with hands.dying(calls * (seed % 2)):
            act.at(connection).clear("mail")
        work_some(hands, choice, 6)
        with hands.dying(calls):
            undo(connection, act)
        work_some(hands, choice, 3)
        done = undo(connection, act)
        assert done.left == 0, done.troubles
        hands.drain()
        assert outcome(run) == wanted
        check_runs(connection, run)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_goes_on_during_an_undo(made: Callable[[], Connection], seed: int) -> None:
    """Workers and another undo, between any two calls of an undo."""
    wanted = undisturbed(made(), seed)
    for calls in range(1, 25):
        connection, choice = made(), random.Random(seed)
        run, hands = dag(seed), Hands(connection, seed)
        work_some(hands, choice, 4)
        act = clear(connection)
        work_some(hands, choice, 4)

        def others(connection: Connection = connection, hands: Hands = hands) -> None:
            undo(connection, act)  # noqa: B023 (called in this round)
            work_some(hands, choice, 6)  # noqa: B023

        with hands.interrupted(calls, others):
            undo(connection, act)
        hands.let_pass(10)  # the mark of the other
        undo(connection, act)
        hands.drain()
        assert outcome(run) == wanted
        check_runs(connection, run)


@pytest.mark.parametrize("seed", range(6))
def test_an_undo_while_what_follows_is_being_cancelled(
    made: Callable[[], Connection], seed: int
) -> None:
    wanted = undisturbed(made(), seed)
    for calls in range(1, 30):
        connection = made()
        run, hands = dag(seed), Hands(connection, seed)
        act = clear(connection)

        def others(connection: Connection = connection, hands: Hands = hands) -> None:
            undo(connection, act)  # noqa: B023 (called in this round)
            work_all(hands, "default")

        with hands.interrupted(calls, others):
            work_all(hands, "default", "first")
        undo(connection, act)
        hands.drain()
        assert outcome(run) == wanted
        check_runs(connection, run)


@pytest.mark.parametrize("ends_first", [True, False])
@pytest.mark.parametrize("calls", range(1, 12))
def test_an_undo_while_a_map_is_being_ended(
    made: Callable[[], Connection], calls: int, ends_first: bool
) -> None:
    connection, flow = made(), Flow()
    size = 1 + (calls - 1) % 3
    each = flow.map(Each, over=flow.add(Lists(size=size)).result)
    flow.add(Node(number=7, before=each.result))
    flow.add(Later(number=8))  # so that the flow has not ended
    run, hands = flow.dispatch(), Hands(connection)
    for queue in ("first", "default"):
        hands.run(connection.reserve([queue])[0])
    act = clear(connection)
    acts = partial(work_all, hands, "default", "first"), partial(undo, connection, act)
    during, others = acts if ends_first else reversed(acts)
    with hands.interrupted(calls, others):
        during()
    undo(connection, act)
    hands.drain()
    assert fresh_states(run) == [D] * 4
    assert sorted(RAN, key=str) == [(7, *range(0, 10 * size, 10)), (8,), *range(size)]


@pytest.mark.parametrize("calls", range(1, 25))
def test_what_ends_while_what_follows_it_is_to_wait_again(
    made: Callable[[], Connection], calls: int
) -> None:
    connection, flow = made(), Flow()
    nodes = [flow.add(Node(number=1))]
    for number in range(2, 6):
        nodes.append(flow.add(First(number=number), after=nodes[-1 - number // 5 :]))
    run, hands = flow.dispatch(), Hands(connection)
    act = clear(connection)
    work_all(hands, "default")
    assert fresh_states(run) == [C] * 5
    with hands.interrupted(calls, partial(work_all, hands, "mail", "first")):
        undo(connection, act)
    hands.drain()
    assert fresh_states(run) == [D] * 5
    assert RAN == [(1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("calls", range(1, 6))
def test_another_removal_during_an_undo(made: Callable[[], Connection], calls: int) -> None:
    connection, flow = made(), Flow()
    flow.add(Node(number=3), after=[flow.add(Node(number=1)), flow.add(First(number=2))])
    run, hands = flow.dispatch(), Hands(connection)
    act, acts = clear(connection), list[BinAction]()
    work_all(hands, "default")

    def others() -> None:
        acts.append(clear(connection, "first"))
        work_all(hands, "default")

    with hands.interrupted(calls, others):
        undo(connection, act)
    for each in (*acts, act):
        work_all(hands, "default")
        if acts:
            assert fresh_states(run)[1:] in ([C, C], [P, W], [P, C])
        hands.let_pass(10)
        undo(connection, each)
    if not acts:
        assert fresh_states(run) == [P, P, W]
    hands.drain()
    assert fresh_states(run) == [D, D, D]


@pytest.mark.parametrize("calls", range(1, 4))
def test_a_flow_that_is_cancelled_during_an_undo(
    made: Callable[[], Connection], calls: int
) -> None:
    connection = made()
    run, hands = fan_out(1), Hands(connection)
    work_all(hands, "first")
    act, done = clear(connection), list[undoing.Undone]()
    with hands.interrupted(calls, run.cancel):
        done.append(undo(connection, act))
    hands.drain()
    if not run.fresh().record.cancelled_at:
        assert fresh_states(run) == [D] * 4
        return
    assert fresh_states(run) == [D, C, C, C]
    if calls == 1:
        assert done[0].troubles[0].endswith("its flow was cancelled meanwhile")


def work_all(hands: Hands, *queues: str) -> None:
    while jobs := hands.connection.reserve(queues):
        hands.run(jobs[0])


def work_some(hands: Hands, choice: random.Random, most: int) -> None:
    for _ in range(choice.randint(0, most)):
        jobs = hands.connection.reserve([choice.choice(["first", "mail", "default"])])
        if jobs:
            hands.run(jobs[0])
