"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Seconds since 1970, which stand still until a test sets `now`."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
