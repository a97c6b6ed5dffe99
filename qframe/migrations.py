"""The queue's tables in the migrations of an application: Alembic's, Django's, or any others."""

from __future__ import annotations

from qframe import manager
from qframe.contracts.backend import Backend


def statements(connection: str | None = None) -> list[str]:
    """Give the SQL that makes the tables of a connection, or upgrades those that are there.

    It is what `qframe migrate --sql` prints where no server answers; the database is not asked. On
    PostgreSQL and MariaDB it may be run on any state of the tables, and again. The default
    connection without a name. Empty where a connection has no tables. Raises `ConfigurationError`.
    """
    return [change.sql for change in _backend(connection).migration(ask=False) or ()]


def tables(connection: str | None = None) -> frozenset[str]:
    """Name the tables of a connection, without their schema: what no other migration may drop.

    The default connection without a name. Raises `ConfigurationError`.
    """
    return frozenset(_backend(connection).tables())


def _backend(connection: str | None) -> Backend:
    queues = manager.default()
    return queues.backend(connection or queues.settings.default)
