"""Our jobs as coroutines."""

from __future__ import annotations

from benchmarks.apps import effects
from qframe import Queueable


class Append(Queueable):
    """A no-op job."""

    async def handle(self) -> None:
        """Append one byte."""
        await effects.append()


class Since(Queueable):
    """A job that notes how long after a moment it started."""

    moment: float

    async def handle(self) -> None:
        """Append the time that has passed."""
        effects.write_since(self.moment)
