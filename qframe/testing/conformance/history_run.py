"""Runs a history on a backend and on the memory backend, and compares all that can be seen.

The memory backend follows where the contract leaves a choice: the order of messages whose leases
ran out, and whether a reservation stands whose lease ran out and that nobody else has taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from qframe.contracts.backend import Backend, Capability, Timing
from qframe.contracts.browsing import Found, Place
from qframe.contracts.facts import Latch
from qframe.contracts.step import (
    Add,
    Arrive,
    Bury,
    Close,
    Expect,
    Extend,
    Forget,
    OfFact,
    OfLatch,
    OfReservation,
    Operation,
    Push,
    Record,
    Release,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)
from qframe.drivers.memory.backend import MemoryBackend, MemoryJob, Message
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.history import (
    HOLD,
    LATCHES,
    NEW,
    QUEUES,
    Adopt,
    Age,
    Event,
    Exchange,
    Kick,
    Look,
    Purge,
    Reserve,
    StepDraft,
    Take,
)

GIVEN_UP = b"given up"
"""The fence of a message whose reservation has ended with its lease."""


class ReferenceBackend(MemoryBackend):
    """The memory backend, which can follow another where the contract leaves a choice."""

    def __init__(self) -> None:
        super().__init__(timing=Timing(hold=HOLD))

    def has_expired(self, job: MemoryJob) -> bool:
        """Whether the reservation stands, but its lease has run out."""
        self._queue(job.queue)
        return job.message.fence == job.fence and job.message.place is Place.READY

    def count_held(self) -> None:
        """Count messages as started whose lease ran out while they were held."""
        now = self.clock()
        for message in [each for queue in self._queues.values() for each in queue]:
            if message.place is Place.HELD and message.order[0] <= now:
                message.attempts += 1
        for name in QUEUES:
            self._queue(name)

    def adopt(self, fence: bytes) -> Reservation | None:
        for message in [each for name in QUEUES for each in self._queue(name)]:
            if message.place is Place.RUNNING and message.fence == fence:
                job = MemoryJob(message)
                job.started = True
                return job
        return None

    def follow(self, jobs: Sequence[Reservation], *, any_order: bool) -> None:
        """Let the messages of one queue come in the order of these, if they may."""
        queue = self._queue(jobs[0].queue)
        ready = [message for message in queue if message.place is Place.READY]
        orders = [message.order for message in ready]
        for place, job in enumerate(jobs):
            for n in range(place, len(ready)):
                if _seen(ready[n]) != (job.raw_body, job.attempts, job.notes):
                    continue
                if any_order or _may_pass(ready[n], ready[place:n]):
                    ready.insert(place, ready.pop(n))
                    break
        for message, order in zip(ready, orders, strict=True):
            message.order = order
        queue[: len(ready)] = ready


def _may_pass(message: Message, others: Sequence[Message]) -> bool:
    if message.fence:  # its lease ran out
        return all(other.fence or _is_at_front(other) for other in others)
    return _is_at_front(message) and all(other.fence for other in others)


def _is_at_front(message: Message) -> bool:
    return message.order[0] < 0


def _seen(message: Message) -> tuple[bytes, int, bytes]:
    return message.raw, message.attempts, message.notes


@dataclass
class JobPair:
    """One reservation in both."""

    real: Reservation
    model: MemoryJob


class HistoryRun:
    """A history as it runs; `trace` has what was done and what came of it."""

    def __init__(self, bench: Bench) -> None:
        bench.timing.hold = HOLD
        self.bench = bench
        self.model = ReferenceBackend()
        self.workers: list[Backend] = [bench.open(), bench.open()]
        self.able = self.workers[0].capabilities
        self.pairs: list[list[JobPair]] = [[] for _ in self.workers]
        self.trace: list[str] = []
        self.numbers = 0

    @property
    def joint(self) -> bool:
        return Capability.JOINT in self.able

    def all(self, history: Sequence[Event]) -> None:
        """Do everything, look, and drain the queues."""
        try:
            for event in history:
                self.do(event)
            self.do(Look())
            for _ in range(2 if self.bench.skews else 1):
                for queue in QUEUES:
                    self.do(Kick(queue))
                    while self.model.sizes(queue).ready:
                        self.do(Reserve(1, (queue,), 40))
                self.do(Age(10_000.0))
            self.do(Look())
        except AssertionError as error:
            error.add_note("\n".join(self.trace))
            raise

    def do(self, event: Event) -> None:
        """Do one thing in both."""
        self.trace.append(repr(event))
        getattr(self, f"_{type(event).__name__.lower()}")(event)

    def same(self, real: Any, model: Any) -> None:
        self.trace.append(f"    -> {real!r}")
        assert real == model, f"it says {real!r}, the model {model!r}"

    # -- steps ------------------------------------------------------------------------------------

    def _operations(self, draft: StepDraft) -> tuple[Operation, ...]:
        """Number what is new; leave out what the backend is not able to do."""
        made: list[Operation] = []
        for each in draft.operations:
            self.numbers += 1
            if isinstance(each, Push) and each.raw == NEW:
                made.append(replace(each, raw=b"m%d" % self.numbers))
            elif isinstance(each, Record):
                made.append(Record(replace(each.job, failed_at=self.numbers + 0.25)))
            elif isinstance(each, Arrive | Close) and draft.of is not None:
                made.append(replace(each, push=True))
            else:
                made.append(self._able(each))
        return tuple(made) if self.joint else _in_order(made)

    def _able(self, operation: Operation) -> Operation:
        """Give the operation without what the backend is not able to do."""
        match operation:
            case Bury(notes) if Capability.BURY not in self.able:
                return self._able(Release(notes=notes))
            case Bury() if Capability.NOTES not in self.able:
                return Bury()
            case Release():
                counted = operation.counted or Capability.UNCOUNT not in self.able
                notes = operation.notes if Capability.NOTES in self.able else None
                return replace(operation, counted=counted, notes=notes)
            case Start(lease) if not {Capability.COUNTS, Capability.NOTES} <= {*self.able}:
                return Start(lease)  # the notes of a first start may be lost
        return operation

    def _steps(
        self, worker: int, drafts: Sequence[StepDraft]
    ) -> list[tuple[JobPair | None, Step, Step]]:
        steps = []
        for draft in drafts:
            pair = self._pair(worker, draft.of)
            if draft.of is not None and pair is None:
                continue
            operations = self._operations(draft)
            self.trace.append(f"    {pair.real if pair else None}: {operations}")
            real = Step(pair.real if pair else None, *operations)
            steps.append((pair, real, Step(pair.model if pair else None, *operations)))
        return steps

    def _pair(self, worker: int, of: int | None) -> JobPair | None:
        pairs = self.pairs[worker]
        return pairs[-1 - of % len(pairs)] if pairs and of is not None else None

    def _exchange(self, event: Exchange) -> None:
        steps = self._steps(event.worker, event.drafts)
        if event.told and len({id(pair) for pair, _, _ in steps}) < len(event.drafts):
            return  # nobody tells the end and the start of one job
        if event.twice:
            steps = [each for each in steps for _ in range(2)]
        backend = self.workers[event.worker]
        sure = self._sure(steps, backend)
        results: list[Result] = []
        if event.told:
            backend.apply_async([real for _, real, _ in steps], results.extend)
            for queue in QUEUES:  # the answer has come by then
                backend.sizes(queue) if Capability.SIZE in self.able else backend.reserve(["none"])
        elif event.lost and self._may_be_lost(steps) and self.bench.lose_answer():
            answers = backend.apply(*(real for _, real, _ in steps))
            results = [each.of_end(unanswered=False) for each in answers]
            self.bench.keep_answers()
        else:
            results = backend.apply(*(real for _, real, _ in steps))
        self._compare(steps, results, sure)

    def _may_be_lost(self, steps: list[tuple[JobPair | None, Step, Step]]) -> bool:
        """Whether the answer may be lost: each reservation stands, and is in one step.

        A backend may take it that a reservation which has ended was ended by what it said first.
        """
        pairs = [pair for pair, _, _ in steps if pair is not None]
        stand = all(
            pair.model.message.fence == pair.model.fence and not self.model.has_expired(pair.model)
            for pair in pairs
        )
        return stand and len({pair.model.fence for pair in pairs}) == len(pairs)

    def _sure(self, steps: list[tuple[JobPair | None, Step, Step]], backend: Backend) -> set[int]:
        """Name the reservations that a backend which is not joint need not renew to be sure."""
        return {id(pair) for pair, _, _ in steps if pair and backend.clock() < pair.real.sure_until}

    def _compare(
        self, steps: list[tuple[JobPair | None, Step, Step]], results: list[Result], sure: set[int]
    ) -> None:
        assert len(results) == len(steps)
        for (pair, _, step), result in zip(steps, results, strict=True):
            if pair is not None and result.lost and self.model.has_expired(pair.model):
                pair.model.message.fence = GIVEN_UP
            if pair is not None and not self.joint and id(pair) not in sure and _is_mixed(step):
                self.model.apply(Step(pair.model, Renew(pair.real.lease or HOLD)))
            (expected,) = self.model.apply(step)
            self.same(result, expected)
        for pair, _, _ in steps:
            if pair is not None:
                assert pair.real.started == pair.model.started
                assert pair.real.attempts == pair.model.attempts

    # -- reserving --------------------------------------------------------------------------------

    def _reserve(self, event: Reserve) -> None:
        backend = self.workers[event.worker]
        limit = event.limit if Capability.AHEAD in self.able else 1
        steps = self._steps(event.worker, event.first)
        sure = self._sure(steps, backend)
        jobs, results = backend.reserve(event.queues, limit, first=[real for _, real, _ in steps])
        self._compare(steps, results, sure)
        for queue in event.queues:
            here = [job for job in jobs if job.queue == queue]
            if here:
                self.model.follow(here, any_order=Capability.ORDER not in self.able)
        expected, _ = self.model.reserve(event.queues, limit)
        self.same([_as_seen(job) for job in jobs], [_as_seen(job) for job in expected])
        for job, other in zip(jobs, expected, strict=True):
            self._keep(event.worker, job, other)

    def _keep(self, worker: int, job: Reservation, other: Reservation) -> None:
        assert isinstance(other, MemoryJob)
        self.pairs[worker].append(JobPair(job, other))

    def _take(self, event: Take) -> None:
        if Capability.SEARCH not in self.able:
            return
        backend = self.workers[event.worker]
        real = sorted(backend.search(event.queue, event.text), key=_of_found)
        model = sorted(self.model.search(event.queue, event.text), key=_of_found)
        self.same([_of_found(found) for found in real], [_of_found(found) for found in model])
        alone = [n for n, found in enumerate(model) if _raws(model).count(found.raw_body) == 1]
        if not alone:
            return
        number = alone[event.number % len(alone)]
        job, other = backend.take(real[number]), self.model.take(model[number])
        self.same(job and _as_seen(job), other and _as_seen(other))
        if job is not None and other is not None:
            self._keep(event.worker, job, other)

    def _adopt(self, event: Adopt) -> None:
        pair = self._pair(event.worker, event.of)
        if Capability.ADOPT not in self.able or not self.joint:  # its worker must be dead
            return
        if pair is None or not pair.real.started:
            return
        if self.model.has_expired(pair.model):
            return
        job = self.workers[1 - event.worker].adopt(pair.real.fence)
        other = self.model.adopt(pair.model.fence)
        self.same(job and _as_seen(job), other and _as_seen(other))
        if job is not None and other is not None:
            self._keep(1 - event.worker, job, other)

    def _age(self, event: Age) -> None:
        if self.bench.skews:
            self.bench.pass_time(event.seconds)
            self.model.timing.skew += event.seconds
            if Capability.COUNTS not in self.able:
                self.model.count_held()

    def _purge(self, event: Purge) -> None:
        if Capability.PURGE in self.able and not self.bench.purges_held:
            self.same(self.workers[0].purge(event.queue), self.model.purge(event.queue))

    def _kick(self, event: Kick) -> None:
        if Capability.BURY in self.able:
            self.same(self.workers[1].kick(event.queue), self.model.kick(event.queue))

    # -- looking ----------------------------------------------------------------------------------

    def _look(self, event: Look) -> None:
        for backend in self.workers:
            for queue in QUEUES:
                if Capability.SIZE in self.able:
                    found, wanted = backend.sizes(queue), self.model.sizes(queue).counted
                    known = {
                        state: number
                        for state, number in wanted.items()
                        if not (found.approximate or state in found.unknown)
                    }
                    self.same(found.counted, {**found.counted, **known})
            if Capability.LIST in self.able:
                self.same(backend.queues(), self.model.queues())
            if Capability.FACTS in self.able:
                self.look_at_facts(backend, event)

    def look_at_facts(self, backend: Backend, event: Look) -> None:
        keys = ("k1", "n1", "none", "r1", "k1")
        self.same(backend.read(*keys), self.model.read(*keys))
        found = backend.scan(event.prefix, event.limit, event.after)
        if not self.joint:
            found = [(key, value) for key, value in found if not key.startswith("outbox:")]
        self.same(found, self.model.scan(event.prefix, event.limit, event.after))
        for key in LATCHES:
            real, model = backend.latch(key, event.labels), self.model.latch(key, event.labels)
            self.same(_without_times(real), _without_times(model))
        about = (event.failed_limit, event.failed_after, event.failed_queue)
        self.same(backend.list_failed(*about), self.model.list_failed(*about))
        self.same(backend.count_failed(), self.model.count_failed())
        self.same(backend.find_failed("u1"), self.model.find_failed("u1"))


def _as_seen(job: Reservation) -> tuple[object, ...]:
    return job.queue, job.raw_body, job.attempts, job.notes, job.started


def _of_found(found: Found) -> tuple[str, bytes, str]:
    return found.queue, found.raw_body, found.place.value


def _raws(found: Sequence[Found]) -> list[bytes]:
    return [each.raw_body for each in found]


def _without_times(latch: Latch | None) -> tuple[object, ...] | None:
    if latch is None:
        return None
    return astuple(
        replace(
            latch,
            failed_at=None if latch.failed_at is None else 0.0,
            completed_at=None if latch.completed_at is None else 0.0,
        )
    )


# -- what backends that make steps in parts do not promise ----------------------------------------


def _in_order(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Put them in the order in which such a backend does them, without what it cannot do safely."""
    own = [each for each in operations if isinstance(each, OfReservation)]
    latches = [each for each in operations if isinstance(each, Arrive | Close)]
    pushes = [each for each in operations if isinstance(each, Push) and not latches]
    forgotten = [each for each in operations if isinstance(each, Forget)][:1]
    facts = [
        replace(each, push=True) if isinstance(each, Arrive | Close) else each
        for each in operations
        if isinstance(each, OfFact | OfLatch)
        and not (isinstance(each, Expect | Extend) and (forgotten or _starts(own)))
    ]
    if _starts(own) or any(isinstance(each, Add) for each in facts):
        forgotten = []
    records = [each for each in operations if isinstance(each, Record) and not forgotten]
    return (*facts, *records, *pushes, *own, *forgotten)


def _starts(own: Sequence[Operation]) -> bool:
    return any(isinstance(each, Start) for each in own)


def _is_mixed(step: Step) -> bool:
    return len(step.operations) != 1 and not _starts(step.operations)
