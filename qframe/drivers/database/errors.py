"""What an error of the database means, by its type and in a few words."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from qframe.exceptions import BackendUnavailable, BackendUnusable
from qframe.payload.text import one_line

_HOPELESS = {
    "file is not a database": "is not an SQLite database",
    "readonly database": "is read-only: give its file and folder write permission",
    "unable to open": "cannot be opened: does its folder exist, and may this user write there?",
    "disk image is malformed": "is damaged",
}
_PASSING = {
    "database or disk is full": "cannot be written: the disk is full",
    "database is locked": "is locked: another program has held it longer than busy_timeout",
}


def translated(error: BaseException, database: str) -> Exception:
    """Give the error to raise instead; `database` is how it is shown.

    A `DataError` is about what the caller gave: too long, or a NUL where the server takes none.
    """
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    text = one_line(str(cause))
    if any(kind.__name__ == "DataError" for kind in type(cause).__mro__):
        return ValueError(f"the database {database} cannot hold this: {text}")
    for meanings, raised in ((_HOPELESS, BackendUnusable), (_PASSING, BackendUnavailable)):
        for sign, meaning in meanings.items():
            if sign in text:
                return raised(f"the database {database} {meaning}")
    return BackendUnavailable(f"the database {database} does not answer: {text}")
