"""One slot of a pool: the worker in it, the ones that follow, and why each ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qframe.worker import process_tree
from qframe.worker.pool.child import VARIABLE
from qframe.worker.pool.scoreboard import JobState, LastJob, WorkerScore

_AT_ONCE = 5.0
"""Seconds a worker must have lived, or else a job have been done, to be replaced without delay."""
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 30.0
_ALMOST = 0.1
"""Seconds before its hard timeout at which a job's watchdog may be a little early."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker.

    `code` is its exit code, or 128 and the `signal` that ended it. `reason` is a worker's own where
    it ended in order, else "". `left` is the job it was in, `late` whether that had reached its
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
    left: LastJob | None
    late: bool
    killed_by_pool: bool
    attempt: int

    @property
    def words(self) -> str:
        """What became of the worker, as its job's history says it."""
        if self.signal:
            name = process_tree.signal_name(self.signal)
            who = " by its pool" if self.killed_by_pool else ""
            return f"killed{who} ({name})" if who else f"killed by {name}"
        return f"exited with code {self.code}"


class WorkerSlot:
    """Where one worker runs at a time. `number` counts from 1; `due` is when the next one starts.

    `closed`: no worker is to follow.
    """

    def __init__(self, number: int, command: Sequence[str], lifeline: int) -> None:
        self.number = number
        self.due = 0.0
        self.began = 0.0
        self.closed = False
        self._command = command
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._score: WorkerScore | None = None
        self._at_once = 0
        self._told_to_leave = False
        self._killed = False
        self._late = False

    @property
    def pid(self) -> int:
        """The process id of the worker, 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def runs(self) -> bool:
        """Whether there is a worker."""
        return self._process is not None

    @property
    def waits(self) -> bool:
        """Whether a worker is to be started."""
        return self._process is None and not self.closed

    @property
    def hears(self) -> bool:
        """Whether the worker has got as far as to hear signals."""
        return self._score is not None and self._process is not None and self._score.is_ready

    # -- beginning ------------------------------------------------------------------------------

    def start(self, *, paused: bool) -> None:
        """Start a worker; raises `OSError` where the system does not let it."""
        score = WorkerScore.create()
        score.paused = paused
        told = f"{score.descriptor}:{self._lifeline}:{os.getpid()}"
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the command this process was started by)
                self._command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, VARIABLE: told},
                pass_fds=(score.descriptor, self._lifeline),
                start_new_session=True,
            )
        finally:
            score.close()
        self._score = score
        self.began = time.monotonic()
        self._told_to_leave = self._killed = self._late = False

    def not_started(self) -> float:
        """Count that the system did not let a worker be started; gives the seconds to wait."""
        self._at_once += 1
        delay = self._grown()
        self.replace_in(delay)
        return delay

    def replace_in(self, seconds: float) -> None:
        """Let the next worker start then."""
        self.due = time.monotonic() + seconds

    def next_delay(self, exit_: WorkerExit) -> float:
        """Give the seconds to wait: none, or more each time that one ends at once."""
        return self._grown() if exit_.attempt else 0.0

    def _grown(self) -> float:
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (self._at_once - 1))

    # -- while it runs --------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send the worker a signal."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def pause(self, *, paused: bool) -> None:
        """Note, for a worker that does not hear signals yet, whether it may work."""
        if self._score is not None:
            self._score.paused = paused

    def tell_to_leave(self) -> None:
        """Have the worker replaced after its job."""
        if self._process is not None and not self._told_to_leave:
            self._told_to_leave = True
            self.signal(signal.SIGTERM)

    def kill(self, *, late: bool = False) -> None:
        """Kill the worker and its process group; `late` because of its job's hard timeout."""
        if self._process is not None:
            self._killed = True
            self._late = late
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def deadline(self) -> float:
        """Give the moment of the hard timeout of the job that runs; 0 where there is none."""
        if self._score is None or self._process is None:
            return 0.0
        return self._score.deadline()

    # -- its end --------------------------------------------------------------------------------

    def reap(self, status: int) -> WorkerExit:
        """Take note of the end of the worker, and end what it left in its process group."""
        process, score = self._process, self._score
        if process is None or score is None:
            raise RuntimeError(f"slot {self.number} has no worker to reap")
        self._kill_group()
        process.returncode = code = os.waitstatus_to_exitcode(status)
        self._process = None
        last = score.last_job()
        reason, totals = score.last_words()
        lived = time.monotonic() - self.began
        left = last if not reason and last.state is not JobState.IDLE else None
        done = last.number - (left is not None and left.state is not JobState.DEFERRED)
        late = _is_late(left) and (self._late or code == 1)  # or its own watchdog has ended it
        expected = self._told_to_leave or late
        self._at_once = 0 if expected or done or lived >= _AT_ONCE else self._at_once + 1
        return WorkerExit(
            number=self.number,
            pid=process.pid,
            code=code if code >= 0 else 128 - code,
            signal=max(0, -code),
            reason=reason,
            jobs=last.number,
            totals=totals,
            lived=lived,
            was_ready=score.was_ready,
            left=left,
            late=late,
            killed_by_pool=self._killed,
            attempt=self._at_once,
        )


def _is_late(left: LastJob | None) -> bool:
    """Whether a job has reached its hard timeout."""
    if left is None or left.state is not JobState.RUNNING or not left.deadline:
        return False
    return time.monotonic() >= left.deadline - _ALMOST
