"""Chunks as they are declared, and handled where nothing gathers them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import Chunk, JobDefinitionError, Queueable, QueueManager, dispatch_sync, manager
from qframe.testing import drain, run

RAN: list[Any] = []


class Insert(Queueable):
    row: int
    chunk = Chunk(100, within=0)

    @classmethod
    def handle_many(cls, jobs: Sequence[Insert]) -> list[int]:
        RAN.append([job.row for job in jobs])
        return [job.row * 2 for job in jobs]


class InsertAsync(Insert):
    @classmethod
    async def handle_many(cls, jobs: Sequence[Insert]) -> list[int]:  # type: ignore[override] # as users write it
        return super().handle_many(jobs)


@pytest.fixture
def queues(fresh: Path) -> QueueManager:
    RAN.clear()
    made = QueueManager({"root": fresh, "default": "memory", "jobs": [__name__]})
    manager.use(made)
    return made


@pytest.mark.parametrize("job", [Insert, InsertAsync])
def test_here_and_now_it_is_handled_alone(queues: QueueManager, job: type[Insert]) -> None:
    del queues
    assert dispatch_sync(job(row=4)) == 8
    ran = run(job(row=5))
    ran.assert_done()
    assert ran.result == 10
    assert RAN == [[4], [5]]


def test_drain_handles_them_together(queues: QueueManager) -> None:
    for number in range(5):
        queues.connection().push(Insert(row=number))
    assert drain().done == 5
    assert [row for rows in RAN for row in rows] == [*range(5)]
    assert len(RAN) < 5


def test_sizes_and_times() -> None:
    assert Chunk(100) == Chunk(size=100, within=1)
    assert Chunk(2, within=timedelta(seconds=3)).within == 3


@pytest.mark.parametrize("size", [1, 0, -3, 1001, 2.0, True, "100", None])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(JobDefinitionError, match="Chunk: size is a whole number from 2 to 1,000"):
        Chunk(size)


@pytest.mark.parametrize("within", [-1, 61, "2", None, timedelta(minutes=2)])
def test_other_times_are_refused(within: Any) -> None:
    with pytest.raises(JobDefinitionError, match="Chunk: "):
        Chunk(10, within=within)


def refused(match: str) -> Any:
    return pytest.raises(JobDefinitionError, match=match)


def test_a_class_with_a_chunk_handles_many() -> None:
    with refused("A.chunk needs a classmethod `handle_many"):

        class A(Queueable):
            chunk = Chunk(10)

    with refused("B.handle_many must be a classmethod"):

        class B(Queueable):
            chunk = Chunk(10)

            def handle_many(self, jobs: object) -> None: ...

    with refused("C has a chunk: `handle_many` takes the place of `handle`"):

        class C(Queueable):
            chunk = Chunk(10)

            @classmethod
            def handle_many(cls, jobs: object) -> None: ...

            def handle(self) -> None: ...

    with refused("D has a chunk, and cannot have concurrency besides"):

        class D(Queueable):
            chunk = Chunk(10)
            concurrency = 2

            @classmethod
            def handle_many(cls, jobs: object) -> None: ...

    with refused("chunk"):

        class E(Queueable):
            chunk = 100  # type: ignore[assignment]

            @classmethod
            def handle_many(cls, jobs: object) -> None: ...

    with refused("F.handle_many is a generator"):

        class F(Queueable):
            chunk = Chunk(10)

            @classmethod
            def handle_many(cls, jobs: object) -> Any:
                yield 1


def hidden(function: Any) -> Any:
    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return function(*given)

    return call


@pytest.mark.usefixtures("queues")
def test_a_generator_that_a_decorator_hides_fails() -> None:
    class Hidden(Queueable):
        chunk = Chunk(10)

        @classmethod
        @hidden
        def handle_many(cls, jobs: object) -> Any:
            yield jobs

    with pytest.raises(JobDefinitionError, match=r"^Hidden.handle_many is a generator"):
        dispatch_sync(Hidden())


def hidden_on_loop(function: Any) -> Any:
    @functools.wraps(function)
    async def call(*given: Any) -> Any:
        return function(*given)

    return call


@pytest.mark.usefixtures("queues")
def test_a_generator_that_an_async_decorator_hides_fails() -> None:
    class Hidden(Queueable):
        chunk = Chunk(10)

        @classmethod
        @hidden_on_loop
        def handle_many(cls, jobs: object) -> Any:
            yield jobs

    with pytest.raises(JobDefinitionError, match=r"^Hidden.handle_many is a generator"):
        dispatch_sync(Hidden())
