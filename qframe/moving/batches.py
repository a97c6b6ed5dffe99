"""Batches and flows move as wholes, once none of their jobs runs.

Their waiting jobs leave their queues one by one and are parked as facts of the source. Once all
jobs that have not ended are parked, what is kept of the batch or flow moves, and then they. One
that is not complete gets them back.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qframe.connection import Connection
from qframe.contracts.step import (
    Delete,
    Expect,
    Operation,
    Push,
    Reservation,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import InvalidPayload
from qframe.features.batch import batch_key
from qframe.moving.transit import Transit, transit_prefix
from qframe.moving.whole import StayingWhole
from qframe.moving.wholes import Wholes, begun_batch, identity_of

PARKED = "parked:"
"""How the keys begin of jobs that wait for the rest of their batch."""
_CHANGED = "its batch or flow was changed just now: repeat the command"


class ParkedJob(NamedTuple):
    """A job that waits for the rest of its batch or flow."""

    key: str
    text: str
    push: Push
    at: float

    def now(self) -> Push:
        """Return its push, with the delay that is left."""
        return replace(self.push, delay=max(0.0, self.push.delay - (time.time() - self.at)))


class BatchMover:
    """Moves batches and flows. Raises `BackendUnavailable`."""

    def __init__(self, source: Connection, target: Connection, transit: Transit) -> None:
        self._source = source
        self._target = target
        self._transit = transit
        self._wholes = Wholes(source)
        self._prefix = f"{PARKED}{transit_prefix(source.name, target.name)}"

    def identity(self, message: Mapping[str, Any]) -> str | None:
        """Return the batch or flow that a job can only move with; None if it can move alone."""
        found = identity_of(message)
        if found is None and (begun := begun_batch(message)) is not None:
            there = self._source.backend.read(batch_key(begun)) != [None]
            return begun if there else None
        return found

    def parking(
        self, job: Reservation, own: Sequence[Operation], push: Push, identity: str
    ) -> Step:
        """Return the step in which a job leaves its queue to wait for its batch or flow."""
        key = f"{self._prefix}{identity}:{time.time_ns():020d}.{secrets.token_hex(4)}"
        return Step(job, *own, Delete(), self._transit.kept.keeping(key, [push]))

    def parked(self) -> dict[str, list[ParkedJob]]:
        """Return what is parked, by batch or flow, in order."""
        found: defaultdict[str, list[ParkedJob]] = defaultdict(list)
        for key, text in self._source.store.items(self._prefix):
            step = self._transit.kept.read(key, text)
            if step is None:
                continue
            match [*step.operations]:
                case [Push() as push]:
                    identity = key.removeprefix(self._prefix).partition(":")[0]
                    found[identity].append(ParkedJob(key, text, push, step.at))
                case _:
                    self._transit.kept.refuse(key, f"what is kept as {key} is no job")
        return found

    def settle(
        self,
        leaving: Callable[[Push], Sequence[Operation]],
        moved: Callable[[Push], None],
        stays: Callable[[Push, str], None],
    ) -> None:
        """Move the batches and flows that are complete, and give the jobs of the others back.

        `leaving` returns the operations with which a job of one that has moved leaves.
        """
        for parts, jobs in self._together():
            why = self._move(parts, jobs)
            for each in jobs:
                gone = Expect(each.key, each.text), Unset(each.key)
                if why:
                    self._source.backend.apply(Step(None, *gone, each.now()))
                    stays(each.push, why)
                    continue
                try:
                    operations = leaving(each.now())
                except InvalidPayload as error:  # it stays parked: its batch or flow has moved
                    stays(each.push, str(error))
                    continue
                (result,) = self._source.backend.apply(Step(None, *gone, *operations))
                kept = operations[-1]
                if result.applied and isinstance(kept, Set):
                    self._transit.deliver([kept])
                    moved(each.push)
                else:
                    stays(each.push, _CHANGED)

    def bring(self, message: Mapping[str, Any]) -> str:
        """Move the batch or flow of a failed job: its retry goes on with that.

        Returns why both stay; "" if it has moved, or is gone, or the job is of none.
        """
        identity = self.identity(message)
        return "" if identity is None else self._move(self._wholes.path(identity), [])

    def _together(self) -> Iterator[tuple[list[str], list[ParkedJob]]]:
        """Return what moves together: batches and flows, and their parked jobs."""
        parts: defaultdict[str, dict[str, None]] = defaultdict(dict)
        jobs: defaultdict[str, list[ParkedJob]] = defaultdict(list)
        for identity, some in self.parked().items():
            path = self._wholes.path(identity)
            parts[path[-1]].update(dict.fromkeys(path))
            jobs[path[-1]] += some
        for outermost, found in jobs.items():
            yield [*parts[outermost]], found

    def _move(self, parts: Sequence[str], jobs: Sequence[ParkedJob]) -> str:
        """Move what is kept of a whole. Returns why it stays; "" if it has moved, or is gone."""
        context = self._source.context
        parked = [context.as_it_is(each.push.raw, each.push.queue).message for each in jobs]
        try:
            whole = self._wholes.gather(parts, parked)
        except StayingWhole as why:
            return str(why)
        if whole is None:
            return ""
        kept = self._transit.keeping(whole.arriving(self._target.name))
        (result,) = self._source.backend.apply(Step(None, *whole.leaving(), kept))
        if not result.applied:
            return _CHANGED
        self._transit.deliver([kept])
        return ""
