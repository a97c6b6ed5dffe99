"""Spawner: forks processes, and cleans up their groups and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from qframe.exceptions import QframeError
from qframe.worker import handlers, process_tree

_SCORE = "/proc/self/oom_score_adj"
_CHILDS_SCORE = 500
FAILED = 70
"""Exit code of a child that failed outside of its job, or could not report how the job ended."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a process ended. `status` is as from `os.waitpid`; None if other code reaped it."""

    pid: int
    status: int | None
    megabytes: float = 0.0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.status == 0

    @property
    def is_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status)

    @property
    def signal(self) -> int:
        """What has killed it; 0: nothing."""
        return os.WTERMSIG(self.status) if self.status is not None and self.is_killed else 0

    def how(self) -> str:
        """How it ended, in few words."""
        if self.status is None:
            return "has ended, nobody knows how"
        if self.is_killed:
            return f"killed by {process_tree.signal_name(self.signal)}"
        return f"exited with code {os.waitstatus_to_exitcode(self.status)}"

    def words(self) -> str:
        used = f" (pid {self.pid}, at most {self.megabytes:.0f} MB, {self.seconds:.2f} s of CPU)"
        if self.status is None or not self.is_killed:
            return f"{self.how()}{used}"
        guess = ", possibly out of memory" if self.signal == signal.SIGKILL else ""
        core = ", core dumped" if os.WCOREDUMP(self.status) else ""
        return f"was {self.how()}{guess}{core}{used}"


class Spawner:
    """Forks the children of this process; finds out once what is the same for all.

    While a child lives, it adopts its orphaned descendants. Orphans that this process adopts are
    therefore of children that have ended, and are ended, too. This process's own children are
    spared: those that were there before any fork, and those in its process group. A child may get
    `sent_signals`.
    """

    def __init__(self, sent_signals: Collection[int]) -> None:
        self._alive: set[int] = set()
        self._spared: frozenset[int] = frozenset()
        self._has_left = False
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._lifeline, self._lifeline_end = os.pipe()
        # The end of a child must wake the worker.
        handlers.take(signal.SIGCHLD, lambda *_: None)
        # The signals a child is sent, and those with a handler here. To block all takes longer.
        handled = (n for n in signal.valid_signals() if callable(signal.getsignal(n)))
        self._signals = {*sent_signals, *handled}
        process_tree.adopt_orphans()
        gc.collect()
        gc.freeze()  # a collection in a child then copies no shared pages

    def close(self) -> None:
        for descriptor in (self._null, self._lifeline, self._lifeline_end):
            os.close(descriptor)
        handlers.give_back(signal.SIGCHLD)
        process_tree.adopt_orphans(adopt=False)
        gc.unfreeze()

    def fork(self, work: Callable[[Callable[[], object]], None]) -> int:
        """Forks, and calls `work` in the child; returns its pid. Raises `OSError`.

        Signals are blocked there until it calls the function it is given.
        """
        flush()
        if not (self._alive or self._has_left):
            self._spared = process_tree.children()
        unblock = handlers.hold(self._signals)
        parent = os.getpid()
        try:
            pid = os.fork()
            if not pid:
                self._be_child(parent, partial(work, unblock))
            with contextlib.suppress(OSError):  # the child has done it, or is gone already
                os.setpgid(pid, pid)
        finally:
            unblock()
        self._alive.add(pid)
        return pid

    def ended(self, pid: int) -> ChildExit | None:
        """Returns how a child ended, and ends what it left behind; None while it runs."""
        try:
            found, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            end = ChildExit(pid, None)
        else:
            if not found:
                return None
            size = usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024 * 1024)
            end = ChildExit(pid, status, size, usage.ru_utime + usage.ru_stime)
        self._alive.discard(pid)
        process_tree.kill_group(pid)
        self._has_left = True
        self.end_left()
        return end

    def end_left(self) -> None:
        """Ends what ended children have left behind, as far as it is there by now."""
        if self._has_left:
            self._has_left = process_tree.kill_children(self._is_spared)

    def _is_spared(self, pid: int) -> bool:
        if pid in self._alive or pid in self._spared:
            return True
        try:
            return os.getpgid(pid) == os.getpgrp()
        except OSError:
            return False

    def _be_child(self, parent: int, work: Callable[[], None]) -> NoReturn:
        code = FAILED
        try:
            os.setpgid(0, 0)
            os.close(self._lifeline_end)
            process_tree.signal_at_death_of_parent(signal.SIGKILL, self._lifeline)
            process_tree.adopt_orphans()
            if os.getppid() == parent:
                os.dup2(self._null, 0)
                with contextlib.suppress(OSError, ValueError):
                    _be_ended_first()
                work()
                code = 0
        except QframeError:  # there is no way to report to the worker
            pass
        except BaseException:  # noqa: BLE001 (nothing of the parent's may run here)
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                flush()
                logging.shutdown()
            os._exit(code)


def _be_ended_first() -> None:
    """Makes the system, short of memory, end this process rather than the worker."""
    score = os.open(_SCORE, os.O_RDWR)
    if int(os.read(score, 20)) < _CHILDS_SCORE:
        os.write(score, b"%d" % _CHILDS_SCORE)
    os.close(score)


def flush() -> None:
    """Writes out buffers: otherwise two processes would write them."""
    for each in (sys.stdout, sys.stderr, *logging.getLogger().handlers):
        with contextlib.suppress(Exception):  # a job's own may raise anything
            each.flush()
