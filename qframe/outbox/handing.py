"""Sends the rows of one claim to the connection they are for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from qframe import events
from qframe.connection import Connection
from qframe.contracts.outbox import OutboxRow
from qframe.contracts.step import (
    APPLIED,
    Arrive,
    Close,
    Expect,
    Extend,
    Operation,
    Push,
    Raise,
    Result,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import BackendUnavailable, InvalidSignature, QframeError
from qframe.features import chain
from qframe.features.base import Plan, Pushing
from qframe.features.batch import BatchMember
from qframe.features.context import check
from qframe.outbox.text import decoded, place_of
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

KEPT = 7 * 86400.0
"""Seconds that a receiver keeps the mark of a step.

A longer outage of the outbox may repeat steps.
"""
KEPT_REMOVED = 600.0
"""Seconds that it keeps the mark of a removed row, for a relay that was stopped with the row."""
STALE = 30.0
"""Seconds after which a relay does not rely on its claim: another may have it by now."""
TRIES = 5
"""How often a step that the receiver cannot accept is tried before it is set aside."""
_LONGEST_ERROR = 500
_REPEATED = (Push, Arrive, Close)
"""Operations of steps in parts that are repeated when their result is unknown."""


@dataclass(slots=True)
class Totals:
    """What a relay has done."""

    handed_on: int = 0
    """Applied steps, by this relay or one that died."""
    duplicates: int = 0
    """Steps with a unique job that was already queued."""
    set_aside: int = 0


class RefusedRow(NamedTuple):
    """A row that the receiver cannot accept."""

    row: OutboxRow
    error: str
    aside: bool
    """Whether that was the last try."""


class Handing:
    """Sends rows, in order. `done` and `refused` list them, even if `hand_on` raises.

    `removed` are the marks of removed rows. A receiver with atomic steps stores a mark with each
    step, and so applies it once. Elsewhere facts are marked and written once; messages are pushed
    after them, and pushed again if the relay died in between.
    """

    def __init__(
        self,
        receiver: Connection,
        rows: Sequence[OutboxRow],
        since: float,
        removed: Sequence[str],
        totals: Totals,
    ) -> None:
        self.done: list[OutboxRow] = []
        self.refused: list[RefusedRow] = []
        self.marks: list[str] = []
        """Marks of `done`; the receiver keeps them for long, until the rows are removed."""
        self._removed = removed
        self._context = receiver.context
        self._backend = receiver.context.backend
        self._rows = rows
        self._since = since
        self._totals = totals

    def hand_on(self) -> None:
        """Send all rows in one exchange, or one by one if one is refused.

        It sends no row behind one that is to be retried. Raises `BackendUnavailable`.
        """
        try:
            self._apply(self._rows)
        except BackendUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 (a receiver may raise anything)
            log.debug("handed on one by one: %s", tracebacks.brief(error))
            self._one_by_one()

    def _one_by_one(self) -> None:
        for row in self._rows[len(self.done) :]:
            try:
                self._apply([row])
            except BackendUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 (as above)
                words = tracebacks.brief(error, _LONGEST_ERROR)
                is_forged = isinstance(error, InvalidSignature)
                aside = is_forged or row.tries + 1 >= TRIES
                self.refused.append(RefusedRow(row, words, aside))
                if not aside:
                    return
                self._totals.set_aside += 1
                self._take_back(row)
                log.error(  # noqa: TRY400 (the message is enough)
                    "a dispatch for the connection %r was set aside in the outbox (row %d): %s",
                    self._context.connection, row.id, words,
                )  # fmt: skip
                if isinstance(error, InvalidSignature):
                    what = f"row {row.id} of the outbox"
                    events.fire(
                        events.StoredRefused, self._context.connection, row.mark, what, error
                    )

    def _take_back(self, row: OutboxRow) -> None:
        """Remove what a job that was set aside holds, if that was written before its push.

        Otherwise other jobs would be its duplicates, or be skipped for it. A step that counts
        members of a batch has counted them: its mark stays, and a retry only pushes.
        """
        if self._context.joint:
            return
        with suppress(ValueError, QframeError):  # it is forged, or not a step, or expires
            operations = self._operations(row)
            uuids = {
                self._context.as_it_is(each.raw, each.queue).message.get("uuid")
                for each in operations
                if type(each) is Push
            }
            back = [
                Unset(e.key, e.value) for e in operations if type(e) is Set and e.value in uuids
            ]
            back += [Unset(e.key, e.value) for e in operations if type(e) is Raise]
            if not any(isinstance(each, Extend) for each in operations):
                back.append(Unset(_mark(row)))
            self._backend.apply(Step(None, *back))

    def _apply(self, rows: Sequence[OutboxRow]) -> None:
        """Apply the steps of rows, unless another relay may have them by now."""
        read = [(row, self._operations(row)) for row in rows]
        steps = [Step(None, *self._marked(row, operations)) for row, operations in read]
        if self._backend.clock() - self._since > STALE:
            return
        removed, self._removed = self._removed, ()
        if removed:
            steps.append(Step(None, *(Set(mark, "", KEPT_REMOVED) for mark in removed)))
        results = self._backend.apply(*steps)
        for (row, operations), result in zip(read, results, strict=False):
            self._on_result(row, operations, result)

    def _operations(self, row: OutboxRow) -> Sequence[Operation]:
        """Read the step of a row: delays count from the dispatch, ids are those of any relay.

        Raises `InvalidSignature`, and `ValueError` for anything else.
        """
        context = self._context
        kept = context.opened(place_of(context.connection), row.text)
        return [
            replace(each, delay=max(0.0, each.delay - row.age), id=f"{row.mark}.{n}")
            if type(each) is Push
            else each
            for n, each in enumerate(decoded(kept.text))
        ]

    def _marked(self, row: OutboxRow, operations: Sequence[Operation]) -> Sequence[Operation]:
        """Return the operations to apply, with a mark unless they are only pushes in parts."""
        if not self._context.joint and all(type(each) is Push for each in operations):
            return operations
        mark = _mark(row)
        return [Expect(mark, None), *operations, Set(mark, "", KEPT)]

    def _on_result(self, row: OutboxRow, operations: Sequence[Operation], result: Result) -> None:
        if result.applied:
            self._totals.handed_on += 1
            self._count(operations)
        elif result.key == _mark(row):
            self._totals.handed_on += 1
            if not self._context.joint:
                again = (each for each in operations if isinstance(each, _REPEATED))
                self._backend.apply(Step(None, *again))
        elif self._context.may_be_tried_again(result):
            self._apply([row])
            return
        else:
            self._pass_over(row, operations, result)
            self._totals.duplicates += 1
        self.done.append(row)
        if self._context.joint:
            self.marks.append(_mark(row))

    def _count(self, operations: Sequence[Operation]) -> None:
        if self._context.pushes is not None:
            for each in operations:
                if type(each) is Push:
                    pushing = self._context.as_it_is(each.raw, each.queue)
                    self._context.pushes.count(each.queue, pushing.message)

    def _pass_over(self, row: OutboxRow, operations: Sequence[Operation], refused: Result) -> None:
        """Skip a job whose lock another has: its chain begins behind it, its batch counts it.

        Raises `QframeError` if the step was refused for another reason.
        """
        if all(type(each) is not Push for each in operations):
            check(refused)
        context, pushing = self._context, self._pushing(operations)
        holder = context.holder(pushing, refused)
        log.info("%s was dispatched in vain: %s has its lock or key", pushing.uuid, holder)
        context.fire_pushed(pushing, holder)
        plan = chain.planned(context, operations, pushing)
        left = plan._replace(links=plan.links[1:], jobs=plan.jobs[1:])
        if chain.push_first(context, left, lambda plan: self._apply_once(row, plan)):
            return
        member = BatchMember.of(pushing.message)
        if member is not None:
            self._apply_once(row, Plan(None, member.arrives("", failed=False)))

    def _pushing(self, operations: Sequence[Operation]) -> Pushing:
        push = next(each for each in operations if type(each) is Push)
        pushing = self._context.as_it_is(push.raw, push.queue, push.delay)
        return replace(pushing, uuid=str(pushing.message.get("uuid", "")))

    def _apply_once(self, row: OutboxRow, plan: Plan) -> Result:
        """Apply a plan in place of a row's step."""
        (result,) = self._backend.apply(Step(None, *self._marked(row, plan.operations)))
        if result.key == _mark(row):
            return APPLIED
        if result.applied:
            plan.applied()
        return result


def _mark(row: OutboxRow) -> str:
    """Return the key by which the receiver knows that it has applied the row's step."""
    return f"relayed:{row.mark}"
