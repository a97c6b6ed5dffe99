"""The meaning of database errors, by their code if they have one, in a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError

from qframe.exceptions import BackendUnavailable, BackendUnusable, TransactionUndone
from qframe.payload.text import one_line


class TryAgain(TransactionUndone):
    """The database has rolled back a transaction because of another one."""


class ConnectionLost(BackendUnavailable):
    """The connection ended during an exchange, which may have been applied."""


class NoConnectionLeft(BackendUnavailable):
    """No further connection for now: all of the server's or of this pool are in use."""


_NO_TABLE = "has no table {name}: run `{migrate}`"
_NO_COLUMN = "has no column {name}, an upgrade is due: run `{migrate}`"
_NO_RIGHT = "does not let its user do this: {text}"
_REFUSED = "refuses its user or password: {text}"
_NO_DATABASE = "is not there: {text}"
_CONFLICT = "undid a transaction for the sake of others: {text}"
_IN_USE = "is in use by a transaction of others, which took too long: {text}"
_SHUTTING_DOWN = "is shutting down or starting: {text}"
_NO_SLOT = "has no connection left, too many are open: {text}"
_READ_ONLY = "takes no writes, it is a standby or was made read-only: {text}"
_FULL = "cannot be written: the disk is full: {text}"
_TOO_SLOW = "ended this by a time limit of its own: {text}"
_SILENT = "does not answer: {text}"
_CONFLICTS: Mapping[object, str] = {
    "40001": _CONFLICT,  # serialization_failure
    "40P01": _CONFLICT,  # deadlock_detected
    1213: _CONFLICT,  # ER_LOCK_DEADLOCK
    1020: _CONFLICT,  # ER_CHECKREAD, of innodb_snapshot_isolation
}
_HOPELESS: Mapping[object, str] = {
    "42P01": _NO_TABLE,
    1146: _NO_TABLE,
    "42703": _NO_COLUMN,
    1054: _NO_COLUMN,
    "42501": _NO_RIGHT,
    1142: _NO_RIGHT,
    1143: _NO_RIGHT,
    1044: _NO_RIGHT,
    "28P01": _REFUSED,
    "28000": _REFUSED,
    1045: _REFUSED,
    1698: _REFUSED,
    "3D000": _NO_DATABASE,
    1049: _NO_DATABASE,
    "file is not a database": "is not an SQLite database",
    "readonly database": "is read-only: give its file and folder write permission",
    "unable to open": "cannot be opened: does its folder exist, and may this user write there?",
    "disk image is malformed": "is damaged",
    # Errors while connecting come without PostgreSQL's code.
    "password authentication failed": _REFUSED,
    "no password supplied": _REFUSED,
    "no pg_hba.conf entry": _REFUSED,
}
_PASSING: Mapping[object, str] = {
    "55P03": _IN_USE,
    1205: _IN_USE,  # it has already waited long for its lock: an immediate retry does not help
    "25006": _READ_ONLY,
    1290: _READ_ONLY,
    1836: _READ_ONLY,
    "53100": _FULL,
    1021: _FULL,
    1114: _FULL,
    "57014": _TOO_SLOW,
    1969: _TOO_SLOW,
    "database or disk is full": "cannot be written: the disk is full",
    "database is locked": "is locked: another program has held it longer than busy_timeout",
    "the database system is": _SHUTTING_DOWN,
}
"""Temporary errors: PostgreSQL's codes, MariaDB's numbers, or parts of the text."""
_NO_MORE: Mapping[object, str] = dict.fromkeys(
    (
        "53300", 1040, 1203, 1226, "too many clients already", "remaining connection slots",
        "too many connections for", "no more connections allowed",
    ),
    _NO_SLOT,
)  # fmt: skip
_WHY_ENDED: Mapping[object, str] = {
    **dict.fromkeys(("57P01", "57P02", "57P03", 1053), _SHUTTING_DOWN),
    **dict.fromkeys(("25P03", "57P05"), _TOO_SLOW),
}
"""Descriptions of lost connections. The driver decides whether the connection was lost."""
_KINDS: tuple[tuple[Mapping[object, str], type[BackendUnavailable]], ...] = (
    (_CONFLICTS, TryAgain),
    (_HOPELESS, BackendUnusable),
    (_NO_MORE, NoConnectionLeft),
    (_PASSING, BackendUnavailable),
)
_MISSING = {
    re.compile(r'database "[^"]*" does not exist'): _NO_DATABASE,
    re.compile(r'role "[^"]*" does not exist'): _REFUSED,
}
_NAMED = re.compile(r"""["']([^"']+)["']|column ([\w.]+)""")


def translated(
    error: BaseException,
    database: str,
    ended_by: Callable[[BaseException], bool] | None = None,
    migrate: str = "qframe migrate",
) -> Exception:
    """Return the error to raise; `database` describes it, `migrate` is the command for its tables.

    `ended_by` tells whether an error ended the connection. A `DataError` is about the caller's
    value: too long, or with a NUL that the server does not accept.
    """
    cause = cause_of(error)
    code = _code(cause)
    text = one_line(str(cause.args[-1] if isinstance(code, int) else cause))
    described = partial(_described, database, migrate, text)
    for meanings, raised in _KINDS:
        if code is not None and code in meanings:
            return raised(described(meanings[code]))
    if any(kind.__name__ == "DataError" for kind in type(cause).__mro__):
        return ValueError(f"the database {database} cannot hold this: {text}")
    if ended_by is not None and ended_by(error):
        return ConnectionLost(described(_WHY_ENDED.get(code, _SILENT)))
    for meanings, raised in _KINDS:
        for sign, meaning in meanings.items():
            if isinstance(sign, str) and " " in sign and sign in text:
                return raised(described(meaning))
    for missing, meaning in _MISSING.items():
        if missing.search(text):
            return BackendUnusable(described(meaning))
    # Clients that notice it themselves have no code.
    lost = code is None and _is_operational(cause)
    return (ConnectionLost if lost else BackendUnavailable)(
        described(_WHY_ENDED.get(code, _SILENT))
    )


def _is_operational(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"OperationalError", "InterfaceError"})


def is_disconnect(
    dialect: Dialect,
    error: BaseException,
    connection: Any = None,  # noqa: ANN401 (the client library's)
    cursor: Any = None,  # noqa: ANN401
) -> bool:
    """Whether this error ended the connection, according to the client library."""
    cause = cause_of(error)
    return isinstance(cause, dialect.loaded_dbapi.Error) and dialect.is_disconnect(
        cause, connection, cursor
    )


def cause_of(error: BaseException) -> BaseException:
    """Return the client library's error."""
    return error.orig if isinstance(error, DBAPIError) and error.orig else error


def _code(cause: BaseException) -> int | str | None:
    if cause.args and isinstance(cause.args[0], int):
        return cause.args[0]
    code: str | None = getattr(cause, "sqlstate", None)
    return code


def _described(database: str, migrate: str, text: str, meaning: str) -> str:
    found = _NAMED.search(text)
    name = (found[1] or found[2]) if found else "that is needed"
    return f"the database {database} {meaning.format(name=name, text=text, migrate=migrate)}"
