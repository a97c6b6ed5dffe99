"""The identity of this process: host name, pid and unique token; and whether another one lives."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from qframe import forks

NAME = socket.gethostname()


class _ThisProcess:
    """The identity of this process; a forked child has its own."""

    __slots__ = ("pid", "token")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.token = os.urandom(6).hex()
        self.pid = os.getpid()


own = _ThisProcess()
"""Attributes instead of calls (`own.pid`): each job reads them several times."""


def token() -> str:
    """Return this process's token; a forked child has its own."""
    return own.token


def pid() -> int:
    """Return this process's id."""
    return own.pid


@cache
def place() -> str:
    """Identify the pid namespace: boot of the system, and container; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def born(pid: int) -> str:
    """Return when a process was started, in ticks since boot, to detect a reused pid.

    "" if there is no such process, if it is a zombie, or if the start is unknown.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[_STARTED]


_STARTED = 18
"""Index of the start time among the fields behind a process's name and state."""


def before_a_child_ends(act: Callable[[], object]) -> None:
    """Call `act` when a `multiprocessing` child ends, which runs no `atexit`."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, act, exitpriority=0)


forks.in_child(own.renew)
