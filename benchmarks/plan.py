"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of a run; what the issue asks for unless told otherwise."""

    rounds: int = 5
    jobs: int = 5_000
    bulk: int = 10_000
    samples: int = 20
    few: int = 1_000
    waiting: int = 100_000
    delayed: int = 50_000
    backlog_rounds: int = 9
    idle_seconds: float = 10
    seconds: float = 1
    """How long about a peer drains, where they are too different for one number of jobs."""
    redis_few: int = 10_000
    redis_waiting: int = 1_000_000
    sql_seconds: float = 2
    """The same on PostgreSQL and MariaDB."""
    sql_jobs: int = 3_000
    sql_few: int = 10_000
    sql_waiting: int = 1_000_000
    sql_dead: int = 100_000
    burning: int = 400
    """Jobs that burn 5 ms of processor time each."""
    forks: int = 2_000
    """Jobs that have a process of their own each."""
    alone_at_a_time: int = 2_000
    """Jobs with one key, of which two never run at once."""
    many: int = 10_000
    """Links of a chain, members of a batch, unique tracked jobs."""
    lease: float = 2
    """Seconds of `retry_after`, where a worker is killed."""
    watched: float = 400
    """Seconds in which a killed worker's job may be run again."""
    concurrent_seconds: float = 1
    """How long about a side drains that runs fifty jobs at once."""
    concurrent_jobs: int = 15_000
    """About what we drain of them in a second, where they do nothing."""
    mixed: int = 500
    """Jobs of a mix, of which each hundredth computes."""
    page_waiting: int = 1_000_000
    page_failed: int = 200_000
    parts: tuple[str, ...] = ()
    """What is measured of a group that has parts; all where none is named."""
    alone: bool = False
    """Whether peers that need an installation of their own are left out."""
    against: Path | None = None
    """Another checkout of qframe, to be measured beside this one."""

    @classmethod
    def quick(cls) -> Self:
        """Just enough to see that everything runs."""
        return cls(
            rounds=1,
            jobs=100,
            bulk=200,
            samples=2,
            few=100,
            waiting=500,
            delayed=200,
            backlog_rounds=1,
            idle_seconds=0.5,
            seconds=0.02,
            redis_few=200,
            redis_waiting=2_000,
            sql_seconds=0.05,
            sql_jobs=100,
            sql_few=200,
            sql_waiting=2_000,
            sql_dead=500,
            burning=20,
            forks=30,
            alone_at_a_time=60,
            many=100,
            lease=1,
            watched=3,
            concurrent_seconds=0.1,
            mixed=100,
            page_waiting=3_000,
            page_failed=600,
        )
