"""Keeps which fields of models in a job were set, which JSON does not carry.

`model_dump(exclude_unset=True)` in a job must return what it would have where the job was made. So
data also has, for each model that would arrive with others set, the path to it and the names of
those that were not.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from qframe.jobs.roundtrip import plain
from qframe.payload.schemas import parts_of
from qframe.payload.secret import SECRETS, opened

KEY = "~unset"
"""A key of data that cannot be a field: it is not a name in Python."""

_LEAVES = {int, str, bool, float, type(None)}
_Way = tuple[str | int, ...]
"""Names of fields, and indexes of lists and of values of dicts."""


def holds_models(schema: object) -> bool:
    """Whether a pydantic core schema describes models."""
    return any(part.get("type") == "model" for part in parts_of(schema))


def found_in(job: object, back: object) -> list[list[Any]]:
    """Return the argument of `put_back` for a job that arrives as `back` without it."""
    sent, arrived = dict(_found(job, ())), dict(_found(back, ()))
    return [
        [list(way), sent.get(way, [])]
        for way in {**sent, **arrived}
        if sent.get(way) != arrived.get(way)
    ]


def _found(value: object, way: _Way) -> Iterator[tuple[_Way, list[str]]]:
    if isinstance(value, BaseModel):
        names = type(value).__pydantic_fields__.keys() - value.__pydantic_fields_set__
        if names:
            yield way, sorted(names)
    for step, part in _parts(value):
        if type(part) not in _LEAVES:
            yield from _found(part, way if step is None else (*way, step))


def _parts(value: object) -> Iterator[tuple[str | int | None, object]]:
    """Iterate over the parts of a value, each with the step to it."""
    if isinstance(value, BaseModel):
        own = value.__dict__
        for name in type(value).__pydantic_fields__:
            yield name, own.get(name)
    elif isinstance(value, Mapping):
        yield from enumerate(value.values())
    elif isinstance(value, list | tuple | deque):
        yield from enumerate(value)
    elif isinstance(value, AbstractSet) and not all(map(plain, value)):
        yield from enumerate(sorted(value, key=_written))
    elif isinstance(value, SECRETS):
        yield None, opened(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)


def _written(value: object) -> bytes:
    """Return a text by which the parts of a set have the same order wherever they are."""
    return to_json(value, serialize_unknown=True)


def put_back(job: object, listed: object) -> None:
    """Mark fields of the models in a job as set or unset; ignores invalid entries."""
    for each in listed if isinstance(listed, list) else ():
        with contextlib.suppress(TypeError, ValueError, LookupError):
            way, names = each
            value = job
            for step in way:
                value = _part(value, step)
            value = opened(value)
            if isinstance(value, BaseModel):
                names = set(names)
                value.model_fields_set.update(type(value).model_fields.keys() - names)
                value.model_fields_set.difference_update(names)


def _part(value: object, step: object) -> object:
    for there, part in _parts(opened(value)):
        if there == step:
            return part
    raise LookupError(step)
