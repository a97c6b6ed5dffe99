"""Context: a connection as features see it; plans and pushes jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json

from qframe import events
from qframe.config import GroupSettings
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import (
    Afterwards,
    Claim,
    Expect,
    Operation,
    Outcome,
    Push,
    Raise,
    Result,
    Set,
    Step,
)
from qframe.drivers import claims
from qframe.exceptions import BackendUnavailable, InvalidPayload, QframeError
from qframe.features.base import Plan, Pushing
from qframe.hooks import Hooks, of_process
from qframe.metrics.pushes import Pushes
from qframe.payload import envelope
from qframe.payload.encryption import Keyring
from qframe.payload.signature import OVERHEAD, KeptText, Signer, seal, unseal, without_signature
from qframe.payload.text import one_line

_TRIES = 200
"""How often a push is planned again that others are in the way of."""


class Prepared(NamedTuple):
    """A job with a payload that was built and checked before: a link, member or callback.

    It is signed when it is pushed, so its stored form is not a valid message for a worker.
    """

    uuid: str
    raw: bytes
    """The payload, without a signature."""
    queue: str
    delay: float
    within: Mapping[str, float] | None = None
    """Seconds from its push to its deadlines, by payload key."""
    message: dict[str, Any] | None = None
    """The decoded payload, if it was just built."""
    vouched: bool = True
    """Whether it may be signed: made by this program, or stored with a valid signature."""

    def fields(self) -> dict[str, Any]:
        """Return the fields as values that JSON can carry."""
        fields = {**self._asdict(), "raw": self.raw.decode()}
        del fields["message"], fields["vouched"]
        if not self.within:
            del fields["within"]
        return fields

    @classmethod
    def of(cls, fields: Mapping[str, Any], *, vouched: bool = True) -> Prepared:
        raw: str = fields["raw"]
        within = fields.get("within")
        return cls(
            fields["uuid"], raw.encode(), fields["queue"], fields["delay"], within, vouched=vouched
        )


class PushFeature:
    """The part of a feature that concerns pushes; `Feature` has the rest.

    A payload has the feature if it has `key`. Payloads come from outside, so a feature ignores what
    it could not have written itself. Its methods must not raise for any payload.
    """

    key: ClassVar[str]
    keeps_result: ClassVar[bool] = False
    """Whether it stores the return value of `handle`."""
    passes_result: ClassVar[bool] = False
    """Whether it passes that on to another job."""

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Add its operations to the push of a job."""

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        """Return the keys of what is kept of a waiting job, for its move to another store.

        Raises `InvalidPayload` with the reason why it cannot move.
        """
        return ()

    def learn(self, context: Context, refused: Result) -> bool:
        """Whether a refused push is worth planning again, with what the result tells."""
        return False

    def holder(self, job: Pushing, refused: Result) -> str | None:
        """Return the uuid of the job in the way, if this feature refused the push."""
        return None


@dataclass(slots=True)
class Context:
    """One connection as features see it."""

    connection: str
    """Its name."""
    backend: Backend
    features: Sequence[PushFeature]
    keyring: Keyring
    signer: Signer | None
    retry_after: float
    max_payload: int
    owner: Any = None
    """The `Connection` that it belongs to, for dispatches of a running job."""
    hooks: Hooks = of_process
    """Those of its manager."""
    pushes: Pushes | None = None
    """Counts the pushes, if metrics are on."""
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
    """The settings of groups, by name or pattern of a queue."""
    in_transaction: bool = False
    """Whether its steps are part of a transaction of the program."""
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What features know of this connection, by their keys."""
    overhead: int = field(init=False)
    """The length of a signature in bytes."""
    joint: bool = field(init=False)
    """Whether steps are atomic here."""
    in_parts: bool = field(init=False)
    """Whether a waiting job is pushed separately from its facts."""
    keys: frozenset[str] = field(init=False, repr=False)
    """The payload keys of all features: most payloads have none."""

    @property
    def at_once(self) -> bool:
        """Whether jobs run in their push (the sync connection), which raises their exceptions."""
        return Capability.RESERVE not in self.backend.capabilities

    def __post_init__(self) -> None:
        able = self.backend.capabilities
        self.overhead = 0 if self.signer is None else OVERHEAD
        self.joint = Capability.JOINT in able
        self.in_parts = not self.joint and Capability.FACTS in able and not self.at_once
        self.keys = frozenset(each.key for each in self.features)

    def features_of(self, message: Mapping[str, Any]) -> Sequence[PushFeature]:
        if self.keys.isdisjoint(message):
            return ()
        return [each for each in self.features if each.key in message]

    # -- payloads made before ---------------------------------------------------------------------

    def due(self, job: Prepared) -> Prepared:
        """Return a prepared job for a push now: its deadlines count from now."""
        if not job.within:
            return job
        message, now = envelope.parse(job.raw), time.time()
        message["createdAt"] = int(now)
        for key, seconds in job.within.items():
            whole = isinstance(message.get(key), int)  # as in Laravel
            message[key] = math.ceil(now + seconds) if whole else now + seconds
        return self._anew(job, message)

    def changed(self, job: Prepared, more: Mapping[str, Any]) -> Prepared:
        message = envelope.parse(job.raw)
        envelope.add(message, more)
        return self._anew(job, message)

    def _anew(self, job: Prepared, message: dict[str, Any]) -> Prepared:
        message = without_signature(message)
        return job._replace(raw=envelope.encode(message), message=message)

    # -- stored jobs ------------------------------------------------------------------------------

    def sealed(self, key: str, text: str) -> str:
        """Return JSON as it is stored under a key: signed for it, if a signing key is set."""
        return seal(self.signer, key, text)

    def opened(self, key: str, text: str) -> KeptText:
        """Return the text given to `sealed`. Raises `InvalidSignature`."""
        return unseal(self.signer, key, text)

    def kept_jobs(self, key: str, text: str) -> list[Prepared]:
        """Read one or several prepared jobs stored under a key.

        Raises `InvalidSignature`, and `InvalidPayload` for anything else.
        """
        kept = self.opened(key, text)
        try:
            found = from_json(kept.text)
            every = found if isinstance(found, list) else [found]
            return [_checked(Prepared.of(each, vouched=kept.vouched)) for each in every]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidPayload(f"what is kept is no job: {one_line(repr(error), 100)}") from None

    # -- pushing ----------------------------------------------------------------------------------

    def plan_push(self, job: Pushing, plan: Plan) -> None:
        """Add the push of a job, with its features, to a plan."""
        plan.operations.append(push_of(job))
        if self.pushes is not None:
            plan.then(partial(self.pushes.count, job.queue, job.message))
        for feature in self.features_of(job.message):
            feature.push(self, job, plan)

    def pushing(self, job: Prepared, *, follows: str = "") -> Pushing:
        job = self.due(job)
        raw = job.raw
        if self.signer is not None and job.vouched:
            raw = self.signer.signed(raw, job.queue)
        message = _parsed(raw) if job.message is None else job.message
        return Pushing(message, raw, job.uuid, job.queue, job.delay, follows=follows)

    def as_it_is(self, raw: bytes, queue: str, delay: float = 0.0, uuid: str = "") -> Pushing:
        """Return the push of unchanged bytes, with their signature if they have one."""
        return Pushing(_parsed(raw), raw, uuid, queue, delay)

    def claim(
        self, key: str, uuid: str, seconds: float, holds: str | None = None
    ) -> Sequence[Operation]:
        """Return the operations that take a key, with its current value, for a job to push."""
        if self.in_parts:
            return (Claim(key, uuid, seconds, holds),)
        return Expect(key, holds), Set(key, uuid, seconds)

    def kept_claim(self, key: str, uuid: str, seconds: float) -> Sequence[str]:
        """Return the key that a waiting job took with `claim`, if it still has it.

        Raises `InvalidPayload` if the claim was withdrawn.
        """
        if self.in_parts and claims.is_void(self.backend, key, uuid, seconds):
            raise InvalidPayload("it was never dispatched: its push was broken off")
        return (key,) if self.backend.read(key) == [uuid] else ()

    def once_pushed(self, fact: Set | Raise) -> Operation:
        """Return the operation that writes a job's fact, not before the job is pushed."""
        return Afterwards(fact) if self.in_parts else fact

    def push(self, job: Pushing) -> str:
        """Push a job. Returns the uuid of the job in the way; "" if it was pushed."""
        if self.keys.isdisjoint(job.message):
            (result,) = self.backend.apply(Step(None, push_of(job)))
            if result.outcome is not Outcome.APPLIED:
                check(result)
            if self.pushes is not None:
                self.pushes.count(job.queue, job.message)
            return ""
        for _ in range(_TRIES):
            plan = Plan()
            plan.is_alone = True
            self.plan_push(job, plan)
            (result,) = self.backend.apply(plan)
            if not self.may_be_tried_again(result):
                return self._pushed(job, plan, result)
        raise BackendUnavailable(f"what {job.uuid} depends on is changed again and again")

    def pushed(self, job: Pushing, plan: Plan, result: Result) -> str:
        """Run what follows a push. Returns what `push` returns."""
        return (
            self.push(job) if self.may_be_tried_again(result) else self._pushed(job, plan, result)
        )

    def _pushed(self, job: Pushing, plan: Plan, result: Result) -> str:
        holder = self.holder(job, result)
        if holder and holder != job.uuid:
            return holder
        plan.applied()
        return ""

    def may_be_tried_again(self, result: Result) -> bool:
        """Whether what refused the push is settled or known by now: plan it again.

        It may be a claim (`drivers/claims.py`) by a connection with the same store that pushes
        separately from it, or what a feature had guessed.
        """
        if result.outcome is not Outcome.REFUSED:
            return False
        if any(feature.learn(self, result) for feature in self.features):
            return True
        if not claims.is_refused_by_claim(result):
            return False
        claims.settle(self.backend, result)
        return True

    def apply(self, plan: Plan) -> Result:
        """Apply a plan about no reservation, and run its actions."""
        (result,) = self.backend.apply(plan)
        if result.applied:
            plan.applied()
        return result

    def holder(self, job: Pushing, result: Result) -> str:
        """Return the uuid of the job that blocked a push; "" if it was pushed.

        It may be the job's own uuid: then it was pushed before.
        """
        if result.applied:
            return ""
        if claims.is_refused_by_claim(result):
            raise BackendUnavailable(f"another dispatch is about to take {result.key}: try again")
        for feature in self.features_of(job.message):
            holder = feature.holder(job, result)
            if holder is not None:
                return holder
        check(result)
        return ""

    def fire_pushed(self, job: Pushing, holder: str = "", source: object = None) -> None:
        """Fire the event that a prepared job was pushed, or that another is in the way.

        `source` is the job object, if known.
        """
        if holder:
            events.fire(events.JobDuplicate, self.connection, job.queue, source, holder)
        elif events.JobQueued.listeners:
            events.fire(
                events.JobQueued, self.connection, job.queue, job.uuid, source, job.message,
                job.delay,
            )  # fmt: skip


def _checked(job: Prepared) -> Prepared:
    """Raise `TypeError` or `ValueError` if the stored fields cannot be a job."""
    numbers = [job.delay, *(job.within or {}).values()]
    if not (type(job.uuid) is type(job.queue) is str and all(each >= 0 for each in numbers)):
        raise ValueError("a uuid, a queue or a time is none")
    return job


def push_of(job: Pushing) -> Push:
    """Return the push of a job, with the priority in its payload."""
    priority = job.message.get("priority")
    if priority is not None and (type(priority) is not int or not 0 <= priority < 2**32):
        priority = None
    return Push(job.queue, job.raw, job.delay, priority)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        return envelope.parse(raw)
    except InvalidPayload:
        return {}


def check(result: Result) -> None:
    """Raise `QframeError` for a push that was refused."""
    if result.outcome is not Outcome.APPLIED:
        raise QframeError(f"a push was refused: {result.key} holds {result.holds!r}")
