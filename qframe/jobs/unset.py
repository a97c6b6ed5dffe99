"""Keeps which fields of models in a job were not set, which JSON does not carry.

`model_dump(exclude_unset=True)` in a job must return what it would have where the job was made. So
data also has, for each model with unset fields, the path to it and their names.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from qframe.payload.schemas import parts_of
from qframe.payload.secret import Secret

KEY = "~unset"
"""A key of data that cannot be a field: it is not a name in Python."""

_Way = tuple[str | int, ...]
"""Names of fields, and indexes of lists and of values of dicts."""


def holds_models(schema: object) -> bool:
    """Whether a pydantic core schema describes models."""
    return any(part.get("type") == "model" for part in parts_of(schema))


def found_in(job: object) -> list[list[Any]]:
    """Return the argument of `put_back` for a job."""
    return [[list(way), names] for way, names in _found(job, ())]


def _found(value: object, way: _Way) -> Iterator[tuple[_Way, list[str]]]:
    if isinstance(value, BaseModel):
        names = type(value).model_fields.keys() - value.model_fields_set
        if names:
            yield way, sorted(names)
    for step, part in _parts(value):
        yield from _found(part, way if step is None else (*way, step))


def _parts(value: object) -> Iterator[tuple[str | int | None, object]]:
    """Iterate over the parts of a value, each with the step to it."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield name, getattr(value, name, None)
    elif isinstance(value, Mapping):
        yield from enumerate(value.values())
    elif isinstance(value, list | tuple | deque):
        yield from enumerate(value)
    elif isinstance(value, Secret):
        yield None, value.reveal()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)


def put_back(job: object, listed: object) -> None:
    """Mark fields of the models in a job as unset; ignores invalid entries."""
    for each in listed if isinstance(listed, list) else ():
        with contextlib.suppress(TypeError, ValueError, LookupError):
            way, names = each
            value = job
            for step in way:
                value = _part(value, step)
            value = _plain(value)
            if isinstance(value, BaseModel):
                unset = type(value).model_fields.keys() & set(names)
                value.model_fields_set.difference_update(unset)


def _part(value: object, step: object) -> object:
    for there, part in _parts(_plain(value)):
        if there == step:
            return part
    raise LookupError(step)


def _plain(value: object) -> object:
    return value.reveal() if isinstance(value, Secret) else value
