"""A call's arguments, positional and named, as the fields of a job class."""

from __future__ import annotations

from qframe.exceptions import InvalidArguments
from qframe.jobs.definition import JobDefinition

_CALL = {"args", "kwargs"}
"""The fields of a class that takes any arguments."""


def fields_of_call(
    job_class: type[JobDefinition], args: list[object], kwargs: dict[str, object]
) -> dict[str, object]:
    """Return arguments by the fields' names; positional ones by the fields' order.

    A class with just the fields `args` and `kwargs` gets these. Raises `InvalidArguments`.
    """
    names = list(job_class.field_names())
    if set(names) == _CALL:
        return {"args": args, "kwargs": kwargs}
    if len(args) > len(names):
        raise InvalidArguments(f"{job_class.__name__} has {len(names)} fields, not {len(args)}")
    fields: dict[str, object] = dict(zip(names, args, strict=False))
    if twice := fields.keys() & kwargs.keys():
        raise InvalidArguments(f"{job_class.__name__}: {min(twice)} is given twice")
    return {key: _bare(value) for key, value in (fields | kwargs).items()}


def _bare(value: object) -> object:
    """Return a value without what Celery's JSON says of its type: the field has its own."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__type__", "__value__"}:
        inner = value["__value__"]
        return inner["hex"] if isinstance(inner, dict) and "hex" in inner else inner
    return {key: _bare(each) for key, each in value.items()}
