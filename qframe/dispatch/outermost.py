"""The outermost transaction of a SQLAlchemy session that has joined its connection's.

`Session(bind=connection)` commits into the transaction that the connection already has, so its own
commit decides nothing. SQLAlchemy has an event before such a transaction is committed, and none
after. So this module wraps the dialect's methods that commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

Act = Callable[[], None]


class _AfterCommit:
    """The calls to make when a connection's transaction has been committed."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.later: set[str] = set()
        """Savepoints that were set later: a rollback to one of these undoes nothing."""


_waiting: WeakKeyDictionary[Any, list[_AfterCommit]] = WeakKeyDictionary()
"""By the pool's connection record: once that is returned, nothing more is committed."""
_watched: WeakSet[Any] = WeakSet()
"""Dialects with wrapped methods."""


def joined_by(session: Any) -> list[Any]:  # noqa: ANN401 (SQLAlchemy's session)
    """Return the connections of a session with an open transaction besides the session's own.

    Called when the session has none, or has just committed it.
    """
    from sqlalchemy import Connection  # noqa: PLC0415 (SQLAlchemy made the session)

    transaction = session.get_transaction()
    # SQLAlchemy has no public way to ask a session that has committed.
    held = getattr(transaction, "_connections", {}).values()
    found = dict.fromkeys(each[0] for each in held)
    binds = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # 2.1, 2.0
    for each in (session.bind, *binds.values()):
        if isinstance(each, Connection):
            found[each] = None
    return [each for each in found if not each.closed and each.in_transaction()]


def when_committed(connections: Sequence[Any], act: Act) -> None:
    """Call `act` once the open transactions of all these connections have been committed."""
    left = len(connections)

    def committed() -> None:
        nonlocal left
        left -= 1
        if not left:
            act()

    for connection in connections:
        _watch(connection.engine.dialect)
        _waiting.setdefault(connection.connection, []).append(_AfterCommit(committed))


def _watch(dialect: Any) -> None:  # noqa: ANN401 (SQLAlchemy's dialect)
    if dialect in _watched:
        return
    _watched.add(dialect)
    for name, wrapped in (
        ("do_commit", _committing(dialect.do_commit, lambda line: line)),
        ("do_commit_twophase", _committing(dialect.do_commit_twophase, _line_of)),
        ("do_rollback", _rolling_back(dialect.do_rollback, lambda line: line)),
        ("do_rollback_twophase", _rolling_back(dialect.do_rollback_twophase, _line_of)),
        ("do_savepoint", _setting(dialect.do_savepoint)),
        ("do_rollback_to_savepoint", _going_back(dialect.do_rollback_to_savepoint)),
    ):
        setattr(dialect, name, wrapped)


def _line_of(connection: Any) -> Any:  # noqa: ANN401 (what the pool has given out)
    return connection.connection


def _committing(act: Callable[..., Any], line_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(act)
    def committing(place: Any, *values: Any, **named: Any) -> Any:  # noqa: ANN401 (the dialect's own)
        # before the commit: a two-phase one ends with a rollback, too
        waiting = _waiting.pop(line_of(place), ())
        given = act(place, *values, **named)
        for each in waiting:
            each.act()
        return given

    return committing


def _rolling_back(act: Callable[..., Any], line_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(act)
    def rolling_back(place: Any, *values: Any, **named: Any) -> Any:  # noqa: ANN401 (as above)
        _waiting.pop(line_of(place), None)
        return act(place, *values, **named)

    return rolling_back


def _setting(act: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(act)
    def setting(connection: Any, name: str) -> Any:  # noqa: ANN401 (as above)
        for each in _waiting.get(connection.connection, ()):
            each.later.add(name)
        return act(connection, name)

    return setting


def _going_back(act: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(act)
    def going_back(connection: Any, name: str) -> Any:  # noqa: ANN401 (as above)
        waiting = _waiting.get(connection.connection)
        if waiting:
            waiting[:] = [each for each in waiting if name in each.later]
        return act(connection, name)

    return going_back
