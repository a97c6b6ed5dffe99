"""The parts that a pool of supervisors goes without: it has no queue of its own, and no jobs."""

from __future__ import annotations

from qframe.worker.pool.presence import Scaled
from qframe.worker.pool.rescuer import Orphan


class NoRescuer:
    """Settles nothing: each supervisor settles the jobs of its own workers."""

    def begin(self) -> None: ...

    def rescue(self, orphan: Orphan) -> None:
        """Never called: a supervisor of supervisors runs no jobs."""

    def end(self) -> None: ...


class NoPresence:
    """Writes nothing: each supervisor has its own entry."""

    def begin(self, pool: Scaled) -> None: ...

    def end(self) -> None: ...
