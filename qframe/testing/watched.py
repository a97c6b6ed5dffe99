"""Watched sqlite3: connections that tell of their commits, as its classes cannot be patched."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Callable
from typing import Any

from qframe.exceptions import Interruption
from qframe.testing.calls import ENDS, written
from qframe.testing.points import listener, replaced


def patched() -> contextlib.ExitStack:
    """Make `sqlite3.connect` return such connections to a job, until the stack is closed."""
    stack, connect = contextlib.ExitStack(), _watching(sqlite3.connect)
    for module in (sqlite3, sqlite3.dbapi2):
        stack.enter_context(replaced(module, "connect", connect))
    return stack


def _watching(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return `sqlite3.connect`, whose connections tell of their commits if a job opens them."""

    @functools.wraps(connect)
    def here(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the call's)
        if listener() is None:
            return connect(*args, **keywords)
        if len(args) > _FACTORY:
            factory = _watched(args[_FACTORY])
            return connect(*args[:_FACTORY], factory, *args[_FACTORY + 1 :], **keywords)
        keywords["factory"] = _watched(keywords.get("factory") or sqlite3.Connection)
        return connect(*args, **keywords)

    return here


_FACTORY = 5
"""The place of `factory` among the arguments of `sqlite3.connect`."""


def _tell(what: str) -> None:
    tell = listener()
    if what and tell is not None:
        tell(what)


def _sql(connection: sqlite3.Connection, sql: object) -> str:
    """Name a statement that commits: COMMIT, or one outside of a transaction."""
    if connection.in_transaction:
        return "a commit" if isinstance(sql, str) and ENDS.match(sql) else ""
    is_dml = isinstance(sql, str) and re.match(
        r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", sql, re.IGNORECASE
    )
    begins = connection.isolation_level is not None and getattr(connection, "autocommit", -1) == -1
    return "" if is_dml and begins else written(sql)


class _WatchedCursor(sqlite3.Cursor):
    """A cursor that tells of statements that commit."""

    def execute(self, sql: str, *args: Any) -> Any:  # noqa: ANN401 (as the method's)
        _tell(_sql(self.connection, sql))
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:  # noqa: ANN401 (as above)
        _tell(_sql(self.connection, sql))
        return super().executemany(sql, *args)

    def executescript(self, sql: str) -> Any:  # noqa: ANN401 (as above)
        _tell("a script that is committed by itself")
        return super().executescript(sql)


class _WatchedSqlite:
    """What a class of connections gets in addition."""

    in_transaction: bool

    def commit(self) -> None:
        if self.in_transaction:
            _tell("a commit")
        super().commit()  # type: ignore[misc] # a connection's

    def __exit__(self, kind: object, *more: object) -> Any:  # noqa: ANN401 (as the method's)
        if kind is None and self.in_transaction:
            try:
                _tell("a commit")
            except Interruption:
                self.rollback()  # type: ignore[attr-defined] # a connection's
                raise
        return super().__exit__(kind, *more)  # type: ignore[misc] # as above

    def cursor(self, factory: Any = _WatchedCursor) -> Any:  # noqa: ANN401 (as the method's)
        return super().cursor(factory)  # type: ignore[misc] # as above

    def execute(self, sql: str, *args: Any) -> Any:  # noqa: ANN401 (as above)
        return self.cursor().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:  # noqa: ANN401 (as above)
        return self.cursor().executemany(sql, *args)

    def executescript(self, sql: str) -> Any:  # noqa: ANN401 (as above)
        return self.cursor().executescript(sql)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # as the end of its process would
            self.close()  # type: ignore[attr-defined] # as above


@functools.cache
def _watched(factory: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """Return a class of connections that tell of their commits, derived from another one."""
    return type("WatchedConnection", (_WatchedSqlite, factory), {})
