"""QueueMover: moves what waits on one connection to another, job by job, while both are used.

A reserved job is moved as it is: payload, queue, due time, attempts and notes, and what is kept of
it if the target has another store. A job that runs ends where it is.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import (
    Forget,
    Operation,
    Push,
    Record,
    Reservation,
    Set,
    Step,
    Unset,
)
from qframe.drivers.failover.settings import FailoverSettings
from qframe.exceptions import ConfigurationError, InvalidPayload, InvalidQueueName
from qframe.manager import QueueManager
from qframe.moving.batches import PARKED, BatchMover
from qframe.moving.ended import ScheduleMover, copy_keys, move_statuses
from qframe.moving.facts import share_store, steps_of, written
from qframe.moving.leaving import LeavingJobs
from qframe.moving.transit import AT_ONCE, Transit
from qframe.moving.wholes import Wholes
from qframe.payload.text import one_line
from qframe.schedules.rows import keys_of

_KEEPS = Capability.RESERVE | Capability.FACTS
_BROWSED = Capability.BROWSE | Capability.SEARCH
_BURIES = Capability.BURY | Capability.SEARCH
_PAUSE = 0.5
"""Seconds between two looks for what is released, with `wait`."""
_LONGEST_PAUSE = 4.0
"""The same after some looks that found nothing to move."""
_HOLD = 5.0
"""Seconds for which jobs are held that are about to leave."""
_IN_PARTS = "it ends where it began: its steps are made in parts on one of the two connections"
_UNSEEN = {
    "delayed": "it moves when it is due: repeat the command",
    "buried": "make it ready first: qframe kick",
}
"""Why jobs stay where only ready ones can be taken."""
Progress = Callable[[int], None]


class MoveRow(NamedTuple):
    """What is counted together."""

    queue: str
    what: str
    """`ready`, `delayed`, `buried`, `running`, `failed`, `schedule`, `status` or `on its way`."""
    outcome: str
    """`moved`, `stays`, or `would move`."""
    why: str = ""


class QueueMover:
    """Moves the jobs of some queues, or of all. Raises `ConfigurationError`, `BackendUnavailable`.

    `progress` is called with the number of jobs moved so far.
    """

    def __init__(
        self,
        queues: QueueManager,
        source: str,
        target: str,
        progress: Progress = lambda _: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._queues = queues
        self._source = queues.connection(source)
        self._target = queues.connection(target)
        self._progress = progress
        self._is_over = is_over
        self._stays: dict[tuple[str, bytes], MoveRow] = {}
        """What was looked at and stays, by queue and digest of the payload."""
        self.moved: Counter[MoveRow] = Counter()
        self._check()
        self._apart = not share_store(self._source.backend, self._target.backend)
        """Whether the target has another store."""
        schedules = keys_of(queues, self._target)
        self._transit = Transit(self._source, self._target, schedules, apart=self._apart)
        self._wholes = Wholes(self._source)
        self._batches = BatchMover(self._source, self._target, self._transit)
        self._jobs = LeavingJobs(
            self._source, self._target, self._transit, self._batches, apart=self._apart
        )
        self._schedules = ScheduleMover(queues, self._source, self._target, self._transit)
        timing = self._source.backend.timing
        timing.hold = max(timing.hold, _HOLD)

    def _check(self) -> None:
        source, target = self._source, self._target
        if source.name == target.name:
            raise ConfigurationError(f"the jobs of {source.name} are there already")
        for each in (source, target):
            if _KEEPS not in each.capabilities:
                raise ConfigurationError(f"the connection {each.name!r} keeps no jobs")
        if _is_same(self._queues, source, target):
            same = f"{source.name} and {target.name} are the same place"
            raise ConfigurationError(f"{same}: {source.described()}")
        for each, other in ((source, target), (target, source)):
            self._check_failover(each, other)
        target.learn_limits()

    def _check_failover(self, one: Connection, other: Connection) -> None:
        if not isinstance(one.settings, FailoverSettings):
            return
        members = one.settings.connections
        if one is self._source:
            names = ", ".join(members)
            raise ConfigurationError(
                f"the jobs of {one.name} are on its connections: move each of them ({names})"
            )
        if other.name in members:
            raise ConfigurationError(
                f"{other.name} is one of the connections of {one.name}, whose workers work it"
            )

    # -- all of it --------------------------------------------------------------------------------

    def names(self, only: Sequence[str]) -> list[str]:
        """Return the queues to move. Raises `ConfigurationError` where they cannot be listed."""
        if only:
            return [*only]
        if Capability.LIST not in self._source.capabilities:
            raise ConfigurationError(
                f"the queues of {self._source.name} cannot be listed: name each with --queue"
            )
        return self._source.queues()

    def waiting(self, only: Sequence[str] = ()) -> Counter[MoveRow]:
        """Count what would move."""
        found: Counter[MoveRow] = Counter()
        for name in self.names(only):
            counted = self._source.sizes(name).counted
            for what in ("ready", "delayed", "buried"):
                found[MoveRow(name, what, "would move")] += counted[what] or 0
            found[MoveRow(name, "running", "stays")] += counted["reserved"] or 0
        for record in self._failed(only):
            found[MoveRow(record.queue, "failed", "would move")] += 1
        if not only:
            found[MoveRow("", "schedule", "would move")] += len(self._schedules.rows())
        parked = sum(map(len, self._batches.parked().values()))
        if on_its_way := self._transit.count() + parked:
            found[MoveRow("", "on its way", "would move")] += on_its_way
        return +found + self.staying()

    def staying(self) -> Counter[MoveRow]:
        """Count the flows and batches that cannot move between these connections at all."""
        if not self._apart or self._jobs.moves_wholes:
            return Counter()
        flows, batches = self._wholes.unfinished()
        return +Counter(
            {
                MoveRow("", "flow", "stays", _IN_PARTS): flows,
                MoveRow("", "batch", "stays", _IN_PARTS): batches,
            }
        )

    def move(self, only: Sequence[str] = (), *, wait: bool = False) -> Counter[MoveRow]:
        """Move everything; with `wait`, until nothing is left that can move.

        Returns what moved, and what stays and why.
        """
        before = self._transit.deliver_all()
        if before:
            self._count(MoveRow("", "on its way", "moved"), before)
        left = self._move_waiting(only)
        self._move_ended(only)
        if wait and self._may_move(left):
            left = self._wait(only, left)
            self._move_ended(only)
        return self.moved + Counter(self._stays.values()) + left + self._refused()

    def _may_move(self, left: Iterable[MoveRow]) -> bool:
        """Whether another look may find something to move: nobody makes ready what is buried."""
        return not self._is_over() and any(row.what != "buried" for row in left)

    def _wait(self, only: Sequence[str], left: Counter[MoveRow]) -> Counter[MoveRow]:
        """Move what is released meanwhile, until nothing is left that can move."""
        pause = _PAUSE
        while self._may_move(left):
            self._sleep(pause)
            count = self.moved.total()
            left = self._move_waiting(only)
            pause = _PAUSE if self.moved.total() > count else min(_LONGEST_PAUSE, pause * 2)
        return left

    def _move_waiting(self, only: Sequence[str]) -> Counter[MoveRow]:
        """Move what waits in queues. Returns what is left there."""
        self._stays = {}
        for name in self.names(only):
            self._move_queue(name)
        self._settle_batches()
        return self._left(only)

    def _move_ended(self, only: Sequence[str]) -> None:
        """Move failed jobs, schedules, and what is kept of jobs that have ended."""
        for record in self._failed(only):
            if self._is_over():
                break
            self._move_record(record)
        if not only:
            self._move_the_rest()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_over() and (left := until - time.monotonic()) > 0:
            time.sleep(min(_PAUSE, left))

    def _refused(self) -> Counter[MoveRow]:
        """Count what an earlier move left on its way and no key of ours has signed."""
        refused = self._transit.kept.refused.values()
        return Counter(MoveRow("", "on its way", "stays", why) for why in refused)

    def _left(self, only: Sequence[str]) -> Counter[MoveRow]:
        """Count what is running, and what could not be looked at."""
        left: Counter[MoveRow] = Counter()
        if Capability.SIZE not in self._source.capabilities:
            return left
        unseen = not self._can_browse
        for name in self.names(only):
            counted = self._source.backend.sizes(name).counted
            if running := counted["reserved"]:
                left[MoveRow(name, "running", "stays", "it ends where it runs")] += running
            for what in ("delayed", "buried") if unseen else ():
                if count := counted[what]:
                    left[MoveRow(name, what, "stays", _UNSEEN[what])] += count
        return left

    @property
    def _can_browse(self) -> bool:
        return _BROWSED in self._source.capabilities

    def _count(self, row: MoveRow, count: int = 1) -> None:
        self.moved[row] += count
        self._progress(self.moved.total())

    def _move_the_rest(self) -> None:
        """Move schedules, and what is kept of jobs that have ended."""
        if not self._is_over():
            for name in self._schedules.rows():
                if why := self._schedules.move(name):
                    self._stays[name, b"schedule"] = MoveRow("", "schedule", "stays", why)
                else:
                    self._count(MoveRow("", "schedule", "moved"))
            self._schedules.copy_progress()
        if self._apart and not self._is_over():
            copy_keys(self._source, self._target)
            for count in move_statuses(self._source, self._target):
                self._count(MoveRow("", "status", "moved"), count)
                if self._is_over():
                    break

    # -- one queue --------------------------------------------------------------------------------

    def _move_queue(self, name: str) -> None:
        try:
            self._target.backend.check_queue(name)
        except InvalidQueueName as error:
            row = MoveRow(name, "ready", "stays", one_line(str(error), 200))
            self._stays[name, b""] = row
            return
        limit = AT_ONCE if Capability.AHEAD in self._source.capabilities else 1
        while not self._is_over():
            jobs, _ = self._source.backend.reserve([name], limit)
            if not jobs or not self._move_jobs(jobs, "ready"):
                break
        for place in (Place.DELAYED, Place.BURIED) if self._can_browse else ():
            while not self._is_over() and self._move_place(name, place):
                pass

    def _move_place(self, name: str, place: Place) -> int:
        """Look at all messages of a place once. Returns how many moved."""
        moved, after = 0, ""
        while True:
            page = self._source.backend.browse(name, place, AT_ONCE, after)
            for found in page.found:
                if _named(name, found.raw_body) not in self._stays and not self._is_over():
                    moved += self._move_found(found)
            after = page.after
            if not after:
                return moved

    def _move_found(self, found: Found) -> int:
        buried = found.place is Place.BURIED
        job = self._source.context.as_it_is(found.raw_body, found.queue)
        try:
            self._jobs.checked(job, self._source.backend.notes_of(found))
            if buried and _BURIES not in self._target.capabilities:
                raise InvalidPayload(f"{self._target.name} cannot bury what waits")
        except InvalidPayload as why:
            self._stay(found.queue, found.raw_body, found.place.value, why)
            return 0
        reservation = self._source.backend.take(found)
        if reservation is None:
            return 0
        due = 0.0 if buried or found.at is None else max(0.0, found.at - time.time())
        return self._move_jobs([reservation], found.place.value, due)

    def _stay(self, queue: str, raw: bytes, what: str, why: object) -> None:
        row = MoveRow(queue, what, "stays", one_line(str(why), 200))
        self._stays[_named(queue, raw)] = row

    # -- jobs -------------------------------------------------------------------------------------

    def _move_jobs(self, jobs: Sequence[Reservation], what: str, due: float = 0.0) -> int:
        """Move jobs that are held, and give back what stays. Returns how many were new."""
        new, leaving = 0, list[tuple[Reservation, Step]]()
        for job in jobs:
            if _named(job.queue, job.raw_body) in self._stays:
                self._jobs.give_back(job, what, due)
                continue
            pushing = self._source.context.as_it_is(job.raw_body, job.queue)
            try:
                step = self._jobs.step(job, pushing, what, due)
                if step is None:
                    self._source.backend.apply(job.delete())
                else:
                    leaving.append((job, step))
            except InvalidPayload as why:
                self._stay(job.queue, job.raw_body, what, why)
                self._jobs.give_back(job, what, due)
            new += 1
        results = self._source.backend.apply(*(step for _, step in leaving)) if leaving else []
        left: list[Set] = []
        for (job, step), result in zip(leaving, results, strict=True):
            kept = self._jobs.kept_by(step, result) or self._jobs.again(job, result, what, due)
            if kept is not None and not kept.key.startswith(PARKED):  # or it waits for its batch
                left.append(kept)
                self._count(MoveRow(job.queue, what, "moved"))
        self._transit.deliver(left)
        return new

    # -- batches ----------------------------------------------------------------------------------

    def _settle_batches(self) -> None:
        """Move the batches and flows that are complete; give the jobs of the others back."""

        def leaving(push: Push) -> list[Operation]:
            job = self._source.context.as_it_is(push.raw, push.queue)
            return self._jobs.with_facts(push, self._jobs.copies(job, push.notes))

        def moved(push: Push) -> None:
            self._count(MoveRow(push.queue, _what(push), "moved"))

        def stays(push: Push, why: str) -> None:
            self._stay(push.queue, push.raw, _what(push), why)

        self._batches.settle(leaving, moved, stays)

    # -- failed jobs ------------------------------------------------------------------------------

    def _failed(self, only: Sequence[str]) -> Iterator[FailedJob]:
        """Iterate over the failed jobs of the connection, the first that failed first."""
        records = [*self._source.failed.all()]
        for record in reversed(records):
            if record.connection == self._source.name and (not only or record.queue in only):
                yield record

    def _move_record(self, record: FailedJob) -> None:
        """Move a failed job, which is then retried on the target."""
        if why := self._why_stays(record):
            row = MoveRow(record.queue, "failed", "stays", why)
            self._stays[record.uuid, b"failed"] = row
            return
        source, moved = self._source, replace(record, connection=self._target.name)
        forget, place = Forget(record.uuid, record.failed_at), source.failed.place
        if place is self._target.failed.place:
            (result,) = place.apply(Step(None, forget, Record(moved)))
            if not result.applied:
                return  # it was retried or forgotten
        else:
            copies = steps_of(source, record) if self._apart else []
            kept = self._transit.keeping([Record(moved), *written(copies, self._target)])
            step = Step(None, forget, *(Unset(each.key, each.value) for each in copies), kept)
            (result,) = source.backend.apply(step)
            if not result.applied:  # as above; in parts, the facts may be written all the same
                source.backend.apply(Step(None, Unset(kept.key, kept.value)))
                return
            self._transit.deliver([kept])
        self._count(MoveRow(record.queue, "failed", "moved"))

    def _why_stays(self, record: FailedJob) -> str:
        """Move the batch or flow of a failed job. Returns why both stay."""
        if not self._apart:
            return ""
        message = self._source.context.as_it_is(record.payload, record.queue).message
        if self._jobs.moves_wholes:
            return self._batches.bring(message)
        identity = self._batches.identity(message)
        return _IN_PARTS if identity is not None and self._wholes.is_there(identity) else ""


def _what(push: Push) -> str:
    return "buried" if push.buried else "delayed" if push.delay else "ready"


def _named(queue: str, raw: bytes) -> tuple[str, bytes]:
    return queue, hashlib.blake2b(raw, digest_size=16).digest()


def _is_same(queues: QueueManager, source: Connection, target: Connection) -> bool:
    """Whether both connections have the same queues."""
    one, other = queues.backend(source.name), queues.backend(target.name)
    if type(one) is not type(other):
        return False
    if Capability.FACTS not in one.capabilities:
        return one.described() == other.described()
    tables = [getattr(each.settings, "table", None) for each in (source, target)]
    return tables[0] == tables[1] and share_store(one, other)
