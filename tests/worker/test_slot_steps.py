"""A job's steps on the loop: it sees what ends it, and its tasks look as they do elsewhere."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from qframe.exceptions import JobTimedOut
from qframe.payload import tracebacks
from qframe.worker.recorder import stacks
from qframe.worker.slots.interrupts import SlotInterrupts, Steps, TaskSteps, current
from qframe.worker.slots.jobs_loop import JobsLoop


@pytest.mark.parametrize(
    "between", [Steps.send, Steps.throw, Steps.seen, TaskSteps.seen, SlotInterrupts.seen]
)
def test_a_job_that_awaits_sees_why_it_ends(between: SimpleNamespace) -> None:
    seen = []

    async def job() -> None:
        try:
            await asyncio.sleep(20)
        except JobTimedOut as error:
            seen.append(str(error))
            raise
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        interrupts = SlotInterrupts(lambda _: None, asyncio.get_running_loop())
        interrupts.running(60)
        current.set(interrupts)
        interrupts.task = asyncio.create_task(Steps(job(), interrupts))
        await asyncio.sleep(0)
        signalled = cast("FrameType", SimpleNamespace(f_code=between.__code__))
        interrupts.fire(JobTimedOut("late"), signalled)
        with pytest.raises(JobTimedOut):
            await interrupts.task
        interrupts.task = None

    asyncio.run(main())
    assert seen == ["late", "cleaned up"]


# -- tasks that a job has started -----------------------------------------------------------------


@pytest.fixture
def jobs_loop() -> Iterator[JobsLoop]:
    made = JobsLoop()
    token = current.set(SlotInterrupts(lambda _: None, made.loop))
    try:
        yield made
    finally:
        current.reset(token)
        made.close(1)


def test_a_task_looks_as_without_a_worker(jobs_loop: JobsLoop) -> None:
    async def part() -> None:
        await asyncio.sleep(60)

    async def job() -> list[Any]:
        own = part()
        task = asyncio.create_task(own, name="a part")
        await asyncio.sleep(0)
        printed = io.StringIO()
        task.print_stack(file=printed)
        found = [
            task.get_coro() is own,
            {each.get_name() for each in asyncio.all_tasks()} >= {"a part"},
            repr(task),
            printed.getvalue(),
            stacks.of_task(task).decode(),
        ]
        task.cancel()
        return [*found, *await asyncio.gather(task, return_exceptions=True), repr(task)]

    same, is_listed, shown, printed, stack, cancelled, over = jobs_loop.loop.run_until_complete(
        job()
    )
    assert same
    assert is_listed
    where = f"running at {__file__}:"
    assert "name='a part' coro=<" in shown
    assert "<locals>.part() " + where in shown
    assert "in part\n    await asyncio.sleep(60)" in printed
    assert f"{__file__}:" in stack
    assert type(cancelled) is asyncio.CancelledError
    assert "cancelled" in over


def test_the_traceback_that_is_kept_has_the_jobs_code_alone(jobs_loop: JobsLoop) -> None:
    async def part() -> None:
        await asyncio.sleep(0)
        raise ValueError("why")

    async def job() -> None:
        await asyncio.gather(part(), asyncio.sleep(0))

    with pytest.raises(ValueError, match="why") as raised:
        jobs_loop.loop.run_until_complete(job())
    kept = tracebacks.full(raised.value)
    assert [line.rpartition(" ")[2] for line in kept.splitlines() if " File " in line][-2:] == [
        "job",
        "part",
    ]
    assert "interrupts.py" not in kept


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_what_is_no_coroutine_is_refused_as_by_asyncio(jobs_loop: JobsLoop) -> None:
    for wrong in ("text", None, asyncio.sleep):
        with pytest.raises(TypeError, match="a coroutine was expected"):
            jobs_loop.loop.create_task(cast("Any", wrong))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="without eager tasks")
def test_an_eager_task_that_ends_at_once(jobs_loop: JobsLoop) -> None:
    async def part() -> int:
        return 7

    async def job() -> Any:
        factory: Any = jobs_loop.loop.get_task_factory()
        task = factory(jobs_loop.loop, part(), eager_start=True)
        return task.done(), await task

    assert jobs_loop.loop.run_until_complete(job()) == (True, 7)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="without call graphs")
def test_the_call_graph_has_the_jobs_frames(jobs_loop: JobsLoop) -> None:
    async def inner() -> None:
        await asyncio.sleep(60)

    async def part() -> None:
        await inner()

    async def job() -> str:
        task = asyncio.create_task(part())
        await asyncio.sleep(0)
        graph: Any = asyncio
        try:
            return str(graph.format_call_graph(task))
        finally:
            task.cancel()

    text = jobs_loop.loop.run_until_complete(job())
    assert "inner()" in text
    assert "part()" in text
