"""Batches: a batch moves as a whole, once none of its jobs runs.

Its waiting jobs leave their queues one by one and are parked as facts of the source. Once all
members that have not ended are parked, what is kept of the batch moves, and then they. A batch
that is not complete gets them back.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qframe.connection import Connection
from qframe.contracts.facts import LatchCopy
from qframe.contracts.step import (
    Arrive,
    Close,
    Delete,
    Expect,
    Extend,
    Operation,
    Push,
    Reservation,
    Set,
    Step,
    Unset,
)
from qframe.exceptions import InvalidSignature
from qframe.features.batch import BatchMember, batch_key, batch_of
from qframe.features.batches import BatchStore
from qframe.features.chain import is_id
from qframe.moving.facts import copied
from qframe.moving.transit import Transit, transit_prefix
from qframe.outbox.text import decoded, encoded
from qframe.payload.text import one_line

_CALLBACKS = "qframe.features.batch_jobs.RunBatchCallbacks"
PARKED = "parked:"
"""How the keys begin of jobs that wait for the rest of their batch."""
_MOST = 100_000
"""The members of the largest batch that moves."""
_WAITS = "its batch moves once none of its jobs runs"
_CHANGED = "its batch was changed just now: repeat the command"


class ParkedJob(NamedTuple):
    """A job that waits for the rest of its batch."""

    key: str
    text: str
    push: Push
    at: float
    number: int | None
    """Its number among the members."""

    def now(self) -> Push:
        """Return its push, with the delay that is left."""
        return replace(self.push, delay=max(0.0, self.push.delay - (time.time() - self.at)))


def batch_id(message: Mapping[str, Any]) -> str | None:
    """Return the id of the batch that a job can only move with."""
    if message.get("job") == _CALLBACKS:
        data = message.get("data")
        of = data.get("of") if isinstance(data, dict) else None
        return of if isinstance(of, str) and is_id(of) else None
    return batch_of(message)


class BatchMover:
    """Moves batches. Raises `BackendUnavailable`."""

    def __init__(self, source: Connection, target: Connection, transit: Transit) -> None:
        self._source = source
        self._target = target
        self._transit = transit
        self._prefix = f"{PARKED}{transit_prefix(source.name, target.name)}"
        self.refused: dict[str, str] = {}
        """What is parked and cannot be read: its key, and why."""

    def parking(
        self, job: Reservation, own: Sequence[Operation], push: Push, message: Mapping[str, Any]
    ) -> Step:
        """Return the step in which a job leaves its queue to wait for its batch."""
        key = f"{self._prefix}{batch_id(message)}:{time.time_ns():020d}.{secrets.token_hex(4)}"
        member = BatchMember.of(message)
        fields = {"at": time.time(), "step": encoded(Step(None, push))}
        if member is not None:
            fields["n"] = member.number
        text = self._source.context.sealed(key, json.dumps(fields))
        return Step(job, *own, Delete(), Set(key, text))

    def parked(self) -> dict[str, list[ParkedJob]]:
        """Return what is parked, by batch, in order."""
        found: defaultdict[str, list[ParkedJob]] = defaultdict(list)
        for key, text in self._source.store.items(self._prefix):
            try:
                fields = json.loads(self._source.context.opened(key, text).text)
                (push,) = decoded(fields["step"])
                assert isinstance(push, Push)  # noqa: S101 (as it was kept)
                each = ParkedJob(key, text, push, float(fields["at"]), fields.get("n"))
            except InvalidSignature as error:
                self.refused[key] = one_line(str(error), 200)
                continue
            except (ValueError, KeyError, TypeError) as error:
                self.refused[key] = one_line(f"what is kept as {key} is no job: {error}", 200)
                continue
            found[key.removeprefix(self._prefix).partition(":")[0]].append(each)
        return found

    def settle(
        self,
        leaving: Callable[[Push], Sequence[Operation]],
        moved: Callable[[Push], None],
        stays: Callable[[Push, str], None],
    ) -> None:
        """Move the batches that are complete, and give the jobs of the others back.

        `leaving` returns the operations with which a job of a batch that has moved leaves.
        """
        for identity, jobs in self.parked().items():
            why = self._move(identity, jobs)
            for each in jobs:
                gone = Expect(each.key, each.text), Unset(each.key)
                if why:
                    self._source.backend.apply(Step(None, *gone, each.now()))
                    stays(each.push, why)
                    continue
                operations = leaving(each.now())
                (result,) = self._source.backend.apply(Step(None, *gone, *operations))
                kept = operations[-1]
                if result.applied and isinstance(kept, Set):
                    self._transit.deliver([kept])
                    moved(each.push)
                else:
                    stays(each.push, _CHANGED)

    def _move(self, identity: str, jobs: Sequence[ParkedJob]) -> str:
        """Move what is kept of a batch. Returns why it stays; "" if it has moved, or is gone."""
        key, backend = batch_key(identity), self._source.backend
        text, size = backend.read(key, f"{key}:size")
        latch = backend.copy_latch(key)
        if text is None or latch is None:
            return ""
        why = self._refusal(identity, latch, jobs)
        if why:
            return why
        keys = [key, *self._source.store.keys(f"{key}:"), *self._index(identity)]
        copies = copied(self._source, keys)
        made = [
            Set(e.key, self._renamed(e.value) if e.key == key else e.value, e.ttl) for e in copies
        ]
        kept = self._transit.keeping([*_restoring(latch), *made])
        known = Expect(key, text), Expect(f"{key}:size", size)
        (result,) = backend.apply(Step(None, *known, *map(Unset, keys), kept))
        if not result.applied:
            return _CHANGED
        self._transit.deliver([kept])
        return ""

    def _refusal(self, identity: str, latch: LatchCopy, jobs: Sequence[ParkedJob]) -> str:
        found = BatchStore(self._source.context).find(identity)
        if found is not None and found.record.options.get("chain"):
            return "its batch is part of a chain or a flow, which ends where it began"
        if latch.size > _MOST:
            return f"its batch has more than {_MOST:,} members"
        ended = {*latch.done, *latch.failed}
        missing = {*range(latch.size)} - ended - {each.number for each in jobs}
        return "" if latch.closed and not missing else _WAITS

    def _index(self, identity: str) -> list[str]:
        """Return the key by which the batch is listed."""
        keys = self._source.store.keys("batches:")
        return [each for each in keys if each.endswith(f":{identity}")]

    def _renamed(self, text: str) -> str:
        """Return the fact of a batch with its new connection."""
        fields = json.loads(text)
        return json.dumps({**fields, "connection": self._target.name}, ensure_ascii=False)


def _restoring(latch: LatchCopy) -> list[Operation]:
    """Return the operations that make a latch again, and look once at what is due."""
    key, then = latch.opened.latch, latch.opened.then
    lost = (Arrive(key, each, True, label, False) for each, label in latch.failed.items())
    done = (Arrive(key, each, push=False) for each in latch.done)
    return [latch.opened, Extend(key, latch.size), *lost, *done, Close(key, push=False), then]
