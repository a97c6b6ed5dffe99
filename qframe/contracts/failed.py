"""FailedJob: the record of a job that ran out of tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.contracts.history import History


_EXACT = 1e-6
"""Seconds to which a store may round `failed_at`."""


@dataclass(frozen=True, slots=True)
class FailedJob:
    """One failed job: Laravel's `failed_jobs` row, and the history of its attempts."""

    uuid: str
    connection: str
    queue: str
    payload: bytes
    exception: str
    """The traceback with its causes; it ends with the error itself, of one line or several."""
    name: str
    attempts: int
    history: History
    failed_at: float

    @property
    def hosts(self) -> list[str]:
        """The hosts that ran an attempt, in order."""
        return [each.host for each in self.history.attempts]

    def is_of(self, failed_at: float | None) -> bool:
        """Whether it is the record of the failure at that time; None stands for any."""
        return failed_at is None or abs(self.failed_at - failed_at) <= _EXACT

    @property
    def state(self) -> str:
        """The state of the job in listings: always "failed"."""
        return "failed"
