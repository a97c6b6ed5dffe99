"""WorkerSlot: one slot of a pool: its worker, the following ones, and why each ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qframe.contracts.recording import Recording
from qframe.worker import process_tree
from qframe.worker.pool.child import VARIABLE
from qframe.worker.pool.scoreboard import DUMP_AT, JobPhase, LastJob, WorkerScore
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.sampler import CRASHES
from qframe.worker.recorder.watch import EVERY, DumpFile, ProcessWatch

_AT_ONCE = 5.0
"""Seconds that a worker which was ready must have lived, unless it has done a job, to be replaced
without delay.
"""
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 30.0
_STARTING = 10.0
"""Seconds a worker has to become ready before others are started regardless."""
_ALMOST = 0.1
"""Seconds that a job's watchdog may be ahead of the hard timeout."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker.

    `code` is its exit code, or 128 and the `signal` that ended it. `reason` is the worker's own if
    it ended in order, else "". `left` are the jobs it was in, `late` whether one had reached its
    hard timeout, `attempt` how often in a row a worker of this slot has ended at once.
    """

    number: int
    pid: int
    code: int
    signal: int
    reason: str
    jobs: int
    totals: Mapping[str, int]
    lived: float
    was_ready: bool
    left: Sequence[LastJob]
    late: bool
    killed_by_pool: bool
    attempt: int
    recordings: Mapping[int, Recording]
    """By slot, what was kept of the jobs it was in."""
    words: str
    """How it ended, for its job's history."""


class PoolWorker:
    """A worker that was started; raises `OSError` if the system refuses."""

    def __init__(
        self,
        command: Sequence[str],
        lifeline: int,
        events: MemoryEvents,
        *,
        paused: bool,
        slots: int,
    ) -> None:
        self.score = WorkerScore.create(slots)
        self.score.paused = paused
        self.score.slots = slots
        place = f"{self.score.descriptor}:{lifeline}:{os.getpid()}"
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the command this process was started by)
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, VARIABLE: place},
                pass_fds=(self.score.descriptor, lifeline),
                start_new_session=True,
            )
        except BaseException:
            self.score.close()
            raise
        self.pid = self._process.pid
        dump = DumpFile(self.score.descriptor, DUMP_AT)
        self._watch = ProcessWatch(self.pid, dump, events)
        self._look_at = 0.0
        self.began = time.monotonic()
        self.killed = False
        self.was_late = False
        """Whether it was killed because of its job's hard timeout."""
        self.leaves = False
        """Whether it was asked to leave, to be replaced."""

    def is_starting(self, now: float) -> bool:
        """Whether it imports the application: others wait for that, but not for ever."""
        return not self.score.is_ready and now - self.began <= _STARTING

    def look(self, now: float) -> None:
        """Keeps what it uses and, if it runs one job and that keeps the interpreter, its stack."""
        number = self.score.dump_number
        if not number or now < self._look_at:
            return
        self._look_at = now + EVERY
        self._watch.look(now)
        if len(self.score.jobs) == 1:
            (job,) = self.score.jobs
            began = job.tally().since
            if began:
                self._watch.look_for_stack(now, max(began, job.ring.beat), number)

    def recorded(self, left: Sequence[LastJob], code: int, how: str) -> dict[int, Recording]:
        """Returns what was kept of the jobs that a dead worker was in."""
        if not self.score.dump_number:
            return {}
        now, crashed = time.monotonic(), -code in CRASHES
        calls = {job.place: job for job in left if job.state is JobPhase.RUNNING}
        return {
            place: self._watch.recording(
                self.score.jobs[place].ring,
                how,
                call.began,
                now,
                0,
                crashed=crashed,
                together=call.together,
            )
            for place, call in calls.items()
        }

    def signal(self, number: int) -> None:
        process_tree.send(self.pid, number)

    def ask_to_leave(self) -> None:
        """Has the worker replaced after its job."""
        if not self.leaves:
            self.leaves = True
            self.signal(signal.SIGTERM)

    def kill(self, *, late: bool = False) -> None:
        """Kills the worker and its process group; `late` because of its job's hard timeout."""
        self.killed, self.was_late = True, late
        process_tree.kill_group(self.pid)

    def reaped(self, status: int) -> int:
        """Ends what is left of its process group; returns its exit code, negative for a signal."""
        process_tree.kill_group(self.pid)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode


class WorkerSlot:
    """Where one worker runs at a time. `number` counts from 1; `due` is the next start.

    `group` says what is worked there. `closed`: no worker follows. `is_surplus`: it is closed since
    there are to be fewer.
    """

    def __init__(self, number: int, group: str = "") -> None:
        self.number = number
        self.group = group
        self.due = 0.0
        self.closed = False
        self.is_surplus = False
        self.worker: PoolWorker | None = None
        self._at_once = 0

    @property
    def waits(self) -> bool:
        return self.worker is None and not self.closed

    def load(self) -> int:
        """Returns how much would end with it: running jobs, and its worker; 0: it has none."""
        return 0 if self.worker is None else 1 + self.worker.score.running()

    def give_up(self) -> None:
        """Ends its worker after its jobs; none follows."""
        self.closed = self.is_surplus = True
        if self.worker is not None:
            self.worker.ask_to_leave()

    def not_started(self) -> float:
        """Counts a start that the system refused; returns the seconds to wait."""
        self._at_once += 1
        return self.delay()

    def delay(self) -> float:
        """Returns the seconds to wait: none, or more each time that a worker ends at once."""
        seconds = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (self._at_once - 1))
        return seconds if self._at_once else 0.0

    def reap(self, worker: PoolWorker, status: int) -> WorkerExit:
        """Returns the end of the worker, whose slot is then free."""
        self.worker = None
        code, jobs = worker.reaped(status), worker.score.last_jobs()
        reason, totals = worker.score.last_words()
        lived = time.monotonic() - worker.began
        left = [job for job in jobs if not reason and job.state is not JobPhase.IDLE]
        started = sum(tally.begun for tally in worker.score.tallies())
        done = started - sum(job.state is not JobPhase.DEFERRED for job in left)
        # Ended by the pool, or by its own watchdog.
        late = (worker.was_late or code == 1) and any(map(is_late, left))
        words = _words(code, by_pool=worker.killed)
        recordings = worker.recorded(left, code, "timed out" if late else words)
        worker.score.close()
        got_going = worker.score.is_ready and lived >= _AT_ONCE
        expected = worker.leaves or late or done or got_going
        self._at_once = 0 if expected else self._at_once + 1
        return WorkerExit(
            number=self.number,
            pid=worker.pid,
            code=code if code >= 0 else 128 - code,
            signal=max(0, -code),
            reason=reason,
            jobs=started,
            totals=totals,
            lived=lived,
            was_ready=worker.score.is_ready,
            left=left,
            late=late,
            killed_by_pool=worker.killed,
            attempt=self._at_once,
            recordings=recordings,
            words=words,
        )


def _words(code: int, *, by_pool: bool) -> str:
    """Returns how a worker ended; the code is negative for a signal."""
    if code >= 0:
        return f"exited with code {code}"
    name = process_tree.signal_name(-code)
    return f"killed by its pool ({name})" if by_pool else f"killed by {name}"


def is_late(left: LastJob) -> bool:
    """Whether the job of a dead worker has reached its hard timeout."""
    if left.state is not JobPhase.RUNNING or not left.deadline:
        return False
    return time.monotonic() >= left.deadline - _ALMOST
