"""Refusals: which worker cannot run a class, and why, as a fact for `qframe why`."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import NamedTuple

from qframe.contracts.backend import Capability
from qframe.drivers import process
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.payload.text import one_line

_KEPT = 3600.0
_EVERY = 60.0
"""Seconds after which the fact of one class is written again."""
_MOST = 1000


class Refusal(NamedTuple):
    """A worker gave back a job of a class, which it does not know or whose data do not fit."""

    host: str
    pid: int
    at: float
    why: str


class RefusalNotes:
    """Writes what one worker refuses; only a worker that refuses something pays for it."""

    def __init__(self, store: Store, connection: str) -> None:
        self._store = store
        self._connection = connection
        self._written: dict[str, float] = {}

    def note(self, job: str, why: str) -> None:
        """Keeps it for an hour. Never raises `BackendUnavailable`."""
        now = time.monotonic()
        if now - self._written.get(job, -_EVERY) < _EVERY:
            return
        if Capability.FACTS not in self._store.backend.capabilities:
            return
        if len(self._written) >= _MOST:
            self._written.clear()
        self._written[job] = now
        text = json.dumps([process.NAME, process.pid(), round(time.time(), 3), one_line(why, 300)])
        key = f"{_prefix(self._connection, job)}{process.NAME[:60]}:{process.pid()}"
        with suppress(BackendUnavailable):
            self._store.set(key, text, _KEPT)


def read(store: Store, connection: str, job: str) -> list[Refusal]:
    """Returns the refusals of a class in the last hour. Raises `BackendUnavailable`."""
    found = []
    for _, text in store.items(_prefix(connection, job)):
        with suppress(ValueError, TypeError):  # of another version
            host, pid, at, why = json.loads(text)
            found.append(Refusal(str(host), int(pid), float(at), str(why)))
    return found


def _prefix(connection: str, job: str) -> str:
    named = f"{connection}:{job}".encode("utf-8", "surrogatepass")
    return f"refused:{hashlib.blake2b(named, digest_size=12).hexdigest()}:"
