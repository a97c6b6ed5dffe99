"""Flows in trouble: secrets, locks taken meanwhile, batches and chains, cancels, changed facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography.fernet import Fernet

from qframe import (
    Flow,
    Queueable,
    QueueManager,
    batch,
    chain,
    dispatch,
    find_flow,
    manager,
)
from qframe.connection import Connection
from qframe.contracts.flow import NodeState
from qframe.contracts.step import Set, Step, Unset
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.exceptions import BackendUnavailable
from qframe.features import flow as feature
from qframe.features.base import Plan
from qframe.features.batches import BatchStore
from qframe.features.flows import FlowStore
from tests.features.flow_hands import Hands, states

RAN: Counter[str] = Counter()
FAILS: set[str] = set()
HUSH = "the-words-nobody-may-read"
KEY = Fernet.generate_key().decode()


class Say(Queueable):
    word: str
    after: Any = None

    def handle(self) -> Any:
        RAN[self.word] += 1
        if self.word in FAILS:
            raise ValueError("no")
        return self.word


class Listing(Queueable):
    size: int

    def handle(self) -> list[str]:
        return [f"part {number}" for number in range(self.size)]


class Single(Say):
    unique: ClassVar[Any] = True
    unique_id: ClassVar[Any] = "one"


class SinglePart(Say):
    unique: ClassVar[Any] = True

    def unique_id(self) -> str:
        return "one"


class Sealed(Queueable):
    encrypted: ClassVar[bool] = True
    values: Any

    def handle(self) -> list[str]:
        RAN[str(self.values)] += 1
        return [HUSH, "b"]


class Catches(Queueable):
    def handle(self) -> None:
        RAN["caught"] += 1


@pytest.fixture(params=["joint", "ordered"])
def queues(request: pytest.FixtureRequest, fresh: Path) -> QueueManager:
    settings: dict[str, Any] = {
        "root": fresh,
        "default": "jobs",
        "connections": {"jobs": {"driver": "memory"}, "facts": {"driver": "memory"}},
        "encryption_keys": [KEY],
    }
    if request.param == "ordered":
        settings["store"] = {"driver": "facts"}
    RAN.clear()
    FAILS.clear()
    made = QueueManager(settings)
    manager.use(made)
    return made


@pytest.fixture
def connection(queues: QueueManager) -> Connection:
    return queues.connection()


@pytest.fixture
def hands(connection: Connection) -> Hands:
    return Hands(connection)


# -- secrets --------------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that backends were given to keep."""
    found: list[str] = []
    apply = MemoryBackend.apply

    def noted(backend: MemoryBackend, *steps: Step) -> Any:
        found.extend(repr(each.operations) for each in steps)
        return apply(backend, *steps)

    monkeypatch.setattr(MemoryBackend, "apply", noted)
    return found


def test_what_stands_beside_a_result_is_encrypted(hands: Hands, written: list[str]) -> None:
    flow = Flow()
    first = flow.add(Say(word="plain"))
    flow.add(Sealed(values=[first.result, HUSH]))
    flow.map(Sealed, over=[first.result, HUSH])
    run = flow.dispatch()
    hands.drain()
    assert states(run) == [NodeState.DONE] * 3
    assert Counter({"plain": 2, str(["plain", HUSH]): 1, HUSH: 1}) == RAN, RAN
    assert written
    assert not [text for text in written if HUSH in text]


def test_items_of_an_encrypted_list_are_encrypted(hands: Hands, written: list[str]) -> None:
    flow = Flow()
    flow.map(Say, over=flow.add(Sealed(values=1)).result)
    flow.dispatch()
    hands.drain()
    assert RAN[HUSH] == 1
    pushes = [text for text in written if "Push(" in text]
    assert pushes
    assert not [text for text in pushes if HUSH in text]


# -- locks that others take meanwhile --------------------------------------------------------------


def taking(monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Plan], bool], word: str) -> None:
    """Dispatch a unique job between the plan of a step and the step."""
    apply, left = FlowStore.apply, [1]

    def late(store: FlowStore, plan: Plan, **more: Any) -> Any:
        if left and is_it(plan):
            left.clear()
            dispatch(Single(word=word)).send()
        return apply(store, plan, **more)

    monkeypatch.setattr(FlowStore, "apply", late)


def test_a_first_node_whose_lock_is_taken_is_passed_over(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, lambda plan: "flows:" in repr(plan.operations), "other")
    flow = Flow()
    first = flow.add(Single(word="mine"))
    flow.add(Say(word="next"), after=[first])
    run = flow.dispatch()
    hands.drain()
    assert states(run) == [NodeState.SKIPPED, NodeState.DONE]
    assert Counter(["other", "next"]) == RAN


def test_a_job_of_a_map_whose_lock_is_taken_is_passed_over(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow()
    parts = flow.map(Single, over=flow.add(Listing(size=3)).result)
    flow.add(Say(word="next"), after=[parts])
    run = flow.dispatch()
    taking(monkeypatch, lambda plan: f"flow:{run.id}:s:1:1" in repr(plan.operations), "other")
    hands.drain()
    assert states(run) == [NodeState.DONE] * 3
    assert Counter(["other", "next"]) == RAN, "all three are passed over"


# -- batches and chains as nodes -------------------------------------------------------------------


def test_a_failed_batch_is_repaired_by_a_retry_of_the_flow(hands: Hands) -> None:
    FAILS.update({"b", "c"})
    inner = batch([Say(word="c")])
    flow = Flow()
    node = flow.add(batch([Say(word="a"), Say(word="b"), chain([Say(word="x"), inner])]))
    flow.add(Say(word="next"), after=[node])
    run = flow.dispatch()
    hands.drain()
    assert states(run) == [NodeState.FAILED, NodeState.WAITING]
    FAILS.clear()
    assert run.retry() == 2
    hands.drain()
    assert states(run) == [NodeState.DONE] * 2
    assert RAN["next"] == 1


def test_a_chain_goes_on_after_a_late_retry(hands: Hands) -> None:
    FAILS.add("second")
    flow = Flow()
    node = flow.add([Say(word="first"), Say(word="second"), Say(word="third")])
    flow.add(Say(word="next"), after=[node])
    run = flow.dispatch()
    hands.drain()
    hands.let_pass(60 * 86400)
    FAILS.clear()
    assert run.retry() == 1
    hands.drain()
    assert states(run) == [NodeState.DONE] * 2
    assert RAN["third"] == RAN["next"] == 1


def test_a_chain_of_which_nothing_is_kept_fails(hands: Hands, connection: Connection) -> None:
    flow = Flow()
    node = flow.add([Say(word="first"), Say(word="second")])
    flow.add(Say(word="next"), after=[node])
    run = flow.dispatch()
    for key, _ in connection.backend.scan("chain:"):
        connection.backend.apply(Step(None, Unset(key)))
    hands.drain()
    assert states(run) == [NodeState.FAILED, NodeState.WAITING]
    assert "not kept any more" in run.nodes()[0].error
    assert RAN["next"] == 0


# -- cancelling and clearing -----------------------------------------------------------------------


def test_cancelled_jobs_of_a_map_cancel_it_and_are_no_failure(
    hands: Hands, connection: Connection
) -> None:
    flow = Flow()
    parts = flow.map(Say, over=flow.add(Listing(size=3)).result)
    flow.add(Say(word="next"), after=[parts])
    run = flow.catch(Catches()).dispatch()
    while not (found := connection.backend.search("default", b"part 1")):
        hands.run(connection.reserve(["default"])[0])
    assert connection.remove(found[0])
    hands.drain()
    assert states(run) == [NodeState.DONE, NodeState.CANCELLED, NodeState.CANCELLED]
    assert run.nodes()[1].remark == "1 of 3 jobs were cancelled"
    assert Counter(["part 0", "part 2"]) == RAN


def test_a_failure_counts_more_than_a_cancelled_job(hands: Hands, connection: Connection) -> None:
    FAILS.add("part 2")
    flow = Flow()
    flow.map(Say, over=flow.add(Listing(size=3)).result)
    run = flow.catch(Catches()).dispatch()
    while not (found := connection.backend.search("default", b"part 0")):
        hands.run(connection.reserve(["default"])[0])
    connection.remove(found[0])
    hands.drain()
    assert states(run)[1] is NodeState.FAILED
    assert RAN["caught"] == 1
    assert run.failed_jobs() == [record.uuid for record in connection.failed.page(9)]


@pytest.mark.parametrize("calls", range(1, 9))
def test_a_cancelled_flow_ends_though_a_worker_died_in_the_beginning_of_its_batch(
    hands: Hands, connection: Connection, calls: int
) -> None:
    flow = Flow()
    parts = flow.add(batch([Say(word="a"), Say(word="b")]))
    flow.add(Say(word="c"), after=[parts])
    run = flow.dispatch()
    with hands.dying(calls):
        (begins,) = connection.reserve(["default"])
        hands.run(begins)
    assert run.cancel()
    hands.let_pass(100)
    hands.drain()
    assert not {NodeState.PUSHED, NodeState.WAITING} & {*states(run)}, states(run)
    assert not RAN["c"]


def test_a_cancelled_flow_cancels_its_batches(hands: Hands, connection: Connection) -> None:
    flow = Flow()
    members = batch([Say(word=str(number)) for number in range(4)])
    flow.add(members)
    run = flow.catch(Catches()).dispatch()
    hands.run(connection.reserve(["default"])[0])  # begins the batch
    hands.run(connection.reserve(["default"])[0])
    assert run.cancel()
    hands.drain()
    assert states(run) == [NodeState.CANCELLED]
    (found,) = BatchStore(connection.context).all()
    assert found.cancelled_at is not None
    assert RAN["caught"] == 0


def test_clear_leaves_what_a_flow_needs(hands: Hands, connection: Connection) -> None:
    flow = Flow()
    first, second = flow.add(Say(word="a")), flow.add(Say(word="b"))
    flow.add(Say(word="next"), after=[first, second])
    run = flow.dispatch()
    for _ in range(2):
        hands.run(connection.reserve(["default"])[0])
    dispatch(Say(word="other")).send()
    assert connection.clear() == 1
    hands.drain()
    assert states(run) == [NodeState.DONE] * 3
    assert Counter(["a", "b", "next"]) == RAN


def test_clear_leaves_what_ends_the_batch_of_a_flow(hands: Hands, connection: Connection) -> None:
    flow = Flow()
    flow.add(Say(word="next"), after=[flow.add(batch([Say(word="a")]))])
    run = flow.dispatch()
    batch([Say(word="b")]).dispatch()
    while RAN.total() < 2:
        hands.run(connection.reserve(["default"])[0])
    assert connection.clear() == 1, "what ends the other batch"
    hands.drain()
    assert states(run) == [NodeState.DONE] * 2


# -- what is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", ["many", "-1", "999999999999", "4", ""])
@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_count_that_is_none_fails_the_map(
    hands: Hands, connection: Connection, count: str
) -> None:
    flow = Flow()
    flow.map(Say, over=flow.add(Listing(size=3)).result)
    run = flow.dispatch()
    hands.run(connection.reserve(["default"])[0])
    connection.backend.apply(Step(None, Set(feature.map_key(run.id, 1), count)))
    hands.drain()
    assert states(run) == [NodeState.DONE, NodeState.FAILED]
    assert "is no count" in run.nodes()[1].error


@pytest.mark.parametrize(
    "change",
    [
        ('"created_at":', '"created_at":"x","was":'),
        ('"created_at":', '"created_at":1e300,"was":'),
        ('"total":', '"cancelled_at":"now","total":'),
        ('"connection":', '"connection":7,"was":'),
        ('"maps":[]', '"maps":["x"]'),
        ('"total":1', '"total":-1'),
    ],
)
@pytest.mark.parametrize("queues", ["joint"], indirect=True)
def test_a_head_that_was_changed_hides_no_other_flow(
    connection: Connection, change: tuple[str, str]
) -> None:
    runs = []
    for word in "ab":
        flow = Flow(word)
        flow.add(Say(word=word))
        runs.append(flow.dispatch())
    key = feature.flow_key(runs[0].id)
    (text,) = connection.backend.read(key)
    assert text is not None
    connection.backend.apply(Step(None, Set(key, changed := text.replace(*change))))
    assert changed != text
    assert [each.name for each in FlowStore(connection.context).all()] == ["b"]


def test_nothing_is_listed_of_a_flow_that_is_not_kept_any_more(
    hands: Hands, connection: Connection
) -> None:
    flow = Flow()
    flow.map(Say, over=flow.add(Listing(size=3)).result)
    run = flow.catch(Catches()).dispatch()
    hands.drain()
    assert find_flow(run.id) is not None
    hands.let_pass(feature.KEPT_AFTER + 1000)
    assert find_flow(run.id) is None
    assert not connection.backend.scan("flow")


def test_a_dispatch_that_is_refused_at_its_end_leaves_no_facts(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = connection.backend
    messages = backend.messages if isinstance(backend, OrderedBackend) else backend
    apply = messages.apply

    def refusing(*steps: Step) -> Any:
        if "Push(" in repr([each.operations for each in steps]) and (
            backend is not messages or "flows:" in repr([each.operations for each in steps])
        ):
            full = BackendUnavailable("full")
            full.in_doubt = False
            raise full
        return apply(*steps)

    monkeypatch.setattr(messages, "apply", refusing)
    flow = Flow()
    flow.map(Say, over=flow.add(Listing(size=3)).result)
    with pytest.raises(BackendUnavailable):
        flow.catch(Catches()).dispatch()
    assert not connection.backend.scan("flow")
