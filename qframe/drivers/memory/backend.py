"""MemoryBackend: everything in dictionaries, under one lock. Read this driver first."""

from __future__ import annotations

import time
from bisect import bisect, bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, dropwhile
from math import inf
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar, cast

from qframe import forks
from qframe.contracts import step as op
from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.browsing import Found, Page, Place, Span, position
from qframe.contracts.facts import FactCopy, Latch, LatchCopy, first_first, in_order
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Sizes
from qframe.drivers import levels
from qframe.drivers.guard import guarded
from qframe.drivers.sockets import readable

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Message:
    """A stored message and its place."""

    id: int
    queue: str
    raw: bytes
    attempts: int = 0
    notes: bytes = b""
    place: Place | None = None
    """None before the push, and once the message is gone."""
    order: tuple[float, int] = (0.0, 0)
    """When its delay or lease ends (at most 0 while it is ready), and its turn."""
    fence: bytes = b""
    """New for each reservation; b"" once that is settled."""
    behind: float = 0.0
    """Seconds by which its priority puts it behind others, below 0 if before."""
    since: float = 0.0
    """When it became ready behind the others; -inf in front of them."""

    @property
    def rank(self) -> tuple[float, tuple[float, int]]:
        """Its place among the ready ones."""
        return self.since + self.behind, self.order


class MemoryJob(op.Reservation):
    """A message this process holds the lease of."""

    fence = b""

    def __init__(self, of: Message) -> None:
        super().__init__(of.queue, str(of.id), of.raw, of.attempts, of.notes)
        self.message, self.fence = of, of.fence


class StoredFact(NamedTuple, Generic[T]):
    """A fact or a latch, and when it expires."""

    value: T
    until: float
    rank: int | None = None


@dataclass(slots=True)
class OpenLatch:
    """What was opened, and what has happened since."""

    opened: op.Open
    size: int = 0
    closed: bool = False
    done: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    """The labels of the members that failed."""
    first_failed: tuple[int, float] | None = None
    """The member that failed first, and when."""
    completed_at: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.closed and len(self.done) + len(self.failed) >= self.size

    def change(self, operation: op.Arrive | op.Close, now: float) -> op.Push | None:
        """Apply an operation. Returns `then` if it is due."""
        due, self.closed = False, self.closed or isinstance(operation, op.Close)
        match operation:
            case op.Arrive(_, member) if not 0 <= member < self.size:
                return None
            case op.Arrive(_, member, failed=False):
                self.failed.pop(member, None)
                self.done.add(member)
                due = self.opened.every > 0 and len(self.done) % self.opened.every == 0
            case op.Arrive(_, member, label=label) if member not in self.done:
                self.failed.setdefault(member, label)
                self.first_failed = self.first_failed or (member, now)
                due = self.first_failed[0] == member
        if self.is_complete:
            due, self.completed_at = True, self.completed_at or now
        return self.opened.then if due else None

    def leave(self, member: int) -> None:
        """Take back an arrival."""
        if member in self.done or member in self.failed:
            self.done.discard(member)
            self.failed.pop(member, None)
            self.completed_at = None
            if self.first_failed is not None and self.first_failed[0] == member:
                self.first_failed = None

    def seen(self, labels: int) -> Latch:
        """Return the current state, with the labels of at most `labels` failed members."""
        counts = self.size, len(self.done), len(self.failed)
        first, failed_at = self.first_failed or (None, None)
        shown = tuple(self.failed[member] for member in sorted(self.failed)[:labels])
        return Latch(*counts, self.closed, first, failed_at, self.completed_at, shown)


class MemoryBackend(Backend):
    """One lock makes each step atomic. The contents live as long as the object.

    The constructor takes the name and settings of a connection, like any backend, and ignores them.
    """

    capabilities = ~Capability.NONE & ~(Capability.DURABLE | Capability.ADOPT | Capability.OUTBOX)
    aging = levels.AGING
    """Seconds that a level of priority is worth."""

    def __init__(self, *_: object, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self._lock = forks.rlock()
        self._next = count(1).__next__
        self._queues: defaultdict[str, list[Message]] = defaultdict(list)
        """Each sorted by `Message.order`: ready messages first, buried ones last."""
        self._leveled: set[str] = set()
        """The queues that have had messages with a priority."""
        self._facts: dict[str, StoredFact[str]] = {}
        self._latches: dict[str, StoredFact[OpenLatch]] = {}
        self._failed: dict[str, FailedJob] = {}

    def within(self, transaction: object) -> Backend:
        """Return itself: memory has no transactions, so steps are applied at once."""
        del transaction
        return self

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: op.Step) -> list[op.Result]:
        with guarded, self._lock:
            return [self._apply(step) for step in steps]

    def _apply(self, step: op.Step) -> op.Result:
        job = cast("MemoryJob | None", step.reservation)
        if job is not None and job.fence != job.message.fence:
            return op.LOST
        for operation in step.operations:
            match operation:
                case op.Expect(key, value) if (holds := self._live(self._facts, key)) != value:
                    return op.Result(op.Outcome.REFUSED, key, holds)
                case op.Extend(key) if (latch := self._latch(key)) is None or latch.is_complete:
                    return op.Result(op.Outcome.REFUSED, key)
                case op.Forget(uuid, at) if uuid not in self._failed or not self._failed[
                    uuid
                ].is_of(at):
                    return op.Result(op.Outcome.REFUSED, uuid)
        due = tuple(push for each in step.operations for push in self._do(each, job))
        return op.Result(op.Outcome.APPLIED, due=due)

    def _do(self, operation: op.Operation, job: MemoryJob | None) -> Sequence[op.Push]:  # noqa: C901, PLR0912 (a case each)
        """Apply one operation. Returns the messages of latches."""
        match operation:
            case op.Push(queue, raw, delay, priority, _, attempts, notes, buried):
                message = Message(self._next(), queue, raw, attempts, notes)
                self._rank(message, priority)
                if buried:
                    self._move(message, Place.BURIED, inf)
                else:
                    self._move(message, Place.DELAYED, self.clock() + delay)
            case op.Set(key, value, ttl):
                self._facts[key] = StoredFact(value, self._until(ttl))
            case op.Unset(key, value) if value in {None, self._live(self._facts, key)}:
                self._facts.pop(key, None)
            case op.Raise(key, rank, value, ttl):
                if self._live(self._facts, key) is None or (self._facts[key].rank or 0) <= rank:
                    self._facts[key] = StoredFact(value, self._until(ttl), rank)
            case op.Add(key, number, ttl):
                total = int(self._live(self._facts, key) or 0) + number
                self._facts[key] = StoredFact(str(total), self._until(ttl))
            case op.Open(key, ttl=ttl) if self._latch(key) is None:
                self._latches[key] = StoredFact(OpenLatch(operation), self._until(ttl))
            case op.Extend(key, size) if latch := self._latch(key):
                latch.size = max(latch.size, size)
                self._latches[key] = StoredFact(latch, self._until(latch.opened.ttl))
            case op.Leave(key, member) if latch := self._latch(key):
                latch.leave(member)
                self._latches[key] = StoredFact(latch, self._until(latch.opened.ttl))
            case op.Arrive(key) | op.Close(key) if latch := self._latch(key):
                self._latches[key] = StoredFact(latch, self._until(latch.opened.ttl))
                if then := latch.change(operation, time.time() + self.timing.skew):
                    return self._do(then, None) if operation.push else [then]
            case op.Forget(uuid) | op.Record(FailedJob(uuid)):
                self._failed.pop(uuid, None)  # the new record comes last
                if isinstance(operation, op.Record):
                    self._failed[uuid] = operation.job
            case op.Start() | op.Renew() | op.Delete() | op.Release() | op.Bury() if job:
                self._settle(operation, job, job.message)
        return []

    def _settle(self, operation: op.OfReservation, job: MemoryJob, message: Message) -> None:
        now = self.clock()
        if isinstance(operation, op.Settling):
            message.fence = b""
        match operation:
            case op.Start(lease, notes):
                message.attempts += not job.started
                message.notes = job.notes = notes
                job.started, job.lease, job.attempts = True, lease, message.attempts
                self._move(message, Place.RUNNING, now + lease)
            case op.Renew(lease):
                self._move(message, Place.RUNNING if job.started else Place.HELD, now + lease)
            case op.Delete():
                self._move(message, None)
            case op.Bury(notes):
                message.notes = message.notes if notes is None else notes
                self._move(message, Place.BURIED, inf)
            case op.Release(delay, front, counted, notes, priority):
                if priority is not None:
                    self._rank(message, priority)
                message.notes = message.notes if notes is None else notes
                message.attempts -= job.started and not counted
                place = Place.READY if front and delay <= 0 else Place.DELAYED
                until = -self._next() if place is Place.READY else now + delay
                self._move(message, place, until)

    # -- messages ---------------------------------------------------------------------------------

    def _rank(self, message: Message, priority: int | None) -> None:
        message.behind = levels.behind(levels.level_of(priority), self.aging)
        if message.behind:
            self._leveled.add(message.queue)

    def _ready(self, name: str) -> list[Message]:
        """Return the ready messages of a queue, the next one first."""
        ready = [each for each in self._queue(name) if each.place is Place.READY]
        return sorted(ready, key=_RANK) if name in self._leveled else ready

    def _queue(self, name: str) -> list[Message]:
        """Return a queue after moving due messages to the end of the ready ones.

        Expired ones go to the front, behind those that were released to the front.
        """
        queue, now = self._queues[name], self.clock()
        ended = queue[bisect(queue, (0, inf), key=_ORDER) : bisect(queue, (now, inf), key=_ORDER)]
        for message in ended:
            if message.place is Place.DELAYED:  # its order is already the right one
                message.since = message.order[0]
                message.place, message.order = Place.READY, (0.0, self._next())
            else:
                self._move(message, Place.READY, -1.0)
        return queue

    def _move(self, message: Message, place: Place | None, until: float = 0.0) -> None:
        """Move a message behind others of the same moment; None removes it."""
        queue = self._queues[message.queue]
        if message.place is not None:
            del queue[bisect_left(queue, message.order, key=_ORDER)]
        message.place, message.order = place, (until, self._next())
        message.since = -inf if until < 0 else self.clock()
        if place is not None:
            insort(queue, message, key=_ORDER)

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[op.Step] = ()
    ) -> tuple[list[op.Reservation], list[op.Result]]:
        with guarded, self._lock:
            results, room = self.apply(*first), self.timing.most_bytes
            found: list[op.Reservation] = []
            for name in queues:
                # Ready ones come first, and are in their order where none has a priority.
                queue = self._ready(name) if name in self._leveled else self._queue(name)
                while queue and queue[0].place is Place.READY and len(found) < limit and room > 0:
                    found.append(self._hold(queue[0]))
                    room -= len(found[-1].raw_body)
                    if name in self._leveled:
                        queue = self._ready(name)
            return found, results

    def _hold(self, message: Message) -> MemoryJob:
        message.fence = b"%d" % self._next()
        until = self.clock() + self.timing.hold + len(message.raw) / self.timing.bytes_a_second
        if message.place is Place.DELAYED:  # it must not come back before it is due
            until = max(until, message.order[0])
        self._move(message, Place.HELD, until)
        return MemoryJob(message)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end and not any(self.sizes(queue).ready for queue in queues):
            if readable([] if wake is None else [wake], 0.01):
                return

    def sizes(self, queue: str) -> Sizes:
        with guarded, self._lock:
            of = Counter(message.place for message in self._queue(queue))
            reserved = of[Place.HELD] + of[Place.RUNNING]
            return Sizes(of[Place.READY], of[Place.DELAYED], reserved, of[Place.BURIED])

    def queues(self) -> list[str]:
        return sorted(name for name, queue in [*self._queues.items()] if queue)

    def purge(self, queue: str) -> int:
        return self._move_all(queue, {Place.READY, Place.DELAYED}, None)

    def wake(self, queue: str, handle: str) -> bool:
        with guarded, self._lock:
            for message in self._queue(queue):
                if str(message.id) == handle and message.place is Place.DELAYED:
                    self._move(message, Place.READY)
                    return True
            return False

    def kick(self, queue: str) -> int:
        return self._move_all(queue, {Place.BURIED}, Place.READY)

    def _move_all(self, queue: str, places: set[Place], to: Place | None) -> int:
        with guarded, self._lock:
            moved = [message for message in self._queue(queue) if message.place in places]
            for message in moved:
                message.fence = b""
                self._move(message, to)
            return len(moved)

    def spans(self, queue: str) -> list[Span]:
        with guarded, self._lock:
            return [Span("", 0, len(self._queue(queue)), in_order=True)]

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        with guarded, self._lock:
            there = self._in(queue, within)[:limit]
            return [(place, each.raw) for place, each in enumerate(there, within.first)]

    def _in(self, queue: str, within: Span | None) -> list[Message]:
        there = self._queue(queue)
        return there if within is None else there[within.first : within.end]

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        with guarded, self._lock:
            there = self._in(queue, within)
            found = [message for message in there if text in message.raw][:limit]
            return self._shown(found)

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        held = {Place.HELD} if place is Place.RUNNING else set()
        first = position(after)
        with guarded, self._lock:
            there = [each for each in self._queue(queue) if each.place in {place, *held}]
            if place is Place.READY:
                there = self._ready(queue)
            found = self._shown(there[first : first + limit])
        last = first + len(found)
        return Page(found, str(last) if last < len(there) else "")

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:
        counts = [0] * steps
        with guarded, self._lock:
            dues = [self._moment(each, Place.DELAYED) for each in self._queue(queue)]
        for due in dues:
            at = -1 if due is None else int((due - since) // step)
            if 0 <= at < steps:
                counts[at] += 1
        return counts

    def count_before(self, found: Found) -> int | None:
        with guarded, self._lock:
            there = self._ready(found.queue)
            return there.index(found.handle) if found.handle in there else None

    def _shown(self, messages: Sequence[Message]) -> list[Found]:
        """Return messages as a search shows them."""
        found: list[Found] = []
        for each in messages:
            if each.place:
                due = self._moment(each, Place.DELAYED)
                ends = self._moment(each, Place.HELD, Place.RUNNING)
                found.append(Found(each.queue, each.raw, each.place, each, due, ends))
        return found

    def _moment(self, message: Message, *places: Place) -> float | None:
        """Return when the delay or lease of a message in one of these places ends."""
        if message.place not in places:
            return None
        return time.time() + message.order[0] - self.clock()

    def notes_of(self, found: Found) -> bytes:
        with guarded, self._lock:
            notes: bytes = found.handle.notes
            return notes

    def take(self, found: Found) -> op.Reservation | None:
        with guarded, self._lock:
            self._queue(found.queue)
            waits = found.handle.place in {Place.READY, Place.DELAYED, Place.BURIED}
            return self._hold(found.handle) if waits else None

    # -- facts ------------------------------------------------------------------------------------

    def _live(self, kept: dict[str, StoredFact[T]], key: str) -> T | None:
        if key in kept and kept[key].until <= self.clock():
            del kept[key]
        return kept[key].value if key in kept else None

    def _until(self, ttl: float | None) -> float:
        return inf if ttl is None else self.clock() + ttl

    def _latch(self, key: str) -> OpenLatch | None:
        return self._live(self._latches, key)

    def read(self, *keys: str) -> list[str | None]:
        with guarded, self._lock:
            return [self._live(self._facts, key) for key in keys]

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        with guarded, self._lock:
            keys = in_order(
                (key for key in self._facts if key.startswith(prefix)),
                after,
                last_first=last_first,
            )
            values = ((key, self._live(self._facts, key)) for key in keys)
            return [(key, value) for key, value in values if value is not None][:limit]

    def copy(self, *keys: str) -> list[FactCopy | None]:
        with guarded, self._lock:
            return [self._copied(key) for key in keys]

    def _copied(self, key: str) -> FactCopy | None:
        value = self._live(self._facts, key)
        if value is None:
            return None
        fact = self._facts[key]
        ttl = None if fact.until == inf else fact.until - self.clock()
        return FactCopy(key, value, ttl, fact.rank)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        with guarded, self._lock:
            return latch.seen(labels) if (latch := self._latch(key)) else None

    def copy_latch(self, key: str) -> LatchCopy | None:
        with guarded, self._lock:
            latch = self._latch(key)
            if latch is None:
                return None
            first = None if latch.first_failed is None else latch.first_failed[0]
            failed = first_first(latch.failed, first)
            return LatchCopy(latch.opened, latch.size, latch.closed, sorted(latch.done), failed)

    def find_failed(self, uuid: str) -> FailedJob | None:
        return self._failed.get(uuid)

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        records = [*reversed(self._failed.values())]
        if after is not None:
            records = list(dropwhile(lambda record: record.uuid != after, records))[1:]
        return [record for record in records if queue in {None, record.queue}][:limit]

    def count_failed(self) -> int:
        return len(self._failed)

    # -- other calls ------------------------------------------------------------------------------

    def described(self) -> str:
        return "memory"

    def check(self) -> Health:
        return Health("memory of this process")


_ORDER = attrgetter("order")
_RANK = attrgetter("rank")
