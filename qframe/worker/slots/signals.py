"""SlotSignals: the signals of a worker of many jobs; a signal that ends a job finds it."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType

from qframe.drivers import guard
from qframe.exceptions import Interruption
from qframe.worker import handlers
from qframe.worker.signals import Signals
from qframe.worker.slots.interrupts import SlotInterrupts, current

_SOON = 0.001


class SlotSignals(Signals):
    """The worker's signals. `jobs` returns what may end the running jobs."""

    def __init__(self, *, handled: bool = True) -> None:
        super().__init__(handled=handled)
        self.jobs: Callable[[], Iterable[SlotInterrupts]] = tuple
        self.interrupted: Interruption | None = None
        """What ended all jobs."""
        self._rings = math.inf
        self._arming = threading.RLock()
        self._to_end: deque[tuple[SlotInterrupts, Interruption]] = deque()

    def arm(self, due: float) -> None:
        """Sets the alarm for then; from any thread."""
        if not self.on_main_thread:
            return
        with self._arming:
            if due < self._rings:
                self._rings = due
                signal.setitimer(signal.ITIMER_REAL, max(_SOON, due - time.monotonic()))

    def end_job(self, job: SlotInterrupts, error: Interruption) -> None:
        """Ends one job, from any thread, if it still runs."""
        self._to_end.append((job, error))
        self.arm(0.0)

    def loop_begins(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes signals wake a loop that is about to run, by its own descriptor if it has one."""
        if self.on_main_thread:
            self._wakes_by = self._writer.fileno()
            self.keep_waking()
            loop.call_soon(self._note_waking)

    def _note_waking(self) -> None:
        self._wakes_by = signal.set_wakeup_fd(-1)
        self.keep_waking()

    def look_beside(self, loop: asyncio.AbstractEventLoop, jobs: Iterable[str]) -> None:
        """Restores what one of these jobs has replaced, perhaps for their loop, or blocked."""
        if not self.on_main_thread:
            return
        if lost := handlers.lost():
            for number in lost:
                loop.remove_signal_handler(number)
            self._warn_of_handlers(lost, handlers.put_back(lost), jobs)
        self.keep_waking()

    # -- handlers -------------------------------------------------------------------------------

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.wake()  # the loop may have set its own descriptor
        if self._closes:
            super()._ring(number, frame)
            return
        now = time.monotonic()
        jobs = [*self.jobs()]
        with self._arming:
            self._rings = math.inf
        self._raise_pending(frame)
        asked = [self._to_end.popleft() for _ in range(len(self._to_end))]
        here = current.get()
        # The job whose code is interrupted here raises, so it comes last.
        asked.sort(key=lambda each: each[0] is here)
        jobs.sort(key=lambda job: job is here)
        self.arm(min((job.look(now) for job in jobs), default=math.inf))
        for job, error in asked:
            job.fire(error, frame)
        for job in jobs:
            job.ring(now, frame)

    def _raise_pending(self, frame: FrameType | None) -> None:
        """Raises what came amid a finalizer, if the code of the same job still runs."""
        held_up, here = guard.pending(), current.get()
        if here is not None and here.fired is not None and here.fired is held_up:
            guard.interrupt(here.fired, frame)

    def _end_job(self, error: Interruption, frame: FrameType | None) -> None:
        if self._closes:
            self._end_closing(error, frame)
            return
        here = current.get()
        jobs = sorted((job for job in self.jobs() if job.runs), key=lambda job: job is here)
        self.interrupted = error if jobs else None
        self.wake()
        for job in jobs:
            job.fire(type(error)(*error.args), frame)  # each has a traceback of its own

    def _end_closing(self, error: Interruption, frame: FrameType | None) -> None:
        """Raises in code that runs; stops a loop that waits, which might swallow the error."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 (None if there is none)
        if loop is None or asyncio.current_task(loop) is not None:
            super()._end_job(error, frame)
        elif self._running:
            self._running = False
            self.fired = error
            loop.call_soon_threadsafe(loop.stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.wake()
        super()._stop(number, frame)
