"""Rows: schedules added at run time, stored as facts of their connection; and pauses."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qframe import events
from qframe.config import describe
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Expect, Set, Step, Unset
from qframe.exceptions import (
    BackendUnavailable,
    CannotDecrypt,
    ConfigurationError,
    InvalidArguments,
    InvalidJob,
    InvalidSignature,
    QframeError,
    UnknownJob,
)
from qframe.features.base import attempts
from qframe.features.refused import RefusedText, log_refused
from qframe.jobs import project, upgrades
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import foreign
from qframe.manager import QueueManager
from qframe.payload import encryption, envelope
from qframe.payload.envelope import LARGEST_VERSION
from qframe.payload.signature import is_sealed, unsealed
from qframe.payload.text import one_line, queue_name
from qframe.schedules.calendar import zone_of
from qframe.schedules.definition import Schedule, checked_name
from qframe.schedules.options import Missed, ScheduleOptions
from qframe.schedules.parser import read
from qframe.schedules.state import ScheduleKeys, ScheduleProgress, ScheduleSummary

log = logging.getLogger("qframe")

_TRIES = 50
_SCHEDULE = "the schedule %s"
_UNREADABLE = "(unreadable)"
_YEAR = 366 * 86400
_HELD = 10.0 * _YEAR
_FURTHEST = 10**11
"""Epoch seconds: the year 5138."""
Grace = Annotated[float, Field(ge=1, le=_YEAR)]
Spread = Annotated[int, Field(ge=0, le=86400)]
Overlap = Annotated[float, Field(ge=0, le=_YEAR)]
"""Seconds after which an unfinished run no longer blocks the next one; 0: it never does."""


class ScheduleRow(BaseModel):
    """A stored schedule: the job's name and data, times, and conditions."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    job: str = Field(min_length=1, max_length=200)
    data: Any = None
    when: str = Field(min_length=1, max_length=200)
    timezone: str = Field("", max_length=60)
    queue: str | None = Field(None, max_length=128)
    missed: Missed = "last"
    grace: Grace = 3600.0
    spread: Spread = 0
    overlap: Overlap = 0.0
    maintenance: bool = False
    """Whether to dispatch even while the whole connection is paused."""
    foreign: bool = False
    """Whether Laravel runs the job."""
    version: int | None = Field(None, ge=1, le=LARGEST_VERSION)
    """The version of the job's class that the data are of; None: written before it had one."""
    added_at: float = Field(0.0, ge=0, le=_FURTHEST)
    added_by: str = Field("", max_length=100)


def keys_of(queues: QueueManager, connection: Connection) -> ScheduleKeys:
    """Return the keys of the facts of a connection's schedules."""
    app = queues.settings.schedule.app
    return ScheduleKeys(f"{app}/{connection.name}" if app else connection.name)


class ScheduleRows:
    """The rows of a program's connections. Raises `ConfigurationError` for invalid ones."""

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self._warned: set[str] = set()

    def schedule(self, name: str, row: ScheduleRow) -> Schedule:
        """Make the schedule of a row. Raises `QframeError` if its job cannot be made."""
        zone = row.timezone or self._queues.settings.schedule.timezone
        zone_of(zone)
        options = ScheduleOptions(
            calendar=read(row.when),
            zone=zone,
            name=checked_name(name),
            queue=None if row.queue is None else queue_name(row.queue),
            missed=row.missed,
            grace=row.grace,
            spread=row.spread,
            overlap=row.overlap,
            in_maintenance=row.maintenance,
        )
        if row.foreign:
            made = Schedule(foreign(row.job, row.data or ()), options, f"the row {name!r}", "")
        else:
            project.put_on_path()
            try:
                job_class = self._queues.registry.find(row.job)
                job = job_class.from_data(self._data(row, job_class))
            except (UnknownJob, InvalidArguments, CannotDecrypt) as error:
                raise InvalidJob(str(error)) from None
            made = Schedule(job, options, f"the row {name!r}", "")
        return made.finished(zone)

    def now(self, row: ScheduleRow) -> ScheduleRow:
        """Return a row whose data are written now, with the version of its class."""
        version = None
        if not row.foreign:
            project.put_on_path()
            with contextlib.suppress(UnknownJob):  # which `schedule` says
                version = self._queues.registry.find(row.job).written_version
        return row.model_copy(update={"version": version})

    def _data(self, row: ScheduleRow, job_class: type[JobDefinition]) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the data of a row's job, decrypted if it is encrypted."""
        data = row.data
        if type(data) is dict and encryption.KEY in data and job_class.opens(data):
            data = self._queues.keyring.opened(row.job, data)
        if job_class.written_version is not None or row.version is not None:
            data = upgrades.carried_over(job_class, data, row.version or 0)
        return data

    def _text(
        self,
        connection: Connection,
        name: str,
        row: ScheduleRow,
        job: object,
        *,
        vouched: bool = True,
    ) -> str:
        """Encode a row: the data of an encrypted job encrypted, all of it signed if `vouched`."""
        if getattr(job, "encrypted", False) and not _is_encrypted(row.data):
            inside = envelope.encode({"job": row.job, "data": row.data})
            data = self._queues.keyring.sealed(row.job, inside)
            row = row.model_copy(update={"data": data})
        key = keys_of(self._queues, connection).row(name)
        plain = {"version"} if row.version is None else None  # workers of before do not know it
        text = row.model_dump_json(exclude=plain)
        return connection.context.sealed(key, text) if vouched else text

    def _opened(self, connection: Connection, name: str, text: str) -> ScheduleRow:
        """Read a row. Raises `InvalidSignature`, or `ValidationError` for anything else."""
        key = keys_of(self._queues, connection).row(name)
        return ScheduleRow.model_validate_json(connection.context.opened(key, text).text)

    def add(
        self, connection: Connection, name: str, row: ScheduleRow, *, replace: bool = False
    ) -> Schedule:
        """Store a row; replaces one with the same name only if `replace` is set."""
        connection.need(Capability.FACTS)
        row = self.now(row)
        made = self._checked(connection, name, row)
        keys = keys_of(self._queues, connection)
        key, mark = keys.row(name), keys.mark()
        text = self._text(connection, name, row, made.job)
        steps = [Step(None, Set(key, text), mark)]
        if not replace:
            steps = [Step(None, Expect(key, None), Set(key, text), mark)]
        (result,) = connection.backend.apply(*steps)
        if not result.applied:
            raise ConfigurationError(
                f"there is a schedule {one_line(name, 150)!r} on {connection.name} already; "
                "replace it (--replace), or give another name"
            )
        made.row = text
        return made

    def change(self, connection: Connection, name: str, **fields: Any) -> Schedule:  # noqa: ANN401 (the fields of a row)
        """Change fields of a row; keeps the others."""
        connection.need(Capability.FACTS)
        keys = keys_of(self._queues, connection)
        key = keys.row(checked_name(name))
        (text,) = connection.store.get(key)
        for _ in range(_TRIES):
            if text is None:
                raise ConfigurationError(
                    f"there is no row {one_line(name, 150)!r} on {connection.name}"
                )
            try:
                row = self._opened(connection, name, text)
            except (ValidationError, InvalidSignature) as error:
                raise ConfigurationError(brief(error)) from None
            changed = row_of(**{**row.model_dump(), **fields})
            if not {"job", "data"}.isdisjoint(fields):
                changed = self.now(changed)
            made = self._checked(connection, name, changed)
            vouched = is_sealed(text)  # `sign` vouches for one that was stored unsigned
            made.row = self._text(connection, name, changed, made.job, vouched=vouched)
            step = Step(None, Expect(key, text), Set(key, made.row), keys.mark())
            (result,) = connection.backend.apply(step)
            if result.applied:
                return made
            text = result.holds
        raise BackendUnavailable(f"the schedule {one_line(name)!r} is changed again and again")

    def _checked(self, connection: Connection, name: str, row: ScheduleRow) -> Schedule:
        """Make the schedule of a row to store. Raises if it could never run."""
        made = self.schedule(name, row)
        if made.options.calendar.next(time.time()) is None:
            raise ConfigurationError(f"{one_line(row.when, 80)!r} is never due")
        connection.envelope(made.job)  # would otherwise raise at each planned time
        return made

    def remove(self, connection: Connection, name: str) -> bool:
        """Remove a row. Returns whether there was one.

        A run whose message may not have been pushed yet is left to the workers.
        """
        keys = keys_of(self._queues, connection)
        key, progress_key = keys.row(name), keys.progress(name)
        for _ in attempts(f"the schedule {one_line(name)}"):
            text, progress = connection.store.get(key, progress_key)
            if text is None:
                return False
            has_ended = progress is None or ScheduleProgress.read(progress).pending is None
            own = [Unset(progress_key)] if has_ended else []
            step = Step(None, Expect(progress_key, progress), Unset(key), *own, keys.mark())
            (result,) = connection.backend.apply(step)
            if result.applied:
                return True
        return False

    def pause(self, connection: Connection, name: str | None = None) -> None:
        """Pause a schedule, or all of the connection; their planned times pass without runs.

        Works for schedules in code as well, even before a worker knows them.
        """
        connection.need(Capability.FACTS)
        if name:
            self._hold(connection, checked_name(name), paused=True)
        else:
            connection.store.set(keys_of(self._queues, connection).paused(), "1")
        events.fire(events.SchedulePaused, connection.name, name or "")

    def resume(self, connection: Connection, name: str | None = None) -> None:
        """Undo `pause` for one schedule, or, without a name, every pause."""
        connection.need(Capability.FACTS)
        keys, store = keys_of(self._queues, connection), connection.store
        names = [name] if name else []
        if not name:
            store.delete(keys.paused())
            prefix = keys.progress()
            names = [
                key.removeprefix(prefix)
                for key, text in store.items(prefix)
                if ScheduleProgress.read(text).paused
            ]
        for each in names:
            self._hold(connection, each, paused=False)
        events.fire(events.ScheduleResumed, connection.name, name or "")

    def _hold(self, connection: Connection, name: str, *, paused: bool) -> None:
        """Set the pause in a schedule's progress, which every run expects unchanged."""
        key = keys_of(self._queues, connection).progress(name)
        (text,) = connection.store.get(key)
        for _ in attempts(f"the schedule {one_line(name)!r}"):
            now = round(time.time(), 3)
            progress = ScheduleProgress(now) if text is None else ScheduleProgress.read(text)
            if progress.paused is paused:
                return
            wanted = Set(key, progress.with_paused(paused).text(), _HELD)
            (result,) = connection.backend.apply(Step(None, Expect(key, text), wanted))
            if result.applied:
                return
            text = result.holds

    def sign(self, connection: Connection, name: str) -> Schedule | None:
        """Sign an existing row, whoever wrote it; None if there is none.

        Raises `ConfigurationError` if no key is configured, or it is not a row.
        """
        if connection.context.signer is None:
            raise ConfigurationError("no signing_key is configured here to sign a schedule with")
        keys = keys_of(self._queues, connection)
        key = keys.row(checked_name(name))
        (text,) = connection.store.get(key)
        if text is None:
            return None
        try:
            row = ScheduleRow.model_validate_json(unsealed(text))
        except ValidationError as error:
            raise ConfigurationError(brief(error)) from None
        made = self._checked(connection, name, row)
        made.row = self._text(connection, name, row, made.job)
        step = Step(None, Expect(key, text), Set(key, made.row), keys.mark())
        (result,) = connection.backend.apply(step)
        if not result.applied:
            raise BackendUnavailable(f"the schedule {one_line(name)!r} was changed just now")
        return made

    def summaries(self, connection: Connection) -> list[ScheduleSummary]:
        """Describe the rows of a connection, without their jobs' code; also refused ones."""
        found = []
        prefix = keys_of(self._queues, connection).row()
        for key, text in connection.store.items(prefix):
            name = key.removeprefix(prefix)
            about = self._summary(connection, name, text)
            if about is not None:
                found.append(about)
        return found

    def _summary(self, connection: Connection, name: str, text: str) -> ScheduleSummary | None:
        zone, queue = self._queues.settings.schedule.timezone, connection.default_queue
        key, refused = keys_of(self._queues, connection).row(name), ""
        try:
            connection.context.opened(key, text)
        except InvalidSignature as error:
            refused = brief(error)
        try:
            row = ScheduleRow.model_validate_json(unsealed(text))
            return replace(_about(name, row, zone, queue, text), refused=refused)
        except (ValidationError, QframeError):
            if not refused:
                return None
            row = ScheduleRow(job=_UNREADABLE, when="hourly")
            about = _about(one_line(name, 150), row, zone, queue, text)
            return replace(about, when="", refused=refused)

    def read(self, connection: Connection) -> list[Schedule]:
        """Return the rows of a connection; logs and skips unreadable ones."""
        found = []
        prefix = keys_of(self._queues, connection).row()
        for key, text in connection.store.items(prefix):
            name = key.removeprefix(prefix)
            try:
                made = self.schedule(name, self._opened(connection, name, text))
            except InvalidSignature as error:
                self._refuse(connection, RefusedText(key, text, _SCHEDULE % one_line(name), error))
                continue
            except (QframeError, ValidationError) as error:
                if text not in self._warned:
                    self._warned.add(text)
                    log.warning("the schedule %s is left out: %s", one_line(name), brief(error))
                continue
            made.row = text
            found.append(made)
        return found

    def _refuse(self, connection: Connection, refused: RefusedText) -> None:
        """Log an unsigned row and fire the event, once; it stays as it is."""
        if refused.text not in self._warned:
            self._warned.add(refused.text)
            log_refused(connection.name, refused)


def _is_encrypted(data: object) -> bool:
    return isinstance(data, dict) and data.keys() == {encryption.KEY}


def row_of(**fields: Any) -> ScheduleRow:  # noqa: ANN401 (the fields of a row)
    """Make a row. Raises `ConfigurationError` with what is wrong."""
    try:
        return ScheduleRow(**fields)
    except ValidationError as error:
        raise ConfigurationError(brief(error)) from None


def brief(error: QframeError | ValidationError) -> str:
    """Describe in a line what is wrong with a row."""
    if isinstance(error, ValidationError):
        return describe(error, ScheduleRow, "")
    return one_line(str(error), 300)


def _about(name: str, row: ScheduleRow, zone: str, queue: str, text: str) -> ScheduleSummary:
    added = f"by {row.added_by}" if row.added_by else "at run time"
    return ScheduleSummary(
        name=name,
        job=row.job,
        when=read(row.when).text(),
        zone=row.timezone or zone,
        queue=row.queue or queue,
        missed=row.missed,
        grace=row.grace,
        overlap=row.overlap,
        spread=row.spread,
        maintenance=row.maintenance,
        environments=(),
        conditions=0,
        place=f"added {added}",
        module="",
        fact=text,
    )
