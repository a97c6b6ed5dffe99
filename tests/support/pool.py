"""A pool of workers under test, what it says as JSON lines, and what becomes of its processes."""

from __future__ import annotations

from typing import Any

import psutil

from tests.support.process import Process, Project, wait_for

STARTED_AGAIN = 30.0
"""Seconds in which a job is taken up whose lease would last a minute; on a busy machine."""


def pool(project: Project, *arguments: object, workers: int = 2, **settings: Any) -> Process:
    """Start a pool whose leases are so long that only the pool can bring a job back in time."""
    project.configure(settings.pop("toml", ""), retry_after=60)
    return project.work("--workers", workers, "--json", *arguments, **settings)


def rows(process: Process, status: str, **fields: object) -> list[dict[str, Any]]:
    """Give the JSON lines of this status and these fields."""
    return [
        row
        for row in process.rows
        if row["status"] == status and all(row[key] == value for key, value in fields.items())
    ]


def wait_for_row(process: Process, status: str, count: int = 1, **fields: object) -> dict[str, Any]:
    """Wait for as many such lines and give the last."""
    return wait_for(
        lambda: rows(process, status, **fields)[count - 1 :],
        f"{count} x {status} {fields} in\n{process.out}\n{process.err}",
    )[0]


def children(process: Process) -> list[psutil.Process]:
    """Give the processes a pool has started, and those they have."""
    return process.descendants()


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all have ended."""
    return not any(_is_alive(each) for each in processes)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_workers(project: Project, process: Process, count: int = 2) -> list[int]:
    """Wait until so many workers wait for jobs; gives their pids."""
    wait_for(lambda: len({note[1] for note in project.notes("idle")}) >= count, "idle workers")
    return [int(note[1]) for note in project.notes("idle")]


IDLE = '[listeners]\nWorkerIdle = ["jobs:hear_idle"]\n'
"""A setting by which workers note when they wait for jobs."""
