"""One thread's connection, and the contexts in which it is used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from qframe import host
from qframe.drivers.database.sql import Statement
from qframe.drivers.database.watch import FileWatch
from qframe.guard import guarded

if TYPE_CHECKING:
    from qframe.drivers.database.connection import Database


class Session:
    """One thread's connection."""

    def __init__(self, connection: Connection, file: object) -> None:
        self.connection = connection
        self.file = file
        driver: Any = connection.connection.driver_connection
        self.cursor: Any = driver.cursor()
        self.pid = host.pid()
        self.depth = 0
        self.writes: FileWatch | None = None
        # Held in every call: a fork waits for it.
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        if self.writes is not None:
            self.writes.close()
        self.connection.close()

    def run(self, statement: Statement, **values: Any) -> Any:  # noqa: ANN401 (a DBAPI cursor)
        """Run a statement; gives the cursor, whose rows must be read before the next call."""
        self.cursor.execute(statement.sql, statement.arguments(values))
        return self.cursor

    def run_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """Run a statement once per row."""
        self.cursor.executemany(statement.sql, [statement.arguments(row) for row in rows])


class Call:
    """The context of one call on a thread's connection. A class: it is entered for every job."""

    __slots__ = ("_database", "_guard", "_session")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = guarded()

    def __enter__(self) -> Session:
        self._guard.__enter__()
        try:
            session = self._session = self._database.held()
        except BaseException as error:
            self._guard.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, self._database.errors):
                raise self._database.translated(error) from error
            raise
        session.lock.acquire()
        return session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.lock.release()
        self._guard.__exit__(kind, error, trace)
        if isinstance(error, self._database.errors):
            raise self._database.translated(error) from error


class Transaction(Call):
    """A call whose statements are one transaction."""

    __slots__ = ("_outermost",)

    def __enter__(self) -> Session:
        session = super().__enter__()
        self._outermost = not session.depth
        if self._outermost:
            try:
                session.cursor.execute(self._database.begin)
            except BaseException as error:
                # It may have begun all the same, where a Ctrl-C came as it returned.
                self._database.roll_back(session)
                super().__exit__(type(error), error, error.__traceback__)
                raise
            session.depth = 1
        return session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._outermost:
            self._session.depth = 0
            if error is not None:
                self._database.roll_back(self._session)
            else:
                self._commit()
        super().__exit__(kind, error, trace)

    def _commit(self) -> None:
        try:
            self._session.cursor.execute("COMMIT")
        except BaseException as error:
            self._database.roll_back(self._session)
            super().__exit__(type(error), error, error.__traceback__)
            raise
