"""Checks of a job's hooks: they must accept their arguments, and must not be generators."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from types import AsyncGeneratorType, FunctionType, GeneratorType
from typing import Any

from qframe.exceptions import JobDefinitionError

GENERATORS = (
    GeneratorType,
    AsyncGeneratorType,
    _GeneratorContextManager,
    _AsyncGeneratorContextManager,
)
"""Generators, and what `@contextmanager` makes of them."""

_METHODS: tuple[type, ...] = (FunctionType, functools.partialmethod)
"""What gets the job as its first argument."""
if sys.version_info >= (3, 14):
    _METHODS += (functools.partial,)
_FUNCTIONS = (staticmethod, classmethod, functools.partial)
"""What gets no job, unless it is among the methods."""

_GIVEN = {"handle": (), "set_up": (), "tear_down": (), "succeeded": (), "failed": ("error",)}
"""The hooks, and their arguments besides the job."""


def is_generator(function: object) -> bool:
    """Whether calling the function only makes a generator."""
    bound = getattr(function, "_partialmethod", getattr(function, "__partialmethod__", None))
    if bound is not None:
        function = bound.func
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    called = (function, getattr(type(function), "__call__", None))  # noqa: B004 (that of its class)
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called)


def refuse_generator(name: str, function: object) -> None:
    """Raise `JobDefinitionError` for a generator."""
    if is_generator(function):
        raise _is_a_generator(name)


def _is_a_generator(name: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"{name} is a generator: it has `yield` in it, so calling it would run nothing. "
        "Take the `yield` out, or have it in a function that this one iterates over"
    )


def check_hooks(cls: type) -> None:
    """Raise `JobDefinitionError` for a hook that cannot be called or run."""
    for hook, given in _GIVEN.items():
        function = getattr(cls, hook, None)
        if not callable(function):
            continue
        refuse_generator(f"{cls.__name__}.{hook}", function)
        held = inspect.getattr_static(cls, hook)
        has_self = isinstance(held, _METHODS)
        if has_self or isinstance(held, _FUNCTIONS) or not hasattr(held, "__get__"):
            _check_arguments(cls, hook, function, ("self", *given) if has_self else given)


def _check_arguments(
    cls: type, hook: str, function: Callable[..., object], given: tuple[str, ...]
) -> None:
    """Refuse a hook that needs more arguments, or does not accept them.

    A decorator may add arguments, so the decorated function is checked, not the one inside.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # the signature is unknown
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        wanted = f"with {given[-1]}" if given[-1:] == ("error",) else "without arguments"
        raise JobDefinitionError(
            f"{cls.__name__}.{hook}{signature}: it is called {wanted} ({error}); what a job needs "
            "is a field of its class"
        ) from None


def ran(owner: Any, hook: str, result: Any) -> Any:  # noqa: ANN401 (a class, what its hook gave)
    """Return what a hook of a class gave, once that is awaited.

    Raises `JobDefinitionError` if a decorator hides that the hook is a generator: nothing has run.
    """
    if isinstance(result, GENERATORS):
        refuse_unrun(f"{owner.__name__}.{hook}", getattr(owner, hook), result)
    return result


def refuse_unrun(name: str, function: Any, result: Any) -> None:  # noqa: ANN401 (any callable)
    """Refuse a result that is the unstarted generator of a decorated function.

    If the decorator does not tell which function that is, it is the one with the hook's name.
    """
    made = getattr(result, "gen", result)
    code = getattr(made, "gi_code", None) or getattr(made, "ag_code", None)
    inside = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None and (code is inside or code.co_name == name.rpartition(".")[2]):
        raise _is_a_generator(name)
