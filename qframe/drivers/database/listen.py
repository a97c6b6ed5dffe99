"""LISTEN and NOTIFY: how a PostgreSQL server wakes idle workers.

A worker listens on its own connection, and only while it waits: the server keeps notifications that
a busy worker does not read, and its queue would fill up.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Table, func, select

from qframe import forks
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.sql import param
from qframe.exceptions import BackendUnavailable

SILENCE = 0.005
"""Seconds after a NOTIFY for which a process sends no other for the same queue.

Each NOTIFY wakes every idle worker, and takes a lock that all commits with a NOTIFY share.
"""
_LONGEST_NAME = 63
_MOST_QUEUES = 1000


def channel_of(table: str) -> str:
    """Return the channel of a table; channels belong to the database, not to a schema."""
    name = f"qframe:{table}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"qframe:{hashlib.sha256(table.encode()).hexdigest()[:32]}"


class Notifier:
    """Notifies listening workers of new messages."""

    def __init__(
        self, database: Database, settings: DatabaseSettings, table: Table | None = None
    ) -> None:
        self._database = database
        self._notified: dict[str, float] = {}
        self._is_on = database.kind == "postgresql" and settings.listen is not False
        channel = channel_of((database.schema.jobs if table is None else table).fullname)
        self._statement = database.statement(select(func.pg_notify(channel, param("queue"))))

    def notify(self, queues: Iterable[str]) -> None:
        """Notify of queues with committed messages, each at most once per `SILENCE`.

        It runs in a separate transaction, because commits with a NOTIFY run one after the other and
        this one waits for no disk. It never raises `BackendUnavailable`: a worker that gets no
        notification looks a little later.
        """
        if not self._is_on:
            return
        now = time.monotonic()
        due = [queue for queue in queues if now - self._notified.get(queue, -1.0) >= SILENCE]
        if not due:
            return
        if len(self._notified) > _MOST_QUEUES:
            self._notified.clear()
        for queue in due:
            self._notified[queue] = now
        with contextlib.suppress(BackendUnavailable), self._database.session() as session:
            self.notify_with(session, due)

    def notify_with(self, session: Session, queues: Iterable[str]) -> None:
        """Notify of queues when the session's transaction is committed."""
        if self._is_on:
            for queue in queues:
                session.change(self._statement, {"queue": queue})


class _ThreadListener(forks.PerThread):
    def begin(self) -> None:
        self.connection: Any = None
        """The DBAPI connection of the last LISTEN."""
        self.listens = False
        self.since = 0.0
        """When it began to listen or was last notified, by the monotonic clock."""
        self.queues: set[str] = set()
        """Queues it was notified of and has not handled."""


class NotifyListener:
    """Listens on the session's connection, in each waiting thread."""

    def __init__(
        self, database: Database, settings: DatabaseSettings, table: Table | None = None
    ) -> None:
        self._database = database
        self._wanted = settings.listen is not False
        table = database.schema.jobs if table is None else table
        quoted = channel_of(table.fullname).replace('"', '""')
        self._channel = f'"{quoted}"'
        self._thread = _ThreadListener()

    @property
    def since(self) -> float | None:
        """When this thread began to listen or was last notified; None if it does not listen."""
        return self._thread.since if self._thread.listens else None

    def start(self, session: Session) -> int | None:
        """Begin to listen. Returns the descriptor to wait on, None if it cannot listen.

        Commits from then on send a notification.
        """
        here, connection = self._thread, session.cursor.connection
        if not (self._wanted and session.is_whole):
            here.listens = False
            return None
        if connection is not here.connection:
            here.connection, here.listens = connection, False
            named = here.queues
            connection.add_notify_handler(lambda notice: named.add(notice.payload))
        if not here.listens:
            here.queues.clear()
            session.cursor.execute(f"LISTEN {self._channel}")
            here.listens, here.since = True, time.monotonic()
            session.listens = True
        descriptor: int = connection.pgconn.socket
        return descriptor

    def was_notified(self, session: Session, queues: Iterable[str]) -> bool:
        """Whether one of these queues got a notification since the last call."""
        here, connection = self._thread, session.cursor.connection
        if not here.listens:
            return False
        if connection is not here.connection:
            return True  # a new connection: notifications may be lost
        connection.pgconn.consume_input()
        while (notice := connection.pgconn.notifies()) is not None:
            here.queues.add(notice.extra.decode(errors="replace"))
        found = not here.queues.isdisjoint(queues)
        here.queues.clear()
        if found:
            here.since = time.monotonic()
        return found

    def stop(self) -> None:
        here, session = self._thread, self._database.session()
        if not here.listens:
            return
        here.listens = False
        with contextlib.suppress(BackendUnavailable), session:
            if session.cursor.connection is here.connection:
                session.cursor.execute(f"UNLISTEN {self._channel}")
                session.listens = False
