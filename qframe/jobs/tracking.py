"""What a job class and a running job may say of its status: how long it is kept, how far it is."""

from __future__ import annotations

from datetime import timedelta

from qframe.payload import timing

DEFAULT_TTL = 86400
"""Seconds a status is kept where nothing else was asked for."""


def seconds(track: bool | float | timedelta) -> float:
    """Give how long a status is kept; raises `ValueError` or `TypeError` for what is no time."""
    if track is True:
        return DEFAULT_TTL
    kept = timing.seconds_until(track, "track")
    if not kept:
        raise ValueError("track is how long the status is kept: more than 0 seconds, or True")
    return timing.tidy(kept)


def checked_progress(done: float, text: str) -> None:
    """Raise `ValueError` or `TypeError` where this is no progress."""
    if isinstance(done, bool) or not isinstance(done, int | float):
        raise TypeError(f"progress is a number from 0 to 1, not {type(done).__name__}")
    if not 0 <= done <= 1:  # NaN is not, either
        raise ValueError(f"progress is a number from 0 to 1, not {done}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is text, not {type(text).__name__}")
