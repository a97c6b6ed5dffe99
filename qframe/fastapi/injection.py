"""inject: a job whose function has the same `Depends` as a route."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar, get_args

from anyio.from_thread import start_blocking_portal
from fastapi import params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_typed_signature

from qframe.exceptions import JobDefinitionError
from qframe.fastapi.solving import Needs, opened, opened_on_loop, tree

R = TypeVar("R")


def inject(function: Callable[..., R]) -> Callable[..., R]:
    """Gives a function, or a job's `handle`, what its parameters with `Depends` ask for.

    ```python
    @queueable(queue="mail")
    @inject
    async def send_receipt(order: int, session: Annotated[Session, Depends(get_session)]): ...
    ```

    The other parameters are the job's fields. Each attempt has its own dependencies, each made
    once; generators continue after the function, and get its exception thrown in. Dependencies of
    a function without `async` run in the job's thread if none of them is `async`. An argument
    given in an ordinary call replaces the dependency.

    Raises `JobDefinitionError` for a dependency that reads the request: a job has none.
    """
    name = getattr(function, "__qualname__", repr(function))
    needs: dict[str, Dependant] = {}
    for parameter in get_typed_signature(function).parameters.values():
        if (found := _depends(parameter)) is None:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise JobDefinitionError(f"{name}: {parameter.name} must not be positional only")
        if found.dependency is None:
            raise JobDefinitionError(f"{name}: {parameter.name}: Depends() names nothing")
        needs[parameter.name] = tree(f"{name}: {parameter.name}", found)
    if not needs:
        raise JobDefinitionError(f"{name}: no parameter has Depends(...): leave @inject out")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise JobDefinitionError(f"{name} is a generator, which no worker goes through")
    own = inspect.signature(function)
    kept = own.replace(parameters=[p for key, p in own.parameters.items() if key not in needs])
    is_async = inspect.iscoroutinefunction(function)
    made = (_on_loop if is_async else _in_thread)(_Call(function, kept), needs)
    made.__signature__ = kept  # type: ignore[attr-defined] # what is asked first
    return functools.update_wrapper(made, function)


class _Call:
    """A function that gets its own parameters in their order, the others by name."""

    def __init__(self, function: Callable[..., Any], kept: inspect.Signature) -> None:
        self._function = function
        parameters = kept.parameters.values()
        self._unnamed = sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
        self._names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the function's own)
        first, rest = args[: self._unnamed], args[self._unnamed :]
        if len(rest) > len(self._names):
            most, name = self._unnamed + len(self._names), self._function.__qualname__
            raise TypeError(f"{name}() takes {most} positional arguments, not {len(args)}")
        # The earlier parameters may also be given by name: Python refuses a name given twice.
        return self._function(*first, **dict(zip(self._names, rest, strict=False)), **kwargs)


def _depends(parameter: inspect.Parameter) -> params.Depends | None:
    """Returns what a parameter depends on, with the class if only its type says that."""
    declared = [*get_args(parameter.annotation)[1:], parameter.default]
    found = next((each for each in reversed(declared) if isinstance(each, params.Depends)), None)
    if found is None or found.dependency is not None:
        return found
    kind = parameter.annotation
    kind = get_args(kind)[0] if get_args(kind) and found in get_args(kind) else kind
    if not callable(kind) or kind is parameter.empty:
        return found
    return type(found)(dependency=kind, use_cache=found.use_cache)


def _on_loop(function: Callable[..., Any], needs: Needs) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the function's own)
        wanted = {key: each for key, each in needs.items() if key not in kwargs}
        trouble: BaseException
        async with AsyncExitStack() as stack:
            values = await opened_on_loop(stack, wanted)
            try:
                return await function(*args, **kwargs, **values)
            except BaseException as error:
                trouble = error
                raise
        raise trouble  # a dependency has swallowed it: the attempt has failed all the same

    return call


def _in_thread(function: Callable[..., Any], needs: Needs) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the function's own)
        wanted = {key: each for key, each in needs.items() if key not in kwargs}
        trouble: BaseException
        with ExitStack() as stack:
            values = opened(stack, wanted, lambda: stack.enter_context(start_blocking_portal()))
            try:
                return function(*args, **kwargs, **values)
            except BaseException as error:
                trouble = error
                raise
        raise trouble  # as above

    return call
