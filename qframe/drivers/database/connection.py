"""The database: one held connection per thread, its clock, and what differs by dialect."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Column, ColumnElement, LargeBinary, cast
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement

from qframe.config import DatabaseSettings
from qframe.contracts.backend import Timing
from qframe.drivers import process
from qframe.drivers.database.engine import database_url, make_engine, prepare, shown
from qframe.drivers.database.errors import translated
from qframe.drivers.database.fork import forks
from qframe.drivers.database.schema import Schema
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import Statement
from qframe.drivers.guard import guarded

_CLOCKS = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "mysql": "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS signed)",
    "mariadb": "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS signed)",
}
TICK = 4
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
        self._begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self._local = threading.local()
        self._own_opening = threading.Lock()
        self._ready = False
        self._last = 0

    def statement(self, element: ClauseElement) -> Statement:
        """Compile a statement for this database."""
        return Statement(element, self.engine)

    def session(self) -> Call:
        """Give this thread's connection; statements run in a transaction of their own each."""
        return Call(self)

    def transaction(self) -> Call:
        """Give this thread's connection in a transaction."""
        return Call(self, self._begin)

    def now(self, session: Session) -> int:
        """Give the database's time in microseconds; later than any that was given before.

        SQLite has no clock of its own: it is a part of this process, and all that use the file
        share this machine's.
        """
        if self.is_sqlite:
            now = time.time_ns() // 1000
        else:
            session.cursor.execute(_CLOCKS[self.kind])
            now = int(session.cursor.fetchone()[0])
        if self._last - _STEP_BACK < now < self._last + TICK:
            now = self._last + TICK
        self._last = now
        return now + int(self.timing.skew * 1_000_000)

    def next_tick(self) -> int:
        """Give a later time than the last, without asking."""
        self._last += TICK
        return self._last + int(self.timing.skew * 1_000_000)

    def version(self, session: Session) -> object:
        """Give a value that changes when another connection has committed."""
        if not self.is_sqlite:
            return object()  # no cheap answer: look again every time
        return session.cursor.execute("PRAGMA data_version").fetchall()[0][0]

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

    def held(self) -> Session:
        """Give this thread's connection, opening it first where it must be."""
        session: Session | None = getattr(self._local, "session", None)
        if session is not None and session.pid == process.pid():
            return session
        if session is not None and not self.is_sqlite:
            # Forked: the connection is the parent's, and closing it here would end it there.
            _inherited.append(session)
        with self._opening():
            connection = self.engine.connect()
            if not self._ready:
                prepare(self.engine, connection, self.schema, self._begin)
                self._ready = True
            session = self._local.session = Session(connection, _identity(self.url.database))
            if self.is_sqlite:
                forks.add(session)
        return session

    def _opening(self) -> threading.Lock:
        return forks.opening if self.is_sqlite else self._own_opening

    def follow_file(self) -> None:
        """Open the SQLite file anew when it was replaced or removed since it was opened."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None or not self.is_sqlite:
            return
        if session.file != _identity(self.url.database):
            self.close()
            with self._opening():
                self._ready = False

    def close(self) -> None:
        """Close this thread's connection."""
        session: Session | None = getattr(self._local, "session", None)
        self._local.session = None
        if session is not None and session.pid == process.pid():
            with contextlib.suppress(Exception):
                session.close()

    # -- errors -----------------------------------------------------------------------------------

    def roll_back(self, session: Session) -> None:
        """Undo a transaction; a connection that cannot is closed."""
        try:
            session.cursor.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 (out of step, or rolled back already: start afresh)
            self.close()

    def translated(self, error: BaseException) -> Exception:
        """Say by its type, and in a line, what an error of the database means."""
        if not self.is_sqlite:
            self.close()
        return translated(error, shown(self.url))


def _identity(file: str | None) -> object:
    """Tell one file from another that later has its name."""
    try:
        found = Path(str(file)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_inherited: list[Session] = []
"""Connections of a parent process, kept so that they are never closed."""


class Call:
    """The context of one call on a thread's connection, with or without a transaction.

    A class, not a generator: it is entered for every job. What goes wrong between the connection
    and the database leaves it translated.
    """

    __slots__ = ("_begin", "_database", "_guard", "_session")

    def __init__(self, database: Database, begin: str = "") -> None:
        self._database = database
        self._begin = begin
        self._guard = guarded()

    def __enter__(self) -> Session:
        self._guard.__enter__()
        try:
            session = self._session = self._database.held()
            session.lock.acquire()
            if self._begin:
                self._start(session)
        except BaseException as error:
            self._guard.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, self._database.errors):
                raise self._database.translated(error) from error
            raise
        return session

    def _start(self, session: Session) -> None:
        try:
            session.cursor.execute(self._begin)
        except BaseException:
            # It may have begun all the same, where a Ctrl-C came as it returned.
            self._database.roll_back(session)
            session.lock.release()
            raise
        session.in_transaction = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        try:
            if self._begin:
                session.in_transaction = False
                self._end(session, error)
        except self._database.errors as failure:
            raise self._database.translated(failure) from failure
        finally:
            session.lock.release()
            self._guard.__exit__(kind, error, trace)
        if isinstance(error, self._database.errors):
            raise self._database.translated(error) from error

    def _end(self, session: Session, error: BaseException | None) -> None:
        if error is not None:
            self._database.roll_back(session)
            return
        try:
            session.cursor.execute("COMMIT")
        except BaseException:
            self._database.roll_back(session)
            raise
