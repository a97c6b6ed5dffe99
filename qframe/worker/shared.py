"""Shared: what the attempts of a worker share, wherever their handlers run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from qframe import events
from qframe.connection import Connection
from qframe.contracts.recording import Recording
from qframe.drivers import process
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    Interruption,
    JobCancelled,
    JobInterrupted,
)
from qframe.features import binned
from qframe.features.reserved import ReservedJob
from qframe.jobs.registry import Registry
from qframe.metrics.by_tag import TagRecorder
from qframe.metrics.recorder import Recorder
from qframe.payload import envelope
from qframe.resources.scope import ResourceScope
from qframe.worker.cancellation import Cancellation
from qframe.worker.concurrency import ConcurrencyLimits
from qframe.worker.holds import WorkerHolds
from qframe.worker.leases import LeaseKeeper
from qframe.worker.lifespan import Lifespan
from qframe.worker.limits import Limits
from qframe.worker.options import WorkerOptions
from qframe.worker.pool.scoreboard import JobScore, WorkerScore
from qframe.worker.refusals import RefusalNotes
from qframe.worker.settler import Settler
from qframe.worker.signals import Signals
from qframe.worker.watchdog import Watchdog

log = logging.getLogger("qframe")

_TIDY_EVERY = 1.0
_BIN_EVERY = 300.0
_BIN_FIRST = 60.0
"""The first time comes earlier: a worker may be restarted often."""


class Interrupts(Protocol):
    """What may end an attempt from outside while its handler runs."""

    fired: Interruption | None
    """The interruption that was raised, even if the job swallowed it."""

    def running(self, timeout: float) -> None:
        """The handler runs from now on: it may be ended, after `timeout` seconds at the latest."""

    def change_timeout(self, timeout: float, passed: float) -> None:
        """Sets another timeout, of which `passed` seconds are over."""

    def not_running(self) -> None:
        """The handler has ended: nothing is raised any more."""


class RecordsJobs(Protocol):
    """Records the jobs of this process."""

    keeps_log: bool

    def recorded(
        self, score: JobScore, error: BaseException, attempt: int, together: int = 1
    ) -> Recording | None:
        """Returns what was kept of the job in a slot; None for an error of which nothing is.

        `together`: of how many jobs its chunk is.
        """


class RunningAttempt(Protocol):
    """An attempt whose handler runs."""

    job: ReservedJob
    name: str
    began: float
    is_handled: bool


class Shared:
    """What the attempts of a worker share."""

    runs_here = True
    lifespan: Lifespan | None = None
    """The program's own context manager around the jobs of this process."""
    flight_recorder = "off"
    """What is kept of a job that is killed: `worker.recorder` of the settings."""
    job_recorder: RecordsJobs | None = None
    """Records the jobs of this process, if its pool wants that."""
    resources: ResourceScope | None = None
    """What its jobs are given; the loop closes it after the last one."""

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        options: WorkerOptions,
        signals: Signals,
        unknown_delays: Sequence[float] = (),
        *,
        heartbeat: Heartbeat | None = None,
        scoreboard: WorkerScore | None = None,
        concurrency: ConcurrencyLimits | None = None,
    ) -> None:
        self.connection = connection
        self.registry = registry
        self.options = options
        self.signals = signals
        self.unknown_delays = unknown_delays
        """Seconds after which a job that is unknown here is tried again."""
        self.scores: Sequence[JobScore] = () if scoreboard is None else scoreboard.jobs
        """Where the pool reads what runs in each slot."""
        self.pid = process.pid()
        self.no_limits = Limits(None, {}, options)
        self.middleware = connection.middleware()
        self.hooks = connection.hooks
        self.recorder = Recorder()
        self.by_tag: TagRecorder | None = None
        self.running: dict[ReservedJob, RunningAttempt] = {}
        self.settler = Settler(connection, self._ran_twice)
        self.cancellation = Cancellation(connection.name, connection.backend, self._cancel)
        self.holds = WorkerHolds(connection.name)
        self.leases = LeaseKeeper(
            connection.retry_after, self.settler.confirm, self.cancellation.look, self._found_lost
        )
        # The worker watches the process of an isolated job, which needs no watchdog.
        self.watchdog = Watchdog(enabled=signals.on_main_thread and not options.isolate)
        self.watch: Callable[[float], object] = self.watchdog.cover
        """Ends the process if a handler has not ended in so many seconds."""
        self.refusals = RefusalNotes(connection.store, connection.name)
        self._reported: WeakSet[ReservedJob] = WeakSet()
        self.heartbeat = heartbeat or Heartbeat(threaded=False)
        self.heartbeat.add(self.leases.every, self.leases.look)
        self.heartbeat.add(_TIDY_EVERY, self.cancellation.tidy)
        self.heartbeat.add(_BIN_EVERY, self._remove_expired_from_bin, first=_BIN_FIRST)
        self.concurrency = concurrency
        """How many jobs of a queue or class may run at once; None: no limits."""
        if concurrency is not None:
            self.heartbeat.add(concurrency.slot_leases.every, concurrency.slot_leases.beat)

    def _remove_expired_from_bin(self) -> None:
        with suppress(BackendUnavailable):
            binned.remove_expired(self.connection.backend)

    def let_go(self, job: ReservedJob) -> None:
        if self.concurrency is not None and job.features:  # slot leases are among these
            self.concurrency.slot_leases.over(job)

    # -- leases that were lost --------------------------------------------------------------------

    def lost(self, job: ReservedJob, name: str, *, was_done: bool = False) -> None:
        """Counts a job whose lease was lost, and fires the event, once."""
        if job not in self._reported:
            self._reported.add(job)
            self.recorder.lost(name, job.queue, was_done=was_done)
            events.fire(events.JobLeaseLost, job)

    def _ran_twice(self, job: ReservedJob) -> None:
        """Called by the settler when a done job could not be deleted."""
        log.warning(
            "%s %s was done, but %s: in the first case it runs twice",
            job.name,
            job.uuid,
            LOST_LEASE,
        )
        name = envelope.job_name(job.payload)
        known = self.registry.known(name) is not None
        self.lost(job, name if known else "", was_done=True)

    def _found_lost(self, job: ReservedJob) -> None:
        """Called by the heartbeat when the lease of a running job was lost."""
        attempt = self.running.get(job)
        self.lost(job, "" if attempt is None else attempt.name)
        if getattr(self.connection.settings, "on_lost_connection", "") == "interrupt":
            self._end(job, JobInterrupted("its lease was lost, with the connection that held it"))

    def _cancel(self, job: ReservedJob) -> None:
        self._end(job, JobCancelled("cancelled while it ran"))

    def _end(self, job: ReservedJob, error: Interruption) -> None:
        """Ends a job, from any thread, if its handler still runs."""
        error.uuid = job.uuid

        def still() -> bool:
            attempt = self.running.get(job)
            return attempt is not None and not attempt.is_handled

        self.signals.end(error, still)
