"""Roster: the entries of workers and pools in the store, and which of them are gone.

They are information: no job's fate depends on them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from qframe.drivers import process
from qframe.drivers.store import Store
from qframe.worker import machine
from qframe.worker.options import WorkerOptions

BEAT = 10.0
"""Seconds after which an unchanged entry is written again."""
TTL = 30.0
"""Seconds after which the entry of a silent worker expires."""
KEPT = 4 * 3600.0
"""How long a dead worker stays visible to alert checks, in seconds."""
REGISTER = 60.0
_REGISTERED = "registered:"


class RunningJob(BaseModel):
    """A running job of a worker."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    name: str
    queue: str
    attempt: int
    since: float
    """When the attempt began, epoch seconds by the worker's clock, as all times here."""
    tags: tuple[str, ...] = ()


class Listed(BaseModel):
    """One process. `place` and `born` tell it from a later one with its pid."""

    model_config = ConfigDict(frozen=True)
    prefix: ClassVar[str]

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
    version: str = ""
    """Of the application; "" if it is unknown."""
    python: str = ""
    concurrency: int = 1
    """How many jobs the worker, or each worker of the pool, runs at once."""
    scales: bool = False
    """Whether that can be changed."""

    @property
    def key(self) -> str:
        return self.prefix + self.id

    @property
    def is_gone(self) -> bool:
        """Whether its process was killed: one that ends cleanly removes its entry.

        Only known on its own machine, and in its container.
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


class Entry(Listed):
    prefix: ClassVar[str] = "worker:"

    state: str = "idle"
    """`idle`, `running` or `paused`."""
    pool: int | None = None
    """The pid of its pool."""
    jobs: tuple[RunningJob, ...] = ()
    """The running jobs, the oldest first; none also between two jobs in quick succession."""
    counts: dict[str, int] = {}
    """How many of its jobs had which outcome since it began."""
    memory: float = 0.0
    """Resident megabytes."""

    @property
    def registration(self) -> str:
        """Key removed on a clean exit. Registered without an entry: the worker died."""
        return _REGISTERED + self.id


class PoolEntry(Listed):
    prefix: ClassVar[str] = "pool:"

    size: int
    """How many workers it keeps."""
    least: int = 1
    most: int | None = None
    """The range within which that can be changed."""
    shares: dict[str, int] = {}
    """How many workers each queue has, if a supervisor decides."""
    why: dict[str, str] = {}
    """Why a queue has so many."""

    def may_keep(self, workers: int) -> bool:
        """Whether it can be scaled to so many workers."""
        return self.least <= workers and (self.most is None or workers <= self.most)


L = TypeVar("L", bound=Listed)


def introduced(
    options: WorkerOptions, connection: str, queues: tuple[str, ...], pool: int | None = None
) -> Entry:
    """Returns the first entry of a worker in this process."""
    return Entry(**_here(options, connection, queues), pool=pool)


def introduced_pool(
    options: WorkerOptions, connection: str, size: int, least: int, most: int | None
) -> PoolEntry:
    """Returns the first entry of a pool that is this process."""
    about = _here(options, connection, options.queues)
    bound = machine.most_processes() if most is None else most
    return PoolEntry(**about, size=size, least=least, most=bound)


def _here(options: WorkerOptions, connection: str, queues: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id": secrets.token_hex(8),
        "name": options.name,
        "host": process.NAME,
        "pid": process.pid(),
        "place": process.place(),
        "born": process.born(process.pid()),
        "connection": connection,
        "queues": queues,
        "started_at": round(time.time(), 3),
        "qframe": _version(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "concurrency": options.concurrency,
        "scales": options.concurrency > 1 or (options.isolate and not options.rest),
    }


def _version() -> str:
    try:
        return version("qframe")
    except PackageNotFoundError:  # run from its source folder
        return ""


def listed(store: Store) -> list[Entry]:
    """Returns the entries of all workers, by host and pid."""
    return _read((text for _, text in store.items(Entry.prefix)), Entry)


def pools(store: Store) -> list[PoolEntry]:
    """Returns the entries of all pools, by host and pid."""
    return _read((text for _, text in store.items(PoolEntry.prefix)), PoolEntry)


def read(store: Store, keys: Iterable[str]) -> list[Entry]:
    """Returns those of the entries that still exist."""
    return _read((text for text in store.get(*keys) if text is not None), Entry)


def dead(store: Store, alive: Iterable[Entry]) -> list[Entry]:
    """Returns the workers that died: entry gone, registration left, and not `alive`.

    They are as they were when they last registered.
    """
    known = {entry.id for entry in alive}
    found = _read((text for _, text in store.items(_REGISTERED)), Entry)
    found = [entry for entry in found if entry.id not in known]
    # Both at once: workers may have begun or ended since their entries were read.
    texts = store.get(*(key for entry in found for key in (entry.registration, entry.key)))
    both = zip(found, texts[::2], texts[1::2], strict=True)
    return [entry for entry, registered, written in both if registered and not written]


def _read(texts: Iterable[str], kind: type[L]) -> list[L]:
    """Reads entries; leaves out what another version wrote differently."""
    entries = []
    for text in texts:
        with contextlib.suppress(ValidationError):
            entries.append(kind.model_validate_json(text))
    return sorted(entries, key=lambda entry: (entry.host, entry.pid, entry.started_at))
