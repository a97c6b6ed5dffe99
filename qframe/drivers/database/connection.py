"""The database: an engine, one held connection per thread, and what differs by dialect."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    cast,
    create_engine,
    event,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.sql import ClauseElement

from qframe import host, project
from qframe.config import DatabaseSettings
from qframe.drivers.database.fork import forks
from qframe.drivers.database.schema import Schema
from qframe.drivers.database.session import Call, Session, Transaction
from qframe.drivers.database.sql import Statement
from qframe.drivers.database.trouble import translated
from qframe.drivers.database.watch import FileWatch, watch
from qframe.exceptions import BackendUnavailable, BackendUnusable, ConfigurationError
from qframe.names import one_line

_SETUP_PATIENCE = 30.0
_OLDEST_SQLITE = (3, 35)
_CLOCKS = {
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    "mysql": "SELECT CAST(unix_timestamp(now(3)) * 1000 AS signed)",
    "mariadb": "SELECT CAST(unix_timestamp(now(3)) * 1000 AS signed)",
}

_LOOK = 0.01
_LOOK_FAR = 0.25
"""Seconds between two looks for a commit by another connection, in a file and over a network."""


class Database:
    """The database of one connection. Opened, and its tables created, when first used."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        self.url = _url(settings)
        self.schema = Schema(settings)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._local = threading.local()
        self._own_opening = threading.Lock()
        self._ready = False
        try:
            self.engine = self._engine()
        except (NoSuchModuleError, ArgumentError, ImportError) as error:
            raise ConfigurationError(
                f"the database {self.shown()}: {one_line(str(error))}"
            ) from None
        self.errors = (self.engine.dialect.loaded_dbapi.Error, SQLAlchemyError)
        self.look = _LOOK if self.is_sqlite else _LOOK_FAR
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"

    def shown(self) -> str:
        """Give the URL without its password."""
        if self.is_sqlite:
            return Path(str(self.url.database)).name
        return self.url.render_as_string(hide_password=True)

    def statement(self, element: ClauseElement) -> Statement:
        """Compile a statement for this database."""
        return Statement(element, self.engine)

    def session(self) -> Call:
        """Give this thread's connection; statements run in a transaction of their own each."""
        return Call(self)

    def transaction(self) -> Transaction:
        """Give this thread's connection in a transaction, which an outer one takes in."""
        return Transaction(self)

    def as_bytes(self, column: Column[Any]) -> ColumnElement[Any]:
        """Read text as the bytes it is: what others wrote to SQLite need not be UTF-8."""
        return cast(column, LargeBinary) if self.is_sqlite else column

    def now(self, session: Session) -> int:
        """Give the database's time in milliseconds.

        SQLite has none of its own: it is a part of this process, and all that use the file share
        this machine's clock.
        """
        if self.is_sqlite:
            return time.time_ns() // 1_000_000
        session.cursor.execute(_CLOCKS[self.url.get_backend_name()])
        return int(session.cursor.fetchone()[0])

    def version(self, session: Session) -> object:
        """Give a value that changes when another connection has committed."""
        if not self.is_sqlite:
            return object()  # no cheap answer: look again every time
        return session.cursor.execute("PRAGMA data_version").fetchall()[0][0]

    def writes(self) -> FileWatch | None:
        """Give this thread's watch on the file every commit is written to first, if it can be had.

        What was written so far is forgotten.
        """
        if not self.is_sqlite:
            return None
        with self.session() as session:
            if session.writes is None:
                session.writes = watch(Path(f"{self.url.database}-wal"))
            else:
                session.writes.forget()
            return session.writes

    def version_text(self) -> str:
        """Name the database and its version."""
        dialect = self.engine.dialect
        if self.is_sqlite:
            return f"SQLite {dialect.loaded_dbapi.sqlite_version}, {self.shown()}"
        return f"{dialect.name}, {self.shown()}"

    def warnings(self) -> list[str]:
        """Say what is unsafe about the database."""
        found = []
        if self.is_sqlite:
            path = Path(str(self.url.database))
            if path.exists() and path.stat().st_mode & 0o002:
                found.append(f"{path.name} can be written by every user: chmod o-w it")
            if self.settings.synchronous == "normal":
                found.append(
                    'synchronous = "normal" survives the death of any process, but the last '
                    'jobs before a power loss can be gone; "full" keeps them, slower'
                )
        elif not self.url.password and self.url.host not in {None, "localhost", "127.0.0.1", "::1"}:
            found.append(f"{self.shown()} is used without a password")
        return found

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
        if session is not None and session.pid == host.pid():
            with contextlib.suppress(Exception):
                session.close()

    # -- opening --------------------------------------------------------------------------------

    def held(self) -> Session:
        """Give this thread's connection, opening it first where it must be."""
        session: Session | None = getattr(self._local, "session", None)
        if session is not None and session.pid == host.pid():
            return session
        if session is not None and not self.is_sqlite:
            # Forked: the connection is the parent's, and closing it here would end it there.
            _inherited.append(session)
        with self._opening():
            connection = self.engine.connect()
            if not self._ready:
                self._prepare(connection)
                self._ready = True
            session = self._local.session = Session(connection, _identity(self.url.database))
            if self.is_sqlite:
                forks.add(session)
        return session

    def _opening(self) -> threading.Lock:
        return forks.opening if self.is_sqlite else self._own_opening

    def _engine(self) -> Engine:
        arguments: dict[str, Any] = {}
        if self.is_sqlite:
            arguments = {"timeout": self.settings.busy_timeout, "check_same_thread": False}
        engine = create_engine(
            self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments
        )
        if self.is_sqlite:
            event.listen(engine, "connect", self._set_up_sqlite)
        return engine

    def _set_up_sqlite(self, raw: Any, _record: object) -> None:  # noqa: ANN401 (a DBAPI connection)
        """Turn on write-ahead logging.

        Two processes that do so on a new file at once get `locked` whatever the busy timeout:
        try again for a while.
        """
        deadline = time.monotonic() + _SETUP_PATIENCE
        raw.isolation_level = None
        mode = ""
        while not mode:
            try:
                mode = str(raw.execute("PRAGMA journal_mode=WAL").fetchone()[0]).lower()
                raw.execute(f"PRAGMA synchronous={self.settings.synchronous.upper()}")
            except self.engine.dialect.loaded_dbapi.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if mode != "wal":
            raise BackendUnusable(
                f"the database {self.shown()} cannot use write-ahead logging "
                f"(journal mode {mode}); "
                "is it on a network file system?"
            )

    def _prepare(self, connection: Connection) -> None:
        dbapi = self.engine.dialect.loaded_dbapi
        if self.is_sqlite and dbapi.sqlite_version_info < _OLDEST_SQLITE:
            raise BackendUnusable(f"SQLite {dbapi.sqlite_version} is too old: 3.35 is needed")
        if not self.schema.changes(connection):
            return
        connection.exec_driver_sql(self.begin)
        try:
            for change in self.schema.changes(connection):
                connection.exec_driver_sql(change)
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            with contextlib.suppress(Exception):
                connection.exec_driver_sql("ROLLBACK")
            raise

    # -- errors ---------------------------------------------------------------------------------

    def roll_back(self, session: Session) -> None:
        """Undo a transaction; a connection that cannot is closed."""
        try:
            session.cursor.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 (out of step, or rolled back already: start afresh)
            self.close()

    def translated(self, error: BaseException) -> BackendUnavailable:
        """Say by its type, and in a line, what an error of the database means."""
        if not self.is_sqlite:
            self.close()
        return translated(error, self.shown())


def _identity(file: str | None) -> object:
    """Tell one file from another that later has its name."""
    try:
        found = Path(str(file)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_inherited: list[Session] = []
"""Connections of a parent process, kept so that they are never closed."""


def _url(settings: DatabaseSettings) -> URL:
    try:
        url = make_url(settings.url)
    except ArgumentError:
        raise ConfigurationError(
            "connections: url: not a database URL (like sqlite:///qframe.sqlite3)"
        ) from None
    if url.get_backend_name() != "sqlite":
        return url
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "connections: url: an SQLite database in memory cannot be shared with a worker; "
            "name a file"
        )
    return url.set(database=str(project.root() / url.database))
