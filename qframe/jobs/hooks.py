"""What a job's hooks may be: called with what there is, and no generator, which nobody runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from qframe.exceptions import JobDefinitionError

GENERATORS = (GeneratorType, AsyncGeneratorType)

_GIVEN = {"handle": (), "set_up": (), "tear_down": (), "succeeded": (), "failed": ("error",)}
"""The hooks, and what each is called with besides the job."""


def is_generator(function: object) -> bool:
    """Whether calling it runs nothing, but gives what has to be iterated over."""
    bound = getattr(function, "_partialmethod", getattr(function, "__partialmethod__", None))
    if bound is not None:
        function = bound.func
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def refuse_generator(name: str, function: object) -> None:
    """Raise `JobDefinitionError` for a generator."""
    if is_generator(function):
        raise JobDefinitionError(
            f"{name} is a generator: it has `yield` in it, so calling it would run nothing. "
            "Take the `yield` out, or have it in a function that this one iterates over"
        )


def check_hooks(cls: type) -> None:
    """Raise `JobDefinitionError` for a hook of a job class that could not be called, or not run."""
    for hook, given in _GIVEN.items():
        function = getattr(cls, hook, None)
        if not callable(function):
            continue
        refuse_generator(f"{cls.__name__}.{hook}", function)
        held = inspect.getattr_static(cls, hook)
        has_self = inspect.isfunction(held)
        if has_self or isinstance(held, staticmethod | classmethod):
            _check_arguments(cls, hook, function, ("self", *given) if has_self else given)


def _check_arguments(
    cls: type, hook: str, function: Callable[..., object], given: tuple[str, ...]
) -> None:
    """Refuse what takes more than it is given, or cannot take that.

    A decorator may add arguments: what it has made is asked, not what it was made of.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it cannot be known
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        wanted = f"with {given[-1]}" if given[-1:] == ("error",) else "without arguments"
        raise JobDefinitionError(
            f"{cls.__name__}.{hook}{signature}: it is called {wanted} ({error}); what a job needs "
            "is a field of its class"
        ) from None


def refuse_unrun(owner: type, function: Any, result: object) -> None:  # noqa: ANN401 (whatever can be called)
    """Refuse that a decorated generator was called, and what it gave is taken for a result."""
    code = getattr(result, "gi_code", None) or getattr(result, "ag_code", None)
    if code is not None and code is getattr(inspect.unwrap(function), "__code__", None):
        refuse_generator(f"{owner.__name__}.handle", inspect.unwrap(function))
