"""Kinship: what Linux can do about parents and children, and what is done where it cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 2.0

CAN_SIGNAL_DEATH = sys.platform == "linux"
"""Whether a process can be sent a signal when its parent dies."""


def signal_at_death_of_parent(number: int) -> bool:
    """Have this process sent a signal when its parent dies; says whether it will be.

    It is not if the parent is dead already: look at `os.getppid` afterwards.
    """
    return CAN_SIGNAL_DEATH and _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> bool:
    """Become the parent of what descendants leave behind, as init is; says whether that worked."""
    return sys.platform == "linux" and _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    return False


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


def end_children() -> None:
    """Kill every child there is, and what falls to this process by that, and reap them."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        children = list(_children())
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)


def _children() -> Iterator[int]:
    """Give the processes whose parent is this one; none where there is no /proc."""
    own = os.getpid()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == own:
                yield int(entry.parent.name)
