"""Signals of a worker whose jobs have a process each: what ends jobs is told their processes.

Also while the worker waits for a backend that says nothing.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Protocol

from qframe.exceptions import Interruption
from qframe.worker.signals import Signals

_SOON = 0.001


class Process(Protocol):
    """What has a process, perhaps, in which a job runs, perhaps."""

    def end(self, error: Interruption) -> None:
        """End the job, if it runs, and was not told so before."""

    def ring(self) -> float:
        """End the process if it is late; gives when it will be."""


class IsolatingSignals(Signals):
    """What the worker has been told. `processes` gives what there is to be ended."""

    processes: Callable[[], Iterable[Process]] = tuple
    _rings = math.inf

    def arm(self, due: float) -> None:
        """Have the alarm ring by then."""
        if due < self._rings:
            self._rings = due
            signal.setitimer(signal.ITIMER_REAL, max(_SOON, due - time.monotonic()))

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        now, self._rings = time.monotonic(), math.inf
        dues = [process.ring() for process in self.processes()]
        self.arm(min((due for due in dues if due > now), default=math.inf))

    def _end_job(self, error: Interruption, _frame: FrameType | None) -> None:
        for process in self.processes():
            process.end(type(error)(*error.args))
