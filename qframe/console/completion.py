"""Completion: the names that a shell completes: connections, queues, job classes.

They come from the configuration and the project's files, and queues also from a connection that
answers at once. Nothing of the application is imported. A name that cannot be found is no error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

import typer

from qframe import config
from qframe.contracts.backend import Capability
from qframe.exceptions import QframeError
from qframe.jobs import project, sources
from qframe.manager import QueueManager
from qframe.payload.text import is_queue_pattern

_PATIENCE = 0.5
"""Seconds a connection has to list its queues, and the project's files to be read."""


def connections(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of connections."""
    with suppress(QframeError, OSError):
        return _fitting(_settings(ctx).connection_names(), incomplete)
    return []


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of queues; of a list by commas, it completes the last one."""
    before, comma, last = incomplete.rpartition(",")
    with suppress(QframeError, OSError):
        settings = _settings(ctx)
        found = {each for each in settings.queues if not is_queue_pattern(each)}
        for supervisor in settings.supervisors.values():
            found.update(each for each in supervisor.queues if not is_queue_pattern(each))
        found.update(_of_connection(settings, ctx.params.get("connection")))
        return [f"{before}{comma}{each}" for each in _fitting(found, last)]
    return []


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the job classes in the project's files."""
    with suppress(QframeError, OSError):
        settings = _settings(ctx)
        project.set_root(settings.root)
        project.put_on_path()
        return _fitting(sources.job_names(settings.jobs, _PATIENCE), incomplete)
    return []


def _settings(ctx: typer.Context) -> config.Settings:
    return config.load(ctx.params.get("config"))


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({each for each in names if each.startswith(incomplete)})


def _of_connection(settings: config.Settings, name: str | None) -> set[str]:
    """Returns the queues of a connection, the default one's name alone if it does not answer."""
    found: set[str] = set()
    settings.listeners = {}  # nothing of the application is imported

    def ask() -> None:
        with suppress(QframeError, OSError):
            connection = QueueManager(settings).connection(name)
            found.add(connection.default_queue)
            if Capability.LIST in connection.capabilities:
                found.update(connection.queues())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return found.copy()
