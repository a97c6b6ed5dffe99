"""Huey's jobs, and its instance on SQLite.

Huey leaves `PRAGMA synchronous` as SQLite has it, at FULL; `BENCH_SYNCHRONOUS` sets another, so
that both can be compared with the same promise about power loss.
"""

from __future__ import annotations

import os
from typing import Any

from huey import Huey
from huey.storage import SqliteStorage

from benchmarks.apps import effects

_synchronous = os.environ.get("BENCH_SYNCHRONOUS", "")


class _Storage(SqliteStorage):  # type: ignore[misc] # huey ships no types
    """Huey's own storage; only the PRAGMA differs, and only when asked for."""

    def _create_connection(self) -> Any:  # noqa: ANN401 (huey ships no types)
        connection = super()._create_connection()
        if _synchronous:
            connection.execute(f"PRAGMA synchronous={_synchronous}")
        return connection


huey = Huey("bench", storage_class=_Storage, filename="huey.sqlite3")


def _append() -> None:
    effects.write_byte()


def _since(moment: float) -> None:
    effects.write_since(moment)


append = huey.task(name="append")(_append)
since = huey.task(name="since")(_since)
