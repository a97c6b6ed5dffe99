"""Transit: what is on its way to another connection, kept as facts of the one that it leaves.

A job leaves its queue in the step that keeps here what the target is to apply. The target applies
that together with a mark, and refuses it if it has the mark; then it is removed here. So a move
that dies anywhere goes on when it is begun again, and each job is there once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qframe.connection import Connection
from qframe.contracts.browsing import Place
from qframe.contracts.step import (
    Arrive,
    Close,
    Expect,
    Extend,
    Open,
    Operation,
    Outcome,
    Push,
    Raise,
    Release,
    Reservation,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.drivers import claims
from qframe.exceptions import BackendUnavailable
from qframe.features.base import attempts
from qframe.features.group import Group
from qframe.features.steps import Waiting, waits_key
from qframe.moving.facts import SHARED
from qframe.moving.kept import KeptMoves
from qframe.payload import envelope
from qframe.schedules.state import ScheduleKeys

AT_ONCE = 100
"""Jobs that are taken, kept and handed over together."""
_MARK_KEPT = 30 * 86400.0
"""Seconds that the target knows what it has got, and that a move may be broken off."""
_ARRIVALS = 500
"""Members of a batch that are counted in one step."""
_OF_LATCHES = {Open, Extend, Arrive, Close}
_LEAST = 1.0
"""Seconds that a fact lasts at least which had nearly expired."""


@dataclass(frozen=True, slots=True)
class TransitItem:
    """One job, or one record, on its way."""

    key: str
    text: str
    at: float
    """When it left (epoch seconds)."""
    mark: str
    operations: Sequence[Operation]

    def now(self) -> list[Operation]:
        """Return the operations to apply now: delays and times count from when it left."""
        age = max(0.0, time.time() - self.at)
        others = (each for each in self.operations if type(each) not in _OF_LATCHES)
        return [self._later(each, age) for each in others]

    def _later(self, each: Operation, age: float) -> Operation:
        if isinstance(each, Push):
            return replace(each, delay=max(0.0, each.delay - age), id=self.mark)
        if isinstance(each, Set | Raise) and each.ttl is not None:
            return replace(each, ttl=max(_LEAST, each.ttl - age))
        return each


class Transit:
    """What is on its way between two connections. Raises `BackendUnavailable`.

    `schedules` are the keys of the target's; `apart`: whether they have stores of their own.
    """

    def __init__(
        self, source: Connection, target: Connection, schedules: ScheduleKeys, *, apart: bool
    ) -> None:
        self._apart = apart
        self._schedules = schedules
        self._source = source
        self._target = target
        self._prefix = transit_prefix(source.name, target.name)
        self.kept = KeptMoves(source)
        """What is on its way, or parked."""

    # -- leaving the source -----------------------------------------------------------------------

    def keeping(self, operations: Sequence[Operation], *, again: str = "") -> Set:
        """Return the operation that keeps what the target is to apply.

        `again` is the same for a job that may leave twice, where the step is made in parts.
        """
        mark = again or f"{time.time_ns():020d}.{secrets.token_hex(8)}"
        return self.kept.keeping(f"{self._prefix}{mark}", operations)

    def again(self, job: Reservation) -> str:
        """Return the word for `keeping`, "" where a job leaves in one step."""
        if self._source.context.joint:
            return ""
        named = json.dumps([job.queue, job.id]).encode()
        return hashlib.blake2b(named + job.raw_body, digest_size=16).hexdigest()

    # -- arriving at the target -------------------------------------------------------------------

    def deliver_all(self) -> int:
        """Hand over what an earlier move has left on its way. Returns how much that was."""
        count, after = 0, ""
        while page := self._source.backend.scan(self._prefix, AT_ONCE, after):
            after = page[-1][0]
            count += self.deliver([Set(*each) for each in page])
        return count

    def deliver(self, kept: Sequence[Set]) -> int:
        """Hand over what is kept here, but what cannot be read. Returns how much that was."""
        read = (self._read(each.key, each.value) for each in kept)
        items = sorted(filter(None, read), key=lambda item: item.at)
        if items:
            self._hand_over(items)
            self._source.backend.apply(*(Step(None, Unset(item.key, item.text)) for item in items))
        return len(items)

    def count(self) -> int:
        """Count what is on its way."""
        return sum(1 for _ in self._source.store.items(self._prefix))

    def _read(self, key: str, text: str) -> TransitItem | None:
        step = self.kept.read(key, text)
        if step is None:
            return None
        return TransitItem(
            key, text, step.at, f"moved:{key.removeprefix('moving:')}", step.operations
        )

    def _hand_over(self, items: Sequence[TransitItem]) -> None:
        for item in items:
            if isinstance(item.operations[0], Open):
                self._open(item)
        alone = [item for item in items if self._group(item) is not None]
        rest = [item for item in items if item not in alone] if alone else items
        made = [self._marked(item, item.now()) for item in rest]
        steps = [Step(None, *operations) for operations in made]
        results = self._target.backend.apply(*steps) if steps else []
        for item, operations, result in zip(rest, made, results, strict=True):
            self._insist(item, operations, result)
        for item in alone:  # in their order
            self._line_up(item)
        for item in items:
            self._finish(item)

    def _open(self, item: TransitItem) -> None:
        """Make the latch of a batch, with its members: in steps that may be repeated."""
        apply, made = self._target.backend.apply, item.operations
        if self._target.backend.read(item.mark) != [None]:
            return  # its members are there, and go on
        for kind in (Open, Extend, Arrive, Close):
            some = [each for each in made if type(each) is kind]
            for begin in range(0, len(some), _ARRIVALS):
                apply(Step(None, *some[begin : begin + _ARRIVALS]))

    def _marked(self, item: TransitItem, operations: Sequence[Operation]) -> list[Operation]:
        """Return the step of an item: once, and without taking what another job has there."""
        free = [Expect(each.key, None) for each in operations if isinstance(each, Set)]
        mark = self._target.context.once_pushed(Set(item.mark, "", _MARK_KEPT))
        return [Expect(item.mark, None), *free, *operations, mark]

    def _insist(self, item: TransitItem, made: list[Operation], result: Result) -> None:
        """Apply the step again without the facts that refuse it, until it is applied."""
        for _ in attempts(item.mark):
            if result.applied or result.key == item.mark:
                return
            if claims.is_refused_by_claim(result):
                claims.settle(self._target.backend, result)
            else:
                made = self._without(made, result)
            (result,) = self._target.backend.apply(Step(None, *made))

    def _without(self, made: Sequence[Operation], refused: Result) -> list[Operation]:
        """Return operations without the facts that the target has already, or others have there.

        What was debounced is replaced by a later dispatch.
        """
        if refused.outcome is not Outcome.REFUSED:
            raise BackendUnavailable(f"the target did not take a job: {refused}")
        wanted = {each.key: each.value for each in made if isinstance(each, Set)}
        keys = [*wanted]
        there = zip(keys, self._target.backend.read(*keys), strict=True)
        holds = {key: value for key, value in there if value is not None}
        shared = [key for key in holds if key.startswith(SHARED)]
        later = {key for key in shared if _is_later(wanted[key], holds[key])}
        return [
            replace(each, value=holds[each.key])
            if isinstance(each, Expect) and each.key in later
            else each
            for each in made
            if not (isinstance(each, Expect | Set) and each.key in holds.keys() - later)
        ]

    # -- groups -----------------------------------------------------------------------------------

    def _group(self, item: TransitItem) -> Group | None:
        """Return the group in which a job takes its place at the target, if it is a new one."""
        push = _push_of(item)
        is_begun = push is None or push.attempts or push.notes or push.buried
        if not self._apart or push is None or push.delay or is_begun:
            return None
        message = self._target.context.as_it_is(push.raw, push.queue).message
        return Group.of(self._target.context, push.queue, message)

    def _line_up(self, item: TransitItem) -> None:
        """Give a job of a group its place, or put it in line; as its dispatch would."""
        context, group, push = self._target.context, self._group(item), _push_of(item)
        assert group is not None  # noqa: S101 (only such items come here)
        assert push is not None  # noqa: S101 (as above)
        uuid = envelope.uuid_of(push.raw)
        others: Sequence[Operation] = [each for each in item.now() if not isinstance(each, Push)]
        while True:
            delay, made = group.joined(group.read(), uuid, push.raw)
            pushes = [] if delay is None else [replace(push, delay=delay, id=item.mark)]
            own = group.unclaimed(uuid) if delay is None else group.claim(uuid)
            step = Step(None, *self._marked(item, [*others, *pushes]), *made, *own)
            (result,) = self._target.backend.apply(step)
            if result.applied or result.key == item.mark:
                return
            if not context.may_be_tried_again(result):
                others = self._without(others, result)

    # -- what follows a push ----------------------------------------------------------------------

    def _finish(self, item: TransitItem) -> None:
        """Note where a job waits that an event is to wake, and tell of a new schedule."""
        push = _push_of(item)
        if push is None:
            row = self._schedules.row()
            if any(isinstance(e, Set) and e.key.startswith(row) for e in item.operations):
                self._target.backend.apply(Step(None, self._schedules.mark()))
            return
        uuid = envelope.uuid_of(push.raw)
        if push.delay and any(
            isinstance(e, Set) and e.key == waits_key(uuid) for e in item.operations
        ):
            self._wait_again(push, uuid)

    def _wait_again(self, push: Push, uuid: str) -> None:
        """Write the handle that the target's backend wakes a job by."""
        context, key = self._target.context, waits_key(uuid)
        (text,) = context.backend.read(key)
        where = Waiting.read(context, uuid, text)
        job = None if where is None else self._taken(push)
        if job is None or where is None or text is None:
            return
        release = Release(max(0.0, where.until - time.time()), counted=False)
        handle = job.handle(release)
        renewed = context.sealed(key, json.dumps([*where._replace(handle=handle)]))
        self._target.backend.apply(Step(job, Expect(key, text), release, Set(key, renewed)))

    def _taken(self, push: Push) -> Reservation | None:
        """Take a delayed message at the target again; None if it has gone on."""
        uuid = envelope.uuid_of(push.raw)
        for found in self._target.backend.search(push.queue, uuid.encode()):
            if envelope.uuid_of(found.raw_body) == uuid and found.place is Place.DELAYED:
                return self._target.backend.take(found)
        return None


def transit_prefix(source: str, target: str = "") -> str:
    """Return what the keys begin with of all that leaves a connection, or does so for another."""
    prefix = f"moving:{source[:60]}:"
    return f"{prefix}{target[:60]}:" if target else prefix


def _push_of(item: TransitItem) -> Push | None:
    return next((each for each in item.operations if isinstance(each, Push)), None)


def _is_later(one: str, other: str) -> bool:
    """Whether one uuid was dispatched after another."""
    here, there = envelope.dispatched_at(one), envelope.dispatched_at(other)
    return here is not None and there is not None and here > there
