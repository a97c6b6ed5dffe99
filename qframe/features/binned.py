"""The bin: what somebody has removed, kept for a while so that it can be taken back.

`bin:CONNECTION` lists the acts, and `binned:CONNECTION:ACT:N` has one job each, with what was kept
of it. Where steps are atomic an entry is written in the step that removes its job. All of it
expires, so that nothing is kept longer, whether a worker is there or not; workers remove the rows
that a database still has of it. What is encrypted stays so.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic_core import from_json, to_json

from qframe.contracts.backend import Backend
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import STEPS, History
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Set, Step, Unset
from qframe.exceptions import BackendUnavailable, InvalidPayload
from qframe.features import flow_undo
from qframe.features.base import End, Plan, Pushing, attempts
from qframe.features.batch import KEY as BATCH
from qframe.features.context import Context, PushFeature
from qframe.features.flow import NodePlace
from qframe.features.flow_return import binned_fact
from qframe.features.reserved import Feature, ReservedJob
from qframe.features.steps import StepsFeature

_ENTRIES = "binned:"
_MOST_ACTS = 200
OF_CANCELLED = "of a flow that was cancelled"
"""Why a job is removed for good that would be skipped anyway."""
_A_DAY = 86400.0
_KINDS: dict[str, Callable[[Any], Any]] = {
    "id": str, "action": str, "of": str, "who": str, "at": float, "until": float,
    "jobs": int, "size": int, "lost": int,
}  # fmt: skip
"""The fields of an act, and what reads them, in the order of the class."""


@dataclass(frozen=True, slots=True)
class BinAct:
    """One act of somebody that removed jobs, as a connection keeps it."""

    id: str
    action: str
    of: str
    """What it was about, in words."""
    who: str
    at: float
    until: float
    jobs: int = 0
    """How many it has in the bin."""
    size: int = 0
    """Their bytes."""
    lost: int = 0
    """How many it removed for good, because the bin was full or cannot have them."""


@dataclass(frozen=True, slots=True)
class BinnedFact:
    """A fact of a removed job; `ttl` is what was left of its time."""

    key: str
    value: str
    ttl: float | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class BinEntry:
    """A removed job, or the record of a failed one."""

    queue: str
    raw: bytes
    due: float | None = None
    """When it is due, if it was delayed (epoch seconds)."""
    attempts: int = 0
    notes: bytes = b""
    buried: bool = False
    facts: tuple[BinnedFact, ...] = ()
    record: FailedJob | None = None
    """The record, if the job had failed."""
    batch: str = ""
    """The batch that ran until the job was removed."""
    node: str | None = None
    """The state that its node of a flow had, "" if none; None if it is not of a flow."""

    @property
    def size(self) -> int:
        more = 0 if self.record is None else len(self.record.exception)
        return len(self.raw) + len(self.notes) + more + sum(len(each.value) for each in self.facts)

    def text(self) -> str:
        """Encode."""
        record = self.record
        fields: dict[str, Any] = {
            "queue": self.queue,
            "raw": base64.b64encode(self.raw).decode(),
            "due": self.due,
            "attempts": self.attempts,
            "notes": base64.b64encode(self.notes).decode(),
            "buried": self.buried,
            "facts": [[each.key, each.value, each.ttl, each.rank] for each in self.facts],
            "batch": self.batch,
            "node": self.node,
        }
        if record is not None:
            fields["record"] = [
                record.uuid, record.connection, record.exception, record.name, record.attempts,
                record.history.to_json(), record.failed_at,
            ]  # fmt: skip
        return to_json(fields).decode()

    @classmethod
    def read(cls, text: str) -> BinEntry:
        """Decode. Raises `ValueError`."""
        try:
            fields = from_json(text)
            queue, raw = str(fields["queue"]), base64.b64decode(fields["raw"])
            due = None if fields["due"] is None else float(fields["due"])
            made = cls(
                queue, raw, due, int(fields["attempts"]),
                base64.b64decode(fields["notes"]), fields["buried"] is True,
                tuple(_fact(*each) for each in fields["facts"]), batch=str(fields["batch"]),
                node=None if fields.get("node") is None else str(fields["node"]),
            )  # fmt: skip
            if (row := fields.get("record")) is None:
                return made
            uuid, connection, exception, name, number, history, failed_at = row
            record = FailedJob(
                str(uuid), str(connection), queue, raw, str(exception), str(name), int(number),
                History.from_json(str(history)), float(failed_at),
            )  # fmt: skip
            return replace(made, record=record)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"what is kept in the bin cannot be read: {error}") from None


def _fact(key: str, value: str, ttl: float | None, rank: int | None) -> BinnedFact:
    """Return a fact that was read, whatever stands there. Raises `ValueError` or `TypeError`."""
    lasts = None if ttl is None else max(0.0, float(ttl))
    return BinnedFact(str(key), str(value), lasts, None if rank is None else int(rank))


def acts_key(connection: str) -> str:
    return f"bin:{connection[:120]}"


def entry_key(connection: str, act: str, number: str = "") -> str:
    """Return the key of an entry; without a number, what those of an act begin with."""
    return f"{all_entries(connection)}{act}:{number}"


def all_entries(connection: str) -> str:
    """Return what the keys of all entries of a connection begin with, and perhaps others'."""
    return f"{_ENTRIES}{connection[:80]}:"


def is_entry(connection: str, key: str) -> bool:
    """Whether a key that begins so is of this connection, whose name may begin another's."""
    return key.removeprefix(all_entries(connection)).count(":") == 1


def acts(backend: Backend, connection: str) -> list[BinAct]:
    """Return the acts of a connection that can be taken back, the latest last."""
    return _read(backend.read(acts_key(connection))[0])


def _read(text: str | None) -> list[BinAct]:
    try:
        rows = [] if text is None else from_json(text)
        found = [BinAct(*(_KINDS[name](row[name]) for name in _KINDS)) for row in rows]
        now = time.time()
        return [each for each in found if 0 <= each.at <= now + _A_DAY and now < each.until]
    except (ValueError, TypeError, KeyError, OverflowError):
        return []


def change_acts(
    backend: Backend, connection: str, changed: Callable[[list[BinAct]], Iterable[BinAct]]
) -> None:
    """Replace the acts of a connection, without those that are over."""
    key = acts_key(connection)
    for _ in attempts("the list of what is in the bin"):
        (before,) = backend.read(key)
        left = [*changed(_read(before))][-_MOST_ACTS:]
        after: Set | Unset = Unset(key)
        if left:
            rows = [{name: getattr(each, name) for name in _KINDS} for each in left]
            ttl = max(each.until for each in left) - time.time()
            after = Set(key, to_json(rows).decode(), max(1.0, ttl))
        if backend.apply(Step(None, Expect(key, before), after))[0].applied:
            with suppress(BackendUnavailable):  # a worker or the next act removes them
                remove_expired(backend)
            return


def remove_expired(backend: Backend) -> None:
    """Remove the entries whose time is over, of all connections that have their facts there."""
    backend.remove_expired(_ENTRIES)


# -- what is kept of a job ------------------------------------------------------------------------


def kept_of(context: Context, job: Pushing, notes: bytes) -> tuple[BinnedFact, ...]:
    """Return the facts of a waiting job. Raises `InvalidPayload` if it cannot be put into a bin."""
    features: list[PushFeature] = [*context.features_of(job.message)]
    if STEPS in notes and StepsFeature.key not in job.message:
        features.append(StepsFeature())
    keys = [key for feature in features for key in feature.kept(context, job)]
    return facts_at(context.backend, keys)


def facts_at(backend: Backend, keys: Sequence[str]) -> tuple[BinnedFact, ...]:
    found = backend.copy(*dict.fromkeys(keys)) if keys else []
    return tuple(
        BinnedFact(each.key, each.value, each.ttl, each.rank) for each in found if each is not None
    )


def of_reservation(job: ReservedJob, *, due: float | None, buried: bool) -> BinEntry:
    """Return the entry of a held job that is about to be removed. Raises `InvalidPayload`."""
    context, reservation = job.context, job.reservation
    pushing = context.as_it_is(job.raw_body, job.queue)
    place, node = NodePlace.of(pushing.message), None
    if place is not None and job.refusal is None:
        if flow_undo.is_over(context, place):
            raise InvalidPayload(OF_CANCELLED)
        node = flow_undo.state_before(context, place)
    facts = kept_of(context, pushing, reservation.notes) if job.refusal is None else ()
    return BinEntry(
        job.queue,
        job.raw_body,
        due,
        reservation.attempts,
        reservation.notes,
        buried,
        facts,
        node=node,
    )


@dataclass(slots=True)
class BinFeature(Feature):
    """Writes the entry of one job in the step that removes it; added to the features of the job."""

    key: ClassVar[str] = "bin"
    entry: Set = field()
    until: float = 0.0
    """Until when it is kept (epoch seconds)."""

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        if end.state is State.CANCELLED:
            plan.add(self.entry)
            place = None if job.message is None else NodePlace.of(job.message)
            if place is not None:
                plan.add(binned_fact(place, self.until))


def batch_named(message: Any) -> str:  # noqa: ANN401 (a payload)
    """Return the id of the batch that a payload names; ""."""
    named = message.get(BATCH) if isinstance(message, dict) else None
    identity = named.get("id") if isinstance(named, dict) else None
    return identity if isinstance(identity, str) else ""
