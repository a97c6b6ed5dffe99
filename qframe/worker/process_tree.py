"""Process tree: what Linux offers for parents and children, and the substitute elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from qframe.drivers.heartbeat import start_thread

PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 2.0
_PAUSE = 0.01


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).prctl
    call.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return call


prctl = _prctl()


def signal_at_death_of_parent(number: int, lifeline: int) -> None:
    """Sends this process a signal when its parent dies, unless it is dead already.

    `lifeline` is the reading end of a pipe whose other end only the parent has: if the system
    cannot do it, a thread waits for the end of the pipe.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), number)

    if prctl is None:
        start_thread("qframe-lifeline", wait)
    else:
        prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans(*, adopt: bool = True) -> None:
    """Becomes the parent of orphaned descendants, as init is, or stops being it."""
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, adopt, 0, 0, 0)


def children() -> frozenset[int]:
    """Returns the children of this process; none if that cannot be known."""
    if prctl is None:
        return frozenset()
    pid = os.getpid()
    found: set[int] = set()
    with contextlib.suppress(OSError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if there are none
        # Each task has the children that it forked. Pathlib takes several times as long.
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as those:  # noqa: PTH123
                found.update(map(int, those.read().split()))
    return frozenset(found)


def dead_children() -> Iterator[tuple[int, int]]:
    """Reaps each dead child, and yields its pid and status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def end_children() -> None:
    """Kills and reaps all children, and the orphans that this process then adopts."""
    until = time.monotonic() + _PATIENCE
    while kill_children() and time.monotonic() < until:
        time.sleep(_PAUSE)


def kill_children(spare: Callable[[int], bool] = lambda _: False) -> bool:
    """Kills all children but those to spare, and reaps the dead ones.

    Returns whether there were any: they, or orphans that this process then adopts, may still be
    there.
    """
    left = [child for child in children() if not spare(child)]
    for child in left:
        send(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, os.WNOHANG)
    return bool(left)


def send(pid: int, number: int) -> None:
    """Sends a signal to a child that may be gone."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
