"""What the workers of each group have done, and are doing, as their scoreboards say it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.pool.slot import WorkerSlot


class GroupTally(NamedTuple):
    """Of one group: what was begun and ended so far, and how long those that run have run.

    `processes` are those there are to be, `ending` those that were told to end.
    """

    begun: int = 0
    ended: int = 0
    seconds: float = 0.0
    running: Sequence[float] = ()
    processes: int = 0
    ending: int = 0


class Tally:
    """Adds up what workers say, also those that have ended."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def gone(self, group: str, score: WorkerScore) -> None:
        """Keep what a worker that has ended did; before its scoreboard is closed."""
        for each in score.tallies():
            self._begun[group] += each.begun
            self._ended[group] += each.ended
            self._seconds[group] = self._seconds.get(group, 0.0) + each.seconds

    def look(self, slots: Sequence[WorkerSlot]) -> dict[str, GroupTally]:
        """Give how each group stands."""
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
