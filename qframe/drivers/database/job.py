"""DatabaseJob: one reserved row."""

from __future__ import annotations

from qframe.contracts.step import Reservation


class DatabaseJob(Reservation):
    """A row this process holds the lease of (Laravel's DatabaseJob)."""

    __slots__ = ("row", "token")

    def __init__(
        self, queue: str, row: int, token: str, raw: bytes, attempts: int, notes: bytes
    ) -> None:
        super().__init__(queue, str(row), raw, attempts, notes)
        self.row = row
        self.token = token

    @property
    def fence(self) -> bytes:
        return f"{self.row} {self.token}".encode()
