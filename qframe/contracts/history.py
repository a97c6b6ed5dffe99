"""History: where each attempt of a job ran and how it ended.

The backend keeps it beside the job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from qframe.contracts.recording import Recording

KEPT = 10
"""The number of attempts kept: the first one and the latest ones. The counts stay exact."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One start of a job's handler.

    `ended` is "" while the attempt runs, and stays "" if its worker died unnoticed. Otherwise it is
    `error`, `released`, `timed out`, `interrupted` or `worker died`. `ended_at` is None if `ended`
    is "" or an earlier version recorded the end; for `worker died` it is when a worker noticed.
    """

    number: int
    host: str
    pid: int
    started_at: float
    ended: str = ""
    error: str = ""
    ended_at: float | None = None


class _Unread:
    """Holds the encoded text until the first access to a field."""

    __slots__ = ("_text",)


@dataclass(frozen=True, slots=True)
class History(_Unread):
    """The attempts of one job.

    `exceptions` counts attempts that ended with an error, `releases` attempts in which the job
    released itself, `refusals` the times that no attempt could start because the worker did not
    know the job. `steps` says whether durable steps of the job are kept: it has begun. `recording`
    is of the last attempt that was killed, timed out or ran out of memory under a supervisor.
    """

    attempts: tuple[PastAttempt, ...] = field(default=())
    exceptions: int = 0
    releases: int = 0
    refusals: int = 0
    steps: bool = False
    recording: Recording | None = None

    def started(self, number: int, host: str, pid: int, at: float) -> History:
        """Add the start of attempt `number`."""
        attempt = PastAttempt(number, host, pid, at)
        if self is _EMPTY:
            return History((attempt,))
        kept = self.attempts
        if len(kept) >= KEPT:
            kept = kept[:1] + kept[2 - KEPT :]
        return replace(self, attempts=(*kept, attempt))

    def ended(self, how: str, error: str = "", at: float | None = None) -> History:
        """Record how and when the last attempt ended."""
        if not self.attempts:
            return self
        *before, last = self.attempts
        return replace(
            self,
            attempts=(*before, replace(last, ended=how, error=error, ended_at=at)),
            exceptions=self.exceptions + (how == "error"),
            releases=self.releases + (how == "released"),
        )

    def recorded(self, recording: Recording | None) -> History:
        """Keep what was recorded of the last attempt; None changes nothing."""
        return self if recording is None else replace(self, recording=recording)

    def without_last(self) -> History:
        """Remove the last start, which no longer counts."""
        return replace(self, attempts=self.attempts[:-1])

    def refused(self) -> History:
        """Count one more time that the worker could not start the job."""
        return replace(self, refusals=self.refusals + 1)

    def to_json(self) -> str:
        """Encode for the backend."""
        fields: dict[str, object] = {
            "attempts": [_row(attempt) for attempt in self.attempts],
            "exceptions": self.exceptions,
            "releases": self.releases,
            "refusals": self.refusals,
        }
        if self.steps:
            fields["steps"] = True
        if self.recording is not None:
            fields["recording"] = self.recording.fields()
        return _ENCODER.encode(fields)

    @classmethod
    def from_json(cls, text: str | None) -> History:
        """Decode the text of `to_json`. None, "" or any other text is an empty history.

        Decoding waits for the first access to a field: most histories of failed jobs are never
        read.
        """
        if not text:
            return _EMPTY
        found = object.__new__(cls)
        object.__setattr__(found, "_text", text)
        return found

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Decode the text on the first access to a field."""
            if name not in _FIELDS:
                raise AttributeError(f"a history has no {name}")
            read = _read(self._text)
            for each in _FIELDS:
                object.__setattr__(self, each, getattr(read, each))
            return getattr(read, name)


STEPS = b'"steps":true'
"""What an encoded history contains if `steps` is true."""
_FIELDS = ("attempts", "exceptions", "releases", "refusals", "steps", "recording")


def _row(attempt: PastAttempt) -> tuple[object, ...]:
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
        fields["attempts"] = tuple(PastAttempt(*attempt) for attempt in fields["attempts"])
        fields["recording"] = Recording.of(fields.get("recording"))
        return History(**fields)
    except (ValueError, TypeError, KeyError):
        return History()


def first_start(number: int, host: str, pid: int, at: float) -> bytes:
    """Return the encoded history of a job's first start."""
    return _FIRST % (number, _host(host), pid, at)


@cache
def _host(name: str) -> bytes:
    return _ENCODER.encode(name).encode()


_FIRST = b'{"attempts":[[%d,%b,%d,%f,"",""]],"exceptions":0,"releases":0,"refusals":0}'
_EMPTY = History()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
