"""DatabaseJob: one reserved row."""

from __future__ import annotations

from qframe.contracts.step import Reservation
from qframe.drivers.database.sql import as_bytes

Text = str | bytes | None


class DatabaseJob(Reservation):
    """A row this process holds the lease of (Laravel's DatabaseJob)."""

    __slots__ = ("row", "token")

    def __init__(
        self, queue: str, token: str, row: int, raw: Text, attempts: int, notes: Text
    ) -> None:
        super().__init__(queue, str(row), as_bytes(raw), attempts, as_bytes(notes))
        self.row = row
        self.token = token

    @property
    def fence(self) -> bytes:
        return f"{self.row} {self.token}".encode()
