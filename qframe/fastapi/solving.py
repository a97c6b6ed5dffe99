"""Dependencies outside of a request: made in order, as FastAPI reads them, closed in reverse."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeAlias

from anyio.from_thread import BlockingPortal
from fastapi import params
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.exceptions import FastAPIError

from qframe.exceptions import JobDefinitionError
from qframe.fastapi.overrides import overrides
from qframe.payload.text import one_line

Needs: TypeAlias = Mapping[str, Dependant]
"""Dependencies by the names of the parameters that take them."""

_FIELDS = ("path", "query", "header", "cookie", "body")
_OBJECTS = (
    "request",
    "websocket",
    "http_connection",
    "response",
    "background_tasks",
    "security_scopes",
)


def tree(where: str, needed: params.Depends) -> Dependant:
    """Returns a dependency with all that it depends on. Raises `JobDefinitionError`."""
    assert needed.dependency is not None  # noqa: S101 (seen before)
    return _read(where, needed.dependency, use_cache=needed.use_cache)


def _read(where: str, call: Callable[..., Any], *, use_cache: bool = True) -> Dependant:
    try:
        found = get_dependant(path="", call=call, use_cache=use_cache)
    except (FastAPIError, AssertionError) as error:
        reason = one_line(str(error), 200)
        raise JobDefinitionError(f"{where}: {_named(call)} cannot be used: {reason}") from error
    _refuse_request(where, found)
    return found


def _refuse_request(where: str, dependant: Dependant) -> None:
    for each in dependant.dependencies:
        _refuse_request(where, each)
    taken = [getattr(dependant, f"{kind}_param_name") for kind in _OBJECTS]
    taken += [field.name for kind in _FIELDS for field in getattr(dependant, f"{kind}_params")]
    name = next((each for each in taken if each), None)
    if name is not None:
        raise JobDefinitionError(
            f"{where}: {_named(dependant.call)} takes {name!r} from the request, and a job has "
            "none: make what it is needed for a field of the job"
        )


def _named(call: object) -> str:
    return one_line(str(getattr(call, "__qualname__", None) or repr(call)), 80)


# -- making them ----------------------------------------------------------------------------------


class _Made:
    """The values of one job's dependencies, each made once; application overrides replace some."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self._instead = overrides()

    def real(self, dependant: Dependant) -> Dependant:
        """Returns the dependency, or its override."""
        call = self._instead.get(dependant.call)
        return dependant if call is None else _read("dependency_overrides", call)


def opened(stack: ExitStack, needs: Needs, portal: Callable[[], BlockingPortal]) -> dict[str, Any]:
    """Makes dependencies in this thread, and has the stack close them.

    If one is `async` they are made on a loop that runs until then, in a thread of its own.
    """
    made = _Made()
    if any(_has_async(each, made) for each in needs.values()):
        given: dict[str, Any] = stack.enter_context(
            portal().wrap_async_context_manager(_all_on_loop(needs))
        )
        return given
    return {name: _value(stack, each, made) for name, each in needs.items()}


async def opened_on_loop(stack: AsyncExitStack, needs: Needs) -> dict[str, Any]:
    """Makes dependencies on the running loop, those without `async` in threads, as FastAPI does."""
    made = _Made()
    return {name: await _value_on_loop(stack, each, made) for name, each in needs.items()}


@asynccontextmanager
async def _all_on_loop(needs: Needs) -> AsyncIterator[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        yield await opened_on_loop(stack, needs)


def _has_async(dependant: Dependant, made: _Made) -> bool:
    real = made.real(dependant)
    is_async = _is(real.call, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return is_async or any(_has_async(each, made) for each in real.dependencies)


def _is(call: Any, *kinds: Callable[[Any], bool]) -> bool:  # noqa: ANN401 (whatever can be called)
    """Whether a function, or the `__call__` of an object, is of one of these kinds."""
    while isinstance(call, functools.partial):
        call = call.func
    called = call if isinstance(call, type) else type(call).__call__
    return any(kind(each) for kind in kinds for each in (call, called))


def _value(stack: ExitStack, dependant: Dependant, made: _Made) -> Any:  # noqa: ANN401 (what it gives)
    if dependant.use_cache and dependant.call in made.values:
        return made.values[dependant.call]
    real = made.real(dependant)
    call: Any = real.call
    given = {name: _value(stack, each, made) for name, each in _named_ones(real)}
    if _is(call, inspect.isgeneratorfunction):
        value = stack.enter_context(contextmanager(call)(**given))
    else:
        value = call(**given)
    made.values[dependant.call] = value
    return value


async def _value_on_loop(stack: AsyncExitStack, dependant: Dependant, made: _Made) -> Any:  # noqa: ANN401 (as above)
    if dependant.use_cache and dependant.call in made.values:
        return made.values[dependant.call]
    real = made.real(dependant)
    call: Any = real.call
    given = {name: await _value_on_loop(stack, each, made) for name, each in _named_ones(real)}
    if _is(call, inspect.isasyncgenfunction):
        value = await stack.enter_async_context(asynccontextmanager(call)(**given))
    elif _is(call, inspect.isgeneratorfunction):
        opening = contextmanager_in_threadpool(contextmanager(call)(**given))
        value = await stack.enter_async_context(opening)
    elif _is(call, inspect.iscoroutinefunction):
        value = await call(**given)
    else:
        value = await run_in_threadpool(call, **given)
    made.values[dependant.call] = value
    return value


def _named_ones(dependant: Dependant) -> Iterable[tuple[str, Dependant]]:
    return [(str(each.name), each) for each in dependant.dependencies]
