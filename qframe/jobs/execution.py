"""One attempt of one job in this process: its middleware around its hooks, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

from qframe.exceptions import DontHandle, Interruption, JobDefinitionError
from qframe.jobs.definition import JobDefinition
from qframe.jobs.options import check_option

log = logging.getLogger("qframe")

_HOOKS = ("set_up", "handle", "tear_down")


def perform(job: JobDefinition, outer: Sequence[Any] = (), *, bare: bool = False) -> Any:  # noqa: ANN401 (what the job returns)
    """Call `set_up`, `handle` and, whatever came of them, `tear_down`; give what `handle` gave.

    Raises what they raise; an error of `tear_down` is chained to the one before it. Unless it is to
    be `bare`, all of it goes through the middleware in `outer`, then the class's own, and gives
    what they give; `DontHandle` is raised where one has the job skipped.
    """
    kind = type(job)
    if not bare and (outer or kind.middleware):
        return _Passage(job, (*outer, *_own(job))).go()
    try:
        if kind.set_up is not JobDefinition.set_up:
            _finish(job.set_up())
        result = job.handle()
        return result if result is None else _finish(result)
    finally:
        if kind.tear_down is not JobDefinition.tear_down:
            _finish(job.tear_down())


def tell(job: JobDefinition, hook: str, *args: object) -> None:
    """Call `succeeded` or `failed`; what they raise is logged."""
    if getattr(type(job), hook) is getattr(JobDefinition, hook):
        return
    try:
        _finish(getattr(job, hook)(*args))
    except Interruption:
        raise
    except BaseException:
        log.exception("%s.%s raised", type(job).__name__, hook)


# -- middleware -----------------------------------------------------------------------------------


class _Passage:
    """One run of a job through its middleware, outermost first."""

    def __init__(self, job: JobDefinition, middleware: Sequence[Any]) -> None:
        self._job = job
        self._middleware = middleware
        self._deepest = 0
        """The middleware that was called last; the job itself behind the last of them."""

    def go(self) -> Any:  # noqa: ANN401 (what the job gave)
        """Run, and give what came out; raises `DontHandle` where nobody ran or settled the job."""
        result = self._step(0)
        reserved = self._job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
        if self._deepest < len(self._middleware) and not (reserved and reserved.is_settled):
            name = _name_of(self._middleware[self._deepest])
            raise DontHandle(f"the middleware {name} did not call on")
        return result

    def _step(self, place: int) -> Any:  # noqa: ANN401 (what the job gave)
        """Call the middleware of this place, or behind the last of them the job."""
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return perform(self._job, bare=True)
        middleware = self._middleware[place]
        if _is_async(middleware):
            return _finish(self._step_on_loop(place))
        return middleware(self._job, self._next(place, self._step))

    async def _step_on_loop(self, place: int) -> Any:  # noqa: ANN401 (what the job gave)
        """Do so on the event loop of a middleware."""
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return await _perform_on_loop(self._job)
        middleware = self._middleware[place]
        if _is_async(middleware):
            return await middleware(self._job, self._next(place, self._step_on_loop))
        if self._has_async_behind(place):
            outside = next(each for each in self._middleware if _is_async(each))
            raise JobDefinitionError(
                f"{type(self._job).__name__}: the async middleware {_name_of(outside)} is around "
                f"{_name_of(middleware)}, which is not async and itself around what is: put it "
                "inside of that, or write it without async"
            )
        return middleware(self._job, self._next(place, self._step))

    def _next(self, place: int, step: Callable[[int], Any]) -> Callable[[JobDefinition], Any]:
        def call_next(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job gave)
            if job is not self._job:
                name = _name_of(self._middleware[place])
                raise TypeError(
                    f"call_next of the middleware {name} takes the job it was called with"
                )
            return step(place + 1)

        return call_next

    def _has_async_behind(self, place: int) -> bool:
        hooks = [getattr(self._job, hook) for hook in _HOOKS]
        return any(map(_is_async, (*self._middleware[place + 1 :], *hooks)))


def _own(job: JobDefinition) -> Sequence[Any]:
    """Give the middleware of the job's class as it is now; raises `JobDefinitionError`."""
    declared: Any = type(job).middleware
    if not callable(declared):
        return tuple(declared)
    given = declared(job)
    if given is None:
        return ()
    made = tuple(given) if isinstance(given, Iterable) else given
    check_option(type(job).__name__, "middleware", made)
    return tuple(made)


def _is_async(middleware: Any) -> bool:  # noqa: ANN401 (whatever can be called)
    """Whether it is an `async def`, as a function or as its `__call__`."""
    return any(map(inspect.iscoroutinefunction, (middleware, type(middleware).__call__)))


def _name_of(middleware: object) -> str:
    """Give the name people know it by: its class, or the function it is."""
    named = middleware if inspect.isroutine(middleware) else type(middleware)
    return getattr(named, "__qualname__", type(middleware).__name__)


# -- what is async --------------------------------------------------------------------------------

_kept = threading.local()


@contextlib.contextmanager
def kept_event_loop() -> Iterator[None]:
    """Run the `async` jobs of this thread on one event loop instead of a new one each."""
    _kept.runner = asyncio.Runner()
    try:
        yield
    finally:
        runner, _kept.runner = _kept.runner, None
        runner.close()


async def _perform_on_loop(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job returns)
    try:
        await _awaited(job.set_up())
        return await _awaited(job.handle())
    finally:
        await _awaited(job.tear_down())


def _finish(result: Any) -> Any:  # noqa: ANN401 (what the job returns)
    """Wait for what an `async def` gave."""
    if not inspect.isawaitable(result):
        return result
    if on_a_running_loop():  # of the program that made a synchronous call
        thread = futures.ThreadPoolExecutor(1, "qframe-async-job")
        return thread.submit(asyncio.run, _awaited(result)).result()
    runner: asyncio.Runner | None = getattr(_kept, "runner", None)
    if runner is None:
        return asyncio.run(_awaited(result))
    try:
        return runner.run(_awaited(result))
    except Interruption:
        # The task is still suspended: closing the loop cancels it, so its `finally` blocks run.
        _kept.runner = asyncio.Runner()
        runner.close()
        raise


async def _awaited(result: Any) -> Any:  # noqa: ANN401 (what the job returns)
    return await result if inspect.isawaitable(result) else result


def on_a_running_loop() -> bool:
    """Whether an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
