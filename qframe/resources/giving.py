"""with_resources: a handler that is called without its resources, and gets them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

from qframe.exceptions import JobDefinitionError
from qframe.resources import plans, scope
from qframe.resources.declared import Factory, Need, needs_of


def give_to(cls: type, hook: str) -> None:
    """Have a class's handler given its resources. Raises `JobDefinitionError`."""
    held = inspect.getattr_static(cls, hook, None)
    is_bound = isinstance(held, classmethod | staticmethod)
    function: Any = held.__func__ if is_bound else held
    if inspect.isfunction(function):
        made: Any = with_resources(f"{cls.__name__}.{hook}", function)
        if made is not function:
            setattr(cls, hook, type(held)(made) if is_bound else made)


def with_resources(where: str, function: Factory) -> Factory:
    """Return a function that gets its resources, or the same one if it has none.

    An argument that a caller passes takes the place of the resource. Raises `JobDefinitionError`.
    """
    needs = needs_of(where, function)
    if not needs:
        return function
    is_async = inspect.iscoroutinefunction(function)
    for each in needs:
        try:
            plans.check(each.factory)
        except JobDefinitionError as error:
            raise JobDefinitionError(f"{where}: {each.name}: {error}") from None
        plan = plans.current(each.factory)
        if not is_async and plans.is_for_loop(plan):
            raise JobDefinitionError(
                f"{where}: {each.name}: {plan.name} is async, and what it makes lives on the event "
                "loop: write the handler with async, or the factory without"
            )
    call = (_on_loop if is_async else _in_thread)(function, needs)
    functools.update_wrapper(call, function)
    call.__signature__ = _without(needs, function)  # type: ignore[attr-defined] # what is asked first
    call.takes_resources = frozenset(each.name for each in needs)  # type: ignore[attr-defined] # ours
    return call


def fault_of_given(function: object, given: Iterable[str]) -> str | None:
    """Say that one of the `given` arguments of a dispatch is a resource of the function."""
    taken: frozenset[str] = getattr(function, "takes_resources", frozenset())
    for name in given:
        if name in taken:
            return f"{name} is a resource, which is given when the job starts: leave it out"
    return None


def _in_thread(function: Factory, needs: tuple[Need, ...]) -> Factory:
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the function's own)
        missing = _missing(needs, args, kwargs)
        if not missing:
            return function(*args, **kwargs)
        with scope.for_call() as resources:
            return function(*args, **kwargs, **resources.values(missing))

    return call


def _on_loop(function: Factory, needs: tuple[Need, ...]) -> Factory:
    async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as above)
        missing = _missing(needs, args, kwargs)
        if not missing:
            return await function(*args, **kwargs)
        async with scope.for_call_on_loop() as resources:
            return await function(*args, **kwargs, **await resources.values_on_loop(missing))

    return call


def _missing(
    needs: tuple[Need, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Need, ...]:
    return tuple(each for each in needs if each.name not in kwargs and each.position >= len(args))


def _without(needs: tuple[Need, ...], function: Factory) -> inspect.Signature:
    """Return the signature without resources; what is behind one is given by name."""
    own, names = inspect.signature(function), {each.name for each in needs}
    left: list[inspect.Parameter] = []
    is_behind = False
    for each in own.parameters.values():
        if each.name in names:
            is_behind = True
        elif is_behind and each.kind is each.POSITIONAL_OR_KEYWORD:
            left.append(each.replace(kind=each.KEYWORD_ONLY))
        else:
            left.append(each)
    return own.replace(parameters=left)
