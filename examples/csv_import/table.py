"""The database the file goes into: a row a character, however often its slice is imported."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import astuple
from pathlib import Path

from examples.csv_import.rows import Row, Slice


class Table:
    """The tables in their SQLite file, made when first opened. Several processes may use it."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE IF NOT EXISTS characters (
                code INTEGER PRIMARY KEY, name TEXT, category TEXT, width TEXT, value REAL
            );
            CREATE TABLE IF NOT EXISTS bad (
                start INT, why TEXT, count INT, PRIMARY KEY (start, why)
            );
            CREATE TABLE IF NOT EXISTS notes (event TEXT PRIMARY KEY, text TEXT);
            """
        )

    def save(self, start: int, found: Slice) -> None:
        """Write a slice, all or nothing, over what a former run of its job may have written."""
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO characters VALUES (?, ?, ?, ?, ?)", map(astuple, found.rows)
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO bad VALUES (?, ?, ?)",
                [(start, why, count) for why, count in found.bad.items()],
            )

    def note(self, event: str, text: str) -> None:
        """Keep what a callback has to tell."""
        self._database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (event, text))

    def notes(self) -> dict[str, str]:
        """Give what callbacks told."""
        return dict(self._database.execute("SELECT event, text FROM notes"))

    def rows(self) -> list[Row]:
        """Read every row."""
        query = "SELECT * FROM characters ORDER BY code"
        return [Row(*fields) for fields in self._database.execute(query)]

    def bad(self) -> Counter[str]:
        """Count the bad rows, by what is wrong with them."""
        return Counter(dict(self._database.execute("SELECT why, sum(count) FROM bad GROUP BY why")))

    def categories(self) -> dict[str, int]:
        """Count the characters, by category."""
        query = "SELECT category, count(*) FROM characters GROUP BY category ORDER BY category"
        return dict(self._database.execute(query))

    def close(self) -> None:
        """Close the file."""
        self._database.close()
