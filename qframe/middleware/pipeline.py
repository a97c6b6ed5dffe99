"""What a job's run goes through: its middleware, each around the next, the job innermost."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from qframe.exceptions import DontHandle, JobDefinitionError
from qframe.jobs.options import check_option

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition

    Hooks = Callable[[JobDefinition], Any]
    AsyncHooks = Callable[[JobDefinition], Coroutine[Any, Any, Any]]

_HOOKS = ("set_up", "handle", "tear_down")
_FUNCTIONS = {FunctionType, MethodType, partial}


class Passage:
    """One run of a job through its middleware, outermost first.

    `hooks` runs the job itself, `hooks_on_loop` does so on a running event loop, and `finish` waits
    for a coroutine where none runs.
    """

    def __init__(
        self,
        job: JobDefinition,
        outer: Sequence[Any],
        hooks: Hooks,
        hooks_on_loop: AsyncHooks,
        finish: Callable[[Any], Any],
    ) -> None:
        self._job = job
        self._middleware = (*outer, *own(job))
        self._hooks = hooks
        self._hooks_on_loop = hooks_on_loop
        self._finish = finish
        self._deepest = 0
        """The middleware that was called last; the job itself behind the last of them."""

    def go(self) -> Any:  # noqa: ANN401 (what the job gave)
        """Run, and give what came out; raises `DontHandle` where nobody ran or settled the job."""
        result = self._step(0)
        reserved = self._job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
        if self._deepest < len(self._middleware) and not (reserved and reserved.is_settled):
            name = name_of(self._middleware[self._deepest])
            raise DontHandle(f"the middleware {name} did not call on")
        return result

    def _step(self, place: int) -> Any:  # noqa: ANN401 (what the job gave)
        """Call the middleware of this place, or behind the last of them the job."""
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return self._hooks(self._job)
        middleware = self._middleware[place]
        if is_async(middleware):
            return self._finish(self._step_on_loop(place))
        return middleware(self._job, self._next(place))

    def _next(self, place: int) -> Callable[[JobDefinition], Any]:
        def call_next(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job gave)
            self._check(job, place)
            return self._step(place + 1)

        return call_next

    async def _step_on_loop(self, place: int) -> Any:  # noqa: ANN401 (what the job gave)
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return await self._hooks_on_loop(self._job)
        middleware = self._middleware[place]
        if is_async(middleware):
            return await middleware(self._job, self._next_on_loop(place))
        if self._has_async_behind(place):
            outside = next(each for each in self._middleware if is_async(each))
            raise JobDefinitionError(
                f"{type(self._job).__name__}: the async middleware {name_of(outside)} is around "
                f"{name_of(middleware)}, which is not async and itself around what is: put it "
                "inside of that, or write it without async"
            )
        return middleware(self._job, self._next(place))

    def _next_on_loop(self, place: int) -> Callable[[JobDefinition], Coroutine[Any, Any, Any]]:
        async def call_next(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job gave)
            self._check(job, place)
            return await self._step_on_loop(place + 1)

        return call_next

    def _has_async_behind(self, place: int) -> bool:
        hooks = [getattr(self._job, hook) for hook in _HOOKS]
        return any(map(is_async, (*self._middleware[place + 1 :], *hooks)))

    def _check(self, job: object, place: int) -> None:
        if job is not self._job:
            raise TypeError(
                f"call_next of the middleware {name_of(self._middleware[place])} takes the job it "
                "was called with"
            )


def own(job: JobDefinition) -> Sequence[Any]:
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


def is_async(middleware: object) -> bool:
    """Whether it is an `async def`, as a function or as its `__call__`."""
    kind: Any = type(middleware)
    if kind in _FUNCTIONS:
        return inspect.iscoroutinefunction(middleware)
    return _is_called_async(kind)


@lru_cache(1000)
def _is_called_async(kind: Any) -> bool:  # noqa: ANN401 (a type, whose `__call__` mypy has no word for)
    return inspect.iscoroutinefunction(kind.__call__)


def name_of(middleware: object) -> str:
    """Give the name people know it by: its class, or the function it is."""
    named = middleware if inspect.isroutine(middleware) else type(middleware)
    return getattr(named, "__qualname__", type(middleware).__name__)
