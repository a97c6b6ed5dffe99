"""The connections to servers that this process has open, whichever thread uses them."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any

from qframe.drivers import process

_numbers = itertools.count()
_opened: dict[int, tuple[int, str, weakref.ref[Any]]] = {}
"""The process that opened each, its database, and the connection itself."""


def note(raw: object, database: str) -> None:
    """Note a connection that was opened."""
    number = next(_numbers)
    there = weakref.ref(raw, lambda _: _opened.pop(number, None))
    _opened[number] = process.pid(), database, there


def close_all(databases: set[str]) -> None:
    """Close what is open on databases of these names, as those have to be dropped.

    A thread that uses such a connection afterwards opens another.
    """
    for pid, database, there in list(_opened.values()):
        raw = there()
        if raw is not None and pid == process.pid() and database in databases:
            with contextlib.suppress(Exception):  # it was closed, or lost
                raw.close()
