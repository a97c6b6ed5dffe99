"""Forks processes, and sees to their groups, their ends, and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from qframe.worker import process_tree

_SCORE = Path("/proc/self/oom_score_adj")
_CHILDS_SCORE = 500
"""So that the system, short of memory, ends the job rather than the worker."""
_BLOCKED = frozenset(
    {
        signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1,
        signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM, signal.SIGCHLD,
    }
)  # fmt: skip
Work = Callable[[Callable[[], object]], int]
FAILED = 70
"""Exit code of a child that broke outside of its job, or could not say how that did."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a process ended. `status` is as `os.waitpid` gives it, None where another took it."""

    pid: int
    status: int | None
    megabytes: float = 0.0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether it left with exit code 0."""
        return self.status == 0

    @property
    def is_killed(self) -> bool:
        """Whether a signal ended it."""
        return self.status is not None and os.WIFSIGNALED(self.status)

    def words(self) -> str:
        """Say it in a line."""
        used = f" (pid {self.pid}, at most {self.megabytes:.0f} MB, {self.seconds:.2f} s of CPU)"
        if self.status is None:
            return f"has ended, nobody knows how{used}"
        if not self.is_killed:
            return f"exited with code {os.waitstatus_to_exitcode(self.status)}{used}"
        number = os.WTERMSIG(self.status)
        name = process_tree.signal_name(number)
        guess = ", possibly out of memory" if number == signal.SIGKILL else ""
        core = ", core dumped" if os.WCOREDUMP(self.status) else ""
        return f"was killed by {name}{guess}{core}{used}"


class Spawner:
    """Forks the children of this process; what is the same for all is found out once."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._lifeline = None if process_tree.can_signal_death() else os.pipe()
        # So that the end of a child wakes who waits for a signal.
        self._sigchld = signal.signal(signal.SIGCHLD, lambda *_: None)
        process_tree.adopt_orphans()
        gc.collect()
        gc.freeze()  # so that a collection in a child writes to none of the pages that are shared

    def close(self) -> None:
        """Leave this process as it was before."""
        os.close(self._null)
        for descriptor in self._lifeline or ():
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, self._sigchld)
        process_tree.adopt_orphans(adopt=False)
        gc.unfreeze()

    def fork(self, work: Work) -> ChildProcess:
        """Fork. In the child, call `work`, which gives its exit code.

        Signals are blocked there until it calls the function it is given. Raises `OSError`.
        """
        flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        parent = os.getpid()
        others = process_tree.children()
        try:
            pid = os.fork()
            if not pid:
                self._be_child(parent, work, before)
            with contextlib.suppress(OSError):  # the child has done it, or is gone already
                os.setpgid(pid, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ChildProcess(pid, others)

    def _be_child(
        self,
        parent: int,
        work: Work,
        mask: set[int | signal.Signals],
    ) -> NoReturn:
        code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            os.setpgid(0, 0)
            self._die_with(parent)
            os.dup2(self._null, 0)
            with contextlib.suppress(OSError, ValueError):
                if int(_SCORE.read_text()) < _CHILDS_SCORE:
                    _SCORE.write_text(str(_CHILDS_SCORE))
            code = work(partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask))
        except BaseException:  # noqa: BLE001 (nothing of the parent's may run here)
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                flush()
                logging.shutdown()
            os._exit(code)

    def _die_with(self, parent: int) -> None:
        """End this process when its parent is gone, however that ended."""
        process_tree.signal_at_death_of_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(FAILED)
        if self._lifeline is not None:
            reader, writer = self._lifeline
            os.close(writer)
            threading.Thread(target=_end_with, args=(reader,), daemon=True).start()


class ChildProcess:
    """A child, until it was waited for. `others`: the children there were before."""

    def __init__(self, pid: int, others: frozenset[int]) -> None:
        self.pid = pid
        self._others = others

    def send(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and its group."""
        self._kill_group()
        self.send(signal.SIGKILL)  # it may have left its group

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def ended(self, *, at_once: bool = True) -> ChildExit | None:
        """Say how it ended, and end what it has left behind; None where it still runs `at_once`."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG if at_once else 0)
        except ChildProcessError:
            found = ChildExit(self.pid, None)
        else:
            if not pid:
                return None
            size = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)
            found = ChildExit(pid, status, size, usage.ru_utime + usage.ru_stime)
        self._kill_group()
        process_tree.end_children(spare=self._others, pause=0.001)
        return found


def flush() -> None:
    """Write out what is buffered: in two processes, it would be written twice."""
    for each in (sys.stdout, sys.stderr, *logging.getLogger().handlers):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            each.flush()


def _end_with(reader: int) -> None:
    """End this process, and its group, when the other end is closed."""
    while os.read(reader, 1):
        pass
    os.killpg(0, signal.SIGKILL)
