"""One thread's connection: runs statements on the DBAPI's cursor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from qframe.drivers import process
from qframe.drivers.database.sql import Statement


class Session:
    """One thread's connection."""

    def __init__(self, connection: Connection, file: object) -> None:
        self.connection = connection
        self.file = file
        driver: Any = connection.connection.driver_connection
        self.cursor: Any = driver.cursor()
        self.pid = process.pid()
        self.in_transaction = False
        # Held in every call: a fork waits for it.
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def run(self, statement: Statement, **values: Any) -> Any:  # noqa: ANN401 (a DBAPI cursor)
        """Run a statement; gives the cursor, whose rows must be read before the next call."""
        self.cursor.execute(statement.sql, statement.arguments(values))
        return self.cursor

    def run_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """Run a statement once per row."""
        self.cursor.executemany(statement.sql, [statement.arguments(row) for row in rows])
