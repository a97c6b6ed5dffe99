"""Tally: what the workers of each group have done and are doing, from their scoreboards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.pool.slot import WorkerSlot


class GroupTally(NamedTuple):
    """One group: jobs begun and ended so far, and the ages of the running ones.

    `processes` are those there are to be, `ending` those that were told to end.
    """

    begun: int = 0
    ended: int = 0
    seconds: float = 0.0
    running: Sequence[float] = ()
    processes: int = 0
    ending: int = 0


class Tally:
    """Adds up the scoreboards, including those of ended workers."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def gone(self, group: str, score: WorkerScore) -> None:
        """Adds what an ended worker did; before its scoreboard is closed."""
        for each in score.tallies():
            self._begun[group] += each.begun
            self._ended[group] += each.ended
            self._seconds[group] = self._seconds.get(group, 0.0) + each.seconds

    def look(self, slots: Sequence[WorkerSlot]) -> dict[str, GroupTally]:
        return {group: self._of(group, slots) for group in {slot.group for slot in slots}}

    def _of(self, group: str, slots: Sequence[WorkerSlot]) -> GroupTally:
        mine = [slot for slot in slots if slot.group == group]
        kept = [slot for slot in mine if not slot.is_surplus]
        jobs = [job for slot in mine if slot.worker for job in slot.worker.score.tallies()]
        own = [job for slot in kept if slot.worker for job in slot.worker.score.tallies()]
        now = time.monotonic()
        return GroupTally(
            begun=self._begun[group] + sum(job.begun for job in jobs),
            ended=self._ended[group] + sum(job.ended for job in jobs),
            seconds=self._seconds.get(group, 0.0) + sum(job.seconds for job in jobs),
            running=tuple(now - job.since for job in own if job.since),
            processes=len(kept),
            ending=len(mine) - len(kept),
        )
