"""The tables of queues for an application's own migrations: Alembic's, Django's, or others."""

from __future__ import annotations

from qframe import manager
from qframe.contracts.backend import Backend


def statements(connection: str | None = None) -> list[str]:
    """Return the SQL that creates or upgrades the tables of a connection.

    It is what `qframe migrate --sql` prints without a server; it does not query the database. On
    PostgreSQL and MariaDB it runs on any state of the tables, and may run again. `connection` is
    the default one if not given. Returns [] for a connection without tables. Raises
    `ConfigurationError`.
    """
    return [change.sql for change in _backend(connection).migration(ask=False) or ()]


def tables(connection: str | None = None) -> frozenset[str]:
    """Return the tables of a connection, without their schema, which other migrations must keep.

    `connection` is the default one if not given. Raises `ConfigurationError`.
    """
    return frozenset(_backend(connection).tables())


def _backend(connection: str | None) -> Backend:
    queues = manager.default()
    return queues.backend(connection or queues.settings.default)
