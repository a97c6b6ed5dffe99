"""DatabaseOutbox: rows with steps for other backends, and the lock of their relay."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import secrets
from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import Any

from sqlalchemy import func, literal_column, select, text

from qframe.contracts.backend import Timing
from qframe.contracts.outbox import Lag, Outbox, OutboxClaim, OutboxRow
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.engine import shown
from qframe.drivers.database.listen import Notifier
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.sql import param, params
from qframe.drivers.database.wait import watch_of
from qframe.drivers.database.within import CallerDatabase

_MOST = 100
"""Rows that a relay takes at once."""
_MOST_BYTES = 1_000_000
_TOLD = ("",)
"""The queue in notifications of new rows: the table has its own channel."""


class DatabaseOutbox(Outbox):
    """The outbox table of a connection. It uses its own connections.

    A relay keeps a lock while it sends rows, and on servers an open transaction; meanwhile it may
    use the same database for other things.
    """

    def __init__(self, settings: DatabaseSettings, timing: Timing) -> None:
        database = self.database = Database(settings, timing)
        table = database.schema.outbox
        self._sql = _OutboxStatements(database)
        self._notifier = Notifier(database, settings, table)
        self._look = _OutboxDue(self._sql)
        self._watch = watch_of(database, settings, self._look, table)
        self._lock = _FileLock(database) if database.is_sqlite else _ServerLock(database)

    def within(self, transaction: object) -> Outbox:
        view = copy.copy(self)
        view.database = CallerDatabase(self.database, transaction)
        return view

    def add(self, connection: str, texts: Sequence[str]) -> None:
        with self.database.session() as session:
            row = {"connection": connection, **session.at}
            rows = [
                {
                    **row,
                    "mark": secrets.token_hex(16),
                    "step": self._sql.stored(each),
                    "size": len(each),
                }
                for each in texts
            ]
            own = self.database.commits
            if own:
                session.begin()
            session.run_many(self._sql.insert, rows)
            self._notifier.notify_with(session, _TOLD)
            if own:
                session.commit()

    def receivers(self) -> list[str]:
        with self.database.session() as session:
            return [*self._sql.receivers(session)]

    @contextlib.contextmanager
    def claim(self, connection: str) -> Iterator[OutboxClaim | None]:
        with self._lock.held(connection) as session:
            if session is None:
                yield None
                return
            claim = _DatabaseClaim(self._sql, session)
            claim.take(connection)
            if claim.rows:
                self._watch.note_message()
            yield claim

    def wait(self, timeout: float, wake: int | None, but: Collection[str] = ()) -> None:
        self._look.passed_over = but
        self._watch.wait(_TOLD, timeout, wake)

    def lags(self) -> list[Lag]:
        found: dict[str, Lag] = {}
        with self.database.session() as session:
            now = session.now
            for connection, aside, count, first in session.run(self._sql.lags).fetchall():
                lag = found.get(connection) or Lag(connection, 0, 0.0, 0, "")
                if aside:
                    values = {"connection": connection}
                    why = session.run(self._sql.first_error, **values).fetchone()
                    error = "" if why is None else self._sql.text(why[0] or "")
                    lag = Lag(connection, lag.waiting, lag.oldest, int(count), error)
                else:
                    age = _seconds(now - first)
                    lag = Lag(connection, int(count), age, lag.set_aside, lag.error)
                found[connection] = lag
        return [found[name] for name in sorted(found)]

    def look(self, after: int = 0, limit: int = 20) -> list[tuple[int, str, str]]:
        with self.database.session() as session:
            rows = session.run(self._sql.look, after=after, limit=limit).fetchall()
            return [(int(row), str(name), self._sql.text(step)) for row, name, step in rows]

    def retry(self) -> int:
        with self.database.session() as session:
            session.begin()
            count = int(session.run(self._sql.retry).rowcount)
            if count:
                self._notifier.notify_with(session, _TOLD)
            session.commit()
        return count

    def described(self) -> str:
        return f"{self.database.schema.outbox.fullname} in {shown(self.database.url)}"

    def close(self) -> None:
        session = self.database.session()
        if session.is_open:
            session.close()
        self.database.pool.close()


class _OutboxStatements:
    def __init__(self, database: Database) -> None:
        make, table = database.statement, database.schema.outbox
        self.stored, self.text = database.stored_text, database.read_text
        c = table.c
        given = {**params("connection", "mark", "step", "size"), "created_at": database.clock()}
        self.insert = make(table.insert().values(tries=text("0"), aside=text("0"), **given))
        waits = c.aside == literal_column("0")
        of_connection = c.connection == param("connection")
        following = select(c.connection).where(waits, c.connection > param("after"))
        self._following = make(following.order_by(c.connection).limit(1))
        sizes = select(c.id, c.size).where(waits, of_connection)
        self.sizes = make(sizes.order_by(c.id).limit(_MOST))
        row = select(c.id, c.mark, c.step, c.created_at, c.tries)
        row = row.where(waits, of_connection, c.id >= param("first"), c.id <= param("last"))
        self.rows = make(row.order_by(c.id))
        this = c.id == param("id")
        self.delete = make(table.delete().where(this))
        noted = {"tries": c.tries + literal_column("1"), **params("error", "aside")}
        self.note = make(table.update().values(noted).where(this))
        each = select(c.id, c.connection, c.step).where(c.id > param("after"))
        self.look = make(each.order_by(c.id).limit(param("limit")))
        counted = select(c.connection, c.aside, func.count(), func.min(c.created_at))
        self.lags = make(counted.group_by(c.connection, c.aside))
        set_aside = c.aside == literal_column("1")
        why = select(c.error).where(set_aside, of_connection).order_by(c.id).limit(1)
        self.first_error = make(why)
        again = {"aside": text("0"), "tries": text("0")}
        self.retry = make(table.update().values(again).where(set_aside))

    def receivers(self, session: Session) -> Iterator[str]:
        """List the connections with waiting rows: one index lookup for each."""
        after = ""
        while (row := session.run(self._following, after=after).fetchone()) is not None:
            after = str(row[0])
            yield after


class _OutboxDue:
    """Whether rows wait, not counting the connections in `passed_over`."""

    def __init__(self, sql: _OutboxStatements) -> None:
        self._sql = sql
        self.passed_over: Collection[str] = ()

    def seconds(self, session: Session, _queues: Sequence[str], *, leases: bool = True) -> float:
        """Return 0 if a row waits, otherwise infinity."""
        del leases
        found = any(name not in self.passed_over for name in self._sql.receivers(session))
        return 0.0 if found else inf


class _DatabaseClaim(OutboxClaim):
    def __init__(self, sql: _OutboxStatements, session: Session) -> None:
        self._sql = sql
        self._session = session
        self.rows: Sequence[OutboxRow] = ()

    def take(self, connection: str) -> None:
        """Read the first rows of a connection, at least one."""
        with self._calling() as session:
            found = session.run(self._sql.sizes, connection=connection).fetchall()
            if not found:
                return
            size, last = 0, found[0][0]
            for row, more in found:
                size += more
                if size > _MOST_BYTES:
                    break
                last = row
            values = {"connection": connection, "first": found[0][0], "last": last}
            now = session.now
            self.rows = [
                OutboxRow(row, mark, self._sql.text(step), _seconds(now - since), tries)
                for row, mark, step, since, tries in session.run(self._sql.rows, **values)
            ]

    def remove(self, ids: Sequence[int]) -> None:
        with self._calling(writes=True) as session:
            session.run_many(self._sql.delete, [{"id": each} for each in ids])

    def note(self, row: int, error: str, *, aside: bool) -> None:
        with self._calling(writes=True) as session:
            session.run(self._sql.note, id=row, error=self._sql.stored(error), aside=int(aside))

    @contextlib.contextmanager
    def _calling(self, *, writes: bool = False) -> Iterator[Session]:
        """Return the session, inside the lock's transaction or for a call of its own."""
        if self._session.in_transaction:
            yield self._session
            return
        with self._session as session:
            if writes:
                session.begin()
            yield session
            if writes:
                session.commit()


class _ServerLock:
    """A lock on the server, which ends with the relay's connection.

    PostgreSQL's belongs to the transaction, so it also works behind a pooler.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_postgresql = database.kind == "postgresql"

    @contextlib.contextmanager
    def held(self, connection: str) -> Iterator[Session | None]:
        """Return a session in a transaction with the lock; None if another relay has it."""
        name = f"{self._database.schema.outbox.fullname}:{connection}"
        digest = hashlib.sha256(name.encode()).hexdigest()
        with self._database.session() as session:
            session.begin()
            try:
                got = self._lock(session, digest)
                yield session if got else None
                session.commit()
            finally:
                if not self._is_postgresql and session.is_open:
                    session.cursor.execute(f"DO RELEASE_LOCK({_named(digest)})")

    def _lock(self, session: Session, digest: str) -> bool:
        if self._is_postgresql:
            number = int(digest[:15], 16)
            session.cursor.execute(f"SELECT pg_try_advisory_xact_lock({number})")
        else:
            session.cursor.execute(f"SELECT GET_LOCK({_named(digest)}, 0)")
        return bool(session.cursor.fetchone()[0])


def _named(digest: str) -> str:
    """Return the name of this database's lock on MariaDB, where names are global."""
    return f"CONCAT('qframe:', LEFT(MD5(DATABASE()), 16), '{digest[:32]}')"


class _FileLock:
    """A lock on a file beside SQLite's: SQLite's own would block the program's writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._path = f"{database.url.database}-relay"

    @contextlib.contextmanager
    def held(self, connection: str) -> Iterator[Session | None]:
        """Return a session with the lock; None if another relay has it.

        One lock for all connections.
        """
        del connection
        import fcntl  # noqa: PLC0415 (not on Windows, where nothing is relayed)

        with open(self._path, "ab") as file:  # noqa: PTH123 (the descriptor is what counts)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            try:
                yield self._database.session()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the descriptor, too


def _seconds(microseconds: Any) -> float:  # noqa: ANN401 (a number of the driver's)
    return max(0.0, float(microseconds) / 1_000_000)
