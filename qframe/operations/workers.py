"""Workers, as people see them: what each does, and whether it is still alive."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pydantic import BaseModel

from qframe.payload.timing import iso
from qframe.worker.roster import Entry, PoolEntry


class RunningState(BaseModel):
    """A running job."""

    uuid: str
    job: str
    queue: str
    attempt: int
    since: str
    seconds: float
    tags: list[str] = []


class WorkerState(BaseModel):
    """One worker. `state`: `idle`, `running`, `paused`, or `gone` if its process has ended."""

    id: str
    name: str
    host: str
    pid: int
    pool: int | None
    connection: str
    queues: list[str]
    state: str
    concurrency: int
    scales: bool
    """Whether it can be scaled by itself."""
    used: int
    idle: int = 0
    """How many slots are free."""
    memory_mb: float
    qframe: str
    version: str = ""
    """Of the application; "" if it is unknown."""
    python: str
    started_at: str
    seen_seconds: float
    processed: int
    failed: int
    jobs: list[RunningState]


class ShareState(BaseModel):
    """How many processes a supervisor gives a queue, or all of its queues, and why."""

    queue: str
    processes: int
    why: str


class SupervisorState(BaseModel):
    """One supervisor, with `processes` of at most `most`; its workers name `pid` as `pool`."""

    name: str
    host: str
    pid: int
    connection: str
    processes: int
    least: int
    most: int
    seen_seconds: float
    gone: bool
    queues: list[ShareState]


def supervisors(entries: Iterable[PoolEntry]) -> list[SupervisorState]:
    """Returns the pools that a supervisor scales."""
    return [
        SupervisorState(
            name=each.name,
            host=each.host,
            pid=each.pid,
            connection=each.connection,
            processes=each.size,
            least=each.least,
            most=each.most or each.size,
            seen_seconds=max(0.0, time.time() - each.beat_at),
            gone=each.is_gone,
            queues=[
                ShareState(queue=queue, processes=count, why=each.why.get(queue, ""))
                for queue, count in each.shares.items()
            ],
        )
        for each in entries
        if each.shares
    ]


def states(entries: Iterable[Entry]) -> list[WorkerState]:
    """Returns workers, dead ones first."""
    found = [_state(each, time.time()) for each in entries]
    return sorted(found, key=lambda each: (each.state != "gone", each.host, each.pid))


def _state(entry: Entry, now: float) -> WorkerState:
    jobs = [
        RunningState(
            uuid=each.uuid,
            job=each.name,
            queue=each.queue,
            attempt=each.attempt,
            since=iso(each.since),
            seconds=max(0.0, now - each.since),
            tags=list(each.tags),
        )
        for each in entry.jobs
    ]
    return WorkerState(
        id=entry.id,
        name=entry.name,
        host=entry.host,
        pid=entry.pid,
        pool=entry.pool,
        connection=entry.connection,
        queues=list(entry.queues),
        state="gone" if entry.is_gone else entry.state,
        concurrency=entry.concurrency,
        scales=entry.scales and entry.pool is None,
        used=len(entry.jobs),
        idle=max(0, entry.concurrency - len(entry.jobs)),
        memory_mb=round(entry.memory, 1),
        qframe=entry.qframe,
        version=entry.version,
        python=entry.python,
        started_at=iso(entry.started_at),
        seen_seconds=max(0.0, now - entry.beat_at),
        processed=entry.counts.get("processed", 0),
        failed=entry.counts.get("failed", 0),
        jobs=jobs,
    )
