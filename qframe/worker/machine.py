"""Machine: how many processes this machine can bear."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_OF_CORE = 100
"""Workers for each core; most of them wait."""
_MEGABYTES = 40
"""Megabytes a worker takes, at the least."""
_FORKED = 10
"""Megabytes of a job's process, which shares most memory with its worker."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_LEAST = 4


@cache
def cores() -> int:
    """Returns how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@cache
def most_processes(*, forked: bool = False) -> int:
    """Returns how many workers, or `forked` jobs, cores, memory and limits allow."""
    bounds = [_OF_CORE * cores(), *_of_memory(_FORKED if forked else _MEGABYTES), *_of_limits()]
    return max(_LEAST, min(bounds))


def _of_memory(megabytes: int) -> list[int]:
    bounds = []
    try:
        bounds.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        bounds.append(int(_CGROUP.read_text("ascii")))
    except (AttributeError, OSError, ValueError):  # not there, or "max"
        pass
    return [each // (megabytes << 20) for each in bounds if each > 0]


def _of_limits() -> list[int]:
    """Returns the limits of processes and of descriptors; a pool has one of each per worker."""
    try:
        import resource  # noqa: PLC0415 (not there on Windows)
    except ImportError:
        return []
    bounds = []
    for kind, each in ((resource.RLIMIT_NPROC, 4), (resource.RLIMIT_NOFILE, 2)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            bounds.append(soft // each)
    return bounds
