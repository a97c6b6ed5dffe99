"""Whether what one job returns can be a field of another, by their annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from qframe.jobs.definition import JobDefinition
from qframe.payload import secret
from qframe.payload.text import one_line

_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_ALSO = {
    "integer": {"number", "boolean", "string"},  # a time, a Decimal
    "number": {"integer", "string", "boolean"},
    "string": {"integer", "number", "boolean"},
    "boolean": {"integer", "number"},
}
"""What pydantic makes of each kind of JSON when it is not strict."""


def returns_of(job_class: type[JobDefinition]) -> Any:  # noqa: ANN401 (any annotation)
    """Return the annotation of what `handle` returns; `Any` if it has none, or an unknown one."""
    handle = inspect.unwrap(job_class.handle)
    try:
        return typing.get_type_hints(handle, include_extras=True).get("return", Any)
    except Exception:  # noqa: BLE001 (an annotation may be anything, and raise anything)
        return Any


def field_type(job_class: type[JobDefinition], field: str) -> Any:  # noqa: ANN401 (any annotation)
    """Return the annotation of a field."""
    fields: dict[str, Any] = job_class.__pydantic_fields__  # type: ignore[attr-defined] # pydantic's own name
    return fields[field].annotation if field in fields else Any


def misfit(returns: object, wanted: object) -> str:
    """Return why no value of one type can be one of the other; "" if one may.

    It compares kinds of JSON, so it finds what cannot fit, not all that does not.
    """
    if holds_secret(returns):
        return f"{_shown(returns)} holds a Secret, which is not kept in results"
    given, taken = _kinds(returns, "serialization"), _kinds(wanted, "validation")
    possible = given.union(*(_ALSO.get(each, set()) for each in given))
    if possible.isdisjoint(taken):
        return f"{_shown(returns)} cannot be {_shown(wanted)}"
    return ""


def accepts_none(wanted: object) -> bool:
    """Whether a field takes None."""
    return "null" in _kinds(wanted, "validation")


def items_of(returns: object) -> Any:  # noqa: ANN401 (any annotation)
    """Return the type of the items of a list; `Any` if it is not known."""
    arguments = typing.get_args(returns)
    return arguments[0] if arguments and typing.get_origin(returns) in {list, set} else Any


def holds_secret(type_: Any) -> bool:  # noqa: ANN401 (any annotation)
    """Whether a value of this type is or holds a `Secret`."""
    try:
        return secret.is_within(TypeAdapter(type_).core_schema)
    except Exception:  # noqa: BLE001 (nothing is known of it)
        return False


def _kinds(type_: Any, mode: Any) -> frozenset[str]:  # noqa: ANN401 (pydantic's literal)
    if type_ is Any:
        return _ALL
    if type_ is None or type_ is type(None):
        return frozenset({"null"})
    try:
        schema = TypeAdapter(type_).json_schema(mode=mode)
    except Exception:  # noqa: BLE001 (nothing is known of it)
        return _ALL
    return frozenset(_kinds_in(schema, schema.get("$defs", {})))


def _kinds_in(schema: Any, definitions: dict[str, Any]) -> Iterable[str]:  # noqa: ANN401 (a JSON schema)
    if not isinstance(schema, dict):
        return _ALL
    if "$ref" in schema:
        return _kinds_in(definitions.get(schema["$ref"].rpartition("/")[2]), {})
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {kind for each in schema[key] for kind in _kinds_in(each, definitions)}
    if "type" in schema:
        return {schema["type"]}
    return _ALL


def _shown(type_: object) -> str:
    if type_ is None or type_ is type(None):
        return "None"
    return one_line(getattr(type_, "__name__", None) or repr(type_), 60)
