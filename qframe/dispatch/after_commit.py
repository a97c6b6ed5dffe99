"""When the program's own transaction is committed: what a dispatch can wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from qframe.connection import Connection
from qframe.dispatch import outermost
from qframe.exceptions import InvalidJob


class OpenTransaction(Protocol):
    """The program's transaction that is open where something is dispatched."""

    def within(self) -> object | None:
        """Give the transaction to push in; None where it is over, or the push is to follow it."""

    def on_commit(self, act: Callable[[], None]) -> None:
        """Call `act` once it has been committed, and never if it is not."""


find_open: Callable[[Connection], OpenTransaction | None] | None = None
"""Says, for a framework, which transaction a dispatch on a connection belongs to; None: to none."""


def open_for(connection: Connection) -> OpenTransaction | None:
    """Give the transaction that what is dispatched here belongs to, unless it says otherwise."""
    return None if find_open is None else find_open(connection)


def when_committed(
    place: object, act: Callable[[], None], is_faked: Callable[[], bool] = lambda: False
) -> None:
    """Call `act` once the transaction that is open now has been committed, and never if it is not.

    That is the outermost one: of a connection that a session was bound to when it had one open, as
    in a test that rolls all back. What `is_faked` then goes by the session's own commit.

    `place` is a SQLAlchemy `Session` (also an `AsyncSession` or a `scoped_session`), or a function
    that is given `act` and sees to it, as Django's `transaction.on_commit`. Without an open
    transaction it is called at once. Raises `InvalidJob` for anything else.
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
    """Give SQLAlchemy's own session, where there is one."""
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
    from sqlalchemy import event  # noqa: PLC0415 (the session is of this library)

    within = session.get_nested_transaction() or session.get_transaction()
    if within is None:
        _when_outermost_commits(outermost.joined_by(session), act, is_faked)
        return
    if _KEY not in session.info:
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
    session.info.setdefault(_KEY, []).append((within, act, is_faked))


_KEY = "qframe: when it is committed"
"""Where a session keeps what waits, each with the innermost transaction it was said in."""


def _committed(session: Any) -> None:  # noqa: ANN401
    if session.in_nested_transaction():
        return  # a savepoint: what is around it may still be rolled back
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
    session.info[_KEY] = [each for each in session.info[_KEY] if not _is_within(each[0], ended)]


def _is_within(transaction: Any, ended: Any) -> bool:  # noqa: ANN401
    while transaction is not None:
        if transaction is ended:
            return True
        transaction = transaction.parent
    return False
