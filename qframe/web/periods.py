"""Periods: what a chart spans, and the trend of the period that somebody chose."""

from __future__ import annotations

from typing import Any, NamedTuple

from qframe.operations.reading import NotYetError
from qframe.web.rendering import PageView


class Period(NamedTuple):
    """What a chart spans."""

    label: str
    hours: float
    together: int
    """How many steps of the measurements are one of the chart."""


PERIODS = {
    "1h": Period("1 hour", 1.0, 1),
    "24h": Period("24 hours", 24.0, 3),
    "14d": Period("14 days", 14 * 24.0, 2),
}


def charted(view: PageView, job: str = "") -> dict[str, Any]:
    """Returns the trend of the chosen period, of all jobs or of a class."""
    name = view.query.get("period", "1h")
    period = PERIODS.get(name) or PERIODS["1h"]
    found: dict[str, Any] = {"period": period, "periods": PERIODS, "trend": None, "is_late": False}
    try:
        found["trend"] = view.board.trend(
            period.hours, job=job, together=period.together, patience=view.patience
        )
    except NotYetError:
        found["is_late"] = True
    found["deploys"] = view.board.deploys(period.hours)
    return found
