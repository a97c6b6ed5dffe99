"""Turns: which threads could run while other code kept the interpreter lock."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

LOOK = 0.25
"""Seconds between two looks of the overseer."""
STILL = 0.1
"""Seconds without a turn after which a thread, or the event loop, stands still."""


class Passed(NamedTuple):
    """The seconds since the overseer's last look; if it `is_late`, which threads `ran` since."""

    seconds: float = LOOK
    is_late: bool = False
    ran: frozenset[int] = frozenset()


class Turns:
    """When the overseer looked last, and the processor time of each thread up to then.

    The overseer waits for the interpreter's lock as the jobs do. If it is late, only the threads
    that used the processor meanwhile could run.
    """

    def __init__(self) -> None:
        self.stood = 0.0
        """For how many seconds some code has kept the event loop from the jobs there so far."""
        self._looked: float | None = None
        self._clocks: dict[int, int] = {}
        self._used: dict[int, float] = {}

    def enter(self) -> None:
        """Measures the calling thread, in which jobs are to run."""
        if hasattr(time, "pthread_getcpuclockid"):
            ident = threading.get_ident()
            self._clocks[ident] = time.pthread_getcpuclockid(ident)

    def is_late(self, now: float) -> bool:
        """Whether the overseer should have looked by now."""
        return self._looked is not None and now - self._looked > LOOK + STILL

    def is_kept(self, ident: int, now: float) -> bool:
        """Whether a thread has not run since the overseer should have looked."""
        return self.is_late(now) and not self._has_run(ident, self._seconds(ident))

    def passed(self, now: float) -> Passed:
        """Returns what has passed since the last look; `looked` follows."""
        if self._looked is None or not self.is_late(now):
            return Passed()
        used = self._all_seconds()
        ran = frozenset(ident for ident, seconds in used.items() if self._has_run(ident, seconds))
        return Passed(now - self._looked, is_late=True, ran=ran)

    def looked(self, now: float) -> None:
        """Notes that the overseer has looked, and given back the taken time."""
        self._used = self._all_seconds()
        self._looked = now

    def _has_run(self, ident: int, seconds: float) -> bool:
        # Before the overseer should have looked, it can have used no more than that.
        return seconds - self._used.get(ident, 0.0) > LOOK

    def _all_seconds(self) -> dict[int, float]:
        idents = [*self._clocks]  # a copy: a thread may begin meanwhile
        return {ident: self._seconds(ident) for ident in idents}

    def _seconds(self, ident: int) -> float:
        """Returns the processor time of a thread, also of an ended one."""
        try:
            return time.clock_gettime(self._clocks[ident])
        except (KeyError, OSError):
            return self._used.get(ident, 0.0)
