"""A child as its worker sees it: heard while it runs, its lease kept, ended when its time is up."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from qframe.drivers.sockets import readable
from qframe.exceptions import JobCancelled, JobGivenBack
from qframe.features.reserved import ReservedJob
from qframe.worker import process_tree
from qframe.worker.isolation import child
from qframe.worker.isolation.messages import Message, line
from qframe.worker.isolation.spawn import ChildExit
from qframe.worker.runner import Runner

STACKS = 0.2
"""Seconds a process that is about to be killed has to show where it is stuck."""
_PART = 65536
_PATIENCE = 10.0
"""Seconds in which a process that waits for a message has to take it."""
_ENDINGS = {JobGivenBack: child.GIVE_BACK, JobCancelled: child.CANCEL}
"""How the job's process is told that it is ended, where it is not interrupted."""


class SupervisedChild:
    """A forked process and the socket to it. `exit` says how it ended, once it has.

    `others` are the children there were before; what else it leaves behind is ended with it.
    """

    def __init__(
        self, runner: Runner, pid: int, others: frozenset[int], sock: socket.socket
    ) -> None:
        self.exit: ChildExit | None = None
        self.was_late = False
        """Whether its time was up."""
        self._runner = runner
        self._pid = pid
        self._others = others
        self._socket = sock
        self._is_open = True
        self._begun = b""
        self._ends_at = float("inf")
        self._interrupted = False

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now; 0 is no limit."""
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")

    def wait(self, hear: Callable[[Message], bool], job: ReservedJob | None = None) -> bool:
        """Wait until it says what `hear` waits for; false where it ends before.

        `job` is what runs: its child is ended with its lease, and when the worker is told so.
        """
        signals = self._runner.signals
        try:
            while True:
                signals.drain()  # first: what comes from here on ends the wait below
                self.exit = self._ended(os.WNOHANG)
                if any(hear(message) for message in self.hear()):
                    return True
                if self.exit is not None:
                    return False
                self._look_after(job)
                heard = [signals.fileno(), *([self._socket.fileno()] if self._is_open else [])]
                left = max(0.0, self._ends_at - time.monotonic())
                readable(heard, min(left, self._runner.leases.every))
        except BaseException:
            self._kill()
            self.exit = self._ended(0)
            raise

    def end(self, seconds: float, hear: Callable[[Message], bool]) -> ChildExit:
        """Tell it no more, and wait for its end; it has so many seconds."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.allow(seconds)
        while self.exit is None:
            self.wait(hear)
        self._socket.close()
        return self.exit

    # -- what is said -----------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Say something to a process that waits for it; one that is gone hears nothing."""
        with suppress(OSError):
            self._socket.settimeout(_PATIENCE)
            self._socket.sendall(line(message))

    def hear(self) -> list[Message]:
        """Give the messages that have come; what is none ends it all."""
        try:
            while self._is_open:
                part = self._socket.recv(_PART, socket.MSG_DONTWAIT)
                self._is_open = bool(part)
                self._begun += part
        except BlockingIOError:
            pass
        except OSError:
            self._is_open = False
        *lines, self._begun = self._begun.split(b"\n")
        try:
            return [dict(json.loads(each)) for each in lines]
        except (ValueError, TypeError):
            self._is_open = False
            self._socket.close()
            return []

    # -- its end ----------------------------------------------------------------------------------

    def _look_after(self, job: ReservedJob | None) -> None:
        self._runner.heartbeat.beat()
        now, fired = time.monotonic(), self._runner.signals.fired
        if now >= self._ends_at:
            self._end_late()
        if job is None:
            return
        if job.is_lost:
            self._kill()
        if fired is not None and not self._interrupted:
            self._interrupted = True
            process_tree.send(self._pid, _ENDINGS.get(type(fired), child.INTERRUPT))
            self._ends_at = min(self._ends_at, now + self._runner.options.grace)

    def _end_late(self) -> None:
        """Its time is up: let it show where it is stuck, then kill it."""
        if self.was_late:
            self._kill()
        else:
            self.was_late = True
            process_tree.send(self._pid, child.SHOW_STACKS)
            self._ends_at = time.monotonic() + STACKS

    def _kill(self) -> None:
        self._ends_at = float("inf")
        process_tree.kill_group(self._pid)
        process_tree.send(self._pid, signal.SIGKILL)  # it may have left its group

    def _ended(self, flags: int) -> ChildExit | None:
        """Say how it ended, and end what it has left behind; None while it runs."""
        try:
            pid, status, usage = os.wait4(self._pid, flags)
        except ChildProcessError:
            found = ChildExit(self._pid, None)
        else:
            if not pid:
                return None
            size = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)
            found = ChildExit(pid, status, size, usage.ru_utime + usage.ru_stime)
        process_tree.kill_group(self._pid)
        process_tree.end_children(spare=self._others, pause=0.001)
        return found
