"""The job that a Django request dispatches."""

from qframe import Queueable


class Ship(Queueable):
    """Ship an order."""

    order: int

    def handle(self) -> None:
        """Do nothing."""
