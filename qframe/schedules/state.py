"""State: the facts that are stored about a schedule, their keys and their texts."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qframe.contracts.step import Set
from qframe.payload.scheduled import ENDS, PREFIX
from qframe.payload.signature import unsealed
from qframe.schedules.definition import Schedule

_MOST = 2**52


@dataclass(frozen=True, slots=True)
class ScheduleKeys:
    """The keys of the facts of a connection's schedules, separate from other programs'."""

    scope: str
    """The connection's name, after the program's if it has one."""

    def _key(self, kind: str, name: str = "") -> str:
        return f"{PREFIX}{self.scope}:{kind}:{name}" if name else f"{PREFIX}{self.scope}:{kind}"

    def progress(self, name: str = "") -> str:
        """Key: the progress of a schedule; without a name, the prefix of such keys."""
        return self._key("track", name) if name else f"{self._key('track')}:"

    def paused(self) -> str:
        """Key: whether all schedules are paused; for a single one, see its progress."""
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

    def summary(self, name: str = "") -> str:
        """Key: the summary of a schedule in code; without a name, the prefix of such keys."""
        return self._key("about", name) if name else f"{self._key('about')}:"

    def requested(self, name: str = "") -> str:
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
class PendingPush:
    """A message still to be pushed, where facts and messages are in different places."""

    raw: str
    queue: str
    delay: float
    push: int = 0
    signed: str = field(default="", compare=False)
    """Its signed form, as stored."""

    @classmethod
    def read(cls, stored: Any) -> PendingPush:  # noqa: ANN401 (any JSON value)
        """Read it, without checking the signature. Raises `ValueError` or `TypeError`."""
        raw, queue, delay, push = (
            json.loads(unsealed(stored)) if isinstance(stored, str) else stored
        )
        return cls(
            str(raw), str(queue), float(delay), int(push), stored if isinstance(stored, str) else ""
        )

    def text(self) -> str:
        return json.dumps(self.fields(), separators=(",", ":"), ensure_ascii=False)

    def fields(self) -> list[Any]:
        return [self.raw, self.queue, self.delay, self.push]


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """The progress of a schedule: the planned times up to `at` are done."""

    at: float
    number: int = 0
    """The number of dispatches."""
    runs: tuple[PastRun, ...] = ()
    """The last runs, the latest first."""
    skipped_at: float = 0.0
    skipped: str = ""
    """Why the last planned time without a run had none."""
    pending: PendingPush | None = None
    paused: bool = False
    stored: str = field(default="", compare=False)
    """The fact that it was read from, for expectations; "" after a change."""

    def after_run(self, run: PastRun, at: float) -> ScheduleProgress:
        runs = (run, *self.runs)[:ENDS]
        return replace(self, at=max(self.at, at), number=run.number, runs=runs, stored="")

    def after_skip(self, at: float, why: str) -> ScheduleProgress:
        return replace(self, at=max(self.at, at), skipped_at=at, skipped=why, stored="")

    def with_pending(self, push: PendingPush | None) -> ScheduleProgress:
        return replace(self, pending=push, stored="")

    def with_paused(self, paused: bool) -> ScheduleProgress:
        return replace(self, paused=paused, stored="")

    def text(self) -> str:
        if self.stored:
            return self.stored
        fields: dict[str, Any] = {"at": self.at, "n": self.number}
        if self.runs:
            fields["runs"] = [
                [each.at, each.pushed_at, each.uuid, each.number, int(each.manual)]
                for each in self.runs
            ]
        if self.skipped:
            fields["skip"] = [self.skipped_at, self.skipped]
        if self.paused:
            fields["paused"] = True
        if self.pending is not None:
            fields["open"] = self.pending.signed or self.pending.fields()
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> ScheduleProgress:
        """Decode the result of `text`; unreadable text counts as far in the past."""
        try:
            fields = json.loads(text)
            runs = tuple(
                PastRun(_time(at), _time(pushed_at), str(uuid), int(number), bool(manual))
                for at, pushed_at, uuid, number, manual in fields.get("runs", ())
            )
            skipped_at, skipped = fields.get("skip", (0.0, ""))
            pending = PendingPush.read(fields["open"]) if "open" in fields else None
            return cls(
                _time(fields["at"]),
                max(0, min(int(fields["n"]), _MOST)),
                runs,
                _time(skipped_at),
                str(skipped),
                pending,
                bool(fields.get("paused")),
                text,
            )
        except _UNREADABLE:
            return cls(0.0, stored=text)


_UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_LATEST = 32_503_680_000.0
"""The year 3000, the end of all calendars here."""


def _time(fields: Any) -> float:  # noqa: ANN401 (any JSON value)
    """Read an epoch time. Raises `ValueError` beyond any calendar."""
    time = float(fields)
    if not 0 <= time <= _LATEST:
        raise ValueError(f"{time} is no time")
    return time


@dataclass(frozen=True, slots=True)
class ScheduleSummary:
    """What programs without its code know of a schedule."""

    name: str
    job: str
    when: str
    zone: str
    queue: str
    missed: str
    grace: float
    overlap: float
    spread: int
    maintenance: bool
    environments: tuple[str, ...]
    conditions: int
    """The number of functions that decide at the planned time."""
    place: str
    module: str
    """"" for a schedule that was added at run time."""
    fact: str = ""
    """The fact of its release, or its row."""
    refused: str = ""
    """Why a row is not used; the other fields are then unsigned text."""

    @classmethod
    def of(cls, schedule: Schedule, queue: str, fact: str = "") -> ScheduleSummary:
        options = schedule.options
        return cls(
            name=schedule.title,
            job=schedule.job_name,
            when=options.calendar.text(),
            zone=options.calendar.zone,
            queue=queue,
            missed=options.missed,
            grace=options.grace,
            overlap=options.overlap,
            spread=options.spread,
            maintenance=options.in_maintenance,
            environments=options.environments,
            conditions=len(options.conditions),
            place=schedule.place,
            module=schedule.module,
            fact=fact,
        )

    def text(self) -> str:
        fields = asdict(self)
        del fields["refused"]  # only for rows; earlier versions do not know it
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> ScheduleSummary | None:
        """Decode the result of `text`; None for what another version wrote."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(**{**fields, "environments": tuple(fields["environments"])})
        except (ValueError, TypeError, KeyError):
            return None
