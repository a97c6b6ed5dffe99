"""Signals of a worker whose jobs have a process each: they are passed on to the processes.

Also while the worker waits for a backend that does not answer.
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
    """A slot that may have a process and a running job."""

    def end(self, error: Interruption) -> None:
        """Ends the job, if it runs and was not ended before."""

    def ring(self) -> float:
        """Ends the process if it is late; returns when it will be."""


class IsolatingSignals(Signals):
    """The worker's signals. `processes` returns what a signal may end."""

    processes: Callable[[], Iterable[Process]] = tuple
    _rings = math.inf

    def arm(self, due: float) -> None:
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
