"""MemoryBackend: everything in dictionaries, under one lock. Read it first."""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from qframe.contracts.backend import Backend, Capability, Found, Health, Latch, Place, Timing
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    LOST,
    Arrive,
    Bury,
    Close,
    Delete,
    OfReservation,
    Operation,
    Outcome,
    Push,
    Release,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers.guard import guarded
from qframe.drivers.memory.facts import Facts
from qframe.drivers.memory.messages import MemoryJob, Message, MessageQueue


class MemoryBackend(Backend):
    """One lock makes each step one thing. What it holds lives as long as the object.

    It can adopt, but does not say so: no other process can reach it.
    """

    capabilities = ~Capability.NONE & ~(Capability.DURABLE | Capability.PRIORITY | Capability.ADOPT)

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._queues: defaultdict[str, MessageQueue] = defaultdict(MessageQueue)
        self._facts = Facts()
        self._waiters: list[socket.socket] = []

    def _now(self) -> float:
        return time.time() + self.timing.skew

    def _queue(self, name: str) -> MessageQueue:
        """Give a queue as it is now."""
        queue = self._queues[name]
        queue.look_at_clock(self._now())
        return queue

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        with guarded(), self._lock:
            return [self._apply(step) for step in steps]

    def _apply(self, step: Step) -> Result:
        now = self._now()
        job = step.reservation
        if job is not None and not isinstance(job, MemoryJob):
            raise TypeError(f"{job!r} is not of this backend")
        if job is not None and job.message.fence != job.number:
            return LOST
        for operation in step.operations:
            if not isinstance(operation, OfReservation | Push):
                refused = self._facts.refused(operation, now)
                if refused is not None:
                    return refused
        due = tuple(push for each in step.operations for push in self._do(each, job, now))
        return Result(Outcome.APPLIED, due=due) if due else APPLIED

    def _do(self, operation: Operation, job: MemoryJob | None, now: float) -> Iterable[Push]:
        """Do one operation; gives what a latch hands over."""
        if isinstance(operation, Push):
            self._push(operation, now)
        elif isinstance(operation, OfReservation):
            if job is not None:
                self._settle(operation, job, job.message, now)
        else:
            then = self._facts.do(operation, now)
            if then is not None and isinstance(operation, Arrive | Close) and operation.push:
                self._push(then, now)
            elif then is not None:
                return (then,)
        return ()

    def _push(self, push: Push, now: float) -> None:
        message = Message(next(self._numbers), push.queue, push.raw)
        self._make_ready(message, push.delay, now)

    def _settle(
        self, operation: OfReservation, job: MemoryJob, message: Message, now: float
    ) -> None:
        """Do what becomes of the reservation."""
        match operation:
            case Start(lease, notes):
                if not job.started:
                    message.attempts += 1
                    job.started, job._attempts = True, message.attempts  # noqa: SLF001 (the backend keeps it)
                message.notes = job.notes = notes
                job.lease = lease
                self._move(message, Place.RUNNING, now + lease)
            case Renew(lease):
                self._move(message, Place.RUNNING if job.started else Place.HELD, now + lease)
            case Delete():
                message.fence = 0
                self._queue(message.queue).remove(message)
            case Bury(notes):
                message.fence = 0
                message.notes = message.notes if notes is None else notes
                self._move(message, Place.BURIED)
            case Release(delay, front, counted, notes):
                message.notes = message.notes if notes is None else notes
                message.attempts -= job.started and not counted
                self._make_ready(message, delay, now, front=front)

    def _make_ready(
        self, message: Message, delay: float, now: float, *, front: bool = False
    ) -> None:
        message.fence = 0
        if delay > 0:
            self._move(message, Place.DELAYED, now + delay)
        else:
            self._move(message, Place.READY, front=front)

    def _move(
        self, message: Message, place: Place, until: float = 0.0, *, front: bool = False
    ) -> None:
        """Put a message in its place, behind what became ready before now."""
        queue = self._queue(message.queue)
        queue.remove(message)
        message.place, message.until, message.turn = place, until, next(self._numbers)
        queue.add(message, front=front)
        for waiter in self._waiters:
            with suppress(BlockingIOError):  # it has been told often enough
                waiter.send(b"\0")

    # -- reserving --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        with guarded(), self._lock:
            results = self.apply(*first)
            found: list[Reservation] = []
            size = 0
            for queue in map(self._queue, queues):
                while queue.ready and len(found) < limit and size < self.timing.most_bytes:
                    job = self._hold(next(iter(queue.ready.values())))
                    found.append(job)
                    size += len(job.raw_body)
            return found, results

    def _hold(self, message: Message) -> MemoryJob:
        message.fence = next(self._numbers)
        lease = self.timing.hold + len(message.raw) / self.timing.bytes_a_second
        self._move(message, Place.HELD, self._now() + lease)
        return MemoryJob(message)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        with reader, writer:
            with guarded(), self._lock:
                looked = [self._queue(name) for name in queues]
                if any(queue.ready for queue in looked):
                    return
                ends = [queue.timed[0][0] - self._now() for queue in looked if queue.timed]
                self._waiters.append(writer)
            try:
                watched = [reader.fileno(), *([] if wake is None else [wake])]
                select.select(watched, [], [], max(0.0, min([timeout, *ends])))
            finally:
                with guarded(), self._lock:
                    self._waiters.remove(writer)

    def adopt(self, fence: bytes) -> Reservation | None:
        with guarded(), self._lock:
            for name in list(self._queues):
                for message in self._queue(name).all():
                    if message.place is Place.RUNNING and fence == b"%d" % message.fence:
                        job = MemoryJob(message)
                        job.started = True
                        return job
            return None

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        with guarded(), self._lock:
            now = self._queue(queue)
            delayed = sum(message.place is Place.DELAYED for *_, message in now.timed)
            return Sizes(len(now.ready), delayed, len(now.timed) - delayed, len(now.buried))

    def queues(self) -> list[str]:
        with guarded(), self._lock:
            return sorted(name for name, queue in self._queues.items() if queue.all())

    def purge(self, queue: str) -> int:
        with guarded(), self._lock:
            now = self._queue(queue)
            gone = [m for m in now.all() if m.place in {Place.READY, Place.DELAYED}]
            for message in gone:
                message.fence = 0
                now.remove(message)
            return len(gone)

    def kick(self, queue: str) -> int:
        with guarded(), self._lock:
            buried = list(self._queue(queue).buried.values())
            for message in buried:
                self._move(message, Place.READY)
            return len(buried)

    def search(self, queue: str, text: bytes, limit: int = 100) -> list[Found]:
        with guarded(), self._lock:
            found = [m for m in self._queue(queue).all() if text in m.raw]
            return [Found(queue, m.raw, m.place, m) for m in found[:limit] if m.place]

    def take(self, found: Found) -> Reservation | None:
        with guarded(), self._lock:
            message: Message = found.handle
            self._queue(message.queue)
            waits = message.place in {Place.READY, Place.DELAYED, Place.BURIED}
            return self._hold(message) if waits else None

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        with guarded(), self._lock:
            return [self._facts.value(key, self._now()) for key in keys]

    def scan(self, prefix: str, limit: int = 1000, after: str = "") -> list[tuple[str, str]]:
        with guarded(), self._lock:
            return self._facts.scan(prefix, limit, after, self._now())

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        with guarded(), self._lock:
            return self._facts.latch(key, labels, self._now())

    def find_failed(self, uuid: str) -> FailedJob | None:
        with guarded(), self._lock:
            return self._facts.find_failed(uuid)

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        with guarded(), self._lock:
            return self._facts.list_failed(limit, after, queue)

    def count_failed(self) -> int:
        with guarded(), self._lock:
            return self._facts.count_failed()

    # -- the rest ---------------------------------------------------------------------------------

    def described(self) -> str:
        return "memory"

    def check(self) -> Health:
        return Health("memory of this process")
