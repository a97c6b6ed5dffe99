"""Binning: what one act removes from one connection, as far as it goes into the bin there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.status import State
from qframe.contracts.step import Outcome, Release, Set, Step, Unset
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import InvalidPayload, LeaseLost
from qframe.features import binned, in_line
from qframe.features.base import End
from qframe.features.binned import BinAct, BinEntry, BinFeature, batch_named
from qframe.features.in_line import LinedJob
from qframe.features.reserved import ReservedJob
from qframe.features.steps import StepsFeature
from qframe.payload.text import one_line

_INTERNAL = b'"job":"qframe.features.'
_NODE = b'"flow":{"id":'
_NEEDS = Capability.FACTS | Capability.SEARCH | Capability.BROWSE
_PAGE = 500
_AT_ONCE = 100
_READY, _REST, _LINED = "0", "1", "2"
"""How the number of an entry begins: ready jobs come back first, those in line last."""


def is_internal(raw: bytes) -> bool:
    """Whether a job is qframe's own, and no node of a flow."""
    return _INTERNAL in raw and _NODE not in raw


def why_not_waiting(connection: Connection) -> str:
    """Returns why waiting jobs cannot be put into the bin one by one; "" if they can."""
    if _NEEDS in connection.capabilities:
        return ""
    return f"{connection.name} cannot search its waiting jobs"


@dataclass(slots=True)
class _Removal:
    """What becomes of one waiting job if its removal succeeds."""

    entry: BinEntry | None = None
    """What goes into the bin."""
    lost: str = ""
    """Why it is removed for good."""


class Binning:
    """What one act puts into the bin of one connection."""

    def __init__(
        self, connection: Connection, act: BinAct, refusal: str, most_jobs: int, most_bytes: int
    ) -> None:
        self.connection = connection
        self.act = act
        self.lost: Counter[str] = Counter()
        """How many were removed for good, by why."""
        self._refusal = refusal
        self._is_noted = False
        self._number = 0
        self._left = most_jobs, most_bytes
        if not refusal:
            before = binned.acts(connection.backend, connection.name)
            self._left = (
                most_jobs - sum(each.jobs for each in before),
                most_bytes - sum(each.size for each in before),
            )

    def refusal(self, size: int = 0) -> str:
        """Returns why a job of so many bytes is removed for good; "" if the bin takes it."""
        jobs, room = self._left
        if self._refusal:
            return self._refusal
        return "" if self.act.jobs < jobs and self.act.size + size <= room else "the bin is full"

    @property
    def room(self) -> int:
        """How many more jobs the bin takes, if they are small."""
        return self._left[0] - self.act.jobs

    def note(self) -> None:
        """Writes what is known of the act."""
        if not self._is_noted:
            return
        act = replace(self.act, lost=self.lost.total())

        def noted(before: list[BinAct]) -> list[BinAct]:
            others = [each for each in before if each.id != act.id]
            return [*others, act] if act.jobs else others

        binned.change_acts(self.connection.backend, self.connection.name, noted)

    # -- waiting jobs -----------------------------------------------------------------------------

    def remove(self, found: Found) -> bool:
        """Removes a waiting job. Returns False if it moved."""
        if self._refusal:
            return self._counted(self.connection.remove(found), _Removal(lost=self._refusal))
        removal = _Removal()
        due = found.at if found.place is Place.DELAYED else None
        is_buried = found.place is Place.BURIED
        prepare = partial(self._prepare, removal=removal, due=due, buried=is_buried)
        return self._counted(self.connection.remove(found, prepare), removal)

    def remove_in_line(self, job: LinedJob) -> bool:
        """Removes a job that stands in line. Returns False if it has a message meanwhile."""
        entry = BinEntry(job.queue, job.raw)
        if why := self.refusal(entry.size):
            return self._counted(self.connection.remove_in_line(job), _Removal(lost=why))
        removal = _Removal(entry)
        also = [self._fact(entry, _LINED)]

        def prepare(found: ReservedJob) -> None:
            also.clear()
            self._prepare(found, removal, due=None, buried=False)

        return self._counted(self.connection.remove_in_line(job, also, prepare), removal)

    def _prepare(
        self, job: ReservedJob, removal: _Removal, *, due: float | None, buried: bool
    ) -> None:
        """Lets the end of a held job write its entry; it is removed for good if there is none."""
        removal.entry = None
        try:
            entry = binned.of_reservation(job, due=due, buried=buried)
        except InvalidPayload as error:
            removal.lost = str(error)
            return
        if why := self.refusal(entry.size):
            removal.lost = why
            return
        batch = batch_named(job.message)
        if batch and self._is_running(batch):
            entry = replace(entry, batch=batch)
        removal.entry = entry
        begins = _READY if due is None and not buried else _REST
        job.features = (*job.features, BinFeature(self._fact(entry, begins), self.act.until))

    def _is_running(self, batch: str) -> bool:
        kept = self.connection.batches()
        record = None if kept is None else kept.read(batch)
        return record is not None and record.cancelled_at is None and not record.is_finished

    def _fact(self, entry: BinEntry, begins: str) -> Set:
        if not self._is_noted:  # so that one who is killed leaves an act that can be undone
            self._is_noted = True
            self._write_first()
        self._number += 1
        number = f"{begins}{self._number:08}"
        key = binned.entry_key(self.connection.name, self.act.id, number)
        text = self.connection.context.sealed(key, entry.text())
        return Set(key, text, max(1.0, self.act.until - time.time()))

    def _write_first(self) -> None:
        act = self.act
        binned.change_acts(
            self.connection.backend, self.connection.name, lambda before: [*before, act]
        )

    def _counted(self, done: bool, removal: _Removal) -> bool:
        if done and removal.entry is not None:
            self.count(removal.entry.size)
        elif done and removal.lost:
            self.lost[one_line(removal.lost, 200)] += 1
        return done

    def count(self, size: int, jobs: int = 1) -> None:
        """Counts a job of so many bytes in; with `jobs` as -1, out again."""
        act = self.act
        self.act = replace(act, jobs=act.jobs + jobs, size=act.size + jobs * size)

    # -- a whole queue ----------------------------------------------------------------------------

    def clear(self, queue: str) -> int:
        """Removes the ready and delayed jobs of a queue. Returns how many there were."""
        connection, count = self.connection, 0
        refusal = self._refusal or why_not_waiting(connection)
        if not refusal:
            count += sum(map(self.remove_in_line, [*self._lined(queue)]))
            count += self._clear_ready(queue)
            count += sum(map(self.remove, self._found(queue, Place.DELAYED)))
        left = connection.clear(queue)
        if left:
            self.lost[refusal or self.refusal() or "internal, or pushed meanwhile"] += left
        return count + left

    def _lined(self, queue: str) -> Iterator[LinedJob]:
        after = ""
        while not self.refusal():
            page = in_line.page(self.connection.context, queue, _PAGE, after)
            yield from page.jobs
            after = page.after
            if not after:
                return

    def _found(self, queue: str, place: Place) -> list[Found]:
        """Returns the messages in a place, as many as the bin takes, but internal ones."""
        found: list[Found] = []
        after, size = "", 0
        while True:
            page = self.connection.backend.browse(queue, place, _PAGE, after)
            for each in page.found:
                size += len(each.raw_body)
                if self.act.jobs + len(found) >= self._left[0] or self.refusal(size):
                    return found
                if not is_internal(each.raw_body):
                    found.append(each)
            after = page.after
            if not after:
                return found

    def _clear_ready(self, queue: str) -> int:
        """Removes ready jobs, many in one request. What the bin does not take stays."""
        connection, count = self.connection, 0
        internal: dict[str, ReservedJob] = {}
        while not self.refusal():
            held, _ = connection.reserve_after((), [queue], _AT_ONCE)
            new = [job for job in held if job.reservation.id not in internal]
            if not new:
                internal |= {job.reservation.id: job for job in held}
                break
            staying = [job for job in new if is_internal(job.raw_body)]
            internal |= {job.reservation.id: job for job in staying}
            count += self._remove_held([job for job in new if job not in staying])
        if internal:
            steps = [Step(each.reservation, Release()) for each in internal.values()]
            connection.backend.apply(*steps)
        return count

    def _remove_held(self, jobs: list[ReservedJob]) -> int:
        """Ends held jobs as cancelled. Returns how many were there."""
        end = End(State.CANCELLED, remark="cancelled while it waited")
        ending, count = [], 0
        for job in jobs:
            removal = _Removal()
            if not job.is_second():
                self._prepare(job, removal, due=None, buried=False)
                if removal.entry is not None:  # at once, as a bound of the next ones
                    self.count(removal.entry.size)
            ending.append((job, job.plan(end), removal))
        results = self.connection.backend.apply(*(plan for _, plan, _ in ending)) if ending else []
        for (job, plan, removal), result in zip(ending, results, strict=True):
            done = result.applied
            if done:
                plan.applied()
            elif result.outcome is Outcome.REFUSED:
                done = self._settled(job, end)
            if removal.entry is not None:
                self.count(removal.entry.size, -1)
            count += self._counted(done, removal)
        return count

    def _settled(self, job: ReservedJob, end: End) -> bool:
        try:
            job.settle(end)
        except LeaseLost:
            return False
        return True

    # -- failed jobs ------------------------------------------------------------------------------

    def forget(self, store: FailedStore, record: FailedJob) -> bool:
        """Removes the record of a failed job. Returns whether it existed."""
        entry = self._of_failed(record)
        if why := self.refusal(entry.size):
            return self._counted(store.forget(record), _Removal(lost=why))
        backend = self.connection.backend
        fact = self._fact(entry, _READY)
        # The entry first: if this process dies in between, undo finds the record and leaves it.
        backend.apply(Step(None, fact))
        done = store.forget(record)
        if not done:
            backend.apply(Step(None, Unset(fact.key)))
        return self._counted(done, _Removal(entry))

    def _of_failed(self, record: FailedJob) -> BinEntry:
        context = self.connection.context
        facts: tuple[binned.BinnedFact, ...] = ()
        if record.history.steps:
            pushing = context.as_it_is(record.payload, record.queue, uuid=record.uuid)
            facts = binned.facts_at(context.backend, StepsFeature().kept(context, pushing))
        return BinEntry(record.queue, record.payload, facts=facts, record=record)
