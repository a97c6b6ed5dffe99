"""Forecast, as people see it: whether a queue will be behind, when, and why."""

from __future__ import annotations

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.forecast.course import MINUTE
from qframe.forecast.reading import QueueForecast, forecasts
from qframe.forecast.words import sentence
from qframe.manager import QueueManager
from qframe.payload.timing import iso

BEHIND = 3600.0
"""Seconds of waiting that count as behind if nobody says what does."""
HOURS = 3.0
AHEAD = 24.0
"""Hours that `qframe check` looks ahead."""


class ForecastState(BaseModel):
    """What comes of one queue. Times are UTC."""

    connection: str
    queue: str
    read_at: str
    hours: float
    text: str
    """In a sentence, also if nothing can be said."""
    known: bool
    """Whether there is enough history."""
    behind_at: str | None = None
    """When a job will have waited for longer than asked about; None: not within these hours."""
    behind_seconds: float | None = None
    """The longest time for which a job will have waited."""
    waiting: int | None = None
    workers: int = 0
    slots: int = 0

    @classmethod
    def of(cls, found: QueueForecast, hours: float, limit: float) -> ForecastState:
        """Describe a forecast; `limit` is how many seconds of waiting count as behind."""
        state = cls(
            connection=found.connection,
            queue=found.queue,
            read_at=iso(found.read_at),
            hours=hours,
            text=sentence(found, limit),
            known=not found.unknown,
        )
        if found.unknown:
            return state
        at = found.course.crosses(limit)
        state.behind_at = None if at is None else iso(found.read_at + (at + 1) * MINUTE)
        state.behind_seconds = round(found.behind, 1)
        state.waiting, state.workers, state.slots = round(found.waiting), found.workers, found.slots
        return state


def states(
    manager: QueueManager,
    connection: Connection,
    queue: str = "",
    hours: float = HOURS,
    limit: float = BEHIND,
) -> list[ForecastState]:
    """Return what comes of the queues of a connection, or of one, those behind first.

    Raises `BackendUnavailable`.
    """
    found = forecasts(manager, connection, hours, queue)
    listed = [ForecastState.of(each, hours, limit) for each in found]
    return sorted(listed, key=lambda each: (each.behind_at or "9999", each.queue))


def warnings(manager: QueueManager, connection: Connection) -> list[str]:
    """Return which queues will be behind within a day, and why. Raises `BackendUnavailable`."""
    found = states(manager, connection, hours=AHEAD)
    return [
        f"the queue {each.queue!r} will be behind: {each.text}" for each in found if each.behind_at
    ]
