"""JobRecorder: what the worker keeps of a job that runs in a process of its own."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from qframe.contracts.recording import Recording
from qframe.features.reserved import ReservedJob
from qframe.jobs import logged
from qframe.worker.isolation.spawn import ChildExit
from qframe.worker.recorder import stacks
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import RING, JobRing, high_descriptor, memory_file
from qframe.worker.recorder.sampler import CRASHES, sample, write_stacks_to
from qframe.worker.recorder.watch import EVERY, DumpFile, ProcessWatch

_WAITS = 3
"""Looks after which a job that only waits is interrupted, too."""


class JobRecorder:
    """Records one job after the other. `due` is when to `look` next, by the monotonic clock."""

    due = 0.0
    _watch: ProcessWatch | None = None
    _began = 0.0
    _begun_at = 0.0
    """When the process was to begin to take its stacks; 0: not yet."""
    _looks = 0

    def __init__(self, events: MemoryEvents, number: int, *, keeps_log: bool) -> None:
        self._events = events
        self._number = number
        """The descriptor of the stacks in the job's process."""
        self._keeps_log = keeps_log
        descriptor = memory_file("qframe-recorder")
        try:
            os.ftruncate(descriptor, RING)
            self._ring = JobRing(mmap.mmap(descriptor, RING))
            self._dump = DumpFile(high_descriptor(descriptor), RING)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        os.close(self._dump.descriptor)

    # -- in the job's process ---------------------------------------------------------------------

    def begin_here(self, job: ReservedJob) -> None:
        """Records the job of this process."""
        with suppress(OSError, ValueError, RuntimeError):
            os.dup2(self._dump.descriptor, self._number, inheritable=False)
            faulthandler.enable(self._number)
        if self._keeps_log:
            job.records = self._ring.note
        _of_this_process.append(self._ring)
        if not stacks.BEGIN:
            _take_stacks()

    # -- in the worker ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """A process is about to be forked."""
        self._began, self.due = now, now + EVERY
        self._looks, self._begun_at = 0, 0.0
        if now - self._events.read_at >= EVERY:
            self._events.look(now)

    def forked(self, pid: int) -> None:
        self._watch = ProcessWatch(pid, self._dump, self._events)

    def look(self, now: float) -> None:
        """Looks at the process, about once a second."""
        self.due = now + EVERY
        if self._watch is not None:
            self._watch.look(now)
            self._look_for_stacks(self._watch, now)

    def _look_for_stacks(self, watch: ProcessWatch, now: float) -> None:
        """Has the process begin to take stacks, and asks for one if it takes none.

        A signal may interrupt a library of the job that waits for the system and does not expect
        one. So it is sent while the job computes; if the job only waits, once.
        """
        self._looks += 1
        number, beat = self._number, self._ring.beat
        if self._begun_at or beat >= self._began:
            watch.look_for_stack(now, max(beat, self._begun_at), number)
        elif watch.use.is_computing or self._looks >= _WAITS:
            self._begun_at = now
            watch.begin(number)

    def is_late(self) -> None:
        """The process is about to be killed: it shows where it is stuck."""
        if self._watch is not None:
            self._watch.ask(time.monotonic(), self._number)

    def recording(
        self, how: str, error: BaseException, attempt: int, exit_: ChildExit | None
    ) -> Recording | None:
        """Returns what was kept of a job that ended now; `exit_`: how its process did, if so."""
        watch, now = self._watch, time.monotonic()
        if watch is None:
            return None
        if exit_ is not None and exit_.megabytes:
            watch.use.ended(now, exit_.megabytes, exit_.seconds)
        return watch.recording(
            self._ring,
            how,
            self._began,
            now,
            attempt,
            error=error,
            crashed=exit_ is not None and exit_.signal in CRASHES,
        )

    def last_stack(self) -> list[str]:
        """Returns the calls that the job was last seen in, the innermost first; [] if unknown."""
        found = self._ring.stacks(self._began)
        return found[-1][1] if found else []

    def end(self) -> None:
        """The process is of no interest any more."""
        self._watch = None
        self._dump.take()


class JobRecorders:
    """The recorders of a worker: one for each job that runs at once. On the main thread only.

    What the processes of jobs need is prepared here, and they inherit it: to do it there would take
    longer than all the rest, since it would copy pages.
    """

    def __init__(self, *, keeps_log: bool) -> None:
        self._events = MemoryEvents()
        null = os.open(os.devnull, os.O_WRONLY)
        self._number = high_descriptor(null)
        os.close(null)
        write_stacks_to(self._number, fatal=False)
        self._before: Any = None
        if stacks.BEGIN:
            self._before = signal.signal(stacks.BEGIN, _take_stacks)
            signal.siginterrupt(stacks.BEGIN, False)
        if keeps_log:
            logged.capture()
        self._keeps_log = keeps_log
        self._free: list[JobRecorder] = []

    def take(self) -> JobRecorder:
        """Returns one that is free. Raises `OSError` if the system has no more files."""
        if self._free:
            return self._free.pop()
        return JobRecorder(self._events, self._number, keeps_log=self._keeps_log)

    def give_back(self, recorder: JobRecorder) -> None:
        recorder.end()
        self._free.append(recorder)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
        if stacks.SIGNAL:
            faulthandler.unregister(stacks.SIGNAL)
            signal.signal(stacks.BEGIN, self._before or signal.SIG_DFL)
        os.close(self._number)


_of_this_process: list[JobRing] = []
"""Where the process of a job keeps its stacks; empty in the worker."""


def _take_stacks(*_: object) -> None:
    """Begins to take the stacks of this process's job. A thread does it.

    To start one takes longer than all else, for most jobs in vain, so a signal asks for it.
    """
    if not _of_this_process:  # it has begun, or this is the worker
        return
    ring, main = _of_this_process.pop(), threading.main_thread().ident or 0
    frames = sys._current_frames  # noqa: SLF001 (the one way there is)
    sample(lambda: [(ring, stacks.of_frame(frames().get(main)))], first=0)
