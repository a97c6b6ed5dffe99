"""RetryTerms: how many failed jobs are retried first, how fast the rest, and when that stops."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from qframe.config.sections import checked_rate, per_second
from qframe.exceptions import ConfigurationError
from qframe.payload.text import one_line

FIRST, THEN, STOP_IF = 5, "10/s", "failed > 20%"
NEVER = "never"
MOST_FIRST = 1000
_SLOWEST, _FASTEST = "1/d", "1000/s"
_MOST_FAILED = 10**9
_RULE = re.compile(r"failed\s*(>=?)\s*(\d{1,10}(?:\.\d{1,6})?)\s*(%?)")
_OPEN_SECONDS = 30.0
"""So many seconds of the pace may be unended at once: a service that hangs gets no more."""
_LEAST_OPEN, _MOST_OPEN = 10, 1000


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a retry stops by itself. Raises nothing: `RetryTerms.read` has checked it."""

    limit: float = math.inf
    percent: bool = False
    reached: bool = False
    """Whether the limit itself is too many (`>=`)."""

    def is_broken(self, failed: int, of: int, total: int) -> bool:
        """Whether `failed` of the latest `of` outcomes, or `total` failures, are too many."""
        if not self.percent:
            return total >= self.limit if self.reached else total > self.limit
        share = 100 * failed / of if of else 0.0
        return bool(of) and (share >= self.limit if self.reached else share > self.limit)


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """The terms of a watched retry. `read` and `asked` make them from text."""

    first: int
    then: str
    stop_if: str
    rule: StopRule

    @classmethod
    def read(cls, first: int = FIRST, then: str = THEN, stop_if: str = STOP_IF) -> RetryTerms:
        """Parse the terms. Raises `ConfigurationError`."""
        if not 0 <= first <= MOST_FIRST:
            raise ConfigurationError(f"first: takes 0 to {MOST_FIRST:,} jobs, not {first}")
        try:
            checked_rate(then, _SLOWEST, _FASTEST)
        except ValueError as error:
            raise ConfigurationError(f"then: {one_line(then, 60)!r}: {error}") from None
        return cls(first, then, stop_if, _rule(stop_if))

    @classmethod
    def asked(cls, first: int | None, then: str, stop_if: str) -> RetryTerms:
        """Parse what people gave; None or "" is the default. Raises `ConfigurationError`."""
        return cls.read(FIRST if first is None else first, then or THEN, stop_if or STOP_IF)

    @property
    def per_second(self) -> float:
        """How many jobs are retried in a second."""
        return per_second(self.then)

    @property
    def most_open(self) -> int:
        """How many retried jobs may have no outcome yet."""
        paced = math.ceil(self.per_second * _OPEN_SECONDS)
        return min(_MOST_OPEN, max(self.first, paced, _LEAST_OPEN))


def _rule(text: str) -> StopRule:
    if text == NEVER:
        return StopRule()
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"stop-if: takes {STOP_IF!r}, 'failed > 50' or {NEVER!r}, not {one_line(text, 60)!r}"
        )
    limit, percent, reached = float(found[2]), bool(found[3]), found[1] == ">="
    most = 100 if percent else _MOST_FAILED
    if limit > most or (percent and limit == most and not reached):
        raise ConfigurationError(f"stop-if: {one_line(text, 60)!r} never holds: say {NEVER!r}")
    if reached and not limit:
        raise ConfigurationError(f"stop-if: {one_line(text, 60)!r} holds before any has failed")
    return StopRule(limit, percent, reached)
