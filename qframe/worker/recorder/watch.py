"""ProcessWatch: what a supervisor keeps of a process that runs jobs, second by second.

It reads the process's memory and processor time, and asks for a stack if the process takes none
itself: another thread, or a call into C, keeps the interpreter.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from qframe.contracts.recording import Recording
from qframe.worker.recorder import stacks, telling
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import STACKS, JobRing
from qframe.worker.recorder.use import ProcessUse

EVERY = 1.0
"""Seconds between two looks."""
_STALLED = 1.6
"""Seconds without a stack after which the process is asked for one."""
_LONGEST = 256 * 1024
_STDERR = 2


class DumpFile:
    """Where `faulthandler` of another process writes: a file from `start` on.

    Both processes have the position in common, so the supervisor empties it by going back.
    """

    def __init__(self, descriptor: int, start: int) -> None:
        self.descriptor = descriptor
        self._start = start
        self.inode = os.fstat(descriptor).st_ino
        self.rewind()

    def rewind(self) -> None:
        os.lseek(self.descriptor, self._start, os.SEEK_SET)

    def take(self) -> str:
        """Returns what was written since the last call; "" if there is nothing."""
        with suppress(OSError):
            end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
            if end > self._start:
                length = min(end - self._start, _LONGEST)
                found = os.pread(self.descriptor, length, self._start)
                self.rewind()
                return found.decode("utf-8", "replace")
        return ""


class ProcessWatch:
    """One process, from its begin to its end."""

    def __init__(self, pid: int, dump: DumpFile, events: MemoryEvents) -> None:
        self._pid = pid
        self._dump = dump
        self._events = events
        self.use = ProcessUse(pid)
        self._asked: deque[telling.Seen] = deque(maxlen=STACKS)
        self._asked_at = 0.0
        self._waits = False
        """Whether it was asked and has not answered: signals of a stopped process would pile up."""

    def look(self, now: float) -> None:
        """Reads what the process uses; called about once a second."""
        self.use.look(now)
        if now - self._events.read_at >= EVERY / 2:
            self._events.look(now)
        self._collect(self._asked_at)

    def look_for_stack(self, now: float, beat: float, number: int) -> None:
        """Asks for a stack if the process has taken none since `beat`."""
        if now - beat >= _STALLED:
            self.ask(now, number)

    def ask(self, now: float, number: int) -> None:
        """Has `faulthandler` write the stack of the main thread, which is read later.

        `number` is the descriptor under which the process has the file.
        """
        if not self._waits and self._send(stacks.SIGNAL, number):
            self._asked_at, self._waits = now, True

    def begin(self, number: int) -> None:
        """Has the process take its stacks from now on, in a thread."""
        self._send(stacks.BEGIN, number)

    def _send(self, what: int, number: int) -> bool:
        with suppress(OSError, ValueError, IndexError):
            if what and _takes(self._pid, what, number, self._dump.inode):
                os.kill(self._pid, what)
                return True
        return False

    def _collect(self, moment: float, *, crashed: bool = False) -> None:
        """Takes in what was written. What a crash wrote goes on to stderr, where it belongs."""
        written = self._dump.take()
        self._waits = self._waits and not written
        is_crash = stacks.FATAL in written
        if is_crash:
            with suppress(OSError):
                os.write(_STDERR, written.encode())
        calls = stacks.of_dump(written) if written and is_crash == crashed else []
        if calls:  # else another process has crashed, a fork of it
            self._asked.append((moment, calls))

    def recording(
        self,
        ring: JobRing,
        how: str,
        began: float,
        end: float,
        attempt: int,
        *,
        crashed: bool,
        error: BaseException | None = None,
        together: int = 1,
    ) -> Recording:
        """Returns the recording of a job that ran since `began`.

        `crashed`: the process is dead by a signal of which it has written its stack. `error` is
        what the job raised, if it did; `together` how many jobs it was handled with.
        """
        self._collect(end if crashed else self._asked_at, crashed=crashed)
        raised = [] if error is None else [(end, stacks.of_error(error))]
        asked = [each for each in self._asked if each[0] >= began]
        return telling.told(
            attempt,
            how,
            end,
            ring.lines(began),
            [*ring.stacks(began), *asked, *raised],
            telling.Used.between(self.use, self._events, began, end),
            together,
        )


def _takes(pid: int, what: int, number: int, inode: int) -> bool:
    """Whether the process has the handler and the file: it may have become another program."""
    if os.stat(f"/proc/{pid}/fd/{number}").st_ino != inode:  # noqa: PTH116 (no link)
        return False
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (what - 1) & 1)
