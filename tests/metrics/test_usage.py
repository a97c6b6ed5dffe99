"""Who uses the workers: processor time, memory, run and waiting time, by class and by tag."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from qframe import Chunk, Queueable, QueueManager, Worker, WorkerOptions, manager
from qframe.drivers.store import Store
from qframe.metrics.by_tag import TagRecorder
from qframe.metrics.kept import MOST, Metrics, added_up
from qframe.metrics.recorder import Recorder
from qframe.metrics.series import MEASURED, MEMORY, PROCESSOR, Pair
from qframe.operations.board import Board
from qframe.web.prometheus import exposition
from qframe.worker import memory

ODD = 'b" 😀'


class Computes(Queueable):
    tenant: str = "a"

    def tags(self) -> list[str]:
        return [f"tenant:{self.tenant}"]

    def handle(self) -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass


class Sleeps(Queueable):
    def handle(self) -> None:
        time.sleep(0.03)


class AddsUp(Queueable):
    chunk: ClassVar[Chunk] = Chunk(10)

    @classmethod
    def handle_many(cls, jobs: Sequence[AddsUp]) -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    def make(**more: Any) -> QueueManager:
        queues = QueueManager({"default": "memory", "root": tmp_path, "jobs": [__name__], **more})
        manager.use(queues)
        return queues

    yield make
    manager.use(None)


def worked(queues: QueueManager, *jobs: Queueable, **options: Any) -> Board:
    for each in jobs:
        queues.connection().push(each)
    Worker(queues, WorkerOptions(stop_when_empty=True, memory=0, **options)).run()
    return Board(queues)


def test_processor_time_is_that_of_the_job_and_not_of_its_waits(made: Any) -> None:
    found = {each.name: each for each in worked(made(), Computes(), Sleeps()).usage(1)}
    computes, sleeps = found[f"{__name__}.Computes"], found[f"{__name__}.Sleeps"]
    assert 0.02 <= (computes.processor_seconds or 0) <= computes.run_seconds
    assert (sleeps.processor_seconds or 0) < 0.02
    assert sleeps.run_seconds >= 0.03
    assert computes.share + sleeps.share == pytest.approx(1)
    assert (computes.attempts, computes.measured) == (1, 1)
    assert computes.wait_mean is not None


def test_in_threads_each_job_has_its_own(made: Any) -> None:
    board = worked(made(), Computes(), Sleeps(), concurrency=2)
    found = {each.name: each.processor_seconds or 0 for each in board.usage(1)}
    assert found[f"{__name__}.Computes"] >= 0.02 > found[f"{__name__}.Sleeps"]


class Waits(Queueable):
    """Awaits beside the others, from before they begin until they have ended."""

    async def handle(self) -> None:
        waiting.append(asyncio.Event())
        await waiting[0].wait()


waiting: list[asyncio.Event] = []


def compute(seconds: float = 0.05) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class OnLoop(Queueable):
    """Computes for 0.15 s in one of these ways, and then ends the wait."""

    way: str

    async def handle(self) -> None:
        try:
            await getattr(self, self.way)()
        finally:
            waiting.pop().set()

    async def part(self) -> None:
        await asyncio.sleep(0)
        compute()

    async def itself(self) -> None:
        for _ in range(3):
            await self.part()

    async def tasks(self) -> None:
        await asyncio.gather(asyncio.create_task(self.part()), self.part())
        async with asyncio.TaskGroup() as group:
            group.create_task(self.part(), name="the third")

    async def eager(self) -> None:
        loop = asyncio.get_running_loop()
        factory: Any = loop.get_task_factory()
        await factory(loop, self.nested(), eager_start=True)

    async def nested(self) -> None:
        compute(0.1)
        await self.part()

    async def generator(self) -> None:
        async def parts() -> AsyncIterator[None]:
            try:
                for _ in range(2):
                    await self.part()
                    yield
            finally:
                compute()

        async for _ in parts():
            pass

    async def cancelled(self) -> None:
        async def part() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                compute(0.025)
                await asyncio.sleep(0)
                compute()

        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await part()
        task = asyncio.create_task(part())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def error(self) -> None:
        await self.itself()
        raise ValueError("after it has computed")


class InBoth(Queueable):
    """Computes in its thread, and for twice as long on the loop."""

    def handle(self) -> None:
        compute()

    async def set_up(self) -> None:
        compute()
        await asyncio.create_task(self.more())

    async def more(self) -> None:
        compute()


WAYS = ["itself", "tasks", "generator", "cancelled", "error"]
if sys.version_info >= (3, 12):
    WAYS.append("eager")


@pytest.mark.parametrize("way", WAYS)
def test_on_an_event_loop_each_job_has_the_time_of_its_own_steps(made: Any, way: str) -> None:
    board = worked(made(), Waits(), OnLoop(way=way), concurrency=2)
    found = {each.name: each for each in board.usage(1)}
    computes, waits = found[f"{__name__}.OnLoop"], found[f"{__name__}.Waits"]
    assert 0.15 <= (computes.processor_seconds or 0) < 0.25
    assert (waits.processor_seconds or 1) < 0.05
    assert waits.run_seconds >= 0.15, "it ran beside the other"
    assert (computes.measured, waits.measured) == (1, 1)


def test_a_job_in_a_thread_has_the_time_of_its_coroutines_too(made: Any) -> None:
    (found,) = worked(made(), InBoth(), concurrency=2).usage(1)
    assert 0.15 <= (found.processor_seconds or 0) < 0.25


def test_the_jobs_of_a_chunk_share_its_time(made: Any) -> None:
    (found,) = worked(made(), *(AddsUp() for _ in range(4))).usage(1)
    assert (found.attempts, found.measured) == (4, 4)
    assert 0.02 <= (found.processor_seconds or 0) < 0.06


def test_by_tag_with_shares_of_all_and_in_prometheus(made: Any) -> None:
    queues = made(metric_tags=["tenant:*"])
    board = worked(queues, Computes(tenant="a"), Computes(tenant="a"), Computes(tenant=ODD))
    found = {each.name: each for each in board.usage(1, "tag")}
    assert {name: each.attempts for name, each in found.items()} == {
        "tenant:a": 2,
        f"tenant:{ODD}": 1,
    }
    assert sum(each.share for each in found.values()) == pytest.approx(1, abs=0.05)
    page = exposition(board).decode()
    for name in ("processor", "run", "wait"):
        assert (
            f'qframe_tag_{name}_seconds_total{{connection="memory",queue="default",tag="tenant:a"}}'
            in page
        )
    assert 'tag="tenant:b\\" 😀"' in page
    assert (
        f'qframe_job_processor_seconds_total{{connection="memory",job="{__name__}.Computes"' in page
    )


def test_without_tags_that_are_counted_there_is_no_usage_by_tag(made: Any) -> None:
    board = worked(made(), Computes())
    assert board.usage(1, "tag") == []
    assert "qframe_tag" not in exposition(board).decode()


def test_the_peak_of_memory_is_the_highest_however_often_it_is_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [time.time()]
    monkeypatch.setattr("qframe.metrics.recorder.time", SimpleNamespace(time=lambda: now[0]))
    recorder, queues = Recorder(), QueueManager({"default": "memory"})
    metrics = Metrics(Store(queues.connection().backend), "here")
    for size in (80.2, 120.0, 90.0, 0.0):
        recorder.ended("app.A", "q", "done", 1.0, processor=0.5, memory=size)
    recorder.ended("app.A", "q", "failed", 1.0)
    for _ in range(2):
        metrics.write(recorder)
        fields = metrics.totals()[Pair("q", "app.A")]
        assert (fields[MEMORY], fields[MEASURED], fields[PROCESSOR]) == (120, 4, 2_000_000)
    recorder.ended("app.A", "q", "done", 1.0, processor=0.5, memory=100.0)
    recorder.has_unwritten()  # it is counted
    now[0] += 600.0  # nobody could write it in time
    metrics.write(recorder)
    fields = metrics.totals()[Pair("q", "app.A")]
    assert (fields[MEMORY], fields[MEASURED], fields["done"]) == (120, 5, 5)
    another = Recorder()  # of another process
    another.ended("app.A", "q", "done", 1.0, processor=0.5, memory=80.0)
    metrics.write(another)
    fields = metrics.totals()[Pair("q", "app.A")]
    assert (fields[MEMORY], fields[MEASURED], fields["done"]) == (120, 6, 6)


def test_of_several_minutes_the_highest_peak_counts() -> None:
    assert added_up({MEMORY: {1: 50, 2: 70}, "done": {1: 1, 2: 2}}) == {MEMORY: 70, "done": 3}


def test_a_peak_that_did_not_rise_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([50.0, 50.0, 70.0])
    monkeypatch.setattr(memory, "highest", lambda: next(sizes))
    peak = memory.MemoryPeak()
    assert [peak.raised() for _ in range(3)] == [50.0, 0.0, 70.0]


def test_no_more_than_so_many_tags_are_kept() -> None:
    recorder = TagRecorder(["*"])
    for number in range(2 * MOST):
        payload = {"tags": [f"tenant:{number}", "x" * 5000, 7, None]}
        recorder.ended(payload, "q", "done", 1.0, timed_out=False, processor=0.1)
    (minute,) = [text for _, text in recorder.recorder.unwritten()]
    assert minute.count('"q",') <= MOST
    assert '"(other)"' in minute
    assert "x" * 200 not in minute
