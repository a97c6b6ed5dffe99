"""Database and Session: one session per thread, with a connection for each call."""

from __future__ import annotations

import itertools
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    cast,
    extract,
    func,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import ClauseElement

from qframe import forks
from qframe.contracts.backend import Timing
from qframe.contracts.tables import Change
from qframe.drivers import process
from qframe.drivers.database.changes import Changes
from qframe.drivers.database.engine import check_version, database_url, make_engine, shown
from qframe.drivers.database.errors import is_disconnect, translated
from qframe.drivers.database.fork import sessions
from qframe.drivers.database.link import Link, inherited
from qframe.drivers.database.migrate import migrate
from qframe.drivers.database.pool import DatabasePool
from qframe.drivers.database.schema import Schema
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.sql import Block, Statement, as_bytes, as_text, number
from qframe.drivers.database.urls import parsed
from qframe.drivers.guard import guarded
from qframe.drivers.sockets import keeps_connections
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.jobs import project
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

_WRONG_OPTIONS = (
    *(TypeError, ValueError, AttributeError),
    *(FileNotFoundError, IsADirectoryError, PermissionError, ssl.SSLError),
)
"""Errors that clients raise for a wrong option of the URL, such as a missing file."""
_TICK = 4
"""Microseconds between two times at least; those between order the operations of a step."""
_LAZY = "SET LOCAL synchronous_commit = off"
_sessions = itertools.count()
_LONG = 500_000
"""Characters after which a statement of many rows ends; a packet has at most 16 MB by default."""
_STEP_BACK = 1_000_000
"""Microseconds that the clock may go back; a larger step means that somebody set it."""


if TYPE_CHECKING:
    from qframe.drivers.database.line import DatabaseInFlight


class Database:
    """The database of one connection. It is opened, and its tables created, on first use."""

    commits: ClassVar[bool] = True
    """Whether a call commits its changes."""

    def __init__(self, settings: DatabaseSettings, timing: Timing) -> None:
        self.timing = timing
        self.url = database_url(settings)
        self.kind = self.url.get_backend_name()
        self.is_sqlite = self.kind == "sqlite"
        self.is_postgresql = self.kind == "postgresql"
        self.is_mysql = self.kind in {"mysql", "mariadb"}
        self.path = Path(str(self.url.database)) if self.is_sqlite else None
        self.schema = Schema(settings)
        self.migrate_command = settings.migrate_command
        self.engine = make_engine(self.url, settings)
        self.errors = (self.engine.dialect.loaded_dbapi.Error, SQLAlchemyError)
        self.is_psycopg = self.is_postgresql and self.url.get_driver_name() == "psycopg"
        self.pools_sessions = settings.listen is True
        """Whether a pooler in front of the server is known to keep sessions."""
        self.is_given = Path(parsed(settings.url).database or "").is_absolute()
        """Whether an SQLite file is named by its full path."""
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        self.pool = DatabasePool(
            self._connect, settings.pool_size, settings.pool_timeout, shown(self.url)
        )
        self.encoding = ""
        """PostgreSQL's encoding of the database; "" while it is unknown."""
        self._thread = _ThreadSession(self)
        self._own_opening = forks.lock()
        self.leveled: set[str] = set()
        """Queues that may hold messages with a priority, as far as this process knows."""
        self._ready = False
        self._last = 0
        self._ask_time = self.statement(select(self.clock()))
        self._settings = settings
        forks.in_child_of(self, Database._begin_anew)

    def _begin_anew(self) -> None:
        """Replace the engine if another thread was connecting with it at the fork."""
        if not forks.was_clean():
            self.engine = make_engine(self.url, self._settings)

    def session(self) -> Session:
        return self._thread.session

    def statement(self, element: ClauseElement) -> Statement:
        return Statement(element, self.engine.dialect)

    def block(self, *elements: ClauseElement) -> Statement:
        """Make one statement of several, in their own transaction; MariaDB only."""
        return Block(self.engine.dialect, *elements)

    def clock(self) -> ColumnElement[Any]:
        """Return the time in microseconds as SQL, for statements with the parameters `Session.at`.

        It is the server's time at the start of the statement, so messages are ordered as the server
        got them. SQLite has no clock: it runs in this process, and all users of the file share this
        machine's clock.
        """
        if self.is_sqlite:
            return number("now")
        seconds: ColumnElement[Any] = func.unix_timestamp(func.now(6))
        if self.is_postgresql:
            seconds = extract("epoch", func.statement_timestamp())
        return cast(seconds * 1_000_000, BigInteger) + number("skew")

    def now(self, cursor: Any) -> int:  # noqa: ANN401 (a DBAPI cursor)
        """Return the database's time in microseconds, later than any returned before."""
        now = time.time_ns() // 1000 if self.is_sqlite else self._server_time(cursor)
        if not self._last - _STEP_BACK < now < self._last + _TICK:
            self._last = now - _TICK
        return self.next_tick()

    def _server_time(self, cursor: Any) -> int:  # noqa: ANN401 (a DBAPI cursor)
        cursor.execute(self._ask_time.sql, {"skew": 0})
        return int(cursor.fetchone()[0])

    def next_tick(self) -> int:
        """Return a later time than the last one, without a query."""
        self._last += _TICK
        return self._last + int(self.timing.skew * 1_000_000)

    # -- text columns -----------------------------------------------------------------------------

    def stored(self, raw: bytes) -> str | bytes:
        """Encode bytes for a text column; `sql.as_bytes` decodes them."""
        if not self.is_sqlite:
            return as_text(raw, nul=self.kind != "postgresql", ascii_only=self.is_ascii_only)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw  # SQLite accepts any bytes

    def stored_text(self, text: str) -> str:
        """Encode a text for a column; `read_text` decodes it."""
        return (
            text
            if self.is_sqlite
            else as_text(
                text.encode("utf-8", "surrogatepass"),
                nul=self.kind != "postgresql",
                ascii_only=self.is_ascii_only,
            )
        )

    def read_text(self, text: str) -> str:
        return text if self.is_sqlite else as_bytes(text).decode("utf-8", "surrogatepass")

    def as_bytes(self, column: Column[Any]) -> ColumnElement[Any]:
        """Read a text column as bytes: rows that others wrote to SQLite need not be UTF-8."""
        return cast(column, LargeBinary) if self.is_sqlite else column

    @property
    def is_ascii_only(self) -> bool:
        """Whether non-ASCII texts are stored in base64: on PostgreSQL without UTF8."""
        return self.encoding not in {"", "UTF8"}

    @property
    def last_key(self) -> str:
        """A text that sorts behind every key."""
        return "\x7f" if self.is_ascii_only else "\U0010ffff"

    def behind(self, prefix: str) -> str:
        """Return a text that sorts behind every key with this prefix."""
        if prefix and prefix.isascii() and prefix[-1] != "\x7f":
            return prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return prefix + self.last_key

    # -- opening and closing ----------------------------------------------------------------------

    def _connect(self) -> Link:
        try:
            with forks.undisturbed(asks=True), self._opening():
                connection = self._raw()
            try:
                link = Link(connection)
                if self.is_psycopg:
                    self.encoding = link.encoding()
                    link.find_pooler(trusted=self.pools_sessions)
            except BaseException:
                connection.close()
                raise
        except self.errors as error:
            raised = self.translated(error, partial(is_disconnect, self.engine.dialect))
            if isinstance(raised, BackendUnavailable):
                raised.in_doubt = False  # nothing was sent
            raise raised from error
        return link

    def open_file(self, session: Session) -> None:
        """Open the SQLite file; on first use, create the tables."""
        with forks.undisturbed(asks=True), sessions.opening:
            is_new = self.file() is None
            connection = self._raw()
            try:
                if not self._ready:
                    check_version(self.engine)
                    migrate(connection, self.schema)
                    self._ready = True
                    if is_new:
                        self._log_new_file()
            except BaseException:
                connection.close()
                raise
            # Before a fork may continue: its child closes the connections of sessions.
            session.use(Link(connection))
            sessions.add(session)

    def _raw(self) -> Connection:
        try:
            return self.engine.connect()
        except _WRONG_OPTIONS as error:
            raise ConfigurationError(
                f"the database {shown(self.url)} cannot be connected to like this: "
                f"{one_line(str(error))}"
            ) from error

    def _log_new_file(self) -> None:
        """Log a new database: as a warning if only the working directory determined its place."""
        if project.is_announced():
            log.debug("created the database %s", self.path)
        elif self.is_given or not project.is_assumed():
            log.info("created the database %s", self.path)
        else:
            advice = project.advice()
            log.warning(
                "created the database %s: no qframe.toml in %s or above%s",
                self.path,
                project.root(),
                f"; {advice}" if advice else "",
            )

    def migrate(self) -> list[Change]:
        """Create what is missing of the tables. Returns the changes."""
        return self._look(lambda connection: migrate(connection, self.schema))

    def missing(self) -> list[Change]:
        """Return the changes that `migrate` would make."""
        if self.is_sqlite and self.file() is None:
            return self.all_changes()  # a query would create the file
        return self._look(lambda c: Changes(self.schema, c.dialect).missing(c))

    def all_changes(self) -> list[Change]:
        """Return the changes that create all tables, without a connection."""
        return Changes(self.schema, self.engine.dialect).all()

    def _look(self, act: Callable[[Connection], list[Change]]) -> list[Change]:
        """Call `act` with a connection, and close it."""
        with guarded, forks.undisturbed(asks=True), self._opening():
            try:
                with self._raw() as connection:
                    check_version(self.engine)
                    return act(connection)
            except self.errors as error:
                raise self.translated(error) from error

    def translated(
        self, error: BaseException, ended_by: Callable[[BaseException], bool] | None = None
    ) -> Exception:
        """Return qframe's error for an error of the database."""
        return translated(error, shown(self.url), ended_by, self.migrate_command)

    def _opening(self) -> AbstractContextManager[object]:
        return sessions.opening if self.is_sqlite else self._own_opening

    def file(self) -> object:
        """Identify the SQLite file, to notice when another one gets its name."""
        try:
            found = Path(str(self.path)).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def follow_file(self) -> None:
        """Reopen the SQLite file if it was replaced or removed."""
        session = self.session()
        if self.is_sqlite and session.is_open and session.file != self.file():
            session.close()
            with self._opening():
                self._ready = False


class Mark:
    """The number of a session's last exchange, and the key of its row (`marks`)."""

    def __init__(self) -> None:
        self.key = f"{process.token()}{next(_sessions):x}"
        self.number = 1


class Session:
    """One thread's exchanges with the database; a context for each call.

    On exit it undoes what was not committed, and translates the errors of the database. On a server
    it takes a connection from the pool for each call. It keeps its own in a worker's threads, while
    it listens, and while an answer is outstanding.
    """

    lazy = False
    """Whether this call's commit does not wait for the disk; PostgreSQL writes 200 ms later."""
    is_own = True
    """Whether the connection is qframe's, not a caller's; only then it sweeps expired rows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = guarded
        self._link: Link | None = None
        self._in_flight: DatabaseInFlight | None = None
        self.mark = Mark()
        self.is_whole = False
        """`Link.is_whole` of the current or last connection."""
        self.listens = False
        """Whether it keeps its connection to get notifications."""
        self._keeps = False
        """Whether its connection has settings that others must not get."""
        self._depth = 0
        self._pid = 0
        self._now = 0
        self._pinned: int | None = None
        self.cursor: Any = None
        self.file: object = None
        self.in_transaction = False
        # Held during every call, so that a fork waits for it.
        self.lock = forks.rlock()

    def __del__(self) -> None:
        """Close the connection of a thread that has ended.

        A forked child drops the values of other threads before it renews `process.pid`.
        """
        if self._link is not None and self._pid == os.getpid():
            self.close()

    @property
    def is_open(self) -> bool:
        return self._link is not None and self._pid == process.pid()

    # -- calls and transactions -------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._guard.__enter__()
        try:
            if self._pid != process.own.pid:
                self._begin_in_process()
            if self._in_flight is not None:
                self._read_replies(self._in_flight)
            link = self._link
            if link is None:
                self._open()
            elif link.is_stale and not self._depth and link.is_gone():
                self.close()
                self._open()
            self.lock.acquire()
        except BaseException as error:
            self._leave(error)
            raise
        self._depth += 1
        self._now, self._pinned = 0, None
        self.lazy = False
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        link = self._link
        try:
            if error is not None and self.in_transaction:
                self._roll_back()
        finally:
            self._depth -= 1
            self.lock.release()
            self._leave(error, link)

    def _leave(self, error: BaseException | None, used: Link | None = None) -> None:
        """End a call; `used` is its connection, which may be closed already."""
        if error is not None and isinstance(error, self._database.errors):
            raised = self._translated(error, used)
            self._guard.__exit__()
            raise raised from error
        link = self._link
        if link is not None and not (self._depth or self._database.is_sqlite):
            is_sound = error is None or isinstance(error, Exception)
            if self.in_transaction or not is_sound:
                self.close()
                self.in_transaction = False
            elif self._keeps or self.listens or self._in_flight is not None:
                link.spoke = time.monotonic()
            else:
                self._link = None
                self._database.pool.give(link)
        self._guard.__exit__()

    def _translated(self, error: BaseException, used: Link | None) -> Exception:
        ended_by = None if used is None else used.ended_by
        raised = self._database.translated(error, ended_by)
        if not self._database.is_sqlite:
            self.close()
        return raised

    def begin(self) -> None:
        self.in_transaction = True  # set first, because Ctrl-C may interrupt the next line
        if self.lazy:  # two statements in one message cannot be prepared
            self.cursor.execute(f"{self._database.begin}; {_LAZY}", prepare=False)
        else:
            self.cursor.execute(self._database.begin)

    def begin_at_once(self) -> bool:
        """Begin a transaction. Returns False if that would wait for SQLite's write lock."""
        if not self._database.is_sqlite:
            self.begin()
            return True
        patience = self.cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        self.cursor.execute("PRAGMA busy_timeout = 0")
        try:
            self.begin()
        except self._database.errors as error:
            self.in_transaction = False
            if "locked" not in str(error):
                raise
            return False
        finally:
            self.cursor.execute(f"PRAGMA busy_timeout = {patience}")
        return True

    @contextmanager
    def waiting_for_locks(self, seconds: int) -> Iterator[None]:
        """Limit the wait for locks, on PostgreSQL for the whole transaction.

        An error inside ends the connection.
        """
        if self._database.is_postgresql:
            self.cursor.execute(f"SET LOCAL lock_timeout = '{seconds}s'")
            yield
            return
        before = "@qframe_lock_wait_timeout"
        name = "innodb_lock_wait_timeout"
        self.cursor.execute(f"SET {before} = @@{name}, {name} = {seconds}")
        yield
        self.cursor.execute(f"SET {name} = {before}")

    def spoil(self) -> None:
        """Make a commit of the transaction fail, where possible."""

    def commit(self) -> None:
        self.cursor.execute("COMMIT")
        self.in_transaction = False

    def _roll_back(self) -> None:
        self.in_transaction = False
        try:
            self.cursor.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 (out of step, or already rolled back: start afresh)
            self.close()

    # -- statements -------------------------------------------------------------------------------

    def run(self, statement: Statement, **values: Any) -> Any:  # noqa: ANN401 (a DBAPI cursor)
        """Run a statement and return the cursor. Read its rows before the next call."""
        self.cursor.execute(statement.sql, values)
        return self.cursor

    def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Run a frequent statement. Returns the number of rows."""
        link = self._link
        if link is None or not (link.is_whole and link.is_usual(statement)):
            self.cursor.execute(statement.sql, values)
            return int(self.cursor.rowcount)
        line = link.line()
        line.send(statement, values)
        return line.changed()

    def run_many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """Run a statement once per row; on MariaDB one INSERT has many rows.

        PyMySQL does so by itself only if all values are parameters.
        """
        head, values, row = statement.sql.partition(" VALUES ")
        if not (values and self._database.is_mysql):
            self.cursor.executemany(statement.sql, rows)
            return
        some: list[str] = []
        size = 0
        for each in rows:
            some.append(self.cursor.mogrify(row, each))
            size += len(some[-1])
            if size >= _LONG or each is rows[-1]:
                self.cursor.execute(f"{head} VALUES {', '.join(some)}")
                some, size = [], 0

    @property
    def now(self) -> int:
        """The database's time in microseconds, constant during a call until `put_forward`."""
        if not self._now:
            self._now = self._database.now(self.cursor)
        return self._now

    def ask_time(self) -> int:
        """Return the database's current time in microseconds."""
        return self._database.now(self.cursor)

    @property
    def at(self) -> dict[str, Any]:
        """The parameters of statements that use `Database.clock` or `lazily`."""
        if self._database.is_sqlite:
            return {"now": self._now or self.now}
        skew = int(self._database.timing.skew * 1_000_000)
        return {"skew": skew, "commit": "off" if self.lazy else None, "at": self._pinned}

    def pin(self) -> None:
        """Fix the time at now for the following statements, until `put_forward`."""
        if not self._database.is_sqlite:
            self._now = 0
            self._pinned = self.now

    def put_forward(self) -> None:
        """Move the time of the following statements in this call ahead."""
        self._now, self._pinned = self._database.next_tick(), None

    def version(self) -> object:
        """Return a value that changes with every commit of another connection."""
        if not self._database.is_sqlite:
            return object()  # no cheap way to know: always look again
        return self.cursor.execute("PRAGMA data_version").fetchall()[0][0]

    # -- sending without waiting ------------------------------------------------------------------

    def send(self, sent: DatabaseInFlight, statement: Statement, values: Mapping[str, Any]) -> None:
        """Send a statement whose answer is read before the next use; only on a whole connection."""
        assert self._link is not None  # noqa: S101 (in a call)
        self._link.line().send(statement, values)
        self._in_flight = sent

    def _read_replies(self, sent: DatabaseInFlight) -> None:
        """Read the outstanding answer, or resend the statement on another connection."""
        self._in_flight = None
        if self._link is not None:
            try:
                answer = self._link.line().answer()
            except self._database.errors:
                self.close()
            else:
                sent.on_reply(*answer)
                return
        try:
            sent.resend()
        except BaseException:
            self._in_flight = sent
            raise

    # -- its connection ---------------------------------------------------------------------------

    def _open(self) -> None:
        """Get a connection: one of its own, or one of the pool."""
        database = self._database
        self._keeps = database.is_sqlite or keeps_connections()
        if database.is_sqlite:
            database.open_file(self)
            self.file = database.file()
        else:
            self.use(database.pool.keep() if self._keeps else database.pool.take())

    def use(self, link: Link) -> None:
        self._link, self._pid = link, process.pid()
        self.cursor, self.is_whole = link.cursor, link.is_whole

    def _begin_in_process(self) -> None:
        """Leave the parent's connection open: to close it here would close it for the parent."""
        if self._link is not None:
            inherited.append(self._link)
        self._link = self._in_flight = None
        self.listens = False
        self._pid = process.pid()
        if not self.mark.key.startswith(process.token()):
            self.mark = Mark()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self.lock:  # a fork waits for the lock: SQLite must not be copied while it closes
            link, self._link = self._link, None
            self.listens = False
            if link is None:
                return
            if self._database.is_sqlite:
                link.close()
            else:
                self._database.pool.drop(link, kept=self._keeps)


class _ThreadSession(threading.local):
    def __init__(self, database: Database) -> None:
        self.session = Session(database)
