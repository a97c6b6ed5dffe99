"""Payloads: whether the code here can run every job that is stored, before it is deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from qframe.exceptions import (
    CannotDecrypt,
    InvalidArguments,
    InvalidPayload,
    InvalidSignature,
    UnknownJob,
)
from qframe.features.context import Context
from qframe.jobs import unset, upgrades
from qframe.jobs.called import fields_of_call
from qframe.jobs.definition import JobDefinition
from qframe.jobs.references import PAYLOAD_KEY as REFERENCES
from qframe.jobs.registry import Registry
from qframe.manager import QueueManager
from qframe.operations.stored_payloads import FoundPayload, StoredPayloads
from qframe.payload import encryption, envelope, tracebacks
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import iso

_MOST_KINDS = 500
"""So many different troubles are told apart."""
_MOST_PLACES = 50
_MOST_FIELDS = 5
_PLACES_SHOWN = 3
_OWN = "qframe."
"""What the modules of qframe's own jobs begin with."""


class PayloadTrouble(BaseModel):
    """Jobs of one class that the code here cannot run, for one reason."""

    job: str
    """The name in the payload; "" for what has none."""
    kind: str
    """`lacks`, `misfit`, `unknown`, `newer`, `upgrade`, `encrypted`, `refused` or `broken`."""
    text: str
    """The reason, after "N of JOB": "lack `carrier`"."""
    plain: str = Field("", exclude=True)
    """The same without anything from a payload's values, to be kept and shown to others."""
    count: int = 0
    places: dict[str, int] = {}
    """How many there are in which place: `ready in database:mail`."""
    due_until: str | None = None
    """When the last of those that are delayed is due."""
    example: str = ""
    """The uuid of one of them."""

    @property
    def sentence(self) -> str:
        """`31 of app.Ship lack 'carrier' (due until ...)`."""
        return self._said(self.text)

    @property
    def plain_sentence(self) -> str:
        """The same without anything from a payload's values."""
        return self._said(self.plain)

    def _said(self, text: str) -> str:
        until = f" (due until {_shown(self.due_until)})" if self.due_until else ""
        of = f" of {self.job}" if self.job else ""
        return f"{self.count:,}{of} {text}{until}"

    def and_also(self, other: PayloadTrouble) -> PayloadTrouble:
        """Return both as one; `other` has the same class and reason, without values."""
        places = dict(self.places)
        for where, count in other.places.items():
            places[where] = places.get(where, 0) + count
        due = max(self.due_until or "", other.due_until or "") or None
        more = {"count": self.count + other.count, "places": places, "due_until": due}
        return self.model_copy(update=more)


class PayloadCheck(BaseModel):
    """What is stored, and what of it cannot be run."""

    read: int = 0
    """How many payloads were read."""
    upgraded: int = 0
    """How many `upgrade` carries over at their start."""
    foreign: int = 0
    """How many are of other programs, such as Laravel: they were passed over."""
    unchecked: int = 0
    """How many get results of other jobs before `upgrade` is called: it was not."""
    left_out: dict[str, int] = {}
    """How many have a value for which the class has no field, by class and key: `app.Ship.note`."""
    troubles: list[PayloadTrouble] = []
    """Those with the most jobs first."""
    others: int = 0
    """How many more jobs have yet other troubles."""
    notes: list[str] = []
    """What was not read."""
    silent: dict[str, str] = {}
    """The connections that did not answer, and why."""

    @property
    def is_good(self) -> bool:
        return not self.troubles and not self.silent

    @property
    def cannot(self) -> int:
        """How many payloads cannot be run."""
        return sum(each.count for each in self.troubles) + self.others

    def left_out_said(self) -> Iterator[str]:
        """Yield a sentence for each key that is left out, those of the most jobs first."""
        for name, count in sorted(self.left_out.items(), key=lambda each: -each[1]):
            job, _, key = name.rpartition(".")
            yield f"{count:,} of {job} have `{key}`, which is left out: it has no such field"

    def counted(self) -> str:
        """Return in words what was read: `1,204 payloads read, 310 to be carried over`."""
        counted = [f"{count_of(self.read, 'payload', 'payloads')} read"]
        if self.upgraded:
            counted.append(f"{self.upgraded:,} to be carried over by upgrade")
        if self.unchecked:
            counted.append(f"{self.unchecked:,} carried over once they have results of other jobs")
        if self.foreign:
            counted.append(f"{self.foreign:,} of other programs passed over")
        return ", ".join(counted)


def places_in_words(places: Mapping[str, int]) -> str:
    """Return where most of them are: `20 ready in database:mail, 11 failed in database:mail`."""
    most = sorted(places.items(), key=lambda each: -each[1])
    shown = [f"{count:,} {where}" for where, count in most[:_PLACES_SHOWN]]
    return ", ".join([*shown, *(["..."] if len(most) > len(shown) else [])])


def check(
    queues: QueueManager, only: str | None = None, *, at_most: int = 0, failed: bool = True
) -> PayloadCheck:
    """Checks all payloads that are stored, of the `only` connection or all, with the code here.

    Nothing is reserved or changed. At most so many of each queue and each other place are read; 0:
    all. Payloads are read one after the other, so memory does not grow with their number.
    """
    stored = StoredPayloads(queues, only, at_most=at_most, failed=failed)
    checking = PayloadChecking(queues.registry, stored)
    for _ in checking.steps():
        pass
    return checking.result()


class _TroubleError(Exception):
    """A payload that cannot be run: its kind and reason, with and without values."""

    def __init__(self, kind: str, text: str, plain: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.plain = text if plain is None else plain


class PayloadChecking:
    """A check of stored payloads, one after the other, that counts by reason."""

    def __init__(self, registry: Registry, stored: StoredPayloads) -> None:
        self._registry = registry
        self._stored = stored
        self._unknown: dict[str, str] = {}
        self._found = PayloadCheck()
        self._troubles: dict[tuple[str, str], PayloadTrouble] = {}
        self.knows_any = False
        """Whether the class of any payload was found, other than qframe's own."""

    def steps(self) -> Iterator[bool]:
        """Check payload after payload. Yield for each whether it can be run."""
        for each in self._stored:
            yield self._add(each)

    def result(self) -> PayloadCheck:
        """Return what was found so far."""
        found = self._found
        found.notes, found.silent = self._stored.notes, self._stored.silent
        found.troubles = sorted(self._troubles.values(), key=lambda each: -each.count)
        return found

    def _add(self, stored: FoundPayload) -> bool:
        self._found.read += 1
        message: Mapping[str, Any] = stored.message or {}
        try:
            if stored.queue is not None and (signer := stored.connection.context.signer):
                signer.check(stored.raw, stored.queue)
            message = stored.message or envelope.parse(stored.raw)
            self._check(message, stored.connection.context)
        except InvalidSignature as error:
            self._count(stored, {}, _TroubleError("refused", f"are refused: {error}"))
        except InvalidPayload as error:
            # What a driver has noted there may be forged, and quote anything.
            plain = "cannot be read" if envelope.REFUSED in message else None
            trouble = _TroubleError("broken", f"cannot be read: {error}", plain)
            self._count(stored, message, trouble)
        except _TroubleError as trouble:
            self._count(stored, message, trouble)
        else:
            return True
        return False

    def _check(self, message: Mapping[str, Any], context: Context) -> None:
        """Check one payload. Raises `_TroubleError` or `InvalidPayload`."""
        if self._is_foreign(message):
            self._found.foreign += 1
            return
        name = envelope.job_name(message)
        job_class = self._class_of(name)
        if job_class is None:
            raise _TroubleError("unknown", f"are unknown: {self._unknown[name]}")
        self._check_data(job_class, message, context)

    def _is_foreign(self, message: Mapping[str, Any]) -> bool:
        """Whether another program runs the job: a class of PHP, or a task of Celery."""
        said = message.get("job")
        if not isinstance(said, str) or message.get(envelope.WIRE) == "celery":
            return isinstance(said, str)
        name, at, _ = said.partition("@")
        if name == envelope.PHP_SERIALIZED:
            return True
        # A class here may have such a name as its `job_name`.
        return bool(at or "\\" in name) and self._class_of(name) is None

    def _class_of(self, name: str) -> type[JobDefinition] | None:
        if name in self._unknown:
            return None
        try:
            found = self._registry.find(name)
        except UnknownJob as error:
            if len(self._unknown) >= _MOST_KINDS:
                self._unknown.clear()
            self._unknown[name] = str(error).partition(": start where")[0]  # that is for workers
            return None
        self.knows_any = self.knows_any or not found.__module__.startswith(_OWN)
        return found

    def _check_data(
        self, job_class: type[JobDefinition], message: Mapping[str, Any], context: Context
    ) -> None:
        """Make the job as its start would."""
        name = job_class.__name__
        referred = message.get(REFERENCES)
        later = {*referred} if isinstance(referred, dict) else set[str]()
        written = upgrades.written_with(message)
        is_old = written is not None and written < (job_class.written_version or 0)
        try:
            data = _data(job_class, message, context)
            if is_old and later and hasattr(job_class, "upgrade"):
                self._found.unchecked += 1
                return
            data = upgrades.current(job_class, message, data)
            job_class.from_data(self._known(job_class, data))
        except CannotDecrypt as error:
            raise _TroubleError("encrypted", f"cannot be decrypted: {error}") from None
        except InvalidArguments as error:
            if error.fields and later.issuperset(error.fields):
                return
            raise _misfit(error, name, later) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (a validator may raise anything)
            hides = job_class._hides()  # noqa: SLF001 (as its own messages do)
            why = type(error).__name__ if hides else tracebacks.placed(error)
            raise _TroubleError("misfit", f"raise {why}", f"raise {_kind_of(error)}") from None
        self._found.upgraded += is_old and hasattr(job_class, "upgrade")

    def _known(self, job_class: type[JobDefinition], data: Any) -> Any:  # noqa: ANN401 (any JSON value)
        """Return data without the keys that the class ignores, which are counted."""
        known = job_class.field_names()
        if not isinstance(data, dict) or data.keys() <= known:
            return data
        known = {*known, *job_class._aliases(), unset.KEY}  # noqa: SLF001 (as its start has them)
        for key in data.keys() - known:
            name = f"{job_class.own_name()}.{one_line(key, 60)}"
            if name in self._found.left_out or len(self._found.left_out) < _MOST_KINDS:
                self._found.left_out[name] = self._found.left_out.get(name, 0) + 1
        return {key: data[key] for key in data if key in known}

    def _count(
        self, stored: FoundPayload, message: Mapping[str, Any], trouble: _TroubleError
    ) -> None:
        job = one_line(str(message.get("job") or ""), 200)
        key = (job, trouble.text)
        if key not in self._troubles and len(self._troubles) >= _MOST_KINDS:
            self._found.others += 1
            return
        text, plain = one_line(trouble.text, 400), one_line(trouble.plain, 400)
        found = self._troubles.setdefault(
            key, PayloadTrouble(job=job, kind=trouble.kind, text=text, plain=plain)
        )
        found.count += 1
        if stored.where in found.places or len(found.places) < _MOST_PLACES:
            found.places[stored.where] = found.places.get(stored.where, 0) + 1
        if stored.due is not None:
            found.due_until = max(found.due_until or "", iso(stored.due))
        found.example = found.example or envelope.uuid(message) or ""


def _misfit(error: InvalidArguments, name: str, later: set[str]) -> _TroubleError:
    text = str(error).removeprefix(f"{name}: ").removeprefix(f"{name}.")
    fields = [each for each in error.fields if each not in later]
    if error.is_lack and fields:
        return _TroubleError("lacks", f"lack {', '.join(f'`{one_line(e, 60)}`' for e in fields)}")
    if error.of_version == "newer":
        return _TroubleError("newer", f"are newer: {text}")
    if error.of_version == "upgrade":
        raised = error.__cause__  # whose text may quote a value
        plain = text if raised is None else f"upgrade raised {_kind_of(raised)}"
        return _TroubleError(
            "upgrade", f"are not carried over: {text}", f"are not carried over: {plain}"
        )
    shown = ", ".join(f"`{one_line(each, 60)}`" for each in fields[:_MOST_FIELDS])
    plain = f"do not fit in {shown}" if shown else "do not fit"
    return _TroubleError("misfit", f"do not fit: {text}", plain)


def _kind_of(error: BaseException) -> str:
    """Return the type of an error and the place that raised it, without its text."""
    place = tracebacks.place_of(error)
    return f"{type(error).__name__} ({place})" if place else type(error).__name__


def _data(job_class: type[JobDefinition], message: Mapping[str, Any], context: Context) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the data of a payload, decrypted, without results that it is to get."""
    data = message.get("data")
    if type(data) is dict and encryption.KEY in data and job_class.opens(data):
        data = context.keyring.opened(str(message.get("job")), data)
    if envelope.CALL in message and isinstance(data, dict):
        args, kwargs = data.get("args"), data.get("kwargs")
        if not (isinstance(args, list) and isinstance(kwargs, dict)):
            raise InvalidArguments(f"{job_class.__name__}: the data has no args and kwargs")
        data = fields_of_call(job_class, args, kwargs)
    return data


def _shown(moment: str) -> str:
    """Return a time with its day of the week: `Fri 2026-12-04 09:00 UTC`."""
    try:
        return datetime.fromisoformat(moment).strftime("%a %Y-%m-%d %H:%M UTC")
    except ValueError:  # it is beyond any year
        return moment
