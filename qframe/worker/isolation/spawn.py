"""Forks processes, and sees to their groups, their ends, and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from qframe.exceptions import QframeError
from qframe.worker import process_tree

_SCORE = Path("/proc/self/oom_score_adj")
_CHILDS_SCORE = 500
"""So that the system, short of memory, ends the job rather than the worker."""
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
        self._lifeline, self._lifeline_end = os.pipe()
        # So that the end of a child wakes who waits for a signal.
        self._sigchld = signal.signal(signal.SIGCHLD, lambda *_: None)
        process_tree.adopt_orphans()
        gc.collect()
        gc.freeze()  # so that a collection in a child writes to none of the pages that are shared

    def close(self) -> None:
        """Leave this process as it was before."""
        for descriptor in (self._null, self._lifeline, self._lifeline_end):
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, self._sigchld)
        process_tree.adopt_orphans(adopt=False)
        gc.unfreeze()

    def fork(self, work: Callable[[Callable[[], object]], None]) -> int:
        """Fork, and call `work` in the child; gives its pid. Raises `OSError`.

        Signals are blocked there until it calls the function it is given.
        """
        flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        unblock = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        parent = os.getpid()
        try:
            pid = os.fork()
            if not pid:
                self._be_child(parent, partial(work, unblock))
            with contextlib.suppress(OSError):  # the child has done it, or is gone already
                os.setpgid(pid, pid)
        finally:
            unblock()
        return pid

    def _be_child(self, parent: int, work: Callable[[], None]) -> NoReturn:
        code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            os.setpgid(0, 0)
            os.close(self._lifeline_end)
            process_tree.signal_at_death_of_parent(signal.SIGKILL, self._lifeline)
            if os.getppid() == parent:
                os.dup2(self._null, 0)
                with contextlib.suppress(OSError, ValueError):
                    if int(_SCORE.read_text()) < _CHILDS_SCORE:
                        _SCORE.write_text(str(_CHILDS_SCORE))
                work()
                code = 0
        except QframeError:  # the worker cannot be told
            pass
        except BaseException:  # noqa: BLE001 (nothing of the parent's may run here)
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                flush()
                logging.shutdown()
            os._exit(code)


def flush() -> None:
    """Write out what is buffered: in two processes, it would be written twice."""
    for each in (sys.stdout, sys.stderr, *logging.getLogger().handlers):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            each.flush()
