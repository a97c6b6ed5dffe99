"""IsolatingRunner: forks a process for each job, and settles all jobs itself.

The worker is single-threaded, so that it may fork: between two requests to the backend it waits
until a process writes, ends or is late, and keeps the jobs' leases meanwhile.
"""

from __future__ import annotations

import contextvars
import importlib
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from qframe.exceptions import ConfigurationError
from qframe.features.reserved import ReservedJob
from qframe.jobs import current, project
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.worker.isolation.child import CHILD_SIGNALS, ChildAttempt, Work
from qframe.worker.isolation.job import ChildChannel
from qframe.worker.isolation.signals import IsolatingSignals
from qframe.worker.isolation.slot import ProcessSlot
from qframe.worker.isolation.spawn import Spawner
from qframe.worker.isolation.supervision import KILLED, STACKS, SupervisedChild
from qframe.worker.options import WorkerOptions
from qframe.worker.recorder.isolated import JobRecorder, JobRecorders
from qframe.worker.slots.base import Slot, SlottedRunner

_OF_PROCESSES = bytes([signal.SIGCHLD, signal.SIGALRM])


def preload(manager: QueueManager, options: WorkerOptions) -> None:
    """Imports what every job's process needs. Raises `ConfigurationError`."""
    project.put_on_path()
    if options.preload is True:
        if not manager.settings.jobs:
            raise ConfigurationError(
                "preload imports the modules that `jobs` lists in the configuration: there are none"
            )
        manager.registry.load()
        return
    for name in options.preload or ():
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"preload: {name!r} cannot be imported: {tracebacks.placed(error)}"
            ) from error


class IsolatingRunner(SlottedRunner):
    """Runs jobs in processes, one in each slot. On the main thread only.

    `attend` advances them. To wait for something else, too, wait for `fileno`, no longer than
    `patience`, then call `attend`.
    """

    runs_here = False
    signals: IsolatingSignals
    _has_attended = False
    """Whether it has attended to the processes since the loop last collected."""
    _spawner: Spawner | None = None
    _recorders: JobRecorders | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 (those of `Runner`)
        super().__init__(*arguments, **more)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.signals, selectors.EVENT_READ)
        self._going: dict[ProcessSlot, contextvars.Context] = {}
        """The slots that have not ended, each with its own context."""
        self._children: list[SupervisedChild] = []
        self._look_at = 0.0
        """When all slots are advanced, whether or not something has come."""
        self.signals.processes = lambda: [*self._going]

    # -- jobs -------------------------------------------------------------------------------------

    def slot(self, job: ReservedJob) -> ProcessSlot:
        return ProcessSlot(self, job, self.fork, self.recorder_of_job, self.give_back_recorder)

    def take(self, slots: Sequence[ProcessSlot]) -> None:
        self.enter_started(slots)
        for slot in slots:
            slot.begin()
            self._go_on(slot)

    def settle_unstarted(self, slot: ProcessSlot) -> None:
        self.enter(slot)
        slot.begin()
        self._go_on(slot)

    def _go_on(self, slot: ProcessSlot) -> None:
        """Advances an attempt as far as it can go now."""
        if slot not in self._going:
            self._going[slot] = current.context_of(slot.job)
        try:
            slot.until = self._going[slot].run(next, slot.steps)
            self.signals.arm(slot.until)
        except StopIteration:
            del self._going[slot]
            self.leases.drop(slot.job)
            self.let_go(slot.job)
            slot.seconds = time.monotonic() - slot.attempt.began
            self.ended.append(slot)

    @property
    def must_outlast_jobs(self) -> bool:
        return any(slot.runs for slot in self._going)

    def collect(self) -> Iterator[Slot]:
        if not self._has_attended:
            self.attend(0)
        self._has_attended = False
        return super().collect()

    def accounted_until(self, came_round: float, moves: float) -> float:  # noqa: ARG002 (for others)
        """Returns until when the loop is accounted for: jobs have processes of their own."""
        return came_round

    def at_rest(self) -> None:
        self.heartbeat.beat()  # no thread calls it here

    # -- waiting ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Returns the descriptor that is readable when there is something to attend to."""
        return self._selector.fileno()

    def patience(self) -> float:
        """Returns the seconds after which `attend` is due, whatever happens."""
        if not self._going:
            return math.inf
        due = min(self._look_at, *(slot.until for slot in self._going))
        return max(0.0, due - time.monotonic())

    def attend(self, seconds: float) -> bool:
        """Waits for the processes, at most so long, and advances their attempts.

        Returns whether another signal has come.
        """
        found = self._selector.select(min(seconds, self.patience()))
        ready = {key.data for key, _ in found}
        numbers = self.signals.drain() if None in ready else b""
        self.heartbeat.beat()
        now = time.monotonic()
        everyone = bool(numbers) or now >= self._look_at
        if everyone:
            self._look_at = now + self.leases.every
            if self._spawner is not None:
                self._spawner.end_left()
        for slot in [*self._going]:
            if everyone or slot in ready or now >= slot.until:
                self._go_on(slot)
        self.left = sum(each.is_left for each in self._going)
        return bool(numbers.strip(_OF_PROCESSES))

    def drain_signals(self) -> None:
        """Nothing: `attend` has read the signals and passes them on to the jobs."""

    def sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        until = time.monotonic() + seconds
        while not (self.ended or self.settler.has_ends):
            left = min(until - time.monotonic(), self.patience())
            if queues and left > 0:
                self.connection.backend.wait(queues, left, self.fileno())
                left = 0.0
            self._has_attended = True
            if self.attend(left) or queues or time.monotonic() >= until:
                return

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.attend(left):
            continue

    # -- what is kept of killed jobs --------------------------------------------------------------

    def recorder_of_job(self) -> JobRecorder | None:
        """Returns what records the next job; None if nothing is to be kept, or can be."""
        if self.flight_recorder == "off":
            return None
        with suppress(OSError):  # no more files are to be had
            if self._recorders is None:
                self._recorders = JobRecorders(keeps_log=self.flight_recorder == "full")
            return self._recorders.take()
        return None

    def give_back_recorder(self, recorder: JobRecorder) -> None:
        if self._recorders is not None:
            self._recorders.give_back(recorder)

    def stacks_elsewhere(self) -> dict[str, str]:
        """Returns what was last seen of running jobs; called from another thread."""
        found: dict[str, str] = {}
        for attempt in [*self.running.copy().values()]:
            recorder = getattr(attempt, "recorder", None)
            if isinstance(recorder, JobRecorder) and (calls := recorder.last_stack()):
                name = f"{attempt.name} {attempt.job.uuid} in its process"
                found[name] = "\n  ".join(calls)
        return found

    # -- processes --------------------------------------------------------------------------------

    def fork(self, slot: ProcessSlot, work: Work) -> SupervisedChild:
        """Forks a process that does `work`. Raises `OSError` if the system allows no more."""
        self._children = [child for child in self._children if not child.is_closed]
        ours, theirs = socket.socketpair()

        def begin(unblock: Callable[[], object]) -> None:
            ours.close()
            self.close_here()
            there = ChildAttempt(slot.attempt, ChildChannel(theirs))
            unblock()
            work(there)

        try:
            self._selector.register(ours, selectors.EVENT_READ, slot)
            pid = self.spawner.fork(begin)
        except BaseException:
            with suppress(KeyError):
                self._selector.unregister(ours)
            ours.close()
            raise
        finally:
            theirs.close()
        child = SupervisedChild(pid, ours, self.spawner.ended, self._selector, slot)
        self._children.append(child)
        return child

    @property
    def spawner(self) -> Spawner:
        """Forks the processes; made at its first use."""
        if self._spawner is None:
            self._spawner = Spawner(CHILD_SIGNALS)
        return self._spawner

    def close_here(self) -> None:
        """Closes what is the worker's own, in a process that it has forked."""
        os.close(self.fileno())
        for child in self._children:
            child.forget()

    def close(self) -> None:
        patience = max(1.0, self.options.grace)
        for slot in [*self._going]:
            self.leases.drop(slot.job)
            slot.abandon(patience)
            self._go_on(slot)
        until = time.monotonic() + patience + STACKS + KILLED
        while self._going and time.monotonic() < until:
            self.attend(patience)
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None
        if self._recorders is not None:
            self._recorders.close()
            self._recorders = None
        self._selector.close()
        super().close()
