"""What waits in another program's Redis, moved into qframe's queues."""

from qframe.importing.found import FoundJob, JobSource, Kept
from qframe.importing.mapping import Names
from qframe.importing.mover import ImportRow, Mover
from qframe.importing.sources import SOURCES

__all__ = ["SOURCES", "FoundJob", "ImportRow", "JobSource", "Kept", "Mover", "Names"]
