"""Times as users write them: seconds, `timedelta` or aware `datetime`."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

When = float | int | timedelta | datetime

_DAY = 86400
LONGEST = 100 * 365 * _DAY


def seconds_until(value: When, what: str = "delay") -> float:
    """Convert a delay to seconds from now.

    Numbers and timedeltas count from now; an aware datetime in the past means now. Raises
    `ValueError` for negative or infinite numbers, naive datetimes and more than 100 years, and
    `TypeError` for anything else.
    """
    if value == 0 and type(value) is not bool:
        return 0.0
    if isinstance(value, datetime):
        return max(0.0, _epoch(value, what) - time.time())
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _seconds(value, what)


def moment(value: When, what: str) -> float:
    """Convert seconds from now, a timedelta or an aware datetime to an epoch time."""
    if isinstance(value, datetime):
        return _epoch(value, what)
    return time.time() + seconds_until(value, what)


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{what} must be seconds, a timedelta or an aware datetime, not {type(value).__name__}"
        )
    if value < 0 or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{what} must not be negative or infinite, got {value}")
    if value > LONGEST:
        raise ValueError(f"{what} must not be longer than 100 years, got {value} s")
    return float(value)


def _epoch(value: datetime, what: str) -> float:
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(
            f"{what} is a datetime without a time zone; say which, e.g. datetime.now(UTC)"
        )
    epoch = value.timestamp()
    if epoch - time.time() > LONGEST:
        raise ValueError(f"{what} must not be further away than 100 years, got {value}")
    return epoch


def kept_for(track: bool | float | timedelta) -> float:
    """Return the seconds that a status is kept. Raises as `seconds_until`, and for zero."""
    if track is True:
        return _DAY
    kept = seconds_until(track, "track")
    if not kept:
        raise ValueError("track is how long the status is kept: more than 0 seconds, or True")
    return tidy(kept)


def tidy(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


def iso(epoch: float) -> str:
    """Format an epoch time as UTC, e.g. `2026-11-21 10:00:00`; one beyond any year in seconds."""
    try:
        return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a payload may have any number
        return f"1970-01-01 00:00:00 {epoch:+.0f} s"


def lasting(seconds: float) -> str:
    """Format a duration in its two largest units."""
    whole = round(seconds)
    for unit, size, below, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit} {rest}{below}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"
