"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
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
    alone: bool = False
    """Whether peers that need an installation of their own are left out."""

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
        )
