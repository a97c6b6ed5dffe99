"""ScheduleTrack: how far a schedule has got, one fact for each; and the keys of such facts."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from qframe.contracts.step import Set
from qframe.payload.scheduled import ENDS, PREFIX
from qframe.payload.signature import unsealed

_MOST = 2**52


@dataclass(frozen=True, slots=True)
class ScheduleKeys:
    """The keys of the facts of a connection's schedules, separate from other programs'."""

    scope: str
    """The connection's name, after the program's if it has one."""

    def _key(self, kind: str, name: str = "") -> str:
        return f"{PREFIX}{self.scope}:{kind}:{name}" if name else f"{PREFIX}{self.scope}:{kind}"

    def track(self, name: str) -> str:
        """Key: how far a schedule has got."""
        return self._key("track", name)

    def paused(self) -> str:
        """Key: whether all schedules are paused; for a single one, see its track."""
        return self._key("paused")

    def row(self, name: str = "") -> str:
        """Key: a schedule added at run time; without a name, the prefix of such keys."""
        return self._key("row", name) if name else f"{self._key('row')}:"

    def release(self, module: str) -> str:
        """Key: the current version of a module's schedules."""
        return self._key("release", module)

    def alive(self, module: str, version: str) -> str:
        """Key: whether a process with this version of a module lives."""
        return self._key("alive", f"{version}:{module}")

    def beside(self, connection: str = "") -> str:
        """Key: another connection with schedules; without one, the prefix of such keys."""
        return self._key("beside", connection) if connection else f"{self._key('beside')}:"

    def about(self, name: str = "") -> str:
        """Key: the description of a schedule in code; without a name, the prefix of such keys."""
        return self._key("about", name) if name else f"{self._key('about')}:"

    def asked(self, name: str = "") -> str:
        """Key: a requested run; without a name, the prefix of such keys."""
        return self._key("asked", name) if name else f"{self._key('asked')}:"

    def changed(self) -> str:
        """Key: a text that changes whenever rows change or runs are requested."""
        return self._key("changed")

    def mark(self) -> Set:
        """Return the operation that changes the text of `changed`."""
        return Set(self.changed(), secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run: its planned time, when it was dispatched, and the job."""

    at: float
    pushed_at: float
    uuid: str
    number: int
    manual: bool = False


@dataclass(frozen=True, slots=True)
class OpenPush:
    """A message still to be pushed, where facts and messages are in different places."""

    raw: str
    queue: str
    delay: float
    push: int = 0
    kept: str = field(default="", compare=False)
    """Its stored, signed form."""

    @classmethod
    def read(cls, kept: Any) -> OpenPush:  # noqa: ANN401 (any JSON value)
        """Read it, without checking the signature. Raises `ValueError` or `TypeError`."""
        raw, queue, delay, push = json.loads(unsealed(kept)) if isinstance(kept, str) else kept
        return cls(
            str(raw), str(queue), float(delay), int(push), kept if isinstance(kept, str) else ""
        )

    def text(self) -> str:
        """Return the text to sign."""
        return json.dumps(self.fields(), separators=(",", ":"), ensure_ascii=False)

    def fields(self) -> list[Any]:
        """Return the fields as JSON values."""
        return [self.raw, self.queue, self.delay, self.push]


@dataclass(frozen=True, slots=True)
class ScheduleTrack:
    """How far a schedule has got: planned times up to `at` are done."""

    at: float
    number: int = 0
    """The number of dispatches."""
    runs: tuple[PastRun, ...] = ()
    """The last runs, the latest first."""
    skipped_at: float = 0.0
    skipped: str = ""
    """Why the last planned time without a run had none."""
    open: OpenPush | None = None
    paused: bool = False
    kept: str = field(default="", compare=False)
    """The fact that it was read from, for expectations; "" after a change."""

    def ran(self, run: PastRun, at: float) -> ScheduleTrack:
        """Return the track after a run."""
        runs = (run, *self.runs)[:ENDS]
        return replace(self, at=max(self.at, at), number=run.number, runs=runs, kept="")

    def passed(self, at: float, why: str) -> ScheduleTrack:
        """Return the track after planned times without a run."""
        return replace(self, at=max(self.at, at), skipped_at=at, skipped=why, kept="")

    def opened(self, push: OpenPush | None) -> ScheduleTrack:
        """Return the track with a message to push, or without one."""
        return replace(self, open=push, kept="")

    def held(self, *, paused: bool) -> ScheduleTrack:
        """Return the track, paused or not."""
        return replace(self, paused=paused, kept="")

    def text(self) -> str:
        """Encode as a fact."""
        if self.kept:
            return self.kept
        told: dict[str, Any] = {"at": self.at, "n": self.number}
        if self.runs:
            told["runs"] = [
                [each.at, each.pushed_at, each.uuid, each.number, int(each.manual)]
                for each in self.runs
            ]
        if self.skipped:
            told["skip"] = [self.skipped_at, self.skipped]
        if self.paused:
            told["paused"] = True
        if self.open is not None:
            told["open"] = self.open.kept or self.open.fields()
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> ScheduleTrack:
        """Decode the result of `text`; unreadable text counts as far in the past."""
        try:
            told = json.loads(text)
            runs = tuple(
                PastRun(_time(at), _time(pushed_at), str(uuid), int(number), bool(manual))
                for at, pushed_at, uuid, number, manual in told.get("runs", ())
            )
            skipped_at, skipped = told.get("skip", (0.0, ""))
            opened = OpenPush.read(told["open"]) if "open" in told else None
            return cls(
                _time(told["at"]),
                max(0, min(int(told["n"]), _MOST)),
                runs,
                _time(skipped_at),
                str(skipped),
                opened,
                bool(told.get("paused")),
                text,
            )
        except _UNREADABLE:
            return cls(0.0, kept=text)


_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_LATEST = 32_503_680_000.0
"""The year 3000, the end of all calendars here."""


def _time(told: Any) -> float:  # noqa: ANN401 (any JSON value)
    """Read an epoch time. Raises `ValueError` beyond any calendar."""
    time = float(told)
    if not 0 <= time <= _LATEST:
        raise ValueError(f"{time} is no time")
    return time
