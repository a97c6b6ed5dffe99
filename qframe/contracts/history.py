"""Where each attempt of a job ran and how it ended, kept by the backend beside the job."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

KEPT = 10
"""The first attempt and the last ones are kept, this many in all; the counts stay exact."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job's handler.

    `ended` is empty while it runs, and stays so when its worker died and nobody saw it; then one
    of `error`, `released`, `timed out`, `interrupted`, `worker died`. `ended_at` is None where
    `ended` is empty, and where an earlier version noted the end; of `worker died` it is when that
    was noticed.
    """

    number: int
    host: str
    pid: int
    started_at: float
    ended: str = ""
    error: str = ""
    ended_at: float | None = None


class _Unread:
    """What holds a text until one of the fields in it is asked for."""

    __slots__ = ("_text",)


@dataclass(frozen=True, slots=True)
class History(_Unread):
    """The attempts of one job.

    `exceptions` counts attempts that ended by an error, `releases` those the job ended by
    releasing itself, `refusals` the times no attempt could be started because the job was unknown
    here.
    """

    attempts: tuple[Attempt, ...] = field(default=())
    exceptions: int = 0
    releases: int = 0
    refusals: int = 0

    def started(self, number: int, host: str, pid: int, at: float) -> History:
        """Add the start of attempt `number`."""
        attempt = Attempt(number, host, pid, at)
        if self is _EMPTY:
            return History((attempt,))
        kept = self.attempts
        if len(kept) >= KEPT:
            kept = kept[:1] + kept[2 - KEPT :]
        return replace(self, attempts=(*kept, attempt))

    def ended(self, how: str, error: str = "", at: float | None = None) -> History:
        """Say how the last attempt ended, and when."""
        if not self.attempts:
            return self
        *before, last = self.attempts
        return replace(
            self,
            attempts=(*before, replace(last, ended=how, error=error, ended_at=at)),
            exceptions=self.exceptions + (how == "error"),
            releases=self.releases + (how == "released"),
        )

    def without_last(self) -> History:
        """Forget the last start: it is not counted."""
        return replace(self, attempts=self.attempts[:-1])

    def refused(self) -> History:
        """Count one more time the job could not be started here."""
        return replace(self, refusals=self.refusals + 1)

    def to_json(self) -> str:
        """Encode for the backend."""
        return _ENCODER.encode(
            {
                "attempts": [_row(attempt) for attempt in self.attempts],
                "exceptions": self.exceptions,
                "releases": self.releases,
                "refusals": self.refusals,
            }
        )

    @classmethod
    def from_json(cls, text: str | None) -> History:
        """Decode what `to_json` gave; nothing, or text that is not ours, is an empty history.

        It is decoded when it is first looked at: of most failed jobs it never is.
        """
        if not text:
            return _EMPTY
        found = object.__new__(cls)
        object.__setattr__(found, "_text", text)
        return found

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Decode what was not looked at yet."""
            if name not in _FIELDS:
                raise AttributeError(f"a history has no {name}")
            read = _read(self._text)
            for each in _FIELDS:
                object.__setattr__(self, each, getattr(read, each))
            return getattr(read, name)


_FIELDS = ("attempts", "exceptions", "releases", "refusals")


def _row(attempt: Attempt) -> tuple[object, ...]:
    row = (
        attempt.number,
        attempt.host,
        attempt.pid,
        attempt.started_at,
        attempt.ended,
        attempt.error,
    )
    return row if attempt.ended_at is None else (*row, attempt.ended_at)


def _read(text: str) -> History:
    try:
        fields = json.loads(text)
        fields["attempts"] = tuple(Attempt(*attempt) for attempt in fields["attempts"])
        return History(**fields)
    except (ValueError, TypeError, KeyError):
        return History()


def first_start(number: int, host: str, pid: int, at: float) -> bytes:
    """Give the history, encoded, of a job of which nothing was kept before this start."""
    return _FIRST % (number, _host(host), pid, at)


@cache
def _host(name: str) -> bytes:
    return _ENCODER.encode(name).encode()


_FIRST = b'{"attempts":[[%d,%b,%d,%f,"",""]],"exceptions":0,"releases":0,"refusals":0}'
_EMPTY = History()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
