"""Signals: they set flags and wake the loop; those that end a job raise, only while one runs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import Self

from qframe.contracts.job import Job
from qframe.drivers import guard
from qframe.exceptions import Interruption, JobGivenBack, JobInterrupted, JobTimedOut
from qframe.jobs import current
from qframe.worker import handlers
from qframe.worker.lifespan import Lifespan
from qframe.worker.wakeup import STOPS, WakeUp

log = logging.getLogger("qframe")

_EARLY = 0.01
_SLACK = 1.0
_REPLACED = (
    "%s replaced the worker's handler of %s, which would have made it deaf: it is put back. A job "
    "that wants to clean up uses `finally`."
)
_BLOCKED = (
    "%s left %s blocked, which would have made the worker deaf: it is unblocked. A job that blocks "
    "signals unblocks them in `finally`."
)


class Signals(WakeUp):
    """The signals of a worker: flags, and what wakes the loop.

    Off the main thread, or if not `handled`, no signal arrives; `request_stop` still works.
    """

    def __init__(self, *, handled: bool = True) -> None:
        super().__init__()
        self.quit = False
        self._was_asked_to_stop = False
        """Whether it was asked to stop, but not by SIGHUP, which may come before or after."""
        self.stop_signal = 0
        self.paused = False
        self._warned_of: set[tuple[str, str, str]] = set()
        self.fired: Interruption | None = None
        """What ended the running job, even if the job swallowed it."""
        self.on_main_thread = handled and threading.current_thread() is threading.main_thread()
        self._ending: tuple[Interruption, Callable[[], bool]] | None = None
        self._running = False
        self._closes = False
        self._timeout = 0.0
        self._rings_at = 0.0
        self._armed_at = 0.0
        self._armed_for = 0.0

    def __enter__(self) -> Self:
        if self.on_main_thread:
            self.handle(STOPS, self._stop)
            self.handle([signal.SIGUSR1], self._interrupt)
            self.handle([signal.SIGUSR2], self._pause)
            self.handle([signal.SIGCONT], self._resume)
            self.handle([signal.SIGALRM], self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        if self.on_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
        super().__exit__()

    def heed_hang_up(self) -> None:
        """Makes SIGHUP, which reports the death of a pool, stop the worker after its job."""
        if self.on_main_thread:
            self.handle([signal.SIGHUP], self._hang_up)

    @property
    def ends_at(self) -> float:
        """When the timeout of the job that runs, or ran last, is over; from any thread."""
        return self._rings_at if self._timeout else math.inf

    # -- the loop's side ------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Asks the worker, from any thread, to stop after its job."""
        self.quit = self._was_asked_to_stop = True
        self.wake()

    def end(self, error: Interruption, still: Callable[[], bool]) -> None:
        """Ends the running job by `error`, from any thread, if it `still` runs."""
        main = threading.main_thread().ident
        if self.on_main_thread and main is not None:
            self._ending = error, still
            signal.pthread_kill(main, signal.SIGUSR1)

    # -- around a running job -------------------------------------------------------------------

    def running(self, timeout: float) -> None:
        """A job runs from now on: signals may raise, after `timeout` at the latest."""
        self.fired = None
        self._timeout = timeout
        if self.on_main_thread:
            if timeout or self._armed_for:
                self._set_alarm(timeout)
            self._running = True

    def _set_alarm(self, seconds: float) -> None:
        """Sets the alarm; 0 is never.

        An alarm left by an earlier job is early, and moved when it rings; about once a second it is
        made anew, since a job may have used the timer.
        """
        now = time.monotonic()
        self._rings_at = now + seconds
        if seconds and now < self._armed_for <= self._rings_at and now - self._armed_at < _SLACK:
            return
        self._arm(seconds, now)

    def _arm(self, seconds: float, now: float) -> None:
        self._armed_at = now
        self._armed_for = now + seconds if seconds else 0.0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def change_timeout(self, timeout: float, passed: float) -> None:
        """Sets another timeout for the running job, of which `passed` seconds are over."""
        if self._running and timeout != self._timeout:
            self._timeout = timeout
            self._set_alarm(max(0.001, timeout - passed) if timeout else 0)

    def not_running(self) -> None:
        """The job has ended: nothing raises any more."""
        self._running = False
        guard.forget_interruption()
        try:
            closed = os.fstat(self._own).st_ino != self._inode
        except OSError:
            closed = True
        if closed:  # checked here for each job, which costs no function call
            job = current.running.get()
            self.leave_if_closed("a job" if job is None else job.name)

    def at_rest(self) -> None:
        """No job follows at once: clears the alarm."""
        if self._armed_for:
            self._set_alarm(0)

    @contextlib.contextmanager
    def closing(self, seconds: float) -> Iterator[None]:
        """Raises in the body after so many seconds, or at a second signal to stop."""
        self._closes = True
        try:
            self.running(seconds)
            yield
        finally:
            self.not_running()
            self.at_rest()
            self._closes = False

    def look_after(self, job: Job | Lifespan) -> None:
        """Restores what a job or the lifespan has replaced or blocked, and logs which."""
        if self.on_main_thread:
            try:
                signal.set_wakeup_fd(self._wakes_by, warn_on_full_buffer=False)
            except (OSError, ValueError) as closed:
                log.debug("the worker's descriptor for signals: %s", closed)
            if lost := handlers.lost():
                self._warn_of_handlers(lost, handlers.put_back(lost), (job.name,))

    def _warn_of_handlers(
        self, lost: Iterable[int], blocked: AbstractSet[int], jobs: Iterable[str]
    ) -> None:
        who = " or ".join(jobs)
        replaced = [number for number in lost if number not in blocked]
        for numbers, words in ((replaced, _REPLACED), (sorted(blocked), _BLOCKED)):
            names = ", ".join(signal.Signals(number).name for number in numbers)
            if names and (who, words, names) not in self._warned_of:
                self._warned_of.add((who, words, names))
                log.warning(words, who or "the program", names)

    # -- handlers -------------------------------------------------------------------------------

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._was_asked_to_stop:
            self._end_job(JobGivenBack("the worker was asked twice to stop"), frame)
        self.quit = self._was_asked_to_stop = True
        self.stop_signal = number

    def _hang_up(self, number: int, _frame: FrameType | None) -> None:
        """Stops after the job, however often the signal comes."""
        self.quit = True
        self.stop_signal = self.stop_signal or number

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        ending, self._ending = self._ending, None
        if self._closes:  # no job runs
            return
        if ending is None:
            self._end_job(JobInterrupted("the worker got SIGUSR1"), frame)
        elif ending[1]():
            self._end_job(ending[0], frame)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        self.paused = True

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        self.paused = False

    def _ring(self, _number: int, frame: FrameType | None) -> None:
        held_up = guard.pending()
        if held_up is not None:
            guard.interrupt(held_up, frame)
            return
        now = time.monotonic()
        if now < self._rings_at - _EARLY:  # an earlier job left it
            self._arm(self._rings_at - now, now)
        else:
            late = JobTimedOut(f"ran longer than its timeout of {self._timeout:g} s")
            self._end_job(late, frame)

    def _end_job(self, error: Interruption, frame: FrameType | None) -> None:
        """Raises in the running job; once, so that its cleanup is not interrupted."""
        if self._running:
            self._running = False
            self.fired = error
            guard.interrupt(error, frame)
