"""A worker's side of the pool that started it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from qframe.worker import process_tree
from qframe.worker.pool.scoreboard import WorkerScore

VARIABLE = "QFRAME_POOL_MEMBER"
"""The variable of the environment by which a pool tells a worker that it is one of its own."""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """What a worker got from its pool: its part of the scoreboard, and what tells of its death."""

    scoreboard: WorkerScore
    parent: int

    @classmethod
    def joined(cls) -> PoolMember | None:
        """Give the membership of this process, once; None where no pool started it.

        What this process starts is no member. Raises `SystemExit` where the pool is dead already.
        """
        told = os.environ.pop(VARIABLE, "")
        if not told:
            return None
        score, lifeline, parent = map(int, told.split(":"))
        for descriptor in (score, lifeline):
            os.set_inheritable(descriptor, False)
        member = cls(WorkerScore(score), parent)
        process_tree.signal_at_death_of_parent(signal.SIGHUP, lifeline)
        if member.is_orphan():
            raise SystemExit(0)
        return member

    def is_orphan(self) -> bool:
        """Whether the pool is dead."""
        return os.getppid() != self.parent
