"""Presence: keeps a worker's entry in the roster, and its counters, up to date.

The heartbeat writes once a second what has changed; so a job costs no more than its count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from qframe.contracts.job import Job
from qframe.contracts.step import Operation, Set, Step, Unset
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.metrics.series import OUTCOMES
from qframe.payload import tags, tracebacks
from qframe.payload.text import one_line
from qframe.worker import memory
from qframe.worker.roster import BEAT, KEPT, REGISTER, TTL, Entry, RunningJob

log = logging.getLogger("qframe")

EVERY = 1.0
"""Seconds between two looks."""
_SHORT = 5.0
"""Seconds without a write that are not worth a log line."""
PARTING = 2.0
"""Seconds a worker waits at its end for its last counts to be written."""


class Doing(NamedTuple):
    """A running job, and since when by the monotonic clock."""

    job: Job
    since: float


class Sight(NamedTuple):
    """What a worker does: its running jobs, whether it pauses, and its slots."""

    jobs: tuple[Doing, ...]
    paused: bool
    slots: int = 1


class Writing:
    """Writes to a store that may not answer, and logs an outage once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._silent_since = 0.0
        self._warned = False

    def attempt(self, *steps: Callable[[], object]) -> None:
        """Does one step after the other. Never raises."""
        try:
            for step in steps:
                step()
        except BackendUnavailable as error:
            self._note_silence(str(error))
        except Exception as error:  # noqa: BLE001 (information must never disturb the work)
            self._note_silence(tracebacks.brief(error))
        else:
            self._silent_since = 0.0
            self._warned = False

    def _note_silence(self, why: str) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since >= _SHORT and not self._warned:
            self._warned = True
            log.warning("%s cannot be written: %s", self._what, why)


class Presence:
    """What one worker reports: `beat` is called once a second, `leave` at its end.

    `look` returns what the worker is doing; `on_written` is called with it. `answer` is called by
    each `beat`, and answers who asks where the worker is. A store that does not answer disturbs
    nothing: the entry expires, counts are kept until it answers.
    """

    def __init__(
        self,
        store: Store,
        entry: Entry,
        recorder: Recorder,
        look: Callable[[], Sight],
        on_written: Callable[[Entry], None] | None = None,
        metrics: Metrics | None = None,
        answer: Callable[[], object] = lambda: None,
    ) -> None:
        self.entry = entry
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        self.also: tuple[Metrics, Recorder] | None = None
        """The metrics by tag, and their recorder."""
        self._look = look
        self._on_written = on_written
        self._answer = answer
        self._reported: dict[Job, RunningJob] = {}
        """The entries of the running jobs."""
        self._written = 0.0
        self._registers_at = 0.0
        self._writing = Writing("the worker's entry and counters")

    def beat(self) -> None:
        """Writes what has changed or is due. Never raises."""
        self._writing.attempt(self._see, self._count, self._write, self._answer)

    def leave(self) -> None:
        """Writes the last counts and removes the entry. Never raises."""
        self._writing.attempt(self._count, self._take_off)

    # -- steps ----------------------------------------------------------------------------------

    def _see(self) -> None:
        sight = self._look()
        before = self.entry
        ended = self._recorder.by_outcome()
        counts = {OUTCOMES[outcome]: count for outcome, count in ended.items()}
        if sight.jobs:
            state = "running"
        elif sight.paused:
            state = "paused"
        else:  # it may be between two jobs
            state = "idle" if counts == before.counts else "running"
        known = self._reported
        self._reported = {each.job: known.get(each.job) or _running(each) for each in sight.jobs}
        running = tuple(sorted(self._reported.values(), key=lambda job: job.since))
        previous = (before.state, before.jobs, before.counts, before.concurrency)
        changed = (state, running, counts, sight.slots) != previous
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
            if self._on_written is not None:
                self._on_written(self.entry)

    def _write(self) -> None:
        if not self._written:
            now, entry = time.monotonic(), self.entry
            operations: list[Operation] = [Set(entry.key, entry.model_dump_json(), TTL)]
            if now >= self._registers_at:
                brief = entry.model_dump_json(exclude={"jobs", "counts", "memory"})
                operations.append(Set(entry.registration, brief, KEPT))
            self._store.backend.apply(Step(None, *operations))
            self._written = now
            if now >= self._registers_at:
                self._registers_at = now + REGISTER

    def _take_off(self) -> None:
        entry = self.entry
        self._store.backend.apply(Step(None, Unset(entry.key), Unset(entry.registration)))

    def _count(self) -> None:
        if self._metrics is not None:
            self._metrics.write(self._recorder)
        if self.also is not None:
            metrics, recorder = self.also
            metrics.write(recorder)


def _running(doing: Doing) -> RunningJob:
    job = doing.job
    return RunningJob(
        uuid=one_line(job.uuid, 80),
        name=one_line(job.name, 200),
        queue=job.queue,
        attempt=job.attempts(),
        since=round(time.time() - (time.monotonic() - doing.since), 3),
        tags=tuple(tags.of_reserved(job)),
    )
