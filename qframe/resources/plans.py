"""ResourcePlan: how a factory makes a resource, and what that needs; tests may override it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from qframe import forks
from qframe.exceptions import JobDefinitionError
from qframe.payload.text import one_line
from qframe.resources.declared import (
    MANY,
    Factory,
    Need,
    name_of,
    needs_of,
    parameters_of,
    without_partial,
)


class ResourcePlan:
    """A factory, read once. Raises `JobDefinitionError` for one that cannot be called."""

    def __init__(self, factory: Factory, instead_of: Factory | None = None) -> None:
        self.factory = factory
        self.instead_of = instead_of
        self.name = name_of(factory)
        self.needs: tuple[Need, ...] = needs_of(self.name, factory)
        self._check_parameters()
        called = without_partial(factory)
        if not (inspect.isroutine(called) or isinstance(called, type)):
            called = type(called).__call__
        inner = inspect.unwrap(called)
        self._is_context = inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
        self.is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
        self._call = factory
        if inspect.isgeneratorfunction(called):
            self._call = contextlib.contextmanager(factory)
        elif inspect.isasyncgenfunction(called):
            self._call = contextlib.asynccontextmanager(factory)
        code = getattr(inner, "__code__", None)
        self._place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"

    def _check_parameters(self) -> None:
        given = {each.name for each in self.needs}
        for each in parameters_of(self.factory):
            is_open = each.default is each.empty and each.kind not in MANY
            if is_open and each.name not in given:
                raise JobDefinitionError(
                    f"{self.name} needs {each.name!r}: give that a default, or a Resource"
                )

    def made(self, stack: ExitStack, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 (the resource)
        """Make it in this thread, and have the stack close it."""
        value = self._call(**given)
        if self._is_context:
            return stack.enter_context(value)
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"{self.name} returns a coroutine: write it with `async def`")
        return value

    async def made_on_loop(self, stack: AsyncExitStack, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 (as above)
        """Make it on the running event loop, and have the stack close it."""
        if not self.is_async:
            with contextlib.ExitStack() as own:
                value = self.made(own, given)
                stack.push(own.pop_all())
            return value
        value = self._call(**given)
        return await (stack.enter_async_context(value) if self._is_context else value)

    def told(self, error: BaseException) -> None:
        """Say in an exception what was being made."""
        error.add_note(f"raised while the resource {self.name} was made{self._place}")


@functools.cache
def _read(factory: Factory) -> ResourcePlan:
    return ResourcePlan(factory)


_overrides: dict[Factory, tuple[ResourcePlan, ...]] = {}
"""What is in the place of each, the current one last; blocks of threads end in any order."""
_overriding = forks.lock()


def current(factory: Factory) -> ResourcePlan:
    """Return the plan of a factory, or of what a test has put in its place."""
    plans = _overrides.get(factory) if _overrides else None
    return plans[-1] if plans else _read(factory)


def is_for_loop(plan: ResourcePlan) -> bool:
    """Whether a resource lives on an event loop: its factory is `async`, or what that needs.

    Or what it is in place of: a fake is made where the other would be.
    """
    if plan.is_async or (plan.instead_of and is_for_loop(_read(plan.instead_of))):
        return True
    return any(is_for_loop(current(each.factory)) for each in plan.needs)


def check(factory: Factory, path: tuple[ResourcePlan, ...] = ()) -> None:
    """Raise `JobDefinitionError` for a factory that cannot be called, or needs itself."""
    plan = current(factory)
    if plan in path:
        circle = [*path[path.index(plan) :], plan]
        raise JobDefinitionError(
            f"a resource cannot need itself: {' -> '.join(each.name for each in circle)}"
        )
    for each in plan.needs:
        check(each.factory, (*path, plan))


@contextlib.contextmanager
def overridden(factory: Factory, other: Factory) -> Iterator[None]:
    """Make a resource by another factory in the body. Raises `JobDefinitionError`."""
    given: Any = other
    if not callable(given):
        shown = one_line(repr(other), 80)
        raise JobDefinitionError(f"override_resource takes what makes the other: lambda: {shown}")
    plan = ResourcePlan(other, instead_of=factory)
    with _overriding:
        _overrides[factory] = (*_overrides.get(factory, ()), plan)
    try:
        check(factory)
        yield
    finally:
        with _overriding:
            if left := tuple(each for each in _overrides[factory] if each is not plan):
                _overrides[factory] = left
            else:
                del _overrides[factory]
