"""The database, and its sessions: a connection per thread, entered for each call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Column, ColumnElement, Connection, LargeBinary, cast
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement

from qframe.config import DatabaseSettings
from qframe.contracts.backend import Timing
from qframe.drivers import process
from qframe.drivers.database.engine import database_url, make_engine, prepare, shown
from qframe.drivers.database.errors import translated
from qframe.drivers.database.fork import forks
from qframe.drivers.database.schema import Schema
from qframe.drivers.database.sql import Statement
from qframe.drivers.guard import guarded

_MYSQL = "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS signed)"
_CLOCKS = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
_TICK = 4
"""Microseconds between two times at least: what is between orders the operations of a step."""
_STEP_BACK = 1_000_000
"""Microseconds the clock may seem to go back; more, and it was set."""


class Database:
    """The database of one connection. Opened, and its tables created, when first used."""

    def __init__(self, settings: DatabaseSettings, timing: Timing) -> None:
        self.timing = timing
        self.url = database_url(settings)
        self.kind = self.url.get_backend_name()
        self.is_sqlite = self.kind == "sqlite"
        self.schema = Schema(settings)
        self.engine = make_engine(self.url, settings)
        self.errors = (self.engine.dialect.loaded_dbapi.Error, SQLAlchemyError)
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self._thread = _Thread(self)
        self._own_opening = threading.Lock()
        self._ready = False
        self._last = 0

    def session(self) -> Session:
        """Give this thread's session, to be entered for a call."""
        return self._thread.session

    def statement(self, element: ClauseElement) -> Statement:
        """Make a statement for this database."""
        return Statement(element, self.engine.dialect)

    def now(self, cursor: Any) -> int:  # noqa: ANN401 (a DBAPI cursor)
        """Give the database's time in microseconds; later than any that was given before.

        SQLite has no clock of its own: it is a part of this process, and all that use the file
        share this machine's.
        """
        if self.is_sqlite:
            now = time.time_ns() // 1000
        else:
            cursor.execute(_CLOCKS[self.kind])
            now = int(cursor.fetchone()[0])
        if not self._last - _STEP_BACK < now < self._last + _TICK:
            self._last = now - _TICK
        return self.next_tick()

    def next_tick(self) -> int:
        """Give a later time than the last, without asking."""
        self._last += _TICK
        return self._last + int(self.timing.skew * 1_000_000)

    # -- what columns of text take ----------------------------------------------------------------

    def stored(self, raw: bytes) -> str | bytes:
        """Give bytes as a column of text takes them; SQLite takes any there."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            if self.is_sqlite:
                return raw
            raise ValueError(f"{self.kind} keeps text in UTF-8 only, not other bytes") from None

    def as_bytes(self, column: Column[Any]) -> ColumnElement[Any]:
        """Read text as the bytes it is: what others wrote to SQLite need not be UTF-8."""
        return cast(column, LargeBinary) if self.is_sqlite else column

    # -- opening and closing ----------------------------------------------------------------------

    def open(self, session: Session) -> Connection:
        """Open a connection; the first one makes the tables."""
        with self._opening():
            connection = self.engine.connect()
            try:
                if not self._ready:
                    prepare(self.engine, connection, self.schema, self.begin)
                    self._ready = True
            except BaseException:
                connection.close()
                raise
            if self.is_sqlite:
                forks.add(session)
        return connection

    def _opening(self) -> threading.Lock:
        return forks.opening if self.is_sqlite else self._own_opening

    def file(self) -> object:
        """Tell the SQLite file from another that later has its name."""
        try:
            found = Path(str(self.url.database)).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def follow_file(self) -> None:
        """Open the SQLite file anew when it was replaced or removed since it was opened."""
        session = self.session()
        if self.is_sqlite and session.is_open and session.file != self.file():
            session.close()
            with self._opening():
                self._ready = False


class Session:
    """One thread's connection, a context for each call. What a call does not commit is undone.

    What goes wrong between the connection and the database leaves it translated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = guarded()
        self._connection: Connection | None = None
        self._pid = 0
        self._now = 0
        self.cursor: Any = None
        self.file: object = None
        self.in_transaction = False
        # Held in every call: a fork waits for it.
        self.lock = threading.RLock()

    @property
    def is_open(self) -> bool:
        """Whether it has a connection, of this process."""
        return self._pid == process.pid()

    # -- calls and transactions -------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._guard.__enter__()
        try:
            if self._pid != process.pid():
                self._open()
            self.lock.acquire()
        except BaseException as error:
            self._leave(error)
            raise
        self._now = 0
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.in_transaction:
                self._roll_back()
        finally:
            self.lock.release()
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        known = error if isinstance(error, self._database.errors) else None
        if known is not None and not self._database.is_sqlite:
            self.close()
        self._guard.__exit__()
        if known is not None:
            raise translated(known, shown(self._database.url)) from known

    def begin(self) -> None:
        """Begin a transaction."""
        self.in_transaction = True  # from before: a Ctrl-C may come as it returns
        self.cursor.execute(self._database.begin)

    def commit(self) -> None:
        """Commit the transaction."""
        self.cursor.execute("COMMIT")
        self.in_transaction = False

    def _roll_back(self) -> None:
        self.in_transaction = False
        try:
            self.cursor.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 (out of step, or rolled back already: start afresh)
            self.close()

    # -- statements -------------------------------------------------------------------------------

    def run(self, statement: Statement, **values: Any) -> Any:  # noqa: ANN401 (a DBAPI cursor)
        """Run a statement; gives the cursor, whose rows must be read before the next call."""
        if statement.constants:
            values |= statement.constants
        self.cursor.execute(statement.sql, values)
        return self.cursor

    def run_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """Run a statement once per row."""
        if statement.constants:
            rows = [row | statement.constants for row in rows]
        self.cursor.executemany(statement.sql, rows)

    @property
    def now(self) -> int:
        """The database's time in microseconds, the same during a call unless it is put forward."""
        if not self._now:
            self._now = self._database.now(self.cursor)
        return self._now

    def put_forward(self) -> None:
        """Let what follows in this call be later."""
        self._now = self._database.next_tick()

    def version(self) -> object:
        """Give a value that changes when another connection has committed."""
        if not self._database.is_sqlite:
            return object()  # no cheap answer: look again every time
        return self.cursor.execute("PRAGMA data_version").fetchall()[0][0]

    # -- its connection ---------------------------------------------------------------------------

    def _open(self) -> None:
        if self._connection is not None:
            # Forked: the connection is the parent's, and closing it here would end it there.
            _inherited.append(self._connection)
            self._connection = None
        self._connection = self._database.open(self)
        driver: Any = self._connection.connection.driver_connection
        self.cursor = driver.cursor()
        self.file = self._database.file()
        self._pid = process.pid()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        connection, self._connection, self._pid = self._connection, None, 0
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


class _Thread(threading.local):
    """The session of each thread."""

    def __init__(self, database: Database) -> None:
        self.session = Session(database)


_inherited: list[Connection] = []
"""Connections of a parent process, kept so that they are never closed."""
