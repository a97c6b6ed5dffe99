"""Flows against a model: random graphs, ends of any kind, workers that die at any call."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qframe import (
    DontHandle,
    Flow,
    Queueable,
    QueueManager,
    Secret,
    find_flow,
    manager,
)
from qframe.contracts.flow import NodeState
from qframe.contracts.step import Set, Step, Unset
from qframe.features import flow as feature
from qframe.features.base import Plan
from qframe.features.flows import FlowStore
from tests.features.flow_hands import Hands, states

RAN: list[int] = []
"""The numbers of the nodes whose jobs have run, in order."""
SEEN: dict[int, Any] = {}
"""What each got of those before it."""
HOW: dict[int, str] = {}
"""How each ends; not named: done."""


class Work(Queueable):
    number: int
    before: dict[str, int | None] = {}  # noqa: RUF012 (each job gets its own)

    def handle(self) -> int:
        RAN.append(self.number)
        SEEN[self.number] = dict(self.before)
        how = HOW.get(self.number, "done")
        if how == "failed":
            raise ValueError("no")
        if how == "skipped":
            raise DontHandle
        return self.number


class Listing(Queueable):
    size: int

    def handle(self) -> list[int]:
        return [*range(self.size)]


class Part(Queueable):
    part: int
    node: int = 0
    fails: ClassVar[set[int]] = set()

    def handle(self) -> int:
        RAN.append(self.part)
        if self.part in self.fails:
            raise ValueError("no")
        return self.part * 2


class Takes(Queueable):
    values: Sequence[int | None]
    lists: list[list[int]] = []  # noqa: RUF012 (each job gets its own)

    def handle(self) -> None:
        SEEN[-1] = (self.values, self.lists)


@pytest.fixture(params=["joint", "ordered"])
def queues(request: pytest.FixtureRequest, fresh: Path) -> Callable[[], QueueManager]:
    def made() -> QueueManager:
        connections = {"jobs": {"driver": "memory"}, "facts": {"driver": "memory"}}
        settings: dict[str, Any] = {"root": fresh, "default": "jobs", "connections": connections}
        if request.param == "ordered":
            settings["store"] = {"driver": "facts"}
        queues = QueueManager(settings)
        manager.use(queues)
        RAN.clear()
        SEEN.clear()
        HOW.clear()
        Part.fails.clear()
        return queues

    return made


# -- random graphs --------------------------------------------------------------------------------

GRAPHS = st.integers(1, 9).flatmap(
    lambda size: st.tuples(
        *(
            st.tuples(
                st.sets(st.integers(0, number - 1), max_size=3) if number else st.just(set[int]()),
                st.sampled_from(["done"] * 6 + ["failed", "skipped"]),
                st.sampled_from(["block"] * 3 + ["continue", "cancel"]),
            )
            for number in range(size)
        )
    )
)


def expected(graph: Any) -> list[NodeState]:
    """Give the state in which each node is left."""
    found: list[NodeState] = []
    for before, how, _ in graph:
        cancelled = waits = False
        for each in before:
            state, on_failure = found[each], graph[each][2]
            failed = state is NodeState.FAILED
            cancelled = cancelled or state is NodeState.CANCELLED
            cancelled = cancelled or (failed and on_failure == "cancel")
            waits = waits or state is NodeState.WAITING or (failed and on_failure == "block")
        if cancelled:
            found.append(NodeState.CANCELLED)
        elif waits:
            found.append(NodeState.WAITING)
        else:
            found.append(NodeState(how))
    return found


def built(graph: Any, seed: int = 0) -> Flow:
    """Build a flow whose nodes get the results of those before them."""
    flow, places = Flow("random"), random.Random(seed)
    for number, (before, how, on_failure) in enumerate(graph):
        HOW[number] = how
        results = {str(each): flow.nodes[each].result for each in before}
        node = flow.add(
            Work(number=number, before=results) if results else Work(number=number),
            on_failure=on_failure,
            after=[flow.nodes[each] for each in before if places.random() < 0.5],
        )
        assert node.number == number
    return flow


def check_order(graph: Any, *, once: bool) -> None:
    counted = Counter(RAN)
    if once:
        assert set(counted.values()) <= {1}, RAN
    for number, (before, _, _) in enumerate(graph):
        if number in counted:
            for each in before:
                assert each in counted, f"{number} began without {each}"
                assert RAN.index(each) < RAN.index(number), f"{number} began before {each}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(GRAPHS, st.integers(0, 1000), st.lists(st.integers(0, 14), max_size=30))
def test_random_graphs_end_as_the_model_says(
    queues: Callable[[], QueueManager], graph: Any, seed: int, deaths: list[int]
) -> None:
    connection = queues().connection()
    run = built(graph, seed).dispatch()
    hands = Hands(connection, seed)
    hands.drain(deaths)
    wanted = expected(graph)
    assert states(run) == wanted
    check_order(graph, once=not any(deaths))
    for number, (before, _, _) in enumerate(graph):
        if number in SEEN:
            given_values = {each: SEEN[number][str(each)] for each in before}
            assert given_values == {
                each: each if wanted[each] is NodeState.DONE else None for each in before
            }
    record = run.fresh().record
    assert record.is_finished == (NodeState.WAITING not in wanted)
    blocking = [
        number
        for number, state in enumerate(wanted)
        if state is NodeState.FAILED and graph[number][2] != "continue"
    ]
    assert record.failed == len(blocking)
    # A retry repairs what failed, and the rest goes on.
    HOW.clear()
    RAN.clear()
    run.retry()
    hands.drain(deaths)
    repaired = [(before, "done", on_failure) for before, _, on_failure in graph]
    for number, state in enumerate(wanted):
        if state is NodeState.CANCELLED:
            continue
        after = states(run)[number]
        if state is NodeState.FAILED and number not in blocking:
            assert after is NodeState.FAILED
        elif state in {NodeState.DONE, NodeState.SKIPPED}:
            assert after is state
            assert number not in RAN
        else:
            cancelled = any(wanted[each] is NodeState.CANCELLED for each in repaired[number][0])
            assert after is (NodeState.CANCELLED if cancelled else NodeState.DONE)


def test_each_node_is_pushed_once_wherever_a_worker_dies(
    queues: Callable[[], QueueManager],
) -> None:
    """A diamond, a worker of which dies at each call in turn."""
    graph = [(set(), "done", "block"), ({0}, "done", "block"), ({0}, "done", "block"),
             ({1, 2}, "done", "block"), ({3}, "done", "block")]  # fmt: skip
    for place in range(1, 60):
        connection = queues().connection()
        run = built(graph).dispatch()
        hands = Hands(connection)
        calls = [0] * 20
        calls[place % 5] = 1 + place // 5
        hands.drain(calls)
        assert states(run) == [NodeState.DONE] * 5, place
        check_order(graph, once=False)
        assert sorted(SEEN) == [*range(5)]


# -- joins and fans -------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_thousand_nodes_before_one_and_behind_one(queues: Callable[[], QueueManager]) -> None:
    """Every step is bounded: no end counts or pushes them all."""
    connection = queues().connection()
    flow = Flow("wide")
    root = flow.add(Work(number=0))
    parts = [flow.add(Work(number=number), after=[root]) for number in range(1, 1001)]
    flow.add(Takes(values=[each.result for each in parts]))
    hands = Hands(connection)
    with hands.dying(0):
        run = flow.dispatch()
    hands.drain()
    assert SEEN[-1] == ([*range(1, 1001)], [])
    assert run.fresh().state == "done"
    assert hands.largest < 5 * feature.AT_ONCE


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_thousand_first_nodes(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    for number in range(1000):
        flow.add(Work(number=number))
    hands = Hands(connection)
    with hands.dying(0):
        run = flow.dispatch()
    hands.drain()
    assert sorted(RAN) == [*range(1000)]
    assert run.fresh().is_finished
    assert hands.largest < 5 * feature.AT_ONCE


# -- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 250])
def test_a_map_has_a_job_for_each_item(queues: Callable[[], QueueManager], size: int) -> None:
    connection = queues().connection()
    flow = Flow()
    listing = flow.add(Listing(size=size))
    parts = flow.map(Part, over=listing.result)
    again = flow.map(Part, over=parts.result, name="again")
    last = flow.add(Takes(values=parts.result, lists=[again.result]))
    run = flow.dispatch()
    hands = Hands(connection, size)
    hands.drain([0, 3, 0, 2, 4, 0, 1, 5, 6, 0, 7])
    doubled = [each * 2 for each in range(size)]
    assert SEEN[-1] == (doubled, [[each * 2 for each in doubled]])
    assert states(run) == [NodeState.DONE] * 4
    assert run.nodes()[1].jobs == size
    assert run.result(last) is None
    assert run.result(parts) == doubled
    assert Counter(RAN).total() >= 2 * size


def test_a_failed_job_of_a_map_blocks_until_it_is_retried(
    queues: Callable[[], QueueManager],
) -> None:
    connection = queues().connection()
    Part.fails.update({3, 5})
    flow = Flow()
    listing = flow.add(Listing(size=7))
    parts = flow.map(Part, over=listing.result)
    flow.add(Takes(values=parts.result))
    run = flow.dispatch()
    hands = Hands(connection)
    hands.drain()
    assert states(run) == [NodeState.DONE, NodeState.FAILED, NodeState.WAITING]
    assert run.fresh().state == "failed"
    assert -1 not in SEEN
    Part.fails.clear()
    assert run.retry() == 2
    assert states(run)[1] is NodeState.PUSHED
    hands.drain()
    assert states(run) == [NodeState.DONE] * 3
    assert SEEN[-1] == ([0, 2, 4, 6, 8, 10, 12], [])


def test_a_map_that_continues_leaves_out_what_failed(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    Part.fails.update({0, 2})
    flow = Flow()
    listing = flow.add(Listing(size=3))
    parts = flow.map(Part, over=listing.result, on_failure="continue")
    flow.add(TakesOrNone(values=parts.result))
    run = flow.dispatch()
    Hands(connection).drain()
    assert states(run)[2] is NodeState.DONE
    assert SEEN[-1] == [None, 2, None]


class TakesOrNone(Queueable):
    values: Sequence[int | None] | None

    def handle(self) -> None:
        SEEN[-1] = self.values


def test_a_map_over_no_list_fails(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    first = flow.add(NoList())
    flow.map(Part, over=first.result)
    run = flow.dispatch()
    Hands(connection).drain()
    assert states(run) == [NodeState.DONE, NodeState.FAILED]
    assert "map() takes a list, not dict" in run.nodes()[1].error


class NoList(Queueable):
    def handle(self) -> Any:
        return {"a": 1}


# -- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_flow_begins_nothing_more(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    first, other = flow.add(Work(number=0)), flow.add(Work(number=1))
    flow.add(Work(number=2), after=[first, other])
    run = flow.dispatch()
    hands = Hands(connection)
    hands.run(connection.reserve(["default"])[0])
    assert run.fresh().cancel()
    assert not run.fresh().cancel()
    hands.drain()
    assert RAN == [0]
    assert states(run) == [NodeState.DONE, NodeState.CANCELLED, NodeState.CANCELLED]
    assert run.fresh().state == "cancelled"
    assert run.fresh().is_finished


def test_a_node_that_is_cancelled_by_hand_cancels_what_follows(
    queues: Callable[[], QueueManager],
) -> None:
    connection = queues().connection()
    flow = Flow()
    first = flow.add(Work(number=0))
    second = flow.add(Work(number=1), after=[first])
    flow.add(Work(number=2), after=[second])
    run = flow.dispatch()
    connection.cancel(run.nodes()[0].uuid)
    Hands(connection).drain()
    assert states(run) == [NodeState.CANCELLED] * 3


# -- what is kept ---------------------------------------------------------------------------------


def test_what_is_kept_of_a_flow_expires(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    listing = flow.add(Listing(size=5))
    flow.map(Part, over=listing.result)
    run = flow.dispatch()
    hands = Hands(connection)
    hands.drain()
    hands.let_pass(feature.KEPT_AFTER + 1000)
    left = [key for key, _ in connection.backend.scan("flow:") if ":s:" in key or ":e:" in key]
    assert not left
    hands.let_pass(feature.KEPT)
    assert not connection.backend.scan("flow:")
    assert find_flow(run.id) is None


def test_catch_is_dispatched_once(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    HOW.update({0: "failed", 1: "failed"})
    flow = Flow()
    flow.add(Work(number=0))
    flow.add(Work(number=1))
    run = flow.catch(Work(number=9)).dispatch()
    hands = Hands(connection, 3)
    hands.drain()
    assert RAN.count(9) == 1
    run.retry()
    hands.drain()
    assert RAN.count(9) == 1


# -- what others have changed ---------------------------------------------------------------------


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
@pytest.mark.parametrize("place", ["e:0", "j:2", "s:0", "e:1", "s:1"])
def test_what_is_kept_and_was_changed_is_refused(
    queues: Callable[[], QueueManager], place: str, fresh: Path
) -> None:
    """With a signing key nothing runs on it, every job ends, and a record says so."""
    queues()
    made = QueueManager({"root": fresh, "default": "memory", "signing_key": "k" * 40})
    manager.use(made)
    connection = made.connection()
    flow = Flow()
    first, second = flow.add(Work(number=0)), flow.add(Work(number=1))
    flow.add(Work(number=2, before={"0": first.result, "1": second.result}))
    run = flow.dispatch()
    hands = Hands(connection)
    hands.run(connection.reserve(["default"])[0])
    key = f"flow:{run.id}:{place}"
    (text,) = connection.backend.read(key)
    changed = "{}" if text is None else text.replace('"number\\":2', '"number\\":7')
    changed = text[:-6] + 'x"}' if text is not None and changed == text else changed
    connection.backend.apply(Step(None, Set(key, changed)))
    hands.drain()
    if place in {"e:0", "s:1"}:  # its node had ended before, or writes it as it ends
        assert RAN == [0, 1, 2]
        return
    assert 2 not in RAN
    assert 7 not in RAN
    assert run.fresh().state == "failed"
    (record,) = connection.failed.page(10)
    assert "Signature" in record.exception or "sign" in record.exception, record.exception


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_result_that_is_not_kept_any_more_fails_the_job_that_gets_it(
    queues: Callable[[], QueueManager],
) -> None:
    connection = queues().connection()
    flow = Flow()
    listing = flow.add(Listing(size=3))
    flow.map(Part, over=listing.result)
    flow.add(Takes(values=listing.result))
    run = flow.dispatch()
    hands = Hands(connection)
    hands.run(connection.reserve(["default"])[0])
    connection.backend.apply(Step(None, Unset(f"flow:{run.id}:s:0")))
    hands.drain()
    assert states(run)[1:] == [NodeState.FAILED] * 2
    assert "the result of node 0 is not kept (any more)" in run.nodes()[2].error


class Hushed(Queueable):
    def handle(self) -> Any:
        return {"token": Secret("hush")}


def test_a_secret_is_no_result(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    hushed = flow.add(Hushed())
    flow.add(Work(number=1, before=hushed.result))
    run = flow.dispatch()
    Hands(connection).drain()
    assert RAN == []
    assert "holds a Secret" in run.nodes()[1].error


# -- two at once ----------------------------------------------------------------------------------


def between(store: FlowStore, act: Callable[[], object]) -> None:
    """Let something else happen between what a store reads next and what it then writes."""
    apply = store.apply

    def call(plan: Plan, **more: Any) -> Any:
        store.apply = apply  # type: ignore[method-assign] # once
        act()
        return apply(plan, **more)

    store.apply = call  # type: ignore[method-assign] # as above


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_join_is_pushed_once_and_not_early(queues: Callable[[], QueueManager]) -> None:
    connection = queues().connection()
    flow = Flow()
    first, second = flow.add(Work(number=0)), flow.add(Work(number=1))
    flow.add(Work(number=2), after=[first, second])
    run = flow.dispatch()
    store = FlowStore(connection.context)
    hands = Hands(connection)
    hands.run(connection.reserve(["default"])[0])
    store.join(run.id, 2)
    assert states(run)[2] is NodeState.WAITING, "one of the two has not ended"
    hands.run(connection.reserve(["default"])[0])
    other = FlowStore(connection.context)
    between(store, lambda: other.join(run.id, 2))
    store.join(run.id, 2)
    assert len(connection.backend.search("default", run.nodes()[2].uuid.encode())) == 1
    hands.drain()
    assert RAN.count(2) == 1


@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_map_that_is_done_does_not_fail_later(queues: Callable[[], QueueManager]) -> None:
    """A job that saw a failure writes it after the retry has repaired that."""
    connection = queues().connection()
    Part.fails.add(1)
    flow = Flow()
    listing = flow.add(Listing(size=2))
    flow.add(Takes(values=flow.map(Part, over=listing.result).result))
    run = flow.dispatch()
    hands = Hands(connection)
    hands.drain()
    store = FlowStore(connection.context)

    def repaired() -> None:
        Part.fails.clear()
        run.retry()
        hands.drain()

    between(store, repaired)
    store.end_map(run.id, 1)
    assert states(run) == [NodeState.DONE] * 3
