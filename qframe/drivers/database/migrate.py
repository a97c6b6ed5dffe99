"""Migrating: makes what a database lacks of the tables, while others may do the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection

from qframe.contracts.backend import Change
from qframe.drivers.database.changes import Changes
from qframe.drivers.database.schema import Schema

_PATIENCE = 30
"""Seconds a statement waits for a table that a transaction of others is using: all that come after
it wait, too."""
_LOCK = 0x716672616D65
"""PostgreSQL's advisory lock, of one database."""
_NAME = "qframe migrate"
"""MariaDB's lock, of the server."""


def migrate(connection: Connection, schema: Schema) -> list[Change]:
    """Make what is missing, in one transaction where the database can; gives what was done.

    Where it fails the connection is to be closed.
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
    """Let nobody else migrate meanwhile."""
    run = connection.exec_driver_sql
    kind = connection.dialect.name
    if kind in {"mysql", "mariadb"}:  # where each statement about tables commits
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
