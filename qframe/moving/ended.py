"""What is kept of jobs that have ended, and of schedules: it moves beside the jobs.

Each write at the target can be repeated: a status has its rank, a key is taken only if it is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from qframe.connection import Connection
from qframe.contracts.facts import FactCopy
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Operation, Set, Step, Unset
from qframe.exceptions import InvalidSignature
from qframe.features.once import is_once
from qframe.jobs.uniqueness import ONCE
from qframe.manager import QueueManager
from qframe.moving.facts import copied, written
from qframe.moving.transit import AT_ONCE, Transit
from qframe.payload.text import one_line
from qframe.schedules.rows import keys_of
from qframe.schedules.state import ScheduleProgress

_STATUS = "status:"


def move_statuses(source: Connection, target: Connection) -> Iterator[int]:
    """Move the statuses of jobs that have ended; yields how many at a time."""
    for page in _pages(source, _STATUS):
        ended = [each for each in page if _has_ended(each)]
        if ended:
            target.backend.apply(*(Step(None, each) for each in written(ended, target)))
            source.backend.apply(*(Step(None, Unset(each.key, each.value)) for each in ended))
            yield len(ended)


def copy_keys(source: Connection, target: Connection) -> None:
    """Copy the idempotency keys that are taken; they stay, too, for who still dispatches there."""
    for page in _pages(source, f"{ONCE}:"):
        taken = [each for each in page if is_once(each.key)]
        steps = [
            Step(None, Expect(each.key, None), Set(each.key, each.value, each.ttl))
            for each in taken
        ]
        target.backend.apply(*steps)


def _has_ended(copy: FactCopy) -> bool:
    try:
        return State(json.loads(copy.value)["state"]).is_final
    except (ValueError, KeyError, TypeError):
        return False


def _pages(source: Connection, prefix: str) -> Iterator[list[FactCopy]]:
    after = ""
    while page := source.backend.scan(prefix, AT_ONCE, after):
        after = page[-1][0]
        yield copied(source, [key for key, _ in page])


class ScheduleMover:
    """Moves the rows of a connection's schedules, and how far each schedule is."""

    def __init__(
        self, queues: QueueManager, source: Connection, target: Connection, transit: Transit
    ) -> None:
        self._source = source
        self._target = target
        self._transit = transit
        self._old = keys_of(queues, source)
        self._new = keys_of(queues, target)

    def rows(self) -> list[str]:
        """Return the names of the schedules that were added at run time."""
        return [
            key.removeprefix(self._old.row()) for key in self._source.store.keys(self._old.row())
        ]

    def move(self, name: str) -> str:
        """Move a row. Returns why it stays; "" if it has moved."""
        old, new = self._old.row(name), self._new.row(name)
        (text,) = self._source.store.get(old)
        if text is None:
            return ""
        if self._target.store.get(new) != [None]:
            return f"{self._target.name} has a schedule of this name"
        try:
            opened = self._source.context.opened(old, text)
        except InvalidSignature as error:
            return one_line(str(error), 200)
        vouched = self._target.context.sealed(new, opened.text) if opened.vouched else opened.text
        (progress,) = self._source.backend.copy(self._old.progress(name))
        made: list[Operation] = [Set(new, vouched)]
        if progress is not None:
            made.append(Set(self._new.progress(name), progress.value, progress.ttl))
        kept = self._transit.keeping(made)
        gone = Unset(old), Unset(self._old.progress(name)), self._old.mark()
        (result,) = self._source.backend.apply(Step(None, Expect(old, text), *gone, kept))
        if not result.applied:
            return "it was changed just now: repeat the command"
        self._transit.deliver([kept])
        return ""

    def copy_progress(self) -> None:
        """Let the schedules of the code go on where they are, unless the target is further."""
        prefix = self._old.progress()
        rows = {*self.rows()}
        for page in _pages(self._source, prefix):
            for each in page:
                name = each.key.removeprefix(prefix)
                if name not in rows:
                    self._copy(self._new.progress(name), each)

    def _copy(self, key: str, copy: FactCopy) -> None:
        """Write how far a schedule is, without a push that is still open there."""
        here = ScheduleProgress.read(copy.value)
        (text,) = self._target.store.get(key)
        if here.pending is None and (text is None or ScheduleProgress.read(text).at < here.at):
            step = Step(None, Expect(key, text), Set(key, copy.value, copy.ttl))
            self._target.backend.apply(step)
