"""Our job of which two never run at once; it marks its start and its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.apps import MARKS, effects
from qframe import Queueable
from qframe.middleware import WithoutOverlapping

_marks = os.open(Path(MARKS), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _mark(*words: object) -> None:
    line = f"{' '.join(map(str, words))} {time.monotonic():.6f}\n"
    os.write(_marks, line.encode())


class Here(Queueable):
    """Says that a worker is up."""

    def handle(self) -> None:
        """Mark it, and leave the next one to another."""
        _mark("U", os.getpid())
        time.sleep(0.05)


class Alone(Queueable):
    """Takes 5 ms, and has the one key there is."""

    number: int
    middleware = (WithoutOverlapping(),)

    def handle(self) -> None:
        """Sleep between two marks, then append one byte."""
        _mark("S", self.number, self.attempts, os.getpid())
        time.sleep(0.005)
        _mark("D", self.number, self.attempts, os.getpid())
        effects.write_byte()
