"""Jobs that move from one connection to another while both are used."""

from qframe.moving.mover import MoveRow, QueueMover

__all__ = ["MoveRow", "QueueMover"]
