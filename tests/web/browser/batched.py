"""Jobs that tests put into batches."""

from __future__ import annotations

from qframe import Queueable


class Fails(Queueable):
    number: int

    def handle(self) -> None:
        raise ValueError(f"bad {self.number}")
