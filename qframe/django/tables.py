"""The queue's tables in Django's databases: made and kept up to date by `manage.py migrate`."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.db.migrations.operations.base import Operation

from qframe import config
from qframe.django import conf
from qframe.exceptions import ConfigurationError, QframeError
from qframe.manager import QueueManager


def names_in(alias: str) -> list[str]:
    """Returns the connections whose jobs are in a database of Django's."""
    found = (conf.given() or {}).get("connections") or {}
    return [name for name in found if conf.database_of(name) == alias]


def make(*, using: str, verbosity: int = 1, plan: Any = None, **_: object) -> None:  # noqa: ANN401 (of the signal)
    """Makes what is missing after a `migrate`, as `qframe migrate` does; both may run.

    A `flush`, such as that after each test with transactions, has no plan, and removes no table.
    """
    names = names_in(using)
    if plan is None or not names:
        return
    queues = QueueManager(config.load())
    for name in names:
        try:
            for change in queues.backend(name).migrate() or ():
                if verbosity > 1:
                    sys.stdout.write(f"  qframe {name}: {change.what}\n")
        except QframeError as error:
            raise ConfigurationError(f"{name}: {error}") from error
    queues.close()


class MakeTables(Operation):
    """Makes the tables of the connections in the migrated database.

    The statements are those of `qframe migrate --sql`; they may run on any state of the tables.
    SQLite's are made afterwards, as it lets one connection write at a time.
    """

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:  # noqa: ANN401 (Django's)
        """Changes no model."""

    def database_forwards(
        self,
        app_label: str,  # noqa: ARG002 (Django's)
        schema_editor: Any,  # noqa: ANN401 (Django's)
        from_state: Any,  # noqa: ANN401, ARG002 (Django's)
        to_state: Any,  # noqa: ANN401, ARG002 (Django's)
    ) -> None:
        """Makes them."""
        connection = schema_editor.connection
        if connection.vendor == "sqlite" or connection.alias not in settings.DATABASES:
            return
        queues = QueueManager(config.load())
        for name in names_in(connection.alias):
            for change in queues.backend(name).migration(ask=False) or ():
                schema_editor.execute(change.sql.replace("%", "%%"), ())

    def database_backwards(self, *_: object) -> None:
        """Keeps them: they hold jobs."""

    def describe(self) -> str:
        """Returns what it does, in words."""
        return "Make the queue's tables"
