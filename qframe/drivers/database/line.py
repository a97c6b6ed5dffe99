"""Line: prepared statements on a connection to PostgreSQL, by its libpq.

psycopg's cursors take 40 us more for a statement, of 270 for the push of a job, and always wait for
the answer. Here the program may continue while the server works; it reads the answer before the
connection's next use.
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping
from typing import Any, Protocol

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from qframe.drivers.database.sql import Statement

_PATIENCE = 30.0
"""Seconds without an answer to a start after which the server counts as gone."""
_WELL = {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}
_PARAMETER = re.compile(r"%\((\w+)\)s")


class DatabaseInFlight(Protocol):
    """A statement that was sent and waits for its answer."""

    def on_reply(self, first: bool, second: bool) -> None:
        """Handle the answer: whether each of the two rows was found."""

    def resend(self) -> None:
        """Send it again after a lost answer, and handle the new one."""


class Line:
    """The prepared statements of one connection, sent and answered separately.

    After each `send` comes `answer` or `changed`, before anything else. Raises psycopg's errors.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._libpq = connection.pgconn
        self._encoding = connection.info.encoding
        self._prepared: dict[Statement, tuple[bytes, list[str]]] = {}
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, select.POLLIN)

    def send(self, statement: Statement, values: Mapping[str, object]) -> None:
        """Send a statement; prepares it the first time."""
        name, names = self._prepared.get(statement) or self._prepare(statement)
        given = [values[each] for each in names]
        texts = [None if value is None else str(value).encode(self._encoding) for value in given]
        self._libpq.send_query_prepared(name, texts)
        while self._libpq.flush():
            self._libpq.consume_input()

    def _prepare(self, statement: Statement) -> tuple[bytes, list[str]]:
        names = list(dict.fromkeys(_PARAMETER.findall(statement.sql)))
        sql = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement.sql)
        name = b"qframe_%d" % len(self._prepared)
        _check(self._libpq, self._libpq.prepare(name, sql.encode()))
        self._prepared[statement] = name, names
        return name, names

    def answer(self) -> tuple[bool, bool]:
        """Wait for the answer to a start: whether each of the two rows was found."""
        result = self._result(_PATIENCE)
        return result.get_value(0, 0) == b"1", result.get_value(0, 1) == b"1"

    def changed(self) -> int:
        """Wait for the answer. Returns the number of rows."""
        return self._result().command_tuples or 0

    def _result(self, seconds: float | None = None) -> PGresult:
        result = self._next(seconds)
        while self._next(seconds) is not None:
            pass
        return _check(self._libpq, result)

    def _next(self, seconds: float | None) -> PGresult | None:
        # libpq's own wait would block signals and the other threads.
        limit = None if seconds is None else seconds * 1000
        while self._libpq.is_busy():
            if not self._poll.poll(limit):
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            self._libpq.consume_input()
        return self._libpq.get_result()


def _check(libpq: PGconn, result: PGresult | None) -> PGresult:
    if result is not None and result.status in _WELL:
        return result
    if result is None or libpq.status != ConnStatus.OK:
        raise psycopg.OperationalError("the connection was lost")
    raise psycopg.errors.error_from_result(result)
