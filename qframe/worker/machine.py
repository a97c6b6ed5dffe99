"""What this machine can bear: how many processes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_OF_CORE = 100
"""Workers, most of which wait."""
_MEGABYTES = 40
"""What a worker takes for itself, at the least."""
_FORKED = 10
"""What a job's process takes, which shares most with its worker."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_LEAST = 4


@cache
def cores() -> int:
    """Give how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@cache
def most_processes(*, forked: bool = False) -> int:
    """Give how many workers, or `forked` jobs, this machine bears by cores, memory and limits."""
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
    """Give what is allowed of processes and of descriptors, which a pool has one of each worker."""
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
