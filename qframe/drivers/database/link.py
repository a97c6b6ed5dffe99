"""Link: one connection to the database, with its prepared statements."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
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
"""Uses of a statement before psycopg prepares it; its own default."""
_STALE = 0.2
"""Seconds of silence after which a connection is checked before its use."""
_LOOKS = 100
"""The most packets to read in a check."""


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
        """Whether it is one session of PostgreSQL, which keeps prepared statements and LISTEN.

        Known only for psycopg, the only driver that prepares and listens.
        """
        self.spoke = math.inf
        """When it was last used, by the monotonic clock.

        Infinity on SQLite, which has no server.
        """
        self._line: Line | None = None

    def find_pooler(self, *, trusted: bool) -> None:
        """Find out whether prepared statements and LISTEN survive to the next transaction.

        A pooler in transaction mode accepts both and loses them, because the next transaction may
        use another session. It shows in a process id of the pooler's own. `trusted`: the pooler is
        known to keep sessions.
        """
        self.cursor.execute("SELECT pg_backend_pid()")
        self.is_whole = self.cursor.fetchone()[0] == self.driver.info.backend_pid or trusted
        if self.is_whole:
            self.driver.prepare_threshold = _PREPARED_AFTER

    def encoding(self) -> str:
        """Return the encoding of the database, which PostgreSQL reports to its clients."""
        return self.driver.info.parameter_status("server_encoding") or ""

    def is_usual(self, statement: Statement) -> bool:
        """Whether the statement has run often enough to prepare it."""
        self.uses[statement] += 1
        return self.uses[statement] > _PREPARED_AFTER

    def line(self) -> Line:
        """Return the prepared statements; PostgreSQL only."""
        if self._line is None:
            with forks.undisturbed():
                from qframe.drivers.database.line import Line  # noqa: PLC0415 (PostgreSQL's client)

            self._line = Line(self.driver)
        return self._line

    # -- its end ----------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the server may have ended the connection since its last use."""
        return time.monotonic() - self.spoke > _STALE

    def is_gone(self) -> bool:
        """Whether the connection has ended, as far as this side can see."""
        return self._is_closed() or self._has_word_of_its_end()

    def ended_by(self, error: BaseException) -> bool:
        """Whether this error of a statement ended the connection.

        The client library decides; if it has not noticed yet, the server's message or the end of
        the socket does.
        """
        # PostgreSQL: FATAL ends the session.
        diagnosis = getattr(cause_of(error), "diag", None)
        if getattr(diagnosis, "severity_nonlocalized", None) in {"FATAL", "PANIC"}:
            return True
        return is_disconnect(self._dialect, error, self._dbapi, self.cursor) or self.is_gone()

    def _is_closed(self) -> bool:
        if self._dialect.name == "postgresql":
            return bool(self.driver.closed)
        return not getattr(self.driver, "open", True)

    def _has_word_of_its_end(self) -> bool:
        """Read what came unrequested: a server says why it ends a connection."""
        with contextlib.suppress(AttributeError):
            if self._dialect.name == "postgresql":
                return self._reads_its_end()
            # MariaDB sends nothing unrequested, except when it ends the connection.
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
        self._line = None
        try:
            self._connection.close()
        except Exception as error:  # noqa: BLE001 (the collector may have closed the driver's first)
            # SQLAlchemy's errors hold themselves, and so what the callers' frames hold.
            traceback.clear_frames(error.__traceback__)


inherited: list[Link] = []
"""Connections of a parent process, kept so that they are never closed."""
