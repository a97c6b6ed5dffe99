"""Pool: a parent that keeps a number of workers running, and settles what a dead one had begun.

It imports nothing of the application. Each worker is a program of its own, in a session of its own,
and outlives the parent by no more than its job.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from qframe.worker import kinship
from qframe.worker.aftermath import Aftermath, Left
from qframe.worker.bell import PASSED_ON, STOPS, Bell
from qframe.worker.options import USAGE, StopReason, WorkerOptions
from qframe.worker.place import Exit, Place
from qframe.worker.slip import State

_LOOK = 1.0
"""Seconds between two looks at the deadlines of the jobs."""
_START_LOOK = 0.02
_FIRST_ALONE = 10.0
"""Seconds the first worker has to show that it can work, before the others are started."""
_MARGIN = 2.0
"""Seconds after its hard timeout in which a worker ends itself, writing its stacks."""
_WORST = (USAGE, StopReason.LOST_BACKEND.exit_code, StopReason.MEMORY.exit_code, 1)
_FINAL = {StopReason.EMPTY, StopReason.ONCE}


class Reporter(Protocol):
    """Who tells people what happens; may be called while a job is settled, from that thread."""

    def started(self, number: int, pid: int) -> None:
        """A worker was started."""

    def ended(self, exit_: Exit, delay: float | None) -> None:
        """A worker has ended; another takes its place after `delay` seconds, None: none does."""

    def not_started(self, number: int, error: OSError, delay: float) -> None:
        """The system did not let a worker be started; tried again after `delay` seconds."""

    def told(self, what: str) -> None:
        """Something is done to all workers."""


class Pool:
    """Keeps `size` workers running until told to stop, or until all have ended for good.

    `command` starts a worker. `stop_timeout` is how many seconds running jobs have to end when
    the pool stops, 0 without limit; `options.grace` how many follow for what was told to end.
    `changes`, called with a function, calls that whenever the workers are to be replaced.
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        options: WorkerOptions,
        aftermath: Aftermath,
        report: Reporter,
        *,
        stop_timeout: float = 0,
        changes: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.totals: Counter[str] = Counter()
        self._options = options
        self._aftermath = aftermath
        self._report = report
        self._stop_timeout = stop_timeout
        self._changes = changes
        self._lifeline, self._lifeline_end = os.pipe()
        self._places = [Place(n + 1, command, self._lifeline) for n in range(size)]
        self._proven = False
        self._paused = False
        self._codes: list[int] = []
        self._stopping = 0
        """How often it was told to stop: running jobs end, are given back, are killed."""
        self._next_step = 0.0
        self._bell = Bell()

    def run(self) -> int:
        """Keep the workers running and give the exit code."""
        kinship.adopt_orphans()
        with self._bell:
            if self._changes is not None:
                self._changes(self._bell.ring_for_changes)
            while True:
                self._heed_signals()
                self._bury()
                self._end_late_jobs()
                self._step_to_the_end()
                self._fill()
                if self._is_over():
                    break
                self._bell.wait(self._seconds_to_wait())
            self._aftermath.end()
            kinship.end_children()
        os.close(self._lifeline_end)
        os.close(self._lifeline)
        if self._stopping:
            return 0
        return next((code for code in _WORST if code in self._codes), int(any(self._codes)))

    @property
    def was_stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping > 0

    def _is_over(self) -> bool:
        return all(not place.runs for place in self._places) and (
            bool(self._stopping) or all(place.closed for place in self._places)
        )

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        moments = [now + _LOOK]
        if not self._proven and self._places[0].runs:
            moments.append(now + _START_LOOK)
        if not self._stopping:
            moments += [place.due for place in self._places if place.waits]
        elif self._next_step:
            moments.append(self._next_step)
        return max(0.0, min(moments) - now)

    # -- what it is told ------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        for number in self._bell.heard():
            if number in STOPS:
                self._stop(number)
            elif number in PASSED_ON:
                if number != signal.SIGUSR1:
                    self._paused = number == signal.SIGUSR2
                self._tell(number)
        if self._bell.changed():
            self._report.told("source files have changed: workers are replaced after their jobs")
            for place in self._places:
                place.tell_to_leave()

    def _tell(self, number: int) -> None:
        for place in self._places:
            place.pause(paused=self._paused)
            if place.hears:
                place.signal(number)

    def _stop(self, number: int) -> None:
        """Go one step further to the end: finish the jobs, give them back, kill what is left."""
        self._stopping += 1
        if self._stopping <= 2:  # noqa: PLR2004 (finish, and give back)
            for place in self._places:
                # One that cannot hear yet holds no job, and would say of an INT where it was.
                place.signal(number if place.hears else signal.SIGTERM)
                place.signal(signal.SIGCONT)  # or one that is stopped would not hear it
            wait = self._stop_timeout if self._stopping == 1 else max(self._options.grace, 1)
            self._next_step = time.monotonic() + wait if wait else 0.0
        else:
            self._next_step = 0.0
            for place in self._places:
                place.kill()

    def _step_to_the_end(self) -> None:
        if self._stopping and self._next_step and time.monotonic() >= self._next_step:
            if self._stopping == 1:
                self._report.told("stop-timeout is over: running jobs are given back")
            else:
                self._report.told("workers that do not end are killed")
            self._stop(signal.SIGTERM)

    # -- workers that end -----------------------------------------------------------------------

    def _bury(self) -> None:
        for pid, status in kinship.dead_children():
            for place in self._places:
                if place.pid == pid:
                    self._see_off(place, place.bury(status))

    def _see_off(self, place: Place, exit_: Exit) -> None:
        self.totals.update(exit_.totals)
        self._proven = self._proven or exit_.was_ready
        delay = self._delay(place, exit_)
        self._report.ended(exit_, delay)
        entry = exit_.left
        if entry is not None and entry.ticket:
            words = exit_.words
            if exit_.late and entry.state is State.RUNNING:
                words = f"{words} {time.monotonic() - entry.began:.1f} s after its start"
            self._aftermath.settle(
                Left(
                    entry,
                    place.number,
                    words,
                    late=exit_.late,
                    stopping=bool(self._stopping) and exit_.killed_by_pool,
                )
            )
        if delay is None:
            place.closed = True
            self._codes.append(exit_.code)
        else:
            place.replace_in(delay)

    def _delay(self, place: Place, exit_: Exit) -> float | None:
        """Give the seconds until another worker takes the place; None where none is to."""
        if self._stopping or exit_.reason in _FINAL or self._options.once:
            return None
        if exit_.code == USAGE and not self._proven:
            for other in self._places:  # what is wrong with one is wrong with all
                other.closed = True
            return None
        return place.next_delay(exit_)

    def _end_late_jobs(self) -> None:
        now = time.monotonic()
        for place in self._places:
            deadline = place.deadline()
            if deadline and now > deadline + _MARGIN:
                place.kill(late=True)

    # -- workers that begin ---------------------------------------------------------------------

    def _fill(self) -> None:
        if self._stopping:
            return
        now = time.monotonic()
        first, *others = self._places
        self._start(first, now)
        if not self._proven:
            self._proven = first.hears
            if self._proven:
                self._aftermath.begin()
            elif not (first.runs and now - first.began > _FIRST_ALONE):
                return
        for place in others:
            self._start(place, now)

    def _start(self, place: Place, now: float) -> None:
        if place.waits and now >= place.due:
            try:
                place.start(paused=self._paused)
            except OSError as error:
                self._report.not_started(place.number, error, place.not_started())
            else:
                self._report.started(place.number, place.pid)
