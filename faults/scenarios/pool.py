"""Pools of workers: their workers are killed and stopped, and so are the pools themselves.

The lease is so long that only a pool can bring a job back in time.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial

import psutil

from faults.scenario import scenario
from faults.site import Producer, Site
from tests.support.process import Process

_LEASE = 60.0
_SOON = 1.0
"""Seconds until a dead worker's job is run again."""


def _pool(site: Site, workers: int) -> Process:
    """Start a pool and wait until all its workers are up."""
    before = len(site.notes("U"))
    pool = site.worker("--workers", workers)
    if not site.wait_for(lambda: len(site.notes("U")) >= before + workers):
        site.violate(f"a pool of {workers} was not up in a minute: {pool.err}")
    return pool


def _busy(site: Site) -> int:
    """Give a worker that has begun a job just now."""
    found: list[int] = []

    def begun() -> bool:
        since = time.monotonic() - 0.05
        recent = [int(words[3]) for words in site.notes("S") if float(words[-1]) >= since]
        found[:] = [pid for pid in recent if psutil.pid_exists(pid)]
        return bool(found)

    if not site.wait_for(begun):
        raise AssertionError("no worker began a job in a minute")
    return site.chance.choice(found)


def _are_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() for process in processes)


def _end(site: Site, pool: Process) -> None:
    """Let the pool drain the queue, and stop it; nothing of it may be left."""
    site.check(site.wait_for(lambda: site.left() == 0), f"{site.left()} jobs are left")
    workers = psutil.Process(pool.pid).children(recursive=True)
    pool.signal(signal.SIGTERM)
    site.check(pool.wait() == 0, f"the pool exited {pool.popen.returncode}: {pool.err[-400:]}")
    site.check(_are_gone(workers), f"some of {workers} outlive their pool")


@scenario("P1", "workers of a pool are killed", lease=_LEASE)
def workers_killed(site: Site) -> None:
    """Kill workers in their jobs: another runs each of these at once, and takes the place."""
    site.limit = site.patience(_SOON)
    kills = site.count(25, 4)
    pool = _pool(site, 4)
    with Producer(site, 0.02, seconds=(0.01, 0.1)):
        for _ in range(kills):
            pid = _busy(site)
            with site.fault("killed", pid), suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            site.pause(0.5)
    _end(site, pool)
    site.remark(f"kills {kills}")


@scenario("P2", "pools are killed, their workers are not", lease=_LEASE)
def pools_killed(site: Site) -> None:
    """Kill the parents: their workers end after their jobs, so that each runs once."""
    kills = site.count(8, 2)
    pool = _pool(site, 3)
    with Producer(site, 0.05, seconds=(0.05, 0.3)):
        for _ in range(kills):
            workers = psutil.Process(pool.pid).children()
            pool.end()
            gone = site.wait_for(partial(_are_gone, workers), 10)
            site.check(gone, f"workers {workers} outlive their pool")
            pool = _pool(site, 3)
    _end(site, pool)
    site.remark(f"kills {kills}")


@scenario("P3", "a pool is stopped, its workers are not", lease=_LEASE)
def pools_stopped(site: Site) -> None:
    """Stop the parent for a while: the workers go on; one killed meanwhile is replaced later."""
    site.limit = None
    pool = _pool(site, 3)
    with Producer(site, 0.05, seconds=(0.05, 0.2)):
        for _ in range(site.count(5, 1)):
            pool.signal(signal.SIGSTOP)
            go_on = partial(site.has_begun, site.starts() + 20)
            site.check(site.wait_for(go_on), "no job begins")
            pid = _busy(site)
            with site.fault("killed", pid), suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            site.pause(1)
            pool.signal(signal.SIGCONT)
            site.pause(1)
    _end(site, pool)
