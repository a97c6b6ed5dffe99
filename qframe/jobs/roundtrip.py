"""Checks that values arrive as they were sent: what JSON carries unchanged."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, time
from functools import lru_cache
from itertools import chain
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from qframe.contracts.identity import JobId
from qframe.payload.schemas import parts_of
from qframe.payload.secret import Secret
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
    """Whether both are equal, including types."""
    if type(sent) is not type(back):
        is_number = type(sent) is int and isinstance(back, float)
        return (is_number or type(sent) is JobId) and sent == back
    if type(sent) in SCALARS:
        return sent == back
    if isinstance(sent, dict) and isinstance(back, dict):
        return _same_dicts(sent, back)
    if isinstance(sent, list | tuple) and isinstance(back, list | tuple):
        return len(sent) == len(back) and all(map(same, sent, back))
    if isinstance(sent, Secret) and isinstance(back, Secret):
        return same(sent.reveal(), back.reveal())
    finite = not isinstance(sent, float) or math.isfinite(sent)
    return finite and (
        not _holds_times(type(sent)) or _folds(sent) == _folds(back)  # type: ignore[arg-type] # a type has a hash
        if sent == back
        else type(sent).__eq__ is object.__eq__ or _same_within(sent, back)
    )


def _same_dicts(sent: dict[Any, Any], back: dict[Any, Any]) -> bool:
    if sent.keys() == back.keys():
        if not {*map(type, sent)} <= SCALARS and _folds([*sent]) != _folds([*back]):
            return False
        return all(same(value, back[key]) for key, value in sent.items())
    return same([*sent.items()], [*back.items()])  # a key may be a time


def _same_within(sent: object, back: object) -> bool:
    """Whether two unequal values of one type differ only in the zones of times."""
    if isinstance(sent, datetime):
        return _at_once(sent) == _at_once(back)
    if isinstance(sent, AbstractSet) and isinstance(back, AbstractSet):
        return set(map(_at_once, sent)) == set(map(_at_once, back))
    if isinstance(sent, BaseModel) and isinstance(back, BaseModel):
        return (
            type(sent).__eq__ is BaseModel.__eq__
            and sent.__pydantic_private__ == back.__pydantic_private__
            and same(sent.__pydantic_extra__, back.__pydantic_extra__)
            and same(sent.__dict__, back.__dict__)
        )
    if dataclasses.is_dataclass(sent):
        names = [each.name for each in dataclasses.fields(sent) if each.compare]
        return all(same(getattr(sent, each), getattr(back, each)) for each in names)
    return False


def _at_once(value: object) -> object:
    """Return a time in UTC, so that times of any zones can be compared.

    In the hour of a clock change, Python never considers times of different zones equal.
    """
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC)
    return value


_MAY_BE_TIMES = {"datetime", "time", "any", "definition-ref"}


@lru_cache(maxsize=1024)
def _holds_times(kind: type) -> bool:
    """Whether equal values of a type may hold different times."""
    schema = getattr(kind, "__pydantic_core_schema__", None)
    if isinstance(schema, dict):  # an unbuilt schema is another object
        return any(each.get("type") in _MAY_BE_TIMES for each in parts_of(schema))
    return issubclass(kind, BaseModel | datetime | time | AbstractSet) or dataclasses.is_dataclass(
        kind
    )


def _folds(value: object) -> list[tuple[str, int, str]]:
    """Return what `==` ignores of times without an offset: fold and zone."""
    if isinstance(value, datetime | time):
        is_bare = not value.fold and value.tzinfo is None
        if is_bare or value.utcoffset() is not None:
            return []
        return [(value.isoformat(), value.fold, str(value.tzinfo))]
    found = [*chain.from_iterable(map(_folds, _within(value)))]
    return sorted(found) if isinstance(value, AbstractSet) else found


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, BaseModel):
        return [value.__dict__, value.__pydantic_extra__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in dataclasses.fields(value)]
    return value if isinstance(value, list | tuple | AbstractSet) else ()


def is_strict(schema: object) -> bool:
    """Whether any part of this pydantic core schema is strict."""
    parts = parts_of(schema, without=["strict_schema"])
    return any(each.get("strict") is True or _config(each).get("strict") is True for each in parts)


def _config(part: dict[str, Any]) -> dict[str, Any]:
    config = part.get("config")
    return config if isinstance(config, dict) else {}


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
