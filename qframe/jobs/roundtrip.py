"""Checks that values arrive as they were sent: what JSON carries unchanged."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, time
from typing import Any

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from qframe.contracts.identity import JobId
from qframe.payload.schemas import parts_of
from qframe.payload.secret import SECRETS, opened
from qframe.payload.text import one_line


def plain(value: object) -> bool:
    """Whether JSON carries a value of exactly this type unchanged."""
    kind = type(value)
    return (
        kind is int
        or kind is str
        or kind is JobId
        or kind is bool
        or value is None
        or (kind is float and math.isfinite(value))  # type: ignore[arg-type] # it is a float
    )


SCALARS = {int, str, bool}


def same(sent: object, back: object) -> bool:
    """Whether both are equal, including the types of all their parts."""
    kind = type(sent)
    if kind is not type(back):
        is_number = kind is int and isinstance(back, float)
        return (is_number or kind is JobId) and sent == back
    if kind in SCALARS:
        return sent == back
    if isinstance(sent, dict) and isinstance(back, dict):
        return _same_dicts(sent, back)
    if isinstance(sent, list | tuple | deque) and isinstance(back, list | tuple | deque):
        is_as_long = len(sent) == len(back) and _most(sent) == _most(back)
        return is_as_long and all(map(same, sent, back))
    return _same_others(sent, back)


def _same_others(sent: object, back: object) -> bool:
    if isinstance(sent, BaseModel) and isinstance(back, BaseModel):
        return _same_models(sent, back)
    if isinstance(sent, AbstractSet) and isinstance(back, AbstractSet):
        there = {_at_once(each): each for each in back}
        return len(sent) == len(back) and all(same(x, there.get(_at_once(x))) for x in sent)
    if isinstance(sent, datetime | time) and isinstance(back, datetime | time):
        return _at_once(sent) == _at_once(back) and _folds(sent) == _folds(back)
    if dataclasses.is_dataclass(sent):
        names = [each.name for each in dataclasses.fields(sent) if each.compare or each.init]
        return all(same(getattr(sent, each), getattr(back, each)) for each in names)
    if isinstance(sent, SECRETS):
        return same(opened(sent), opened(back))
    finite = not isinstance(sent, float) or math.isfinite(sent)
    return finite and (sent == back or type(sent).__eq__ is object.__eq__)


def _same_dicts(sent: dict[Any, Any], back: dict[Any, Any]) -> bool:
    if {*map(type, sent)} <= SCALARS and sent.keys() == back.keys():
        return all(same(value, back[key]) for key, value in sent.items())
    return same([*sent.items()], [*back.items()])  # a key may be a time


def _same_models(sent: BaseModel, back: BaseModel) -> bool:
    ours, theirs = sent.__dict__, back.__dict__
    for name in type(sent).__pydantic_fields__:
        one, other = ours.get(name), theirs.get(name)
        if type(one) is type(other) and type(one) in SCALARS:  # a call for each takes longer
            if one != other:
                return False
        elif not same(one, other):
            return False
    is_compared = type(sent).__eq__ in {BaseModel.__eq__, RootModel.__eq__}
    if is_compared and sent.__pydantic_private__ != back.__pydantic_private__:
        return False
    more, others = sent.__pydantic_extra__, back.__pydantic_extra__
    return more is others or same(more, others)


def _most(value: object) -> int | None:
    return value.maxlen if isinstance(value, deque) else None


def _at_once(value: object) -> object:
    """Return a time in UTC, so that times of any zones can be compared.

    In the hour of a clock change, Python never considers times of different zones equal.
    """
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC)
    return value


def _folds(value: datetime | time) -> tuple[int, str] | None:
    """Return what `==` ignores of a time without an offset: fold and zone."""
    return None if value.utcoffset() is not None else (value.fold, str(value.tzinfo))


_AS_IN_JSON = {"str", "int", "bool"}


def is_strict(schema: object) -> bool:
    """Whether any part of this pydantic core schema takes from JSON what it does not from Python.

    That is what is strict, besides the types that JSON has itself.
    """
    return any(map(_is_strict, parts_of(schema, without=["strict_schema"])))


def _is_strict(part: dict[str, Any]) -> bool:
    config = part.get("config")
    if isinstance(config, dict) and config.get("strict") is True:
        return True
    return part.get("strict") is True and part.get("type") not in _AS_IN_JSON


def first_fault(error: Exception) -> str:
    """Return the first error of a validation in one line with the field's name."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, ValidationError):
        return one_line(f"{type(error).__name__}: {error}", 200)
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place}: {one_line(fault['msg'])}" if place else one_line(fault["msg"])


def without_values(error: ValidationError) -> ValidationError:
    """Return a validation error without anything from the values, such as places within a field.

    Those include the keys of dicts, which cannot be told from the names of a model's fields.
    """
    lines: list[InitErrorDetails] = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        kind, problem, loc = fault["type"], fault["msg"], fault["loc"]
        if kind == "union_tag_invalid":  # it quotes the input
            problem = "Input tag is none of those expected"
        place = (loc[0], "*") if len(loc) > 1 else loc
        lines.append({"type": PydanticCustomError(kind, problem), "loc": place, "input": None})
    return ValidationError.from_exception_data(error.title, lines, hide_input=True)


def with_other_empties(data: dict[str, Any], error: ValidationError) -> dict[str, Any] | None:
    """Return data with `[]` and `{}` swapped where the error is about them; None for others.

    PHP writes both as `[]`, Laravel's Lua both as `{}`.
    """
    changed = copy.deepcopy(data)
    seen: set[tuple[str | int, ...]] = set()
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place, value = _reached(changed, fault["loc"])
        if place and place not in seen and isinstance(value, list | dict) and not value:
            seen.add(place)
            *outer, last = place
            _reached(changed, tuple(outer))[1][last] = [] if isinstance(value, dict) else {}
    return changed if seen else None


def _reached(data: Any, loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any]:  # noqa: ANN401 (any JSON value)
    """Follow an error's path into the data, up to where it names a part of a union."""
    for number, part in enumerate(loc):
        try:
            data = data[part]
        except (LookupError, TypeError):
            return loc[:number], data
    return loc, data
