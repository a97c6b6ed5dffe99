"""LeavingJobs: the step in which a job leaves its queue, with what is kept of it."""

from __future__ import annotations

from dataclasses import replace

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.facts import FactCopy
from qframe.contracts.step import (
    Bury,
    Delete,
    Expect,
    Operation,
    Push,
    Release,
    Reservation,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.drivers.failover import doubts
from qframe.drivers.failover.settings import FailoverSettings
from qframe.exceptions import InvalidPayload
from qframe.features.base import Pushing
from qframe.features.context import push_of
from qframe.features.group import Group
from qframe.moving.batches import BatchMover
from qframe.moving.facts import SHARED, facts_of, written
from qframe.moving.transit import Transit
from qframe.moving.wholes import is_of_whole
from qframe.payload import envelope

_NOT_AGAIN_FOR = 5.0
"""Seconds for which a job that stays is given back where queues are not in order."""
_TRIES = 5
"""How often a job is taken whose facts change meanwhile."""


class LeavingJobs:
    """Takes jobs that are held out of their queues. Raises `BackendUnavailable`.

    `apart`: whether the target has another store.
    """

    def __init__(
        self,
        source: Connection,
        target: Connection,
        transit: Transit,
        batches: BatchMover,
        *,
        apart: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._transit = transit
        self._batches = batches
        self._apart = apart

    def kept_by(self, step: Step, result: Result) -> Set | None:
        """Return what a job left behind that has left its queue; None if it has not."""
        kept = step.operations[-1]
        assert isinstance(kept, Set)  # noqa: S101 (as `step` makes it)
        if result.of_end(unanswered=False).applied:
            return kept
        if result.lost and not self._source.context.joint:
            # Another worker has got it meanwhile; the facts may have been written all the same.
            has_facts = any(isinstance(each, Unset) for each in step.operations)
            if has_facts and self._source.backend.read(kept.key) != [None]:
                return kept  # what is kept of it has left: rather twice than without its chain
            self._source.backend.apply(Step(None, Unset(kept.key, kept.value)))
        return None

    def give_back(self, job: Reservation, what: str, due: float) -> None:
        """Put a job that stays where it was; behind the others, so that each is looked at once."""
        ordered = Capability.ORDER in self._source.capabilities
        if what == Place.READY.value and not ordered:
            due = _NOT_AGAIN_FOR
        back = Bury() if what == Place.BURIED.value else Release(due)
        self._source.backend.apply(Step(job, back))

    def step(self, job: Reservation, pushing: Pushing, what: str, due: float) -> Step | None:
        """Return the step in which a job leaves its queue; None if its other message is the job.

        Raises `InvalidPayload` with why it stays.
        """
        copies = self.checked(pushing, job.notes)
        push = replace(
            push_of(pushing),
            delay=due,
            attempts=job.attempts,
            notes=job.notes,
            buried=what == Place.BURIED.value,
        )
        own: list[Operation] = []
        if pushing.message.get(doubts.KEY) is True:
            left = self._of_doubt(envelope.uuid(pushing.message))
            if left is None:
                return None
            own += left
        group = Group.of(self._source.context, job.queue, pushing.message) if self._apart else None
        if group is not None:
            uuid = envelope.uuid(pushing.message) or ""
            own += [*group.left(group.read(), uuid), *group.no_word(uuid)]
        whole = self._batches.identity(pushing.message) if self.moves_wholes else None
        if whole is not None:
            return self._batches.parking(job, own, push, whole)
        own += self.with_facts(push, copies, self._transit.again(job))
        return Step(job, *own[:-1], Delete(), own[-1])

    def _of_doubt(self, uuid: str | None) -> list[Operation] | None:
        """Return the operations by which the message that leaves is the job.

        None if the job's other message, on another connection of a failover, is.
        """
        if uuid is None:
            return []
        to_failover = isinstance(self._target.settings, FailoverSettings)
        to = "" if to_failover else self._target.name
        return doubts.leaving(self._source.backend, uuid, self._source.name, to)

    def with_facts(self, push: Push, copies: list[FactCopy], again: str = "") -> list[Operation]:
        """Return the operations that take a job's facts along; the last keeps all of it."""
        alone = [each for each in copies if not each.key.startswith(SHARED)]
        return [
            *(Expect(each.key, each.value) for each in alone),
            *(Unset(each.key) for each in alone),
            self._transit.keeping([push, *written(copies, self._target)], again=again),
        ]

    def again(self, job: Reservation, result: Result, what: str, due: float) -> Set | None:
        """Let a job leave whose facts changed meanwhile; give it back if they change again."""
        pushing = self._source.context.as_it_is(job.raw_body, job.queue)
        for _ in range(_TRIES):
            if result.lost:
                return None
            try:
                step = self.step(job, pushing, what, due)
            except InvalidPayload:
                break
            if step is None:
                self._source.backend.apply(job.delete())
                return None
            (result,) = self._source.backend.apply(step)
            kept = self.kept_by(step, result)
            if kept is not None:
                return kept
        self.give_back(job, what, due)
        return None

    # -- what is kept of it -----------------------------------------------------------------------

    def checked(self, job: Pushing, notes: bytes) -> list[FactCopy]:
        """Return what is kept of a job that may move. Raises `InvalidPayload` with why it stays."""
        if len(job.raw) > self._target.max_payload:
            most = f"{self._target.max_payload:,}"
            raise InvalidPayload(f"it has {len(job.raw):,} bytes, {self._target.name} takes {most}")
        return self.copies(job, notes)

    def copies(self, job: Pushing, notes: bytes) -> list[FactCopy]:
        """Return what is kept of a job, if the target has another store."""
        if not self._apart:
            return []
        as_whole = self.moves_wholes and is_of_whole(job.message)
        return facts_of(self._source, job, notes, as_whole=as_whole)

    @property
    def moves_wholes(self) -> bool:
        """Whether batches and flows move: to another store, in steps that are atomic."""
        return self._apart and self._source.context.joint and self._target.context.joint
