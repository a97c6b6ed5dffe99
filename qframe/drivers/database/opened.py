"""All connections to servers that this process has open, in any thread."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any

from qframe.drivers import process

_numbers = itertools.count()
_opened: dict[int, tuple[int, str, weakref.ref[Any]]] = {}
"""Each connection, with its process and database."""


def note(raw: object, database: str) -> None:
    """Record a new connection."""
    number = next(_numbers)
    there = weakref.ref(raw, lambda _: _opened.pop(number, None))
    _opened[number] = process.pid(), database, there


def close_all(databases: set[str]) -> None:
    """Close all connections to these databases, so that they can be dropped.

    A thread that uses such a connection opens another.
    """
    for pid, database, there in list(_opened.values()):
        raw = there()
        if raw is not None and pid == process.pid() and database in databases:
            with contextlib.suppress(Exception):  # already closed or lost
                raw.close()
