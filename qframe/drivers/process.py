"""Who this process is: host name, pid, a token no other process has; and whether one still is."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from qframe import forks

NAME = socket.gethostname()


class _Process:
    """What names this process; a forked child has its own."""

    __slots__ = ("pid", "token")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.token = os.urandom(6).hex()
        self.pid = os.getpid()


own = _Process()
"""`own.pid` asks nobody, and is no call: both cost a job more than it seems."""


def token() -> str:
    """Give this process's token; a forked child has its own."""
    return own.token


def pid() -> int:
    """Give this process's id."""
    return own.pid


@cache
def place() -> str:
    """Name where pids are counted: this boot of this system, this container; "" where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def born(pid: int) -> str:
    """Give when a process here was started, in ticks since boot: a pid may be used again.

    "" where there is no such process, or it has ended and waits for its parent, or where that
    cannot be known.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[_STARTED]


_STARTED = 18
"""Place of the start among the fields behind a process's name and state."""


def before_a_child_ends(act: Callable[[], object]) -> None:
    """Have this called when a process of `multiprocessing` ends, which runs no `atexit`."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, act, exitpriority=0)


forks.in_child(own.renew)
