"""Flows as they are built and dispatched: what is refused, and where they may be dispatched."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field

from qframe import (
    Flow,
    InvalidFlow,
    InvalidJob,
    PendingBatch,
    Queueable,
    QueueManager,
    Secret,
    SynchronousOnly,
    afind_flow,
    batch,
    chain,
    dispatch,
    find_flow,
    manager,
    queueable,
)
from qframe.dispatch.pending_flow import Node
from qframe.jobs import fits
from qframe.testing import drain, fake

RAN: list[Any] = []


class Price(Queueable):
    order: int = 7

    def handle(self) -> int:
        RAN.append("price")
        return 990


class Nothing(Queueable):
    def handle(self) -> None: ...


class Unknown(Queueable):
    def handle(self):  # type: ignore[no-untyped-def] # as users may write it # noqa: ANN201
        return {"a": 1}


class Lists(Queueable):
    def handle(self) -> list[str]:
        return ["a", "b"]


class Model(BaseModel):
    a: int


class Models(Queueable):
    def handle(self) -> Model:
        return Model(a=3)


class Takes(Queueable):
    number: int
    other: int | None = None

    def handle(self) -> None:
        RAN.append((self.number, self.other))


class TakesAny(Queueable):
    value: Any

    def handle(self) -> None:
        RAN.append(self.value)


class TakesModel(Queueable):
    model: Model

    def handle(self) -> None:
        RAN.append(self.model)


class Lonely(Takes):
    unique = True


class Named(Lonely):
    unique_id: ClassVar[str] = "one"


@queueable
def shows(word: str, size: int = 1) -> None:
    RAN.append((word, size))


@pytest.fixture
def queues(fresh: Path) -> QueueManager:
    RAN.clear()
    made = QueueManager({"root": fresh, "default": "memory", "jobs": [__name__]})
    manager.use(made)
    return made


@pytest.fixture
def flow(queues: QueueManager) -> Flow:
    del queues
    return Flow("a flow")


# -- results --------------------------------------------------------------------------------------


def test_a_job_gets_results_as_its_fields_have_them(flow: Flow) -> None:
    price, model, words = flow.add(Price()), flow.add(Models()), flow.add(Lists())
    flow.add(Takes(number=price.result, other=price.result))
    flow.add(TakesModel(model=model.result))
    flow.add(TakesAny(value={"a": [price.result, 3], "b": words.result, "c": "x"}))
    flow.map(shows, over=words.result, size=price.result)
    run = flow.dispatch()
    drain()
    assert (990, 990) in RAN
    assert Model(a=3) in RAN
    assert {"a": [990, 3], "b": ["a", "b"], "c": "x"} in RAN
    assert {("a", 990), ("b", 990)} <= {each for each in RAN if isinstance(each, tuple)}
    assert run.fresh().state == "done"
    assert run.result(price) == 990
    assert run.result(model) == {"a": 3}


def test_a_result_of_another_type_fails_the_job_that_gets_it(flow: Flow) -> None:
    unknown = flow.add(Unknown())
    flow.add(Takes(number=unknown.result))
    run = flow.dispatch()
    done = drain()
    assert done.failed == 1
    assert "number" in str(done.errors[0])
    assert run.fresh().state == "failed"


class Aliased(Queueable):
    number: int = Field(alias="n")

    def handle(self) -> None:
        RAN.append(self.number)


class Hushed(Queueable):
    def handle(self) -> Secret[str]:
        return Secret("hush")


def test_a_result_goes_by_the_name_of_its_field(flow: Flow) -> None:
    price = flow.add(Price())
    with refused("Aliased gets a result by the name of its field, not by an alias: n"):
        flow.add(Aliased(n=price.result))
    flow.add(Aliased(number=price.result))  # type: ignore[call-arg] # the plugin knows the alias
    flow.dispatch()
    drain()
    assert RAN == ["price", 990]


def test_a_secret_is_no_result(flow: Flow) -> None:
    with refused("holds a Secret, which is not kept in results"):
        flow.add(TakesAny(value=flow.add(Hushed()).result))


class PairRows(Queueable):
    def handle(self) -> list[dict[str, int]]:
        return [{"number": 1, "second": 2}, {"number": 3, "second": 4}]


class Pair(Queueable):
    number: int
    second: int

    def handle(self) -> None:
        RAN.append((self.number, self.second))


def test_an_item_may_be_a_mapping_of_fields(flow: Flow) -> None:
    flow.map(Pair, over=flow.add(PairRows()).result)
    flow.dispatch()
    drain()
    assert RAN == [(1, 2), (3, 4)]


def test_a_job_with_a_result_shows_it_as_one(flow: Flow) -> None:
    job = Takes(number=flow.add(Price()).result)
    assert isinstance(job, Takes)
    assert repr(job) == "Takes(number=<the result of Price>, other=None)"


# -- what is refused ------------------------------------------------------------------------------


def refused(match: str) -> Any:
    return pytest.raises(InvalidFlow, match=match)


def test_what_cannot_fit_is_refused(flow: Flow) -> None:
    nothing, words, model = flow.add(Nothing()), flow.add(Lists()), flow.add(Models())
    with refused(r"Takes.number gets the result of Nothing: None cannot be int"):
        flow.add(Takes(number=nothing.result))  # type: ignore[arg-type]
    with refused("Takes.number gets the result of Lists"):
        flow.add(Takes(number=words.result))  # type: ignore[arg-type]
    with refused("Takes.number gets the result of Models: Model cannot be int"):
        flow.add(Takes(number=model.result))  # type: ignore[arg-type]
    flow.add(Takes(number=1, other=nothing.result))
    with refused("maps over Models: Model cannot be list"):
        flow.map(TakesAny, over=model.result)
    many = flow.add(ListsOfLists())
    with refused("Takes.number: list cannot be int"):
        flow.map(Takes, over=many.result)


class ListsOfLists(Queueable):
    def handle(self) -> list[list[int]]:
        return [[1]]


def test_a_result_that_may_be_missing_needs_a_field_that_takes_none(flow: Flow) -> None:
    price = flow.add(Price(), on_failure="continue")
    with refused("gets None if Price fails"):
        flow.add(Takes(number=price.result))  # type: ignore[arg-type] # may be None
    flow.add(Takes(number=1, other=price.result))


def test_nodes_that_wait_for_each_other_are_refused(flow: Flow) -> None:
    first, second, third = (flow.add(Price()) for _ in range(3))
    second.after(first)
    third.after(second)
    first.after(third)
    with refused("these nodes wait for each other: Price, Price, Price"):
        flow.dispatch()
    assert manager.default().connection().size() == 0


def test_nodes_of_another_flow_are_refused(flow: Flow) -> None:
    other = Flow().add(Price())
    with refused("Takes follows Price, which is of another flow"):
        flow.add(Takes(number=other.result))
    with refused("which is of another flow"):
        flow.add(Price(), after=[other])
    with refused("after takes nodes of the flow, not str"):
        flow.add(Price(), after=["first"])  # type: ignore[list-item]
    assert not flow.nodes


def test_a_batch_has_no_result(flow: Flow) -> None:
    many = flow.add(batch([Price()]))
    with refused("a batch is a batch, which has no result"):
        flow.add(Takes(number=many.result))


@pytest.mark.parametrize("wrong", [Price, 7, "Price", None])
def test_what_is_no_job_is_refused(flow: Flow, wrong: Any) -> None:
    with refused("a flow takes jobs, chains and batches, not "):
        flow.add(wrong)
    flow.add([wrong])
    with pytest.raises(InvalidJob):
        flow.dispatch()


def test_other_wrong_arguments(flow: Flow) -> None:
    price = flow.add(Price())
    with refused("on_failure is"):
        flow.add(Price(), on_failure="stop")  # type: ignore[call-overload]
    with refused("map takes a job class or function, not Price"):
        flow.map(Price(), over=price.result)  # type: ignore[call-overload]
    with refused("map goes over the result of a node"):
        flow.map(TakesAny, over=[1, 2])
    with refused("Price has no field left for the item"):
        flow.map(Price, over=price.result, order=1)  # type: ignore[call-overload] # no list
    with pytest.raises(InvalidJob, match="Takes: "):
        flow.map(Takes, over=flow.add(Lists()).result, nummer=3)
    with refused("the name of a flow is a text, not int"):
        Flow(7)  # type: ignore[arg-type]
    with refused("a flow needs a job"):
        Flow().dispatch()
    with refused("beside a result only JSON values can stand"):
        flow.add(TakesAny(value=[price.result, object()]))


def test_a_job_that_takes_a_result_belongs_into_its_flow(flow: Flow) -> None:
    job = Takes(number=flow.add(Price()).result)
    with refused("Takes takes the result of another job: add it to that one's flow"):
        dispatch(job).send()
    with refused("add it to that one's flow"):
        chain([job]).dispatch()


def test_a_job_of_a_flow_is_not_dispatched_alone(flow: Flow) -> None:
    job = Takes(number=flow.add(Price()).result)
    flow.add(job)
    with refused("add it to that one's flow, and dispatch the flow"):
        dispatch(job).send()
    flow.dispatch()
    drain()
    assert RAN == ["price", (990, None)]


def test_a_job_with_a_result_is_copied_with_other_fields(flow: Flow) -> None:
    price = flow.add(Price())
    job = Takes(number=price.result)
    flow.add(dataclasses.replace(job, other=3))
    flow.add(dataclasses.replace(job, other=price.result))
    flow.add(dataclasses.replace(job, number=4))
    flow.add(copy.deepcopy(job))
    flow.add(dataclasses.replace(Takes(number=1), number=price.result))
    flow.dispatch()
    drain()
    assert Counter(RAN[1:]) == Counter([(990, 3), (990, 990), (4, None), *[(990, None)] * 2])


@pytest.mark.parametrize(
    "use",
    [
        lambda result: result["a"],
        lambda result: result[0],
        lambda result: result > 2,
        lambda result: result + "x",
        lambda result: [*result],
        lambda result: {result},
        len,
        lambda result: f"order {result}",
        str,
        lambda result: "yes" if result else "no",
        lambda result: GroupedByNumber(number=result).wire_group(),
        lambda result: NamedByNumber(number=result).unique_id(),
    ],
)
def test_a_result_is_not_known_before(flow: Flow, use: Callable[[Any], object]) -> None:
    price = flow.add(Price())
    with refused("the result of Price> is not known before the flow runs: a field of a later"):
        use(price.result)
    assert repr(price.result) == "<the result of Price>"


class GroupedByNumber(Takes):
    group = "order:{number}"


class NamedByNumber(Lonely):
    def unique_id(self) -> str:
        return str(self.number)


def test_a_result_in_another_kind_of_dict(flow: Flow) -> None:
    price = flow.add(Price())
    flow.add(TakesAny(value=OrderedDict(a=price.result)))
    flow.dispatch()
    drain()
    assert RAN == ["price", {"a": 990}]


def test_a_class_that_is_unique_by_its_fields_takes_no_results(flow: Flow) -> None:
    price = flow.add(Price())
    with refused("Lonely is unique by its fields, and number is not known before it runs"):
        flow.add(Lonely(number=price.result))
    flow.add(Named(number=price.result))


# -- dispatching ----------------------------------------------------------------------------------


def test_a_blocking_dispatch_is_refused_on_an_event_loop(flow: Flow) -> None:
    flow.add(Price())

    async def main() -> None:
        with pytest.raises(SynchronousOnly):
            flow.dispatch()
        with pytest.raises(SynchronousOnly):
            find_flow("x")
        run = await flow
        assert (await afind_flow(run.id)) is not None

    asyncio.run(main())
    drain()
    assert RAN == ["price"]


def test_on_the_sync_connection_it_runs_at_once(flow: Flow) -> None:
    price = flow.add(Price())
    flow.map(shows, over=flow.add(Lists()).result)
    flow.add(chain([Takes(number=price.result), Takes(number=2)]))
    run = flow.on_connection("sync").dispatch()
    assert sorted(map(str, RAN)) == sorted(
        map(str, ["price", (990, None), (2, None), ("a", 1), ("b", 1)])
    )
    assert run.fresh().state == "done"


def test_null_drops_it(flow: Flow) -> None:
    flow.add(Price())
    flow.on_connection("null").dispatch()
    assert not RAN


def test_all_jobs_are_on_one_connection_and_queue(flow: Flow) -> None:
    price = flow.add(Price())
    flow.add(Takes(number=price.result))
    flow.on_queue("slow").dispatch()
    assert manager.default().connection().queues() == ["slow"]
    drain()
    assert RAN == ["price", (990, None)]


def test_a_fake_records_the_flow(queues: QueueManager) -> None:
    with fake() as queued:
        flow = Flow("x")
        price, words = flow.add(Price()), flow.add([Lists(), Nothing()], on_failure="continue")
        flow.add(Takes(number=price.result), after=[words])
        flow.map(TakesAny, over=flow.add(Lists()).result)
        flow.add(batch([Price()]))
        flow.catch(Price(order=9)).dispatch()
    jobs: list[Any] = [Price, [Lists, Nothing], Takes, Lists, TakesAny, PendingBatch]
    queued.assert_flow(name="x", jobs=jobs, times=1)
    queued.assert_flow(lambda each: each.after == [[], [], [0, 1], [], [3], []], queue="default")
    queued.assert_dispatched(Price, times=1)
    queued.assert_dispatched(Lists, times=2)
    queued.assert_not_dispatched(Takes)
    (found,) = queued.flows
    assert found.on_failure[1] == "continue"
    assert found.catch == [Price(order=9)]
    with pytest.raises(AssertionError, match=r"a flow: 'x' of .Price"):
        queued.assert_nothing_dispatched()
    with pytest.raises(AssertionError, match="the flows dispatched were"):
        queued.assert_flow(name="y")
    assert queues.connection().size() == 0


@pytest.mark.parametrize(
    ("returns", "wanted", "fits_in"),
    [
        (int, int, True), (int, str, True), (str, int, True), (None, int, False),
        (None, int | None, True), (list[int], int, False), (dict[str, int], Model, True),
        (Model, dict[str, Any], True), (list[int], tuple[int, ...], True), (Any, int, True),
        (int, Any, True), (bool, list[int], False), (float, int, True), (str, Model, False),
    ],
)  # fmt: skip
def test_what_fits(returns: Any, wanted: Any, fits_in: bool) -> None:
    assert (fits.misfit(returns, wanted) == "") is fits_in


def test_a_node_is_named(flow: Flow) -> None:
    node = flow.add(Price(), name="the price")
    assert isinstance(node, Node)
    assert repr(node) == "<node 0 of a flow: the price>"
