"""JobRecorder: what the worker keeps of a job that runs in a process of its own."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time

from qframe.contracts.recording import Recording
from qframe.features.reserved import ReservedJob
from qframe.jobs import logged
from qframe.worker.isolation.spawn import ChildExit
from qframe.worker.recorder import stacks
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import RING, JobRing, high_descriptor
from qframe.worker.recorder.sampler import CRASHES, sample, write_stacks_to
from qframe.worker.recorder.watch import EVERY, DumpFile, ProcessWatch


class JobRecorder:
    """Records one job after the other. `due` is when to `look` next, by the monotonic clock."""

    due = 0.0
    _watch: ProcessWatch | None = None
    _began = 0.0

    def __init__(self, events: MemoryEvents, *, keeps_log: bool) -> None:
        self._events = events
        self._keeps_log = keeps_log
        descriptor = _made()
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
        write_stacks_to(self._dump.descriptor, fatal=True)
        ring, main = self._ring, threading.get_ident()
        if self._keeps_log:
            logged.capture()
            job.records = ring.note
        frames = sys._current_frames  # noqa: SLF001 (the one way there is)
        sample(lambda: [(ring, stacks.of_frame(frames().get(main)))])

    # -- in the worker ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """A process is about to be forked."""
        self._began, self.due = now, now + EVERY
        if now - self._events.read_at >= EVERY:
            self._events.look(now)

    def forked(self, pid: int) -> None:
        self._watch = ProcessWatch(pid, self._dump, self._events)

    def look(self, now: float) -> None:
        """Looks at the process, about once a second."""
        self.due = now + EVERY
        if self._watch is not None:
            self._watch.look(now)
            beat = max(self._ring.beat, self._began)
            self._watch.look_for_stack(now, beat, self._dump.descriptor)

    def is_late(self) -> None:
        """The process is about to be killed: it shows where it is stuck."""
        if self._watch is not None:
            self._watch.ask(time.monotonic(), self._dump.descriptor)

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

    def end(self) -> None:
        """The process is of no interest any more."""
        self._watch = None
        self._dump.take()


class JobRecorders:
    """The recorders of a worker: one for each job that runs at once."""

    def __init__(self, *, keeps_log: bool) -> None:
        self._events = MemoryEvents()
        self._keeps_log = keeps_log
        self._free: list[JobRecorder] = []

    def take(self) -> JobRecorder | None:
        """Returns one that is free; None if the system has no more files."""
        if self._free:
            return self._free.pop()
        try:
            return JobRecorder(self._events, keeps_log=self._keeps_log)
        except OSError:
            return None

    def give_back(self, recorder: JobRecorder) -> None:
        recorder.end()
        self._free.append(recorder)

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


def _made() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("qframe-recorder")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
