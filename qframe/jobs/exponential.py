"""Exponential: a backoff that grows with each failure, with jitter on top."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from qframe.exceptions import JobDefinitionError
from qframe.payload import timing
from qframe.payload.text import one_line

_ON_THE_WIRE = 12
_MOST = 1000
"""The largest factor, and the largest jitter."""


@dataclass(frozen=True)
class Exponential:
    """A backoff of `first` seconds, multiplied by `factor` with each failure, plus jitter.

    The delay after the n-th failure is `first * factor ** (n - 1)`, at most `most`. A random part
    is added to it, from 0 to `jitter` times the delay, so that jobs that failed together do not
    return together. So a delay is never shorter than that, and may exceed `most`.

    - `first`, `most`: seconds or a timedelta; default of `most`: 100 years.
    - `factor`: from 1 to 1,000; default 2.
    - `jitter`: a fraction of the delay, from 0 to 1,000; default 0.5. 0 adds nothing.

    Raises `JobDefinitionError` for other arguments.
    """

    first: float
    most: float | None = None
    factor: float = 2
    jitter: float = 0.5

    def __init__(
        self,
        first: float | timedelta,
        most: float | timedelta | None = None,
        factor: float = 2,
        jitter: float = 0.5,
    ) -> None:
        least = _seconds("first", first)
        if not least:
            raise JobDefinitionError("Exponential: first must be more than 0 seconds")
        longest = None if most is None else _seconds("most", most)
        if longest is not None and longest < least:
            raise JobDefinitionError(
                f"Exponential: most must be at least first, {least:g} s, not {longest:g}"
            )
        object.__setattr__(self, "first", least)
        object.__setattr__(self, "most", longest)
        object.__setattr__(self, "factor", _number("factor", factor, 1))
        object.__setattr__(self, "jitter", _number("jitter", jitter, 0))

    def delay_after(self, failures: int) -> float:
        """Return the seconds before the next attempt after so many failures, with jitter."""
        delay = self.least_after(failures)
        longest = min(delay * (1 + self.jitter), timing.LONGEST)
        return random.uniform(delay, longest)  # noqa: S311 (not a secret)

    def least_after(self, failures: int) -> float:
        """Return the seconds before the next attempt after so many failures, without jitter."""
        longest = timing.LONGEST if self.most is None else self.most
        try:
            return min(longest, self.first * self.factor ** max(0, failures - 1))
        except OverflowError:
            return longest

    def on_the_wire(self) -> list[float]:
        """Return the first delays without jitter, for workers that have only the payload.

        They end with the longest delay, and are at most twelve.
        """
        delays = [self.least_after(failures) for failures in range(1, _ON_THE_WIRE + 1)]
        while len(delays) > 1 and delays[-1] == delays[-2]:
            del delays[-1]
        return [round(delay, 3) for delay in delays]


def _seconds(what: str, value: object) -> float:
    if isinstance(value, datetime):
        value = None  # a delay that would shrink while the job waits
    try:
        return timing.seconds_until(value, what)  # type: ignore[arg-type] # it looks itself
    except (TypeError, ValueError):
        raise JobDefinitionError(
            f"Exponential: {what} must be seconds, from 0 to 100 years, or a timedelta, "
            f"not {one_line(repr(value), 60)}"
        ) from None


def _number(what: str, value: object, least: float) -> float:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not least <= value <= _MOST:  # type: ignore[operator] # a number
        raise JobDefinitionError(
            f"Exponential: {what} must be a number from {least} to {_MOST:,}, not "
            f"{one_line(repr(value), 60)}"
        )
    return value  # type: ignore[return-value] # as above
