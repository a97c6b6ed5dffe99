"""Arguments as JSON has them: lists and dicts, and Celery's own form for times, numbers and ids."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from qframe.jobs.references import Reference

_KIND: Final = "__type__"
_VALUE: Final = "__value__"

_KINDS: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    Decimal: ("decimal", str),
    UUID: ("uuid", lambda value: {"hex": value.hex}),
}
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: UUID(value["hex"] if isinstance(value, dict) else value),
    "bytes": str.encode,
    "base64": base64.b64decode,
}


def plain(value: Any) -> Any:
    """Return an argument as it travels. What JSON cannot carry is left for qframe to refuse."""
    try:
        return _plain(value)
    except RecursionError:
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str | int | float | Reference) or value is None:
        return value
    if isinstance(value, bytes):
        return _of_bytes(value)
    for kind, (name, write) in _KINDS.items():
        if isinstance(value, kind):
            return {_KIND: name, _VALUE: write(value)}
    return value


def _of_bytes(value: bytes) -> dict[str, str]:
    try:
        return {_KIND: "bytes", _VALUE: value.decode()}
    except UnicodeDecodeError:
        return {_KIND: "base64", _VALUE: base64.b64encode(value).decode()}


def restored(value: Any) -> Any:
    """Return an argument as the task gets it."""
    if isinstance(value, list):
        return [restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_KIND, _VALUE} and isinstance(kind := value[_KIND], str) and kind in _READ:
        return _READ[kind](value[_VALUE])
    return {key: restored(each) for key, each in value.items()}
