"""Presence: keeps a worker's entry in the roster, and its counters, up to date.

Looks once a second, from a thread of its own or from whoever waits for the running job, and writes
what has changed; so no job costs more than its count.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from qframe import tracebacks
from qframe.contracts import Job, Store
from qframe.exceptions import BackendUnavailable
from qframe.names import one_line
from qframe.worker import memory, tally
from qframe.worker.roster import BEAT, TTL, Entry, Running
from qframe.worker.tally import Amounts, Ended, Tally

log = logging.getLogger("qframe")

EVERY = 1.0
"""Seconds between two looks."""
_SHORT = 5.0
"""Seconds in which nothing could be written that are not worth a word."""
_PARTING = 2.0
"""Seconds a worker waits at its end for its last counts to be written."""


class Sight(NamedTuple):
    """What a worker is doing: the job that runs, since when (monotonic), and whether it pauses."""

    job: Job | None
    since: float
    paused: bool


class Presence:
    """What one worker tells of itself, from `begin` to `end`.

    `look` gives what the worker is doing, `close` closes the connections of the thread. A store
    that does not answer disturbs nothing: the entry expires, counts are kept until it does.
    """

    def __init__(
        self,
        store: Store,
        entry: Entry,
        ended: Tally,
        look: Callable[[], Sight],
        *,
        close: Callable[[], None],
        told: Callable[[Entry], None] | None = None,
    ) -> None:
        self.entry = entry
        self._store = store
        self._tally = ended
        self._look = look
        self._close = close
        self._told = told
        self._job: Job | None = None
        self._written = 0.0
        self._counted: dict[Ended, int] = {}
        self._pending: tuple[Amounts, str] | None = None
        self._looked = 0.0
        self._unheard_since = 0.0
        self._warned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="qframe-presence", daemon=True)

    def begin(self, *, threaded: bool = True) -> None:
        """Write the entry, and keep it up to date; without a thread, `beat` has to be called."""
        if threaded:
            self._thread.start()
        else:
            self.beat()

    def end(self) -> None:
        """Write the last counts and remove the entry; a store that hangs is left to itself."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_PARTING)
        elif not self._thread.ident:
            self._leave()

    def beat(self) -> None:
        """Look, at most once a second, and write what has changed or is due. Never raises."""
        now = time.monotonic()
        if now - self._looked >= EVERY:
            self._looked = now
            self._try(self._see, self._count, self._write)

    def _keep(self) -> None:
        # A signal that the system hands to this thread would not wake the main thread's job.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while True:
                self._try(self._see, self._count, self._write)
                if self._over.wait(EVERY):
                    break
            self._leave()
        finally:
            self._close()

    def _leave(self) -> None:
        self._try(self._count, self._count, self._remove)  # what was pending, then the rest

    def _try(self, *steps: Callable[[], None]) -> None:
        try:
            for step in steps:
                step()
        except BackendUnavailable as error:
            self._unheard(str(error))
        except Exception as error:  # noqa: BLE001 (information must never disturb the work)
            self._unheard(tracebacks.brief(error))
        else:
            self._unheard_since = 0.0
            self._warned = False

    def _unheard(self, why: str) -> None:
        """Say once that nothing can be written, when it is more than a moment."""
        now = time.monotonic()
        self._unheard_since = self._unheard_since or now
        if now - self._unheard_since >= _SHORT and not self._warned:
            self._warned = True
            log.warning("the worker's entry and counters cannot be written: %s", why)

    # -- steps ----------------------------------------------------------------------------------

    def _see(self) -> None:
        """Bring the entry up to date, here."""
        sight = self._look()
        before = self.entry
        counts = self._tally.by_outcome()
        if sight.job is not None:
            state = "running"
        elif sight.paused:
            state = "paused"
        else:  # it may be between two jobs
            state = "idle" if counts == before.counts else "running"
        running = before.job if sight.job is self._job else _running(sight)
        self._job = sight.job
        if (state, running, counts) != (before.state, before.job, before.counts):
            self._written = 0.0
        if not self._written or time.monotonic() - self._written >= BEAT:
            self._written = 0.0
            self.entry = before.model_copy(
                update={
                    "state": state,
                    "job": running,
                    "counts": counts,
                    "memory": round(memory.resident(), 1),
                    "beat_at": round(time.time(), 3),
                }
            )
            if self._told is not None:
                self._told(self.entry)

    def _write(self) -> None:
        if not self._written:
            now = time.monotonic()
            self._store.set(self.entry.key, self.entry.model_dump_json(), TTL)
            self._written = now

    def _count(self) -> None:
        """Add to the counters what has come; what may not have been heard is said again first."""
        if self._pending is None:
            now = self._tally.copy()
            added = tally.amounts(self.entry.connection, self._counted, now)
            if not added:
                return
            self._counted = now
            self._pending = added, secrets.token_hex(8)
        self._store.increment(self._pending[0], self._marker, self._pending[1])
        self._pending = None

    def _remove(self) -> None:
        self._store.delete(self.entry.key)
        if self._counted:
            self._store.delete(self._marker)

    @property
    def _marker(self) -> str:
        return f"counted:{self.entry.id}"


def _running(sight: Sight) -> Running | None:
    job = sight.job
    if job is None:
        return None
    return Running(
        uuid=one_line(job.uuid, 80),
        name=one_line(job.name, 200),
        queue=job.queue,
        attempt=job.attempts(),
        since=round(time.time() - (time.monotonic() - sight.since), 3),
    )
