"""What a pool of supervisors does without: it has no queue of its own, and no jobs."""

from __future__ import annotations

from qframe.worker.pool.presence import Scaled
from qframe.worker.pool.rescuer import Orphan


class NoRescuer:
    """Settles nothing: each supervisor settles what its own workers leave."""

    def begin(self) -> None:
        """Need nothing."""

    def rescue(self, orphan: Orphan) -> None:
        """Never called: what has no jobs leaves none."""

    def end(self) -> None:
        """Have nothing to do."""


class NoPresence:
    """Says nothing: each supervisor says what it is."""

    def begin(self, pool: Scaled) -> None:
        """Need nothing."""

    def end(self) -> None:
        """Have nothing to take off."""
