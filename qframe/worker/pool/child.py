"""A worker's side of the pool that started it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from qframe.worker import process_tree
from qframe.worker.pool.scoreboard import WorkerScore

VARIABLE = "QFRAME_POOL_MEMBER"
"""The environment variable by which a pool marks its workers."""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A worker's part of the scoreboard, and what reports the death of the pool."""

    scoreboard: WorkerScore
    parent: int

    @classmethod
    def joined(cls) -> PoolMember | None:
        """Returns the membership of this process, once; None if no pool started it.

        Children of this process are no members. Raises `SystemExit` if the pool is dead already.
        """
        given = os.environ.pop(VARIABLE, "")
        if not given:
            return None
        score, lifeline, parent = map(int, given.split(":"))
        for descriptor in (score, lifeline):
            os.set_inheritable(descriptor, False)
        member = cls(WorkerScore(score), parent)
        process_tree.signal_at_death_of_parent(signal.SIGHUP, lifeline)
        if member.is_orphan():
            raise SystemExit(0)
        return member

    def is_orphan(self) -> bool:
        return os.getppid() != self.parent
