"""The clock that limits are reckoned by, to be set."""

from __future__ import annotations

START = 1_700_000_000_000


class Clock:
    """The clock of this process, in milliseconds."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
