"""What Linux can do about parents and children, and what is done where it cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 2.0


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).prctl
    call.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return call


prctl = _prctl()


def can_signal_death() -> bool:
    """Whether a process can be sent a signal when its parent dies."""
    return prctl is not None


def signal_at_death_of_parent(number: int) -> None:
    """Have this process sent a signal when its parent dies, where that can be.

    It is not if the parent is dead already: look at `os.getppid` afterwards.
    """
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans(*, adopt: bool = True) -> None:
    """Become the parent of what descendants leave behind, as init is, or stop being it."""
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, adopt, 0, 0, 0)


def children() -> frozenset[int]:
    """Name the children of this process; none where that cannot be known."""
    if prctl is None:
        return frozenset()
    pid = os.getpid()
    found: set[int] = set()
    with contextlib.suppress(OSError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises where there are none
        for task in Path(f"/proc/{pid}/task").iterdir():  # each has those that it has forked
            found.update(map(int, (task / "children").read_text().split()))
    return frozenset(found)


def dead_children() -> Iterator[tuple[int, int]]:
    """Give pid and status of each child that has died, and reap it afterwards.

    Until then nobody else can have its pid, nor its process group's.
    """
    wait = getattr(os, "waitid", None)
    with contextlib.suppress(ChildProcessError):
        while True:
            if wait is not None:
                found = wait(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                yield found.si_pid, _status(found.si_code, found.si_status)
                os.waitpid(found.si_pid, 0)
            else:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                yield pid, status


def _status(code: int, number: int) -> int:
    """Put what `waitid` says into the form of `waitpid`."""
    return number << 8 if code == os.CLD_EXITED else number


def end_children(spare: frozenset[int] = frozenset(), pause: float = 0.01) -> None:
    """Kill the children there are, and what falls to this process by that, and reap them."""
    until = time.monotonic() + _PATIENCE
    while left := children() - spare:
        for child in left:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(pause)


def signal_name(number: int) -> str:
    """Name a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
