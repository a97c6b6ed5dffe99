"""The results table: one row a file, however often its job runs."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, dataclass
from pathlib import Path

from examples.stdlib_index.source import Facts


@dataclass(frozen=True, slots=True)
class Result:
    """One row: the facts, and where they were found out."""

    facts: Facts
    attempt: int
    pid: int


class Results:
    """The table in its SQLite file, made when first opened. Several processes may use it."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE IF NOT EXISTS files (
                path TEXT PRIMARY KEY, sha256 TEXT, lines INT, functions INT, classes INT,
                attempt INT, pid INT
            );
            """
        )

    def save(self, result: Result) -> None:
        """Write a row, over the one a former run of the same job may have written."""
        self._database.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*astuple(result.facts), result.attempt, result.pid),
        )

    def all(self) -> list[Result]:
        """Read every row."""
        rows = self._database.execute("SELECT * FROM files").fetchall()
        return [Result(Facts(*facts), attempt, pid) for *facts, attempt, pid in rows]

    def close(self) -> None:
        """Close the file."""
        self._database.close()
