"""Presence: keeps a worker's entry in the roster, and its counters, up to date.

The heartbeat has it look once a second and write what has changed; so no job costs more than its
count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from qframe.contracts.job import Job
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.worker import counters, memory
from qframe.worker.counters import Counts, Ended
from qframe.worker.roster import BEAT, TTL, Entry, Running

log = logging.getLogger("qframe")

EVERY = 1.0
"""Seconds between two looks."""
_SHORT = 5.0
"""Seconds in which nothing could be written that are not worth a word."""
PARTING = 2.0
"""Seconds a worker waits at its end for its last counts to be written."""


class Doing(NamedTuple):
    """A job that runs, and since when by the monotonic clock."""

    job: Job
    since: float


class Sight(NamedTuple):
    """What a worker is doing: the jobs that run, whether it pauses, and how many may run."""

    jobs: tuple[Doing, ...]
    paused: bool
    slots: int = 1


class Writing:
    """Does what needs a store that may not answer, and says so once when that is no moment."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._unheard_since = 0.0
        self._warned = False

    def attempt(self, *steps: Callable[[], object]) -> None:
        """Do one step after the other. Never raises."""
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
        now = time.monotonic()
        self._unheard_since = self._unheard_since or now
        if now - self._unheard_since >= _SHORT and not self._warned:
            self._warned = True
            log.warning("%s cannot be written: %s", self._what, why)


class Presence:
    """What one worker tells of itself: `beat` is called once a second, `leave` at its end.

    `look` gives what the worker is doing; `told` hears of it. A store that does not answer disturbs
    nothing: the entry expires, counts are kept until it does.
    """

    def __init__(
        self,
        store: Store,
        entry: Entry,
        ended: Counts,
        look: Callable[[], Sight],
        told: Callable[[Entry], None] | None = None,
    ) -> None:
        self.entry = entry
        self._store = store
        self._ended = ended
        self._look = look
        self._told = told
        self._told_of: dict[Job, Running] = {}
        """What is said of the jobs that run."""
        self._written = 0.0
        self._counted: dict[Ended, int] = {}
        self._writing = Writing("the worker's entry and counters")

    def beat(self) -> None:
        """Look, and write what has changed or is due. Never raises."""
        self._writing.attempt(self._see, self._count, self._write)

    def leave(self) -> None:
        """Write the last counts and remove the entry. Never raises."""
        self._writing.attempt(self._count, lambda: self._store.delete(self.entry.key))

    # -- steps ----------------------------------------------------------------------------------

    def _see(self) -> None:
        """Bring the entry up to date, here."""
        sight = self._look()
        before = self.entry
        counts = self._ended.by_outcome()
        if sight.jobs:
            state = "running"
        elif sight.paused:
            state = "paused"
        else:  # it may be between two jobs
            state = "idle" if counts == before.counts else "running"
        known = self._told_of
        self._told_of = {each.job: known.get(each.job) or _running(each) for each in sight.jobs}
        running = tuple(sorted(self._told_of.values(), key=lambda job: job.since))
        said = (before.state, before.jobs, before.counts, before.concurrency)
        changed = (state, running, counts, sight.slots) != said
        if changed or not self._written or time.monotonic() - self._written >= BEAT:
            self._written = 0.0
            self.entry = before.model_copy(
                update={
                    "state": state,
                    "concurrency": sight.slots,
                    "jobs": running,
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
        """Add to the counters what has come since that was last done."""
        now = self._ended.copy()
        added = counters.amounts(self.entry.connection, self._counted, now)
        if added:
            self._store.increment(added)
        self._counted = now


def _running(doing: Doing) -> Running:
    job = doing.job
    return Running(
        uuid=one_line(job.uuid, 80),
        name=one_line(job.name, 200),
        queue=job.queue,
        attempt=job.attempts(),
        since=round(time.time() - (time.monotonic() - doing.since), 3),
    )
