"""What Linux can do about parents and children, and what is done where it cannot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from qframe.drivers.heartbeat import start_thread

_PR_SET_PDEATHSIG = 1
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
    """Have this process sent a signal when its parent dies; says nothing of one that is dead.

    `lifeline` is the reading end of a pipe whose other end only the parent has: where the system
    cannot do it, a thread waits for the end of that.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), number)

    if prctl is None:
        start_thread("qframe-lifeline", wait)
    else:
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
        # Each task has those that it has forked. Pathlib's way takes several times as long.
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as those:  # noqa: PTH123
                found.update(map(int, those.read().split()))
    return frozenset(found)


def dead_children() -> Iterator[tuple[int, int]]:
    """Reap each child that has died, and give its pid and status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def end_children() -> None:
    """Kill the children there are, and what falls to this process by that, and reap them."""
    until = time.monotonic() + _PATIENCE
    while kill_children() and time.monotonic() < until:
        time.sleep(_PAUSE)


def kill_children(spare: Callable[[int], bool] = lambda _: False) -> bool:
    """Kill the children there are but those to spare, and reap those that are dead.

    Says whether there were any: they, or what falls to this process by that, may be there still.
    """
    left = [child for child in children() if not spare(child)]
    for child in left:
        send(child, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(child, os.WNOHANG)
    return bool(left)


def send(pid: int, number: int) -> None:
    """Send a signal to a child; one that is gone hears nothing."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    """Kill what is left of the process group of a child."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Name a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
