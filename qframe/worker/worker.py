"""JobWorker: puts a worker together, and runs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar, cast

from qframe import events, manager
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import ConfigurationError
from qframe.jobs import execution
from qframe.manager import QueueManager
from qframe.metrics import version
from qframe.metrics.by_tag import TagRecorder
from qframe.resources import scope
from qframe.resources.scope import ResourceScope
from qframe.worker import health, roster
from qframe.worker.concurrency import ConcurrencyLimits
from qframe.worker.health import HealthFile, HealthReport, WritesHealth
from qframe.worker.lifespan import Lifespan
from qframe.worker.loop import Loop
from qframe.worker.options import StopReason, WorkerOptions
from qframe.worker.pool.child import PoolMember
from qframe.worker.queues import WorkedQueues
from qframe.worker.recorder.pooled import WorkerRecorder
from qframe.worker.runner import Runner
from qframe.worker.side_tasks import SideTask, SideTasks, running
from qframe.worker.signals import Signals
from qframe.worker.vitals import ROUND, LoopVitals

if TYPE_CHECKING:
    from qframe.worker.isolation.runner import IsolatingRunner

log = logging.getLogger("qframe")


class JobWorker:
    """Works the queues of one connection until there is a reason to stop.

    `Worker` is one with all side tasks. Raises `ConfigurationError` for a connection that is
    unknown, holds no jobs, or cannot list its queues although a pattern is given.
    """

    heeds_signals: ClassVar[bool] = True
    """False in a program, such as a test, whose signals are its own; then there are no timeouts.

    On the main thread its jobs then use the program's own connections of a framework's database.
    """
    enters_lifespan: ClassVar[bool] = True
    """Whether `worker.lifespan` of the settings is around its jobs."""
    loop: ClassVar[type[Loop]] = Loop

    def __init__(
        self, queues: QueueManager | None = None, options: WorkerOptions | None = None
    ) -> None:
        self.manager = queues or manager.default()
        self.options = options or WorkerOptions()
        self.connection = self.manager.connection(self.options.connection)
        self.queues = self.options.queues or (self.connection.default_queue,)
        self._needs(Capability.RESERVE, "holds no jobs to work on")
        selected = self._selected()
        if selected.patterns:
            first = repr(selected.patterns[0])
            self._needs(Capability.LIST, f"cannot list its queues: name them instead of {first}")
        for name in selected.names:
            self.connection.backend.check_queue(name)
        self.stop_reason: StopReason | None = None
        self.on_written: Callable[[roster.Entry], None] | None = None
        """Called within about a second, from another thread, with what the worker is doing."""
        self.member: PoolMember | None = None
        """The worker's membership in its pool."""
        self.health: HealthFile | None = None
        """Where it writes every few seconds how it stands; a member of a pool tells the pool."""
        self._loop: Loop | None = None
        self._signals: Signals | None = None
        self._stop_asked = False
        self._beats = Heartbeat()
        path = self.manager.settings.worker.lifespan if self.enters_lifespan else None
        self._lifespan = None if path is None else Lifespan(path)
        self._resources: ResourceScope | None = None

    @property
    def jobs(self) -> int:
        """How many jobs this run, or the last one, has brought to an outcome so far."""
        return 0 if self._loop is None else self._loop.jobs

    @property
    def outcomes(self) -> dict[str, int]:
        """How often each outcome came in this run, or the last one, so far."""
        return {} if self._loop is None else self._loop.runner.recorder.by_outcome()

    def _needs(self, capability: Capability, or_else: str) -> None:
        if capability not in self.connection.capabilities:
            raise ConfigurationError(
                f"the connection {self.connection.name!r} ({self.connection.settings.driver}) "
                f"{or_else}"
            )

    def _selected(self) -> WorkedQueues:
        return WorkedQueues(self.queues, self.connection.queues)

    @property
    def is_guest(self) -> bool:
        """Whether it runs jobs in a thread of the program's own, as in a test.

        What the program has open there, such as a database connection, is then left open.
        """
        runs_here = self.options.concurrency == 1 and not self.options.isolate
        on_main_thread = threading.current_thread() is threading.main_thread()
        return runs_here and on_main_thread and not self.heeds_signals

    def stop(self) -> None:
        """Asks the worker, from any thread, to stop after its job."""
        self._stop_asked = True
        if self._signals is not None:
            self._signals.request_stop()

    def load(self) -> None:
        """Imports the modules of `jobs` here, and the lifespan, unless each job has a process.

        Raises `ConfigurationError` naming one that cannot be imported.
        """
        if self.options.isolate:
            from qframe.worker.isolation import runner  # noqa: PLC0415 (only a worker that forks needs it)

            runner.preload(self.manager, self.options)
        else:
            self.manager.registry.load()
            if self._lifespan is not None:
                self._lifespan.load()

    def run(self) -> int:
        """Works, and returns the exit code that says why it stopped."""
        with manager.work_for(self.manager):
            return self._run()

    def _run(self) -> int:
        self.load()
        with (
            self._signals_made() as signals,
            execution.run_in_caller(really=self.is_guest),
            scope.of_worker() as self._resources,
        ):
            if self.heeds_signals and not signals.on_main_thread:
                log.warning("the worker is not on the main thread: no signals, no timeouts")
            loop = self._loop = self._made(signals)
            loop.mark_version(version.of(self.manager.settings))
            self._signals = signals
            if self._stop_asked:  # stopped before it ran
                signals.request_stop()
            report = self._reported(loop)
            try:
                loop.begin()
                with self._recorded(loop):
                    if self.member is not None:
                        self._join(self.member, signals)
                    with self._beside(loop), execution.kept_event_loop():
                        reason = self.stop_reason = loop.run()
            finally:
                loop.end()
                if report is not None:
                    report.stop()
                if self.health is not None:
                    self.health.remove()
                self._signals = None
                self._stop_asked = False
        name = self.connection.name
        events.fire(events.WorkerStopping, name, self.queues, reason, reason.exit_code, self.jobs)
        return reason.exit_code

    def _signals_made(self) -> Signals:
        if self.options.isolate:
            from qframe.worker.isolation.signals import IsolatingSignals  # noqa: PLC0415 (as in `load`)

            return IsolatingSignals(handled=self.heeds_signals)
        if self.options.concurrency > 1:
            from qframe.worker.slots.signals import SlotSignals  # noqa: PLC0415 (as in `load`)

            return SlotSignals(handled=self.heeds_signals)
        return Signals(handled=self.heeds_signals)

    def _made(self, signals: Signals) -> Loop:
        self.manager.keyring.prepare()
        beats = self._beats = Heartbeat(
            threaded=not self.options.isolate,
            close=self.manager.close,
            # A request that the network swallowed must not hold up renewals until the lease is
            # over.
            longest=self.connection.retry_after / 3,
        )
        kind, loop = self._kinds(signals)
        score = None if self.member is None else self.member.scoreboard
        runner = kind(
            self.connection,
            self.manager.registry,
            self.options,
            signals,
            self.manager.settings.unknown_job_delays,
            heartbeat=beats,
            scoreboard=score,
            concurrency=ConcurrencyLimits(
                self.connection, self.options.bounds, self.manager.settings.queues
            ),
        )
        runner.lifespan, runner.resources = self._lifespan, self._resources
        runner.flight_recorder = self.manager.settings.worker.recorder
        if self.connection.is_measured and self.manager.settings.metric_tags:
            runner.by_tag = TagRecorder(self.manager.settings.metric_tags)
        return loop(
            self.connection, self._selected(), self.options, signals, runner, beats,
            self.on_written, self.member,
        )  # fmt: skip

    def _kinds(self, signals: Signals) -> tuple[type[Runner], type[Loop]]:
        """Returns the classes that run jobs under these options; rare ones are imported here."""
        if self.options.isolate:
            if not signals.on_main_thread:
                raise ConfigurationError(
                    "isolate forks, which only the main thread may: run it there"
                )
            from qframe.worker.isolation.runner import IsolatingRunner  # noqa: PLC0415 (as in `load`)

            return IsolatingRunner, self.loop
        if self.options.concurrency > 1:
            from qframe.worker.slots.fetcher import Fetcher  # noqa: PLC0415 (as in `load`)
            from qframe.worker.slots.runner import SlotRunner  # noqa: PLC0415 (as in `load`)

            return SlotRunner, Fetcher
        return Runner, self.loop

    def _reported(self, loop: Loop) -> HealthReport | None:
        """Begins to write how it stands, if that is wanted."""
        place: WritesHealth | None = self.health
        if self.member is not None:
            place = self.member.scoreboard
        if place is None:
            return None
        if not self.options.isolate:
            report = HealthReport(LoopVitals(loop), place)
            report.start()
            return report
        # Without threads, it writes between two requests to its backend.
        report = HealthReport(LoopVitals(loop), place, min(ROUND, self._beats.longest))
        self._beats.add(health.EVERY, report.beat, first=0)
        return report

    def side_tasks(self) -> Sequence[SideTask]:
        """Returns what it does besides its jobs in one run: nothing. `Worker` says more."""
        return ()

    def _beside(self, loop: Loop) -> AbstractContextManager[None]:
        """Runs the side tasks meanwhile: in threads, or in a process if the worker forks."""
        tasks, beats = SideTasks(self.side_tasks(), self.connection, loop.control), self._beats
        if self.options.isolate:
            from qframe.worker.isolation.sidecar import running_sidecar  # noqa: PLC0415 (as in `load`)

            return running_sidecar(tasks, beats, cast("IsolatingRunner", loop.runner))
        return running(tasks, beats)

    @contextmanager
    def _recorded(self, loop: Loop) -> Iterator[None]:
        """Keeps for the pool what the jobs of this process do; processes of jobs have their own."""
        kept, member = self.manager.settings.worker.recorder, self.member
        if member is None or kept == "off" or self.options.isolate or not self.heeds_signals:
            yield
            return
        recorder = WorkerRecorder(member.scoreboard, loop.runner.stacks, keeps_log=kept == "full")
        loop.runner.job_recorder = recorder
        try:
            yield
        finally:
            recorder.stop()

    def _join(self, member: PoolMember, signals: Signals) -> None:
        """Tells the pool that signals are handled; an earlier pause may have been lost."""
        signals.heed_hang_up()
        if member.is_orphan():
            self.stop()
        member.scoreboard.ready()
        signals.paused = signals.paused or member.scoreboard.paused
