"""Whole: the facts and latches of a batch or a flow, with all that belongs to it, as they move.

All that was read of it is expected in the step that takes it away, so nothing of it has gone on
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from qframe.connection import Connection
from qframe.contracts.facts import FactCopy, LatchCopy
from qframe.contracts.step import Arrive, Close, Expect, Extend, Operation, Push, Set, Unset
from qframe.moving.facts import copied

MOST = 100_000
"""The members of the largest batch that moves."""
MOST_FACTS = 10_000
"""The facts of the largest flow that moves: they leave in one step."""
_AT_ONCE = 500
WAITS = "its batch or flow moves once none of its jobs runs"


class StayingWhole(Exception):
    """A batch or a flow cannot move now; the message says why."""


class Whole:
    """The facts and latches of a whole, and the jobs to push so that it goes on."""

    def __init__(self, source: Connection) -> None:
        self.source = source
        self.copies: dict[str, FactCopy] = {}
        self.absent: list[str] = []
        """The facts that are not there, and would be if it had gone on."""
        self.pushes: list[Push] = []
        """The internal jobs that may be due; they do no harm if they are not."""
        self._latches: list[LatchCopy] = []

    # -- reading ----------------------------------------------------------------------------------

    def keep(self, keys: Sequence[str]) -> dict[str, str]:
        """Copy facts. Returns their values. Raises `StayingWhole`."""
        found: dict[str, str] = {}
        for begin in range(0, len(keys), _AT_ONCE):
            for each in copied(self.source, keys[begin : begin + _AT_ONCE]):
                self.copies[each.key] = each
                found[each.key] = each.value
        if len(self.copies) > MOST_FACTS:
            raise StayingWhole(f"its flow has more than {MOST_FACTS:,} facts")
        return found

    def latch(self, key: str) -> LatchCopy | None:
        """Copy a latch; None if there is none."""
        found = self.source.backend.copy_latch(key)
        if found is not None:
            self._latches.append(found)
        return found

    # -- leaving and arriving ---------------------------------------------------------------------

    def leaving(self) -> list[Operation]:
        """Return the operations that remove it, unless something of it has changed."""
        expected = [Expect(each.key, each.value) for each in self.copies.values()]
        absent = [Expect(key, None) for key in self.absent]
        latches = [Unset(each.opened.latch) for each in self._latches]
        return [*expected, *absent, *map(Unset, self.copies), *latches]

    def arriving(self, connection: str) -> list[Operation]:
        """Return the operations that make it again, and look once at what is due."""
        made: list[Operation] = []
        for latch in self._latches:
            made += _restored(latch)
        heads = {each.opened.latch for each in self._latches}
        for each in self.copies.values():
            is_head = each.key in heads and each.value.startswith("{")
            value = _renamed(each.value, connection) if is_head else each.value
            made.append(Set(each.key, value, each.ttl))
        return [*made, *self.pushes]


def ended_members(latch: LatchCopy) -> set[int]:
    """Return the numbers of those that have arrived."""
    return {*latch.done, *latch.failed}


def _restored(latch: LatchCopy) -> Iterator[Operation]:
    """Return the operations that make a latch again."""
    key = latch.opened.latch
    yield latch.opened
    if latch.size:
        yield Extend(key, latch.size)
    for each, label in latch.failed.items():
        yield Arrive(key, each, failed=True, label=label, push=False)
    for each in latch.done:
        yield Arrive(key, each, push=False)
    if latch.closed:
        yield Close(key, push=False)


def _renamed(text: str, connection: str) -> str:
    """Return the fact of a batch or flow with its new connection."""
    try:
        fields = json.loads(text)
    except ValueError:
        return text
    return json.dumps({**fields, "connection": connection}, ensure_ascii=False)
