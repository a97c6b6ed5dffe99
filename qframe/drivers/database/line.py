"""Line: one prepared statement on a connection to PostgreSQL, sent and answered apart.

The program goes on while the server works; the answer is read before the connection's next use.
psycopg always waits, so its libpq is used as it is.
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping
from typing import Any, Protocol

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from qframe.drivers.database.sql import Statement

_NAME = b"qframe_start"
_PATIENCE = 30.0
"""Seconds after which a server that says nothing is taken for gone."""
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Told(Protocol):
    """What was sent and waits for its answer."""

    def hear(self, first: bool, second: bool) -> None:
        """Hear whether each of the two rows was found."""

    def say_again(self) -> None:
        """Say it again, and hear what came of it, where no answer came."""


class Line:
    """One prepared statement on a connection, sent and answered apart. Raises psycopg's errors."""

    def __init__(self, connection: psycopg.Connection[Any], statement: Statement) -> None:
        self._libpq = connection.pgconn
        self._names: list[str] = []
        sql = _PARAMETER.sub(self._number, statement.sql)
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, select.POLLIN)
        self._check(self._libpq.prepare(_NAME, sql.encode()), ExecStatus.COMMAND_OK)

    def _number(self, found: re.Match[str]) -> str:
        if found[1] not in self._names:
            self._names.append(found[1])
        return f"${self._names.index(found[1]) + 1}"

    def send(self, values: Mapping[str, object]) -> None:
        """Send it; nothing else may be said before `answer`."""
        given = [values[name] for name in self._names]
        texts = [None if value is None else str(value).encode() for value in given]
        self._libpq.send_query_prepared(_NAME, texts)
        while self._libpq.flush():
            self._libpq.consume_input()

    def answer(self) -> tuple[bool, bool]:
        """Wait for the answer: whether each of the two rows was found."""
        result = self._result()
        while self._result() is not None:
            pass
        self._check(result, ExecStatus.TUPLES_OK)
        assert result is not None  # noqa: S101 (checked)
        return result.get_value(0, 0) == b"1", result.get_value(0, 1) == b"1"

    def _result(self) -> PGresult | None:
        # libpq's own wait would keep the interpreter from the other threads.
        while self._libpq.is_busy():
            if not self._poll.poll(_PATIENCE * 1000):
                raise psycopg.OperationalError(f"no answer within {_PATIENCE:g} s")
            self._libpq.consume_input()
        return self._libpq.get_result()

    def _check(self, result: PGresult | None, status: ExecStatus) -> None:
        if result is not None and result.status == status:
            return
        if result is None or self._libpq.status != ConnStatus.OK:
            raise psycopg.OperationalError("the connection was lost")
        raise psycopg.errors.error_from_result(result)
