"""Link: one connection to the database, with what is prepared on it."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Dialect

from qframe import forks
from qframe.drivers.database.errors import cause_of, is_disconnect
from qframe.drivers.database.sql import Statement
from qframe.drivers.sockets import readable

if TYPE_CHECKING:
    from qframe.drivers.database.line import Line

_PREPARED_AFTER = 5
"""So often psycopg has a statement planned before it is prepared; its own default."""
_STALE = 0.2
"""Seconds of silence after which a connection is looked at before it is used."""
_LOOKS = 100
"""So many packets are read in a look, at most."""


class Link:
    """A connection, used by one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        fairy: Any = connection.connection
        self._connection = connection
        self._dialect: Dialect = connection.dialect
        self._dbapi: Any = fairy.dbapi_connection
        self.driver: Any = fairy.driver_connection
        """The driver's own connection."""
        self.cursor: Any = self.driver.cursor()
        self.uses: Counter[Statement] = Counter()
        self.is_whole = False
        """Whether it is one session of PostgreSQL, with what is prepared or listened to in it.

        Known for psycopg alone, which is what prepares and listens.
        """
        self.spoke = math.inf
        """When it was last used, by the monotonic clock; on SQLite nobody can end it."""
        self._line: Line | None = None

    def find_pooler(self, *, trusted: bool) -> None:
        """Find out whether what is prepared or listened to is there for the next statement.

        A pooler in transaction mode takes either, and loses it: the next transaction may be on
        another session. It gives its clients a process id of its own making. `trusted`: one that is
        between is known to keep a session together.
        """
        self.cursor.execute("SELECT pg_backend_pid()")
        self.is_whole = self.cursor.fetchone()[0] == self.driver.info.backend_pid or trusted
        if self.is_whole:
            self.driver.prepare_threshold = _PREPARED_AFTER

    def encoding(self) -> str:
        """Give what the database is kept in, which PostgreSQL tells whoever connects."""
        return self.driver.info.parameter_status("server_encoding") or ""

    def is_usual(self, statement: Statement) -> bool:
        """Whether it has run the statement often enough to have it prepared."""
        self.uses[statement] += 1
        return self.uses[statement] > _PREPARED_AFTER

    def line(self) -> Line:
        """Give the prepared statements; PostgreSQL only."""
        if self._line is None:
            with forks.undisturbed():
                from qframe.drivers.database.line import Line  # noqa: PLC0415 (PostgreSQL's client)

            self._line = Line(self.driver)
        return self._line

    # -- its end ----------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the server may have ended it since it was used."""
        return time.monotonic() - self.spoke > _STALE

    def is_gone(self) -> bool:
        """Whether it has ended, as far as this side can see without asking the server."""
        return self._is_closed() or self._has_word_of_its_end()

    def ended_by(self, error: BaseException) -> bool:
        """Whether the connection ended with this error of a statement.

        The client library says so; where it has not noticed yet, the server's word counts, or the
        end of its socket.
        """
        # PostgreSQL's: FATAL is the end of a session.
        diagnosis = getattr(cause_of(error), "diag", None)
        if getattr(diagnosis, "severity_nonlocalized", None) in {"FATAL", "PANIC"}:
            return True
        return is_disconnect(self._dialect, error, self._dbapi, self.cursor) or self.is_gone()

    def _is_closed(self) -> bool:
        if self._dialect.name == "postgresql":
            return bool(self.driver.closed)
        return not getattr(self.driver, "open", True)

    def _has_word_of_its_end(self) -> bool:
        """Read what has come unasked: a server says why it ends a connection, then ends it."""
        with contextlib.suppress(AttributeError):
            if self._dialect.name == "postgresql":
                return self._reads_its_end()
            # MariaDB says nothing unasked, unless it ends the connection.
            return bool(readable([self.driver._sock.fileno()], 0))  # noqa: SLF001 (PyMySQL gives it no other way)
        return False

    def _reads_its_end(self) -> bool:
        libpq = self.driver.pgconn
        try:
            for _ in range(_LOOKS):
                if not readable([libpq.socket], 0):
                    return False
                libpq.consume_input()
        except self._dialect.loaded_dbapi.Error:
            return True
        return bool(self.driver.closed)

    def close(self) -> None:
        """Close it."""
        self._line = None
        with contextlib.suppress(Exception):
            self._connection.close()


inherited: list[Link] = []
"""Connections of a parent process, kept so that they are never closed."""
