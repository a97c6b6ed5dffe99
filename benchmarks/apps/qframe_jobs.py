"""Our jobs."""

from __future__ import annotations

from benchmarks.apps import effects
from qframe import Queueable


class Append(Queueable):
    """A no-op job."""

    def handle(self) -> None:
        """Append one byte."""
        effects.write_byte()


class Since(Queueable):
    """A job that notes how long after a moment it started."""

    moment: float

    def handle(self) -> None:
        """Append the time that has passed."""
        effects.write_since(self.moment)


class Burn(Queueable):
    """A job that needs 5 ms of processor time."""

    def handle(self) -> None:
        """Count until they are used, then append one byte."""
        effects.burn(0.005)
        effects.write_byte()


class Tomorrow(Append):
    """A no-op job that is not due while anything is measured."""

    delay = 86_400
