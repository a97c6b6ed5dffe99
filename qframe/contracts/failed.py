"""FailedJob: what is kept of a job that ran out of tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.contracts.history import History


@dataclass(frozen=True, slots=True)
class FailedJob:
    """One failed job: what Laravel's `failed_jobs` row holds, and the attempts before it."""

    uuid: str
    connection: str
    queue: str
    payload: bytes
    exception: str
    """The traceback with its causes; the error itself, of one line or several, ends it."""
    name: str
    attempts: int
    history: History
    failed_at: float

    @property
    def hosts(self) -> list[str]:
        """Where it was tried."""
        return [each.host for each in self.history.attempts]

    @property
    def state(self) -> str:
        """What it is, among jobs."""
        return "failed"
