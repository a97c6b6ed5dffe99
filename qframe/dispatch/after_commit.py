"""after_commit: lets a dispatch wait for the commit of the program's transaction."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qframe import connection as connections
from qframe.connection import Connection
from qframe.dispatch import outermost
from qframe.exceptions import InvalidJob
from qframe.hooks import OpenTransaction

T = TypeVar("T")


def open_for(connection: Connection) -> OpenTransaction | None:
    """Return the transaction that a dispatch here joins unless told otherwise; None without one."""
    find_open = connection.hooks.find_open
    return None if find_open is None else find_open(connection)


def joined_or_committed(
    connection: Connection,
    within: Callable[[object], T],
    committed: Callable[[OpenTransaction], T],
) -> T | None:
    """Dispatch `within` the open transaction or, if that is not possible, once it is `committed`.

    Returns None without an open transaction, and in tests that fake dispatches.
    """
    opened = None if connections.stand_in is not None else open_for(connection)
    if opened is None:
        return None
    inside = opened.within()
    return committed(opened) if inside is None else within(inside)


def when_committed(
    place: object, act: Callable[[], None], is_faked: Callable[[], bool] = lambda: False
) -> None:
    """Call `act` after the commit of the current transaction, never after a rollback.

    That is the outermost transaction: if a session was bound to a connection with an open one (as
    in a test that rolls everything back), the connection's. If `is_faked()` is true then, the
    session's own commit counts.

    `place` is a SQLAlchemy `Session` (also an `AsyncSession` or a `scoped_session`), or a function
    that takes `act` and arranges the call, as Django's `transaction.on_commit`. Without an open
    transaction `act` is called at once. Raises `InvalidJob` for anything else.
    """
    session = _session(place)
    if session is not None:
        _when_session_commits(session, act, is_faked)
    elif callable(place):
        place(act)
    else:
        raise InvalidJob(
            "after_commit takes a SQLAlchemy Session, or a function such as Django's "
            f"transaction.on_commit, not {type(place).__name__}"
        )


def _session(place: object) -> Any:  # noqa: ANN401 (a Session, if SQLAlchemy is there)
    orm = sys.modules.get("sqlalchemy.orm")
    if orm is None:
        return None
    if isinstance(place, orm.scoped_session):
        place = place()
    place = getattr(place, "sync_session", place)
    return place if isinstance(place, orm.Session) else None


def _when_session_commits(
    session: Any,  # noqa: ANN401 (SQLAlchemy's)
    act: Callable[[], None],
    is_faked: Callable[[], bool],
) -> None:
    from sqlalchemy import event  # noqa: PLC0415 (SQLAlchemy made the session)

    within = session.get_nested_transaction() or session.get_transaction()
    if within is None:
        _when_outermost_commits(outermost.joined_by(session), act, is_faked)
        return
    if _KEY not in session.info:
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    session.info.setdefault(_KEY, []).append((within, act, is_faked))


log = logging.getLogger("qframe.dispatch")
_KEY = "qframe: when it is committed"
"""Key, in a session, of the waiting calls, each with its innermost transaction."""


def _committed(session: Any) -> None:  # noqa: ANN401
    if session.in_nested_transaction():
        return  # a savepoint: the transaction around it may still be rolled back
    waiting, session.info[_KEY] = session.info[_KEY], []
    joined = outermost.joined_by(session) if waiting else []
    for _, act, is_faked in waiting:
        _when_outermost_commits(joined, act, is_faked)


def _when_outermost_commits(
    joined: Sequence[Any], act: Callable[[], None], is_faked: Callable[[], bool]
) -> None:
    if joined and not is_faked():
        outermost.when_committed(joined, act)
    else:
        act()


def _rolled_back(session: Any, ended: Any) -> None:  # noqa: ANN401
    waiting = session.info[_KEY]
    session.info[_KEY] = [each for each in waiting if not _is_within(each[0], ended)]
    if dropped := len(waiting) - len(session.info[_KEY]):
        log.info("not dispatched, as the transaction was not committed: %d", dropped)


def _ended(session: Any, ended: Any) -> None:  # noqa: ANN401
    """Drop what waited for a transaction that was closed, which is no rollback to SQLAlchemy."""
    if ended.parent is None:
        _rolled_back(session, ended)


def _is_within(transaction: Any, ended: Any) -> bool:  # noqa: ANN401
    while transaction is not None:
        if transaction is ended:
            return True
        transaction = transaction.parent
    return False
