"""embedded: every connection as an SQLite file in a folder, for tests that need real queues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qframe import config, events, manager
from qframe.config import PlaceSettings, Settings
from qframe.hooks import of_process
from qframe.jobs import project
from qframe.manager import QueueManager

_KEPT = ("queue", "retry_after", "max_payload", "push_retries")


@contextlib.contextmanager
def embedded(folder: str | Path) -> Iterator[QueueManager]:
    """Puts every configured connection on its own database in `folder`; yields the manager.

    `dispatch` uses it until the block ends, and then the previous one again. `sync` and `null`
    connections stay what they are. Everything else is as configured: the default connection, the
    names of queues, `jobs`, listeners; those added meanwhile are forgotten. Raises
    `ConfigurationError`.
    """
    before = manager.current()
    real = before or (None if manager.find is None else manager.find())
    settings = config.load() if real is None else real.settings
    if real is not None and real.opened():  # so its listeners are registered already
        settings = settings.model_copy(update={"listeners": {}})
    there = {name: settings.connection(name) for name in settings.connection_names()}
    moved = {name: _moved(values, Path(folder), name) for name, values in there.items()}
    with events.kept():
        queues = QueueManager(_changed(settings, moved), of_process if real is None else real.hooks)
        manager.use(queues)
        try:
            yield queues
        finally:
            manager.use(before)
            queues.close()
            if before is not None:
                project.set_root(before.settings.root)


def _moved(values: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    if values["driver"] in {"sync", "null"}:
        return values
    kept = {key: values[key] for key in _KEPT if key in values}
    file = folder.resolve() / f"{name}.sqlite3"
    return {**kept, "driver": "database", "url": f"sqlite:///{file}"}


def _changed(settings: Settings, connections: dict[str, dict[str, Any]]) -> Settings:
    return settings.model_copy(
        update={
            "connections": connections,
            "store": PlaceSettings(),
            "failed": PlaceSettings(),
        }
    )
