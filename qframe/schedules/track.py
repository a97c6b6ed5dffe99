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
    """The keys of the facts of a connection's schedules: others may keep theirs beside them."""

    scope: str
    """The connection's name, behind that of the program where it has one."""

    def _key(self, kind: str, name: str = "") -> str:
        return f"{PREFIX}{self.scope}:{kind}:{name}" if name else f"{PREFIX}{self.scope}:{kind}"

    def track(self, name: str) -> str:
        """How far a schedule has got."""
        return self._key("track", name)

    def paused(self) -> str:
        """Whether all are paused; of one, its track says so."""
        return self._key("paused")

    def row(self, name: str = "") -> str:
        """What was added at run time; without a name, what such keys begin with."""
        return self._key("row", name) if name else f"{self._key('row')}:"

    def release(self, module: str) -> str:
        """Which version of a module's schedules is the current one."""
        return self._key("release", module)

    def alive(self, module: str, version: str) -> str:
        """That a process with this version of a module lives."""
        return self._key("alive", f"{version}:{module}")

    def beside(self, connection: str = "") -> str:
        """That code has schedules there too; without a connection, what such keys begin with."""
        return self._key("beside", connection) if connection else f"{self._key('beside')}:"

    def about(self, name: str = "") -> str:
        """What is told of a schedule of the code; without a name, what such keys begin with."""
        return self._key("about", name) if name else f"{self._key('about')}:"

    def asked(self, name: str = "") -> str:
        """That somebody wants a run now; without a name, what such keys begin with."""
        return self._key("asked", name) if name else f"{self._key('asked')}:"

    def changed(self) -> str:
        """A text that is another one whenever rows have changed, or runs are wanted."""
        return self._key("changed")

    def mark(self) -> Set:
        """Give what says so."""
        return Set(self.changed(), secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run: its planned time, when it was dispatched, and the job."""

    at: float
    pushed_at: float
    uuid: str
    number: int
    manual: bool = False


@dataclass(frozen=True, slots=True)
class OpenPush:
    """A message that is to be pushed, where facts and messages are in different places."""

    raw: str
    queue: str
    delay: float
    push: int = 0
    kept: str = field(default="", compare=False)
    """It as it is kept, signed."""

    @classmethod
    def read(cls, kept: Any) -> OpenPush:  # noqa: ANN401 (any JSON value)
        """Read it, whoever has signed it; raises `ValueError` or `TypeError` for what it is not."""
        raw, queue, delay, push = json.loads(unsealed(kept)) if isinstance(kept, str) else kept
        return cls(
            str(raw), str(queue), float(delay), int(push), kept if isinstance(kept, str) else ""
        )

    def text(self) -> str:
        """Give it as it is signed."""
        return json.dumps(self.fields(), separators=(",", ":"), ensure_ascii=False)

    def fields(self) -> list[Any]:
        """Give what JSON can carry."""
        return [self.raw, self.queue, self.delay, self.push]


@dataclass(frozen=True, slots=True)
class ScheduleTrack:
    """How far a schedule has got: no planned time up to `at` is looked at again."""

    at: float
    number: int = 0
    """How often it was dispatched."""
    runs: tuple[PastRun, ...] = ()
    """The last ones, the latest first."""
    skipped_at: float = 0.0
    skipped: str = ""
    """The last planned time without a run, and why."""
    open: OpenPush | None = None
    paused: bool = False
    kept: str = field(default="", compare=False)
    """The fact it was read from, to be expected as it is; "" once it has changed."""

    def ran(self, run: PastRun, at: float) -> ScheduleTrack:
        """Give it after a run."""
        runs = (run, *self.runs)[:ENDS]
        return replace(self, at=max(self.at, at), number=run.number, runs=runs, kept="")

    def passed(self, at: float, why: str) -> ScheduleTrack:
        """Give it after planned times without a run."""
        return replace(self, at=max(self.at, at), skipped_at=at, skipped=why, kept="")

    def opened(self, push: OpenPush | None) -> ScheduleTrack:
        """Give it with a message that is to be pushed, or with none any more."""
        return replace(self, open=push, kept="")

    def held(self, *, paused: bool) -> ScheduleTrack:
        """Give it paused, or no more."""
        return replace(self, paused=paused, kept="")

    def text(self) -> str:
        """Give it as a fact."""
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
        """Read what `text` gave; what cannot be read counts as far back as can be."""
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
"""The year 3000: no calendar here goes beyond it."""


def _time(told: Any) -> float:  # noqa: ANN401 (any JSON value)
    """Read an epoch time; raises `ValueError` for one that no calendar has."""
    time = float(told)
    if not 0 <= time <= _LATEST:
        raise ValueError(f"{time} is no time")
    return time
