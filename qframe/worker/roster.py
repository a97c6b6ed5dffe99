"""Roster: what each worker says of itself in the store, and who of them is gone.

It is information: no job's fate depends on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict, ValidationError

from qframe.drivers import process
from qframe.drivers.store import Store
from qframe.worker.options import WorkerOptions

PREFIX = "worker:"
BEAT = 10.0
"""Seconds after which an entry is written again although nothing has changed."""
TTL = 30.0
"""Seconds after which the entry of a worker that writes no more is gone."""


class Running(BaseModel):
    """The job a worker runs."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    name: str
    queue: str
    attempt: int
    since: float
    """When the attempt began, epoch seconds by the worker's clock, as all times here."""


class Entry(BaseModel):
    """One worker. `place` and `born` tell its process from a later one with its pid."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    host: str
    pid: int
    place: str = ""
    born: str = ""
    connection: str
    queues: tuple[str, ...]
    started_at: float
    beat_at: float = 0.0
    qframe: str = ""
    python: str = ""
    state: str = "idle"
    """`idle`, `running` or `paused`."""
    concurrency: int = 1
    """How many jobs it runs at once."""
    jobs: tuple[Running, ...] = ()
    """The jobs that run, the oldest first; none also between two jobs in quick succession."""
    counts: dict[str, int] = {}
    """How often its jobs came to which outcome, since it began."""
    memory: float = 0.0
    """Resident megabytes."""

    @property
    def key(self) -> str:
        """Where it is in the store."""
        return PREFIX + self.id

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to have ended: killed, for else it had taken itself off.

        Only known on the worker's own machine, and in its container.
        """
        if (self.host, self.place) != (process.NAME, process.place()):
            return False
        if self.born:
            return process.born(self.pid) != self.born
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def introduced(options: WorkerOptions, connection: str, queues: tuple[str, ...]) -> Entry:
    """Give the first entry of a worker in this process."""
    return Entry(
        id=secrets.token_hex(8),
        name=options.name,
        concurrency=options.concurrency,
        host=process.NAME,
        pid=process.pid(),
        place=process.place(),
        born=process.born(process.pid()),
        connection=connection,
        queues=queues,
        started_at=round(time.time(), 3),
        qframe=_version(),
        python=".".join(map(str, sys.version_info[:3])),
    )


def _version() -> str:
    try:
        return version("qframe")
    except PackageNotFoundError:  # run from its folder
        return ""


def listed(store: Store) -> list[Entry]:
    """Give the entries of all workers, by host and pid."""
    return _read(text for _, text in store.items(PREFIX))


def read(store: Store, keys: Iterable[str]) -> list[Entry]:
    """Give the entries that there still are."""
    return _read(text for text in store.get(*keys) if text is not None)


def _read(texts: Iterable[str]) -> list[Entry]:
    """Read entries; what another version wrote differently is left out."""
    entries = []
    for text in texts:
        with contextlib.suppress(ValidationError):
            entries.append(Entry.model_validate_json(text))
    return sorted(entries, key=lambda entry: (entry.host, entry.pid, entry.started_at))
