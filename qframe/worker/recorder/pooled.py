"""WorkerRecorder: a pool's worker keeps what its jobs log and where they are, and its own use.

If the worker dies, its pool reads the shared memory. If a job times out or lacks memory and the
worker lives, the worker records it itself.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from qframe.contracts.recording import Recording
from qframe.exceptions import JobTimedOut
from qframe.jobs import logged
from qframe.worker.pool.scoreboard import JobScore, WorkerScore
from qframe.worker.recorder import stacks, telling
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import JobRing, high_descriptor
from qframe.worker.recorder.sampler import sample, write_stacks_to
from qframe.worker.recorder.use import ProcessUse

Stacks = Callable[[], Iterable[tuple[JobScore, bytes]]]
"""Gives the stack of each running job."""


class WorkerRecorder:
    """Records the jobs of this process, from its begin to `stop`."""

    def __init__(self, score: WorkerScore, running: Stacks, *, keeps_log: bool) -> None:
        self._running = running
        self._use, self._events = ProcessUse(os.getpid()), MemoryEvents()
        self.keeps_log = keeps_log
        if keeps_log:
            logged.capture()
        with suppress(OSError):
            number = high_descriptor(score.descriptor)
            write_stacks_to(number, fatal=not faulthandler.is_enabled())
            score.dump_number = number
        self.stop = sample(self._look)

    def _look(self) -> Iterator[tuple[JobRing, bytes]]:
        now = time.monotonic()
        self._use.look(now)
        self._events.look(now)
        for score, stack in self._running():
            yield score.ring, stack

    def recorded(
        self, score: JobScore, error: BaseException, attempt: int, together: int = 1
    ) -> Recording | None:
        """Returns what was kept of the job in a slot; None for an error of which nothing is.

        `together`: of how many jobs its chunk is.
        """
        if isinstance(error, MemoryError):
            how = "ran out of memory (MemoryError)"
        elif isinstance(error, JobTimedOut):
            how = "timed out"
        else:
            return None
        began, now = score.last_job().began, time.monotonic()
        ring = score.ring
        self._use.look(now)
        used = telling.Used.between(self._use, self._events, began, now)
        seen = [*ring.stacks(began), (now, stacks.of_error(error))]
        return telling.told(attempt, how, now, ring.lines(began), seen, used, together)
