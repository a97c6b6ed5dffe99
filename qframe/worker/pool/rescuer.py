"""Rescuer: settles the jobs that dead workers of a pool had begun.

A thread does it, so that a backend that does not answer delays nothing. The connection is made as
the pool starts: at a death it would take longer than all the rest.
"""

from __future__ import annotations

import contextlib
import logging
import queue as queues
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.recording import Recording
from qframe.contracts.status import State
from qframe.contracts.step import Step, Unset
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable, JobTimedOut, SettleError
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.payload import tracebacks
from qframe.worker import outcome
from qframe.worker.limits import DIED, TIMED_OUT, JobFacts, Limits
from qframe.worker.options import WorkerOptions
from qframe.worker.pool.scoreboard import JobPhase, LastJob

log = logging.getLogger("qframe")

_LOOKS = (0, 0.02, 0.05, 0.1, 0.2)
"""Pauses before a job is looked for: its start may still be on its way."""
_BEGUN = {JobPhase.STARTED, JobPhase.RUNNING}
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_PARTING = 5.0
"""Seconds the end of a pool waits for a backend that does not answer."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A job of a dead worker, how the worker ended, in words, and what was kept of the job.

    `late`: the job had reached its hard timeout. `stopping`: the pool itself ended the worker while
    it stopped, so the attempt does not count.
    """

    job: LastJob
    worker: int
    words: str
    recording: Recording | None = None
    late: bool = False
    stopping: bool = False


class Fate(StrEnum):
    READY = "ready again"
    RETRIED = "tried again"
    GIVEN_BACK = "given back"
    DELETED = "done"
    BACK = "back by itself"
    GONE = "gone"
    """Its worker settled it before it died, or another worker has it."""
    LEFT = "left to its lease"


@dataclass(frozen=True, slots=True)
class Rescue:
    """How a rescue ended: `name` and `uuid` are the job's if it was found, `delay` in seconds."""

    orphan: Orphan
    fate: Fate
    name: str = ""
    uuid: str = ""
    delay: float = 0.0


class Rescuer:
    """Settles the orphans it is given, one after the other, and reports each.

    `connect` makes the connection; `tell` is called in the thread.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        options: WorkerOptions,
        report: Callable[[Rescue], None],
    ) -> None:
        self._connect = connect
        self._options = options
        self._report = report
        self._orphans: queues.SimpleQueue[Orphan | None] = queues.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ends = False

    def begin(self) -> None:
        """Starts the thread; does nothing the second time."""
        if self._thread is None:
            self._thread = start_thread("qframe-rescuer", self._run)

    def rescue(self, orphan: Orphan) -> None:
        self.begin()
        self._orphans.put(orphan)

    def end(self) -> None:
        """Settles the remaining orphans, if the backend answers."""
        if self._thread is not None:
            self._ends = True
            self._orphans.put(None)
            self._thread.join(_PARTING + 1)

    def _run(self) -> None:
        connection: Connection | None = None
        with contextlib.suppress(Exception):  # logged when it is needed
            connection = self._connect()
        while (orphan := self._orphans.get()) is not None:
            try:
                connection = connection or self._connect()
                rescue = self._rescued(connection, orphan)
            except Exception as error:  # noqa: BLE001 (a driver's own bug must not end the thread)
                log.warning("the job of worker %d: %s", orphan.worker, tracebacks.brief(error))
                rescue = Rescue(orphan, Fate.LEFT)
            self._report(rescue)
        if connection is not None:
            connection.close()

    def _rescued(self, connection: Connection, orphan: Orphan) -> Rescue:
        """Settles, trying again while the backend does not answer and the lease may still hold."""
        if Capability.ADOPT not in connection.capabilities:
            return Rescue(orphan, Fate.LEFT)
        give_up = time.monotonic() + connection.retry_after
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._settled(connection, orphan)
            except SettleError:
                return Rescue(orphan, Fate.GONE)
            except BackendUnavailable as error:
                if self._ends:
                    give_up = min(give_up, time.monotonic() + _PARTING)
                if time.monotonic() + pause > give_up:
                    log.warning("the job of worker %d: %s", orphan.worker, error)
                    return Rescue(orphan, Fate.LEFT)
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _settled(self, connection: Connection, orphan: Orphan) -> Rescue:
        if orphan.job.slot_leases:
            given = [Unset(key, value) for key, value in orphan.job.slot_leases]
            connection.backend.apply(Step(None, *given))
        job = _adopted(connection, orphan.job)
        if job is None:
            return Rescue(orphan, Fate.GONE)
        fate, end = self._end(connection, job, orphan)
        if orphan.recording is not None and end.state is State.RELEASED:
            job.recording = replace(orphan.recording, attempt=job.attempts())
        job.settle(end)
        if Capability.AHEAD not in connection.capabilities:  # it went with its worker's connection
            return Rescue(orphan, Fate.BACK, job.name, job.uuid)
        return Rescue(orphan, fate, job.name, job.uuid, end.delay)

    def _end(self, connection: Connection, job: ReservedJob, orphan: Orphan) -> tuple[Fate, End]:
        """Returns how the job ends: the next worker decides whether it may be tried again."""
        if orphan.job.state is JobPhase.DEFERRED:
            return Fate.DELETED, End(State.COMPLETE)
        uncounted = orphan.job.state is JobPhase.STARTED or (orphan.stopping and not orphan.late)
        if uncounted and Capability.UNCOUNT in connection.capabilities:
            return Fate.GIVEN_BACK, End(State.WAITING, remark=orphan.words)
        late = orphan.late and orphan.job.together == 1  # which job of a chunk hung is not known
        how = TIMED_OUT if late else DIED
        delay = self._backoff(job, orphan.words) if late and job.refusal is None else 0.0
        end = End(State.RELEASED, delay, error=orphan.words, how=how, front=not delay)
        return Fate.RETRIED if delay else Fate.READY, end

    def _backoff(self, job: ReservedJob, words: str) -> float:
        """Returns the backoff of a job that timed out; none if its payload allows no further try.

        The next worker then fails it, with its class imported and listeners called.
        """
        limits = Limits(None, job.payload, self._options)
        return outcome.decide(JobTimedOut(words), JobFacts.of(job), limits).end.delay


def _adopted(connection: Connection, last: LastJob) -> ReservedJob | None:
    """Adopts the job; its worker's last requests may reach the backend after ours."""
    is_on_its_way = last.state in _BEGUN and last.together == 1  # a chunk's starts were confirmed
    for pause in _LOOKS if is_on_its_way else _LOOKS[:1]:
        time.sleep(pause)
        reservation = connection.backend.adopt(last.fence)
        if reservation is not None:
            return ReservedJob(connection.context, reservation)
    return None
