"""What a handler is given, wherever it is called, and what is made of what."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import pytest

from qframe import (
    InvalidJob,
    JobDefinitionError,
    JobTimedOut,
    Queueable,
    QueueManager,
    Resource,
    chain,
    dispatch,
    dispatch_sync,
    manager,
    queueable,
)
from qframe.jobs import definition
from qframe.operations.dispatchable import JobKind
from qframe.payload import envelope
from qframe.resources.declared import Need
from qframe.resources.scope import ResourceScope
from qframe.testing import drain, override_resource, run
from tests.resources import rooms
from tests.resources.rooms import (
    BadEnd,
    BadEndOnLoop,
    Broken,
    Every,
    Gate,
    Inherits,
    Many,
    OfNoJob,
    Plain,
    Slow,
    add,
    make_async,
    make_by_async_context,
    make_by_context,
    make_plain,
    on_loop,
    told,
)
from tests.support.process import wait_for


@pytest.fixture(autouse=True)
def queues(fresh: Path) -> Iterator[QueueManager]:
    told.clear()
    made = QueueManager({"jobs": [rooms.__name__]})
    manager.use(made)
    yield made
    made.close()


EVERY = (
    "plain",
    "generator",
    "context",
    "async",
    "async generator",
    "async context",
    "made by an object",
    "made by a method",
    "decorated",
    ("async context", "context"),
    3,
)


class TestWhereItIsCalled:
    def test_run_makes_and_closes_each_kind(self) -> None:
        assert run(Every()).result == EVERY
        made = [each.removesuffix(" made") for each in told if each.endswith(" made")]
        assert made == [
            "plain", "generator", "context", "async", "async generator", "async context", "top",
        ]  # fmt: skip
        closed = [each.removesuffix(" closed") for each in told if each.endswith(" closed")]
        assert closed == ["top", "async context", "async generator", "context", "generator"]
        assert told.index("ran") == len(made)

    def test_run_on_a_running_loop(self) -> None:
        async def inside() -> Any:
            return run(Every()).result

        assert asyncio.run(inside()) == EVERY
        assert told[-5:] == [
            "top closed", "async context closed", "async generator closed", "context closed",
            "generator closed",
        ]  # fmt: skip

    def test_dispatch_sync_and_the_sync_connection(self) -> None:
        assert dispatch_sync(Plain(number=1)) == (1, "context", "plain")
        assert on_loop.dispatch(7).on_connection("sync").send()
        chain([Plain(), add.job(2)]).on_connection("sync").dispatch()
        assert told.count("context made") == told.count("context closed") == 3
        assert told[-1] == "context closed"

    def test_drain_makes_it_once_and_closes_it_in_the_end(self) -> None:
        for number in range(3):
            Plain.dispatch(number=number)
            on_loop.dispatch(number)
            add.dispatch(number).on_queue("high")
        assert drain(raises=True).done == 9
        closed = ["async context closed", "context closed"]
        made = ["async context made", "context made", "plain made"]
        assert sorted(told) == [closed[0], made[0], closed[1], *made[1:], *["ran"] * 6]
        assert {*told[-2:]} == {*closed}

    def test_drain_on_a_running_loop_closes_what_lives_on_the_loop_of_each_job(self) -> None:
        async def inside() -> None:
            await on_loop.dispatch(1)
            await on_loop.dispatch(2)
            assert drain(raises=True).done == 2

        asyncio.run(inside())
        assert told == ["async context made", "async context closed"] * 2

    def test_the_end_of_a_loop_closes_the_last_one_first(self) -> None:
        async def inside() -> None:
            await dispatch(Every())
            assert drain(raises=True).done == 1

        for _ in range(5):  # without order, they are sometimes in order
            told.clear()
            asyncio.run(inside())
            closed = [each.removesuffix(" closed") for each in told if each.endswith(" closed")]
            assert closed == ["top", "async context", "async generator", "context", "generator"]

    def test_chunks(self) -> None:
        for number in range(4):
            Many.dispatch(number=number)
        assert drain(raises=True).done == 4
        assert told == ["context made", "ran 3", "ran 1", "context closed"]
        told.clear()
        assert run(Many(number=7)).result == "context 7"
        assert told == ["context made", "ran 1", "context closed"]

    def test_a_direct_call_is_given_what_it_leaves_out(self) -> None:
        assert Plain(number=1).handle("mine", plain="own") == (1, "mine", "own")
        assert add(1, "mine", 2) == (1, "mine", 2)
        assert add(1, more=3, pool="mine") == (1, "mine", 3)
        assert told == ["ran"] * 3
        assert add(1, more=3) == (1, "context", 3)
        assert told[3:] == ["context made", "ran", "context closed"]
        assert asyncio.run(on_loop(4)) == (4, "async context")
        assert asyncio.run(on_loop(4, pool="mine")) == (4, "mine")

    def test_a_class_that_inherits(self) -> None:
        assert run(Inherits(number=2)).result == ("inherited", 2, "context", "plain")

    def test_it_belongs_to_no_job(self) -> None:
        OfNoJob.dispatch()
        assert drain(raises=True).done == 1
        assert told == ["of no job"]


class TestWhatIsSent:
    def test_it_is_no_field(self) -> None:
        assert [*Every._fields] == [*on_loop.job_class._fields][1:] == []
        assert json.loads(json.dumps(envelope.create(add.job(1), None)))["data"] == {
            "number": 1,
            "more": 1,
        }
        assert [each.name for each in JobKind.of(add.job_class).fields] == ["number", "more"]
        assert "pool" not in str(add.job_class.schema_of_fields("{model}"))

    def test_it_cannot_be_dispatched(self) -> None:
        said = "is a resource, which is given when the job starts: leave it out"
        with pytest.raises(InvalidJob, match=rf"^add: pool {said}$"):
            add.dispatch(1, pool="mine")
        with pytest.raises(InvalidJob, match=rf"^on_loop: pool {said}$"):
            on_loop.dispatch(1, pool="mine")
        unknown: Any = {"plain": "mine"}
        with pytest.raises(InvalidJob, match=rf"^Plain: plain {said}$"):
            Plain.dispatch(**unknown)
        with pytest.raises(InvalidJob, match="too many positional"):
            add.dispatch(1, "mine")

    def test_what_is_behind_it_is_given_by_name(self) -> None:
        assert run(add.job(1, more=5)).result == (1, "context", 5)


class TestOverrides:
    def test_in_run_drain_and_dispatch_sync_and_calls(self) -> None:
        with override_resource(make_by_context, lambda: "fake"):
            assert run(Plain()).result == (0, "fake", "plain")
            assert dispatch_sync(Plain()) == (0, "fake", "plain")
            assert add(1) == (1, "fake", 1)
            Plain.dispatch()
            assert drain(raises=True).done == 1
        assert "context made" not in told
        assert add(1) == (1, "context", 1)

    def test_of_what_another_needs(self) -> None:
        with override_resource(make_by_async_context, lambda: "fake"):
            assert run(Every()).result[-2] == ("fake", "context")

    def test_one_that_is_closed_and_needs_others(self) -> None:
        def fake(plain: Annotated[str, Resource(make_plain)]) -> Iterator[str]:
            yield f"fake {plain}"
            told.append("fake closed")

        fake.__annotations__["plain"] = Annotated[str, Resource(make_plain)]
        with override_resource(make_by_context, fake):
            assert run(Plain()).result == (0, "fake plain", "plain")
        assert told == ["plain made", "ran", "fake closed"]

    def test_the_inner_one_counts(self) -> None:
        with override_resource(make_by_context, lambda: "outer"):
            with override_resource(make_by_context, lambda: "inner"):
                assert add(1)[1] == "inner"
            assert add(1)[1] == "outer"

    def test_none_is_left_if_the_first_of_two_blocks_ends_first(self) -> None:
        with ExitStack() as second:
            with override_resource(make_by_context, lambda: "first"):
                second.enter_context(override_resource(make_by_context, lambda: "second"))
            assert add(1)[1] == "second"
        assert add(1)[1] == "context"

    def test_an_async_one_is_for_async_jobs(self) -> None:
        with override_resource(make_by_context, make_async):
            ran = run(Plain())
            ran.assert_failed_with(JobDefinitionError, "make_async is async, and what it makes")
            assert run(Every()).result[2] == "async"

    def test_wrong_ones_are_refused(self) -> None:
        fake: Any = "fake"
        with (
            pytest.raises(JobDefinitionError, match="takes what makes the other: lambda: 'fake'"),
            override_resource(make_by_context, fake),
        ):
            pass

        def itself(real: Any) -> None: ...

        itself.__annotations__["real"] = Annotated[str, Resource(make_by_context)]
        with (
            pytest.raises(JobDefinitionError, match="cannot need itself"),
            override_resource(make_by_context, itself),
        ):
            pass
        assert add(1)[1] == "context"


class TestErrors:
    def test_a_factory_that_raises_fails_the_attempt(self) -> None:
        ran = run(Broken())
        ran.assert_retried()
        assert isinstance(ran.error, OSError)
        (note,) = ran.error.__notes__
        line = rooms.broken.__code__.co_firstlineno
        assert note == f"raised while the resource broken was made ({rooms.__file__}:{line})"
        run(Broken(), attempts=2).assert_failed_with(OSError, "no route")
        assert told == ["broken"] * 2

    @pytest.mark.parametrize("job", [BadEnd, BadEndOnLoop])
    def test_one_that_cannot_be_closed_is_logged(
        self, job: type[Queueable], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR):
            run(job()).assert_done()
        (record,) = caplog.records
        assert record.getMessage() == "the resource make_bad_end raised when it was closed"
        assert record.exc_info is not None
        assert "cannot be closed" in str(record.exc_info[1])

    def test_ten_threads_at_once_have_one(self) -> None:
        Slow.made, scope = 0, ResourceScope()
        with ThreadPoolExecutor(10) as threads:
            asked = [threads.submit(scope.values, [Need("it", 0, Slow)]) for _ in range(10)]
            assert len({id(each.result()["it"]) for each in asked}) == 1
        assert Slow.made == 1

    def test_ten_threads_at_once_have_one_error(self) -> None:
        Slow.made, scope = 0, ResourceScope()

        def fails() -> None:
            Slow()
            raise OSError

        with ThreadPoolExecutor(10) as threads:
            asked = [threads.submit(scope.values, [Need("it", 0, fails)]) for _ in range(10)]
            assert {type(each.exception()) for each in asked} == {OSError}
        assert Slow.made == 1

    def test_who_waits_for_one_whose_job_was_ended_makes_it(self) -> None:
        began, ends, scope = threading.Event(), threading.Event(), ResourceScope()

        def make() -> str:
            if not began.is_set():
                began.set()
                ends.wait()
                raise JobTimedOut
            return "made"

        need = [Need("it", 0, make)]

        async def ask() -> Any:
            asyncio.get_running_loop().call_soon(ends.set)  # comes once it waits
            return await scope.values_on_loop(need)

        with ThreadPoolExecutor(3) as threads:
            first = threads.submit(scope.values, need)
            began.wait()
            others = [threads.submit(scope.values, need), threads.submit(asyncio.run, ask())]
            assert isinstance(first.exception(), JobTimedOut)
            assert [each.result() for each in others] == [{"it": "made"}] * 2

    def test_a_factory_that_blocks_leaves_the_loop_to_others(self) -> None:
        goes_on, scope = threading.Event(), ResourceScope()

        async def ask() -> Any:
            asyncio.get_running_loop().call_soon(goes_on.set)
            return await scope.values_on_loop([Need("it", 0, lambda: goes_on.wait(20))])

        assert asyncio.run(ask()) == {"it": True}

    def test_one_is_broken_off_when_nobody_waits_any_more(self) -> None:
        scope, need = ResourceScope(), [Need("it", 0, rooms.make_slowly)]

        async def ask() -> Any:
            Gate.begun, Gate.may_end = asyncio.Event(), asyncio.Event()
            both = [asyncio.create_task(scope.values_on_loop(need)) for _ in range(2)]
            await Gate.begun.wait()
            both[0].cancel()
            await asyncio.sleep(0.01)
            assert told == ["slow begun"]
            both[1].cancel()
            await asyncio.wait(both)
            again = asyncio.create_task(scope.values_on_loop(need))
            Gate.may_end.set()
            return await again

        assert asyncio.run(ask()) == {"it": "slow"}
        assert told == ["slow begun", "slow broken off", "slow begun"]

    def test_ten_tasks_and_threads_at_once_have_one(self) -> None:
        Slow.made, scope, need = 0, ResourceScope(), [Need("it", 0, Slow)]

        async def ask() -> set[int]:
            found = await asyncio.gather(
                *(scope.values_on_loop(need) for _ in range(10)),
                *(asyncio.to_thread(scope.values, need) for _ in range(10)),
            )
            return {id(each["it"]) for each in found}

        assert len(asyncio.run(ask())) == 1
        assert Slow.made == 1

    def test_one_that_is_made_too_late_closes_itself_alone(self) -> None:
        closing, late = threading.Event(), threading.Event()

        def make_first() -> Iterator[None]:
            yield
            closing.set()
            late.wait(20)
            thread.join(20)

        def make_late() -> Iterator[None]:
            closing.wait(20)
            yield
            told.append("late closed")
            late.set()

        scope, loop = ResourceScope(), asyncio.new_event_loop()
        loop.run_until_complete(scope.values_on_loop([Need("it", 0, make_by_async_context)]))
        scope.values([Need("it", 0, make_first)])
        thread = threading.Thread(target=scope.values, args=([Need("it", 0, make_late)],))
        thread.start()
        wait_for(lambda: make_late in scope._in_threads, "the late one")
        scope.close(loop.run_until_complete)
        loop.close()
        assert told == ["async context made", "late closed", "async context closed"]


def refused(handle: Any, **annotations: Any) -> str:
    handle.__annotations__.update(annotations)
    with pytest.raises(JobDefinitionError) as raised:
        type("Wrong", (Queueable,), {"handle": handle, "__module__": __name__})
    assert "Wrong" not in definition.index
    return str(raised.value)


class TestDefinitions:
    def test_an_async_one_for_a_job_that_is_not(self) -> None:
        def handle(self: Any, pool: Any) -> None: ...

        assert refused(handle, pool=Annotated[str, Resource(make_async)]) == (
            "Wrong.handle: pool: make_async is async, and what it makes lives on the event loop: "
            "write the handler with async, or the factory without"
        )
        top = Annotated[Any, Resource(rooms.make_on_top)]
        assert "pool: make_on_top is async" in refused(handle, pool=top)

    def test_a_circle(self) -> None:
        def one(two: Any) -> None: ...
        def two(three: Any) -> None: ...
        def three(one: Any) -> None: ...

        one.__annotations__["two"] = Annotated[Any, Resource(two)]
        two.__annotations__["three"] = Annotated[Any, Resource(three)]
        three.__annotations__["one"] = Annotated[Any, Resource(one)]

        def handle(self: Any, it: Any) -> None: ...

        text = refused(handle, it=Annotated[Any, Resource(one)]).replace(
            f"{type(self).__name__}.test_a_circle.<locals>.", ""
        )
        assert text == "Wrong.handle: it: a resource cannot need itself: one -> two -> three -> one"

    def test_a_factory_with_other_parameters(self) -> None:
        def handle(self: Any, it: Any) -> None: ...

        def make(url: str, *more: str, size: int = 5, **others: str) -> None: ...

        text = refused(handle, it=Annotated[Any, Resource(make)])
        assert text.endswith("make needs 'url': give that a default, or a Resource")

    def test_a_factory_that_is_not_there(self) -> None:
        def handle(self: Any, it: "Annotated[Pool, Resource(make_it)]") -> None: ...  # type: ignore[name-defined] # noqa: F821, UP037 (what is tested)

        assert refused(handle) == (
            "Wrong.handle: it: make_it is not there: define it at the top level of a module, "
            "before the job, and import it outside of TYPE_CHECKING"
        )

    def test_what_is_no_factory(self) -> None:
        wrong: Any
        for wrong in ("make", 7, None, []):
            with pytest.raises(JobDefinitionError, match="takes a function that makes"):
                Resource(wrong)
        assert repr(Resource(make_plain)) == "Resource(make_plain)"

    def test_one_that_is_positional_only(self) -> None:
        def call(pool: Any, /) -> None: ...

        call.__annotations__["pool"] = Annotated[str, Resource(make_plain)]
        with pytest.raises(JobDefinitionError, match="call: pool takes a resource: take out the /"):
            queueable(call)

    def test_a_field(self) -> None:
        space = {"__annotations__": {"pool": Annotated[int, Resource(make_plain)]}}
        with pytest.raises(
            JobDefinitionError, match=r"Wrong.pool: .* a Resource is no field: make"
        ):
            type("Wrong", (Queueable,), {**space, "__module__": __name__})
