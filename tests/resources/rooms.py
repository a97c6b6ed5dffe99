"""Jobs with resources, and what makes these."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

from qframe import INJECTED, Chunk, Queueable, Resource, current_job, queueable

if TYPE_CHECKING:
    from nowhere import Pool  # type: ignore[import-not-found] # known to checkers alone

told: list[str] = []


def make_plain() -> str:
    told.append("plain made")
    return "plain"


def make_by_generator() -> Iterator[str]:
    told.append("generator made")
    yield "generator"
    told.append("generator closed")


@contextmanager
def make_by_context() -> Iterator[str]:
    told.append("context made")
    yield "context"
    told.append("context closed")


async def make_async() -> str:
    await asyncio.sleep(0)
    told.append("async made")
    return "async"


async def make_by_async_generator() -> AsyncIterator[str]:
    told.append("async generator made")
    yield "async generator"
    await asyncio.sleep(0)
    told.append("async generator closed")


@asynccontextmanager
async def make_by_async_context() -> AsyncIterator[str]:
    told.append("async context made")
    yield "async context"
    await asyncio.sleep(0)
    told.append("async context closed")


class Client:
    """A class that makes itself, and whose own context is nobody's affair."""

    def __init__(self, plain: Annotated[str, Resource(make_plain)], size: int = 5) -> None:
        self.plain, self.size = plain, size

    def __enter__(self) -> Self:
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        raise AssertionError


class Maker:
    """An object that makes them."""

    async def __call__(self) -> str:
        return "made by an object"

    def method(self) -> str:
        return "made by a method"


maker = Maker()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@decorated
async def make_decorated() -> str:
    return "decorated"


def make_on_top(
    below: Annotated[str, Resource(make_by_async_context)],
    context: Annotated[str, Resource(make_by_context)],
) -> Iterator[tuple[str, str]]:
    """Has no `async`, and lives on the loop all the same."""
    asyncio.get_running_loop()
    told.append("top made")
    yield below, context
    told.append("top closed")


def make_for_no_job() -> None:
    told.append("of no job" if current_job() is None else "of a job")


ContextOf = Annotated[str, Resource(make_by_context)]


class Plain(Queueable):
    number: int = 0

    def handle(self, context: ContextOf, plain: Annotated[Pool, Resource(make_plain)]) -> Any:
        told.append("ran")
        return self.number, context, plain


class Inherits(Plain):
    def handle(self, *args: Any, **more: Any) -> Any:
        return "inherited", *super().handle(*args, **more)


class Every(Queueable):
    async def handle(  # noqa: PLR0917 (all there are)
        self,
        plain: Annotated[str, Resource(make_plain)],
        generator: Annotated[str, Resource(make_by_generator)],
        context: ContextOf,
        async_: Annotated[str, Resource(make_async)],
        async_generator: Annotated[str, Resource(make_by_async_generator)],
        async_context: Annotated[str, Resource(make_by_async_context)],
        client: Annotated[Client, Resource(Client)],
        partial: Annotated[Client, Resource(functools.partial(Client, size=7))],
        made: Annotated[str, Resource(maker)],
        method: Annotated[str, Resource(maker.method)],
        decorated: Annotated[str, Resource(make_decorated)],
        *,
        top: Annotated[tuple[str, str], Resource(make_on_top)],
        default: int = 3,
    ) -> Any:
        told.append("ran")
        assert (client.size, partial.size, client.plain) == (5, 7, "plain")
        return (
            plain, generator, context, async_, async_generator, async_context, made, method,
            decorated, top, default,
        )  # fmt: skip


@queueable(queue="math")
def add(number: int, pool: ContextOf = INJECTED, more: int = 1) -> Any:
    told.append("ran")
    return number, pool, more


@queueable
async def on_loop(
    number: int, *, pool: Annotated[Pool, Resource(make_by_async_context)] = INJECTED
) -> Any:
    return number, pool


class Many(Queueable):
    number: int
    chunk = Chunk(3, within=0)

    @classmethod
    async def handle_many(cls, jobs: Sequence[Many], pool: ContextOf) -> list[str]:
        told.append(f"ran {len(jobs)}")
        return [f"{pool} {job.number}" for job in jobs]


class OfNoJob(Queueable):
    def handle(self, nothing: Annotated[None, Resource(make_for_no_job)]) -> None: ...


class Slow:
    """How often it was made, by threads that ask at once."""

    made = 0

    def __init__(self) -> None:
        time.sleep(0.1)
        Slow.made += 1
        self.thread = threading.get_ident()


class Gate:
    """What `make_slowly` waits for."""

    begun: asyncio.Event
    may_end: asyncio.Event


async def make_slowly() -> str:
    told.append("slow begun")
    Gate.begun.set()
    try:
        await Gate.may_end.wait()
    except asyncio.CancelledError:
        told.append("slow broken off")
        raise
    return "slow"


def broken() -> None:
    told.append("broken")
    raise OSError("no route")


class Broken(Queueable):
    tries = 2

    def handle(self, nothing: Annotated[None, Resource(broken)]) -> None: ...


def make_bad_end() -> Iterator[str]:
    yield "value"
    raise OSError("cannot be closed")


class BadEnd(Queueable):
    def handle(self, value: Annotated[str, Resource(make_bad_end)]) -> str:
        return value


class BadEndOnLoop(Queueable):
    async def handle(
        self,
        value: Annotated[str, Resource(make_bad_end)],
        async_: Annotated[str, Resource(make_async)],
    ) -> str:
        return value
