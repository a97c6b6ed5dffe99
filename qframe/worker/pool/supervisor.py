"""Supervisor: keeps a number of workers running, and has the jobs of dead ones settled.

It imports nothing of the application. Each worker is a program in a session of its own, and
outlives the parent by no more than its job.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from qframe.worker import machine, process_tree
from qframe.worker.health import HealthFile, WritesHealth
from qframe.worker.options import USAGE, StopReason, WorkerOptions
from qframe.worker.pool.child import PoolMember
from qframe.worker.pool.health import PoolHealth
from qframe.worker.pool.presence import Scaled
from qframe.worker.pool.rescuer import Orphan
from qframe.worker.pool.scoreboard import LastJob
from qframe.worker.pool.slot import PoolWorker, WorkerExit, WorkerSlot, is_late
from qframe.worker.pool.tally import GroupTally, Tally
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.wakeup import STOPS, WakeUp

_LOOK = 1.0
"""Seconds between two checks of the jobs' deadlines."""
_START_LOOK = 0.02
_STARTING_OF_CORE = 2
"""Workers for each core that import the application at once."""
_MARGIN = 2.0
"""Seconds after its hard timeout in which a worker ends itself, writing its stacks."""
_WORST = (USAGE, StopReason.LOST_BACKEND.exit_code, StopReason.MEMORY.exit_code, 1)
_PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
_FILES_CHANGED, _SCALED = 0, 255
"""Received like signals."""
_FINAL = {StopReason.EMPTY, StopReason.ONCE}


class PoolReporter(Protocol):
    """Reports what happens; may be called while a job is settled, from that thread."""

    def started(self, number: int, pid: int) -> None: ...

    def ended(self, exit_: WorkerExit, delay: float | None) -> None:
        """A worker has ended; another takes its slot after `delay` seconds, None: none does."""

    def not_started(self, number: int, error: OSError, delay: float) -> None:
        """The system refused to start a worker; tried again after `delay` seconds."""

    def ordered(self, what: str) -> None:
        """All workers get an order."""


class Settles(Protocol):
    """Settles the jobs of dead workers."""

    def begin(self) -> None: ...

    def rescue(self, orphan: Orphan) -> None: ...

    def end(self) -> None: ...


class Appears(Protocol):
    """Writes the pool's entry, and passes on how many workers to keep."""

    def begin(self, pool: Scaled) -> None: ...

    def end(self) -> None: ...


class Supervisor:
    """Keeps workers running until asked to stop, or until all have ended for good.

    `commands` starts a worker of each group, of which there are as many as `sizes` says. That, and
    `slots`, the jobs that each runs at once, may change meanwhile; with those that were told to end
    there are no more than `bound`. `member`: another pool keeps this one. `stop_timeout` is how
    many seconds running jobs have to end when the pool stops, 0 without limit; `options.grace` how
    many seconds jobs that were told to end have after that. `changes`, called with a function,
    calls it whenever the workers are to be replaced. `health` is where it writes how it stands.
    """

    def __init__(  # noqa: PLR0913 (each is what one kind of pool is about)
        self,
        commands: Mapping[str, Sequence[str]],
        sizes: Mapping[str, int],
        options: WorkerOptions,
        rescuer: Settles,
        presence: Appears,
        report: PoolReporter,
        *,
        stop_timeout: float = 0,
        changes: Callable[[Callable[[], None]], None] | None = None,
        bound: int = 0,
        member: PoolMember | None = None,
        health: HealthFile | None = None,
    ) -> None:
        self.totals: Counter[str] = Counter()
        self._options = options
        self._rescuer = rescuer
        self._presence = presence
        self._report = report
        self._stop_timeout = stop_timeout
        self._changes = changes
        self._commands = commands
        self._bound = bound
        self._member = member
        self._health_file = health
        place: WritesHealth | None = health if member is None else member.scoreboard
        self._health = None if place is None else PoolHealth(place)
        self._tally = Tally()
        self._events = MemoryEvents()
        self.seen: Mapping[str, GroupTally] = {}
        """How each group stood when the main thread last looked."""
        self._lifeline, self._lifeline_end = os.pipe()
        self.sizes = dict(sizes)
        self.slots = options.concurrency
        self._wanted = (self.sizes, self.slots)
        groups = [group for group, size in sizes.items() for _ in range(size)]
        self._slots = [WorkerSlot(n, group) for n, group in enumerate(groups, 1)]
        self._proven = False
        self._most_starting = _STARTING_OF_CORE * machine.cores()
        self.paused = member is not None and member.scoreboard.paused
        self._codes: list[int] = []
        self._stopping = 0
        """How often it was asked to stop: running jobs end, are given back, are killed."""
        self._next_step = 0.0
        self._wakeup = WakeUp()

    def run(self) -> int:
        """Keeps the workers running and returns the exit code."""
        process_tree.adopt_orphans()
        with self._wakeup:
            self._wakeup.handle((*STOPS, *_PASSED_ON, signal.SIGCHLD), lambda *_: None)
            if self._member is not None:
                self._wakeup.handle((signal.SIGHUP,), lambda *_: None)
            if self._changes is not None:
                self._changes(lambda: self._wakeup.wake(_FILES_CHANGED))
            while not self._is_over():
                self._fill()
                self._heed(self._wakeup.wait(self._seconds_to_wait()))
                self._reap()
                self._look()
                if self._health is not None:
                    self._health.look(self._workers, stopping=self.was_stopped)
                self._end_late_jobs()
                self._step_to_the_end()
            self._rescuer.end()
            self._presence.end()
            process_tree.end_children()
            if self._health_file is not None:
                self._health_file.remove()
        os.close(self._lifeline_end)
        os.close(self._lifeline)
        if self._stopping:
            return 0
        return next((code for code in _WORST if code in self._codes), int(any(self._codes)))

    def scale(self, size: int, slots: int) -> None:
        """Keeps so many workers, each of so many jobs at once, 0: as it is; from any thread."""
        self._want({"": size} if size else self.sizes, slots or self.slots)

    def share(self, sizes: Mapping[str, int]) -> None:
        """Keeps so many workers of each group; from any thread."""
        self._want(dict(sizes), self.slots)

    def _want(self, sizes: dict[str, int], slots: int) -> None:
        if (sizes, slots) != self._wanted:
            self._wanted = (sizes, slots)
            self._wakeup.wake(_SCALED)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    @property
    def was_stopped(self) -> bool:
        return self._stopping > 0

    @property
    def _workers(self) -> list[PoolWorker]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def _is_over(self) -> bool:
        ends = self._stopping or all(slot.closed for slot in self._slots)
        return bool(ends) and not self._workers

    @property
    def _is_full(self) -> bool:
        """Whether no worker may be started, counting those that end."""
        return 0 < self._bound <= len(self._workers)

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        moments = [now + _LOOK]
        starting = sum(worker.is_starting(now) for worker in self._workers)
        if starting and any(slot.waits for slot in self._slots):
            moments.append(now + _START_LOOK)
        if not self._stopping:
            due = [slot.due for slot in self._slots if slot.waits and not self._is_full]
            moments += due if starting < self._most_starting else ()
        elif self._next_step:
            moments.append(self._next_step)
        return max(0.0, min(moments) - now)

    # -- orders ---------------------------------------------------------------------------------

    def _heed(self, numbers: bytes) -> None:
        for number in numbers:
            if number in STOPS:
                self._stop(number)
            elif number == signal.SIGHUP and not self._stopping:
                self._stop(signal.SIGTERM)
            elif number in _PASSED_ON:
                self._pass_on(number)
        if _FILES_CHANGED in numbers:
            self._report.ordered("source files have changed: workers are replaced after their jobs")
            for worker in self._workers:
                worker.ask_to_leave()
        if _SCALED in numbers and not self._stopping:
            self._scale(*self._wanted)

    def _scale(self, sizes: dict[str, int], slots: int) -> None:
        """Applies it: ends the surplus workers with the fewest running jobs."""
        self.slots = slots
        for worker in self._workers:
            worker.score.slots = slots
        kept = [slot for slot in self._slots if not slot.is_surplus]
        for group, size in sizes.items():
            mine = [slot for slot in kept if slot.group == group]
            for slot in sorted(mine, key=lambda slot: (-slot.load(), slot.number))[size:]:
                slot.give_up()
        self._slots = [each for each in self._slots if each.worker or not each.is_surplus]
        there = Counter(slot.group for slot in kept)
        taken = {slot.number for slot in self._slots}
        free = (number for number in itertools.count(1) if number not in taken)
        for group, size in sizes.items():
            lacks = range(size - there[group])
            self._slots += [WorkerSlot(next(free), group) for _ in lacks]
        if "" in sizes and sizes != self.sizes:  # or the balancer reports it, and why
            self._report.ordered(f"scaled to {sizes['']} workers")
        self.sizes = sizes

    def _pass_on(self, number: int) -> None:
        if number != signal.SIGUSR1:
            self.paused = number == signal.SIGUSR2
        for worker in self._workers:
            worker.score.paused = self.paused  # for one without signal handlers yet
            if worker.score.is_ready:
                worker.signal(number)

    def _stop(self, number: int) -> None:
        """Takes the next step: finish the jobs, give them back, kill what is left."""
        self._stopping += 1
        if self._stopping <= 2:  # noqa: PLR2004 (finish, and give back)
            for worker in self._workers:
                if self._stopping > 1 or not worker.leaves:  # a second signal interrupts the job
                    # A worker without signal handlers holds no job, and would show a traceback at
                    # an INT.
                    worker.signal(number if worker.score.is_ready else signal.SIGTERM)
                worker.signal(signal.SIGCONT)  # a stopped process would not handle it
            wait = self._stop_timeout if self._stopping == 1 else max(self._options.grace, 1)
            self._next_step = time.monotonic() + wait if wait else 0.0
        else:
            self._next_step = 0.0
            for worker in self._workers:
                worker.kill()

    def _step_to_the_end(self) -> None:
        if self._stopping and self._next_step and time.monotonic() >= self._next_step:
            if self._stopping == 1:
                self._report.ordered("stop-timeout is over: running jobs are given back")
            else:
                self._report.ordered("workers that do not end are killed")
            self._stop(signal.SIGTERM)

    # -- workers that end -----------------------------------------------------------------------

    def _reap(self) -> None:
        for pid, status in process_tree.dead_children():
            for slot in self._slots:
                if slot.worker is not None and slot.worker.pid == pid:
                    self._tally.gone(slot.group, slot.worker.score)
                    self._ended(slot, slot.reap(slot.worker, status))
                    break

    def _look(self) -> None:
        self.seen = self._tally.look(self._slots)
        now = time.monotonic()
        for worker in self._workers:
            worker.look(now)

    def _ended(self, slot: WorkerSlot, exit_: WorkerExit) -> None:
        self.totals.update(exit_.totals)
        self._proven = self._proven or exit_.was_ready
        delay = self._delay(slot, exit_)
        self._report.ended(exit_, delay)
        for left in reversed(exit_.left):  # to the front of their queue, the first one last
            if left.fence:
                self._rescuer.rescue(self._orphan(exit_, left))
        if slot.is_surplus:
            self._slots.remove(slot)
        elif delay is None:
            slot.closed = True
            self._codes.append(exit_.code)
        else:
            slot.due = time.monotonic() + delay

    def _orphan(self, exit_: WorkerExit, left: LastJob) -> Orphan:
        words, late = exit_.words, exit_.late and is_late(left)
        if late:
            words = f"{words} {time.monotonic() - left.began:.1f} s after its start"
        stopping = bool(self._stopping) and exit_.killed_by_pool
        recording = exit_.recordings.get(left.place)
        return Orphan(left, exit_.number, words, recording, late=late, stopping=stopping)

    def _delay(self, slot: WorkerSlot, exit_: WorkerExit) -> float | None:
        """Returns the seconds until another worker takes the slot; None if none does."""
        if self._stopping or slot.is_surplus or exit_.reason in _FINAL or self._options.once:
            return None
        if exit_.code == USAGE and not self._proven:
            for other in self._slots:  # what is wrong with one is wrong with all
                other.closed = True
            return None
        return slot.delay()

    def _end_late_jobs(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            deadline = worker.score.deadline()
            if deadline and now > deadline + _MARGIN:
                worker.kill(late=True)

    # -- workers that begin ---------------------------------------------------------------------

    def _fill(self) -> None:
        if self._stopping:
            return
        now = time.monotonic()
        first, *others = self._slots
        self._start(first, now)
        if not self._proven:
            worker = first.worker
            self._proven = worker is not None and worker.score.is_ready
            if not self._proven and (worker is None or worker.is_starting(now)):
                return
        if self._proven:
            self._rescuer.begin()
            self._presence.begin(self)
            if self._member is not None:
                self._member.scoreboard.ready()
        room = self._most_starting - sum(worker.is_starting(now) for worker in self._workers)
        for slot in others:
            if room <= 0:
                break  # signals are handled, and not all workers import at once
            room -= self._start(slot, now)

    def _start(self, slot: WorkerSlot, now: float) -> bool:
        """Starts a worker if one is due; returns whether it did."""
        is_due = slot.waits and now >= slot.due and not self._is_full
        if is_due:
            try:
                slot.worker = PoolWorker(
                    self._commands[slot.group],
                    self._lifeline,
                    self._events,
                    paused=self.paused,
                    slots=self.slots,
                )
            except OSError as error:
                delay = slot.not_started()
                slot.due = now + delay
                self._report.not_started(slot.number, error, delay)
            else:
                self._report.started(slot.number, slot.worker.pid)
        return is_due
