"""Encodes steps as text in the outbox, for relays of this or a later version."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from qframe.contracts import step as op
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Operation, Step

VERSION = 1
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (op.Push, *get_args(op.OfFact), *get_args(op.OfLatch), *get_args(op.OfFailed))
}
"""Operations of steps about no reservation."""
_BYTES = "base64"
"""Marks bytes that are not UTF-8."""


def place_of(connection: str) -> str:
    """Return the place that a row is signed for."""
    return f"outbox row for {connection}"


def encoded(step: Step) -> str:
    """Encode a step. Raises `ValueError` for a step about a reservation."""
    if step.reservation is not None:
        raise ValueError("a step about a reservation cannot be kept in an outbox")
    return _json({"version": VERSION, "operations": [_fields(each) for each in step.operations]})


def decoded(text: str) -> Sequence[Operation]:
    """Decode the operations of a step. Raises `ValueError` for anything unknown to this version."""
    try:
        given = json.loads(text)
        if given["version"] != VERSION:
            raise ValueError(
                f"the row was written by a later version of qframe (format {given['version']}): "
                "upgrade the relay"
            )
        return [_operation(fields) for fields in given["operations"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the row holds no step: {error!r}") from None


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 (an operation, or what one holds)
    kind = type(value).__name__
    return {"is": kind} | {
        field.name: _plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 (a field)
    if isinstance(value, bytes):
        try:
            return {"is": "bytes", "text": value.decode()}
        except UnicodeDecodeError:
            return {"is": "bytes", _BYTES: base64.b64encode(value).decode()}
    if isinstance(value, History):
        return {"is": "History", "text": value.to_json()}
    return _fields(value) if dataclasses.is_dataclass(value) else value


def _operation(fields: Mapping[str, Any]) -> Operation:
    if fields["is"] not in _KINDS:
        raise ValueError(f"the row holds an operation that is unknown here: {fields['is']!r}")
    made: Operation = _value(fields)
    return made


def _value(given: Any) -> Any:  # noqa: ANN401 (a field)
    if not isinstance(given, dict):
        return given
    rest = {name: _value(each) for name, each in given.items() if name != "is"}
    if given["is"] == "bytes":
        return base64.b64decode(rest[_BYTES]) if _BYTES in rest else rest["text"].encode()
    if given["is"] == "History":
        return History.from_json(rest["text"])
    return (FailedJob if given["is"] == "FailedJob" else _KINDS[given["is"]])(**rest)


_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
