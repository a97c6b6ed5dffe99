"""Migration: creates what a database lacks of the tables; others may do so at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection

from qframe.contracts.tables import Change
from qframe.drivers.database.changes import Changes
from qframe.drivers.database.schema import Schema

_PATIENCE = 30
"""Seconds that a statement waits for a table in use; later users of the table wait behind it."""
_LOCK = 0x716672616D65
"""Key of PostgreSQL's advisory lock, in this database."""
_NAME = "qframe migrate"
"""Name of MariaDB's lock, on the whole server."""


def migrate(connection: Connection, schema: Schema) -> list[Change]:
    """Make the missing changes, in one transaction where the database can. Returns them.

    After an error the connection must be closed.
    """
    changes = Changes(schema, connection.dialect)
    if not changes.missing(connection):
        return []
    with _alone(connection):
        done = changes.missing(connection)
        for change in done:
            connection.exec_driver_sql(change.sql)
    return done


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Take the lock against concurrent migrations."""
    run = connection.exec_driver_sql
    kind = connection.dialect.name
    if kind in {"mysql", "mariadb"}:  # which commit each statement about tables
        run(f"SELECT GET_LOCK('{_NAME}', 86400)")
        run(f"SET SESSION lock_wait_timeout = {_PATIENCE}")
        yield
        run(f"SELECT RELEASE_LOCK('{_NAME}')")
        return
    run("BEGIN IMMEDIATE" if kind == "sqlite" else "BEGIN")
    try:
        if kind == "postgresql":
            run(f"SELECT pg_advisory_xact_lock({_LOCK})")
            run(f"SET LOCAL lock_timeout = '{_PATIENCE}s'")
        yield
        run("COMMIT")
    except BaseException:
        with suppress(Exception):
            run("ROLLBACK")
        raise
