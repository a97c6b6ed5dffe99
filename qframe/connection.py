"""Connection: the queue users call, the same above every backend."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from qframe import events
from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Capability, Found, Place
from qframe.contracts.history import History
from qframe.contracts.job import Job
from qframe.contracts.queue import Cancelling, Sizes
from qframe.contracts.status import State
from qframe.contracts.step import Operation, Release, Result, Step
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.lookup import LookResult, look
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, LeaseLost, PayloadTooLarge, Unsupported
from qframe.features import chain
from qframe.features.base import End, Plan, Pushing
from qframe.features.batch import BatchPlan, MakeMember
from qframe.features.batches import BatchStore
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared, check, push_of
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.tracing import active, resending
from qframe.payload import envelope, timing
from qframe.payload.envelope import Envelope
from qframe.payload.text import queue_name


class Connection:
    """A configured, named connection to a backend that holds any number of queues.

    It builds payloads, signs them, tells the listeners, and makes the steps by which jobs are
    pushed and removed. Safe to use from several threads, and in a forked child.
    """

    runs_elsewhere = True
    """Whether a job's class has to be one that another process can find."""

    def __init__(self, context: Context, settings: ConnectionSettings) -> None:
        self.context = context
        context.owner = context.owner or self
        self.backend: Backend = context.backend
        self.name = context.connection
        self.settings = settings
        self.default_queue = settings.queue
        self.retry_after = settings.retry_after
        self.max_payload = settings.max_payload
        self.capabilities = self.backend.capabilities
        self.store = Store(self.backend)
        """The small shared state that goes with the connection."""
        self.failed = FailedStore(self.backend)
        """Where its failed jobs are kept."""
        self.is_measured = False
        """Whether its workers count what becomes of its jobs."""
        self.find_middleware: Callable[[], Sequence[Any]] = tuple
        self._learned = False

    def middleware(self) -> Sequence[Any]:
        """Give what every job that runs for this connection goes through, outermost first."""
        return self.find_middleware()

    def through(self, backend: Backend, *, counts: bool = True) -> Self:
        """Give this connection over another view of its backend, for one transaction, say.

        What is pushed by it `counts` as pushed, unless another does that later.
        """
        made = copy.copy(self)
        pushes = self.context.pushes if counts else None
        made.context = replace(self.context, backend=backend, pushes=pushes)
        made.backend = backend
        made.capabilities = backend.capabilities
        made.store, made.failed = Store(backend), FailedStore(backend)
        return made

    # -- payloads ---------------------------------------------------------------------------------

    def envelope(self, job: Dispatchable, more: Mapping[str, Any] | None = None) -> Envelope:
        """Build the payload of a job, `more` keys in it; raises `InvalidJob`."""
        if self.runs_elsewhere and not job.is_reachable:
            job.check_reachable()
        context = self.context
        made = Envelope(envelope.create(job, context.keyring, more))
        if len(made.raw) + context.overhead > self.max_payload:
            self._check_envelope(made)  # which raises
        return made

    def track(self, made: Envelope, seconds: float) -> None:
        """Have the status of a job kept that is about to be pushed."""
        envelope.track(made.payload, seconds)
        made.encode()
        self._check_envelope(made)

    def signed(self, raw: bytes, queue: str) -> bytes:
        """Give a payload made by this program as it is pushed to a queue: signed, with a key.

        `push_raw` pushes bytes as they are: sign what you vouch for with this first.
        """
        signer = self.context.signer
        return raw if signer is None else signer.signed(raw, queue)

    def learn_limits(self) -> None:
        """Learn from the server how large a payload may be, where only it knows.

        One that does not answer now is asked again: who pushes to it hears that anyway, and who
        keeps the push elsewhere needs no answer.
        """
        if not self._learned:
            try:
                longest = self.backend.longest_message()
            except BackendUnavailable:
                return
            self._learned = True
            if longest is not None:
                self.max_payload = self.context.max_payload = min(self.max_payload, longest)

    def _check_envelope(self, made: Envelope) -> None:
        self.check_size(len(made.raw) + self.context.overhead)

    def check_size(self, size: int) -> None:
        """Raise `PayloadTooLarge` for a payload that the connection does not take."""
        if size > self.max_payload:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes, the connection {self.name!r} takes "
                f"{self.max_payload:,} (max_payload); queue a reference to the data instead"
            )

    def prepare(
        self, job: Dispatchable, queue: str | None, delay: float, more: Mapping[str, Any]
    ) -> Prepared:
        """Build the payload of a job that is to be pushed later, `more` keys in it.

        The listeners are told now that it will be. Raises `InvalidJob`.
        """
        self.learn_limits()
        made = self.envelope(job, more)
        pushing = self.pushing(job, made, queue, delay)
        self.backend.check_queue(pushing.queue)
        within = job.relative_deadlines() or None
        return Prepared(
            pushing.uuid, made.raw, pushing.queue, pushing.delay, within, pushing.message
        )

    # -- pushing ----------------------------------------------------------------------------------

    def push(self, job: Dispatchable, queue: str | None = None) -> str:
        """Queue a job now and give its id. Raises `InvalidJob` or `BackendUnavailable`."""
        return self.later(0, job, queue)

    def later(self, delay: timing.When, job: Dispatchable, queue: str | None = None) -> str:
        """Queue a job that is ready after `delay` (seconds, timedelta or aware datetime)."""
        return self.push_envelope(job, self.envelope(job), queue, timing.seconds_until(delay))

    def push_envelope(
        self, job: Dispatchable, made: Envelope, queue: str | None, delay: float
    ) -> str:
        """Push a payload built before, telling the listeners.

        Gives its id, or that of the job which is there already where it is unique.
        """
        if stand_in is not None and (other := substitute(self, job)) is not None:
            return other.push_envelope(job, made, queue, delay)
        if (tracing := active.tracing) is None:
            pushing = self.pushing(job, made, queue, delay)
            holder = self.context.push(pushing)
        else:
            with tracing.sending(self, many=False):
                pushing = self.pushing(job, made, queue, delay)
                holder = self.context.push(pushing)
        self.tell(job, pushing, holder)
        return holder or made.uuid

    def bulk(self, jobs: Iterable[Dispatchable], queue: str | None = None) -> list[str]:
        """Queue many jobs, all or none where the backend can, and give their ids in order."""
        return push_together(((self, job) for job in jobs), queue)

    def gather(self, queue: str | None) -> BulkPush:
        """Give what collects jobs that are to be pushed together."""
        return BulkPush(self, queue) if stand_in is None else OneByOne(self, queue)

    def pushing(
        self, job: Dispatchable, made: Envelope, queue: str | None, delay: float
    ) -> Pushing:
        """Give a job as it is pushed, after telling the listeners, who may add to its payload."""
        if job.unique_rule is not None:
            delay = max(delay, job.unique_rule.delay)
        name = queue_name(queue or job.queue or self.default_queue)
        if delay and isinstance(job, JobDefinition):  # Laravel would take it for the backoff
            made.payload["delay"] = int(delay) if delay == int(delay) else delay
        tracing = active.tracing
        if delay or tracing is not None or events.JobQueueing.listeners:
            if tracing is not None:  # before the listeners, who see all that is sent
                tracing.queueing(self, name, made.payload)
            events.fire(events.JobQueueing, self.name, name, job, made.payload, delay)
            made.encode()
            self._check_envelope(made)
        signer = self.context.signer
        raw = made.raw if signer is None else signer.signed(made.raw, name)
        return Pushing(made.payload, raw, made.uuid, name, delay)

    def tell(self, job: Dispatchable, pushing: Pushing, holder: str) -> None:
        """Tell the listeners that a job was pushed, or that `holder` is there instead."""
        if holder or events.JobQueued.listeners:
            self.context.tell_pushed(pushing, holder, job)

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Queue bytes as they are, whatever they hold, and give the job's id, "" if it has none."""
        if (other := substitute(self, payload)) is not None:
            return other.push_raw(payload, queue, delay)
        raw = payload.encode() if isinstance(payload, str) else payload
        self.check_size(len(raw))
        name = queue_name(queue or self.default_queue)
        pushing = self.context.as_it_is(raw, name, timing.seconds_until(delay))
        uuid = pushing.message.get("uuid")
        with resending(self, name, pushing.message):
            self.context.push(pushing)
        return uuid if isinstance(uuid, str) else ""

    # -- chains and batches -----------------------------------------------------------------------

    def start_chain(self, plan: ChainPlan) -> None:
        """Keep a chain and push its first link."""
        chain.start(self.context, plan)

    def starting_chain(self, plan: ChainPlan) -> Generator[Plan, Result, None]:
        """Do so, the plans applied by another, who gives their results."""
        return chain.starting(self.context, plan)

    def extend_chain(self, running: Job, link: Prepared, *, first: bool) -> bool:
        """Put a link behind the one that runs, or at the end; false where the chain is gone."""
        identity = chain.named_id(running.payload, chain.KEY)
        if identity is None or Capability.FACTS not in self.capabilities:
            return False
        return chain.extend(self.context, identity, running.uuid, link, first=first)

    def start_batch(self, plan: BatchPlan) -> None:
        """Keep a batch and push its members."""
        for _ in self.starting_batch(plan):
            pass

    def starting_batch(self, plan: BatchPlan) -> Iterator[None]:
        """Do so in parts, between which others may have their turns."""
        if Capability.FACTS in self.capabilities:
            yield from BatchStore(self.context).starting(plan)

    def extend_batch(
        self, identity: str, makers: Sequence[MakeMember], running: Job | None, word: str
    ) -> None:
        """Add members to a batch; the same ones where the job that runs said it before."""
        job = running if isinstance(running, ReservedJob) else None
        BatchStore(self.context, job).add(identity, makers, word)

    def batches(self) -> BatchStore | None:
        """Give the batches of this connection; None where none are kept."""
        return BatchStore(self.context) if Capability.FACTS in self.capabilities else None

    # -- working ----------------------------------------------------------------------------------

    def reserve(self, queues: Sequence[str], limit: int = 1) -> list[ReservedJob]:
        """Hold up to `limit` jobs for about a second each, never waiting for one."""
        return self.reserve_after((), queues, limit)[0]

    def reserve_after(
        self, first: Sequence[Step], queues: Sequence[str], limit: int = 1
    ) -> tuple[list[ReservedJob], list[Result]]:
        """Apply steps, then hold up to `limit` jobs, in one exchange; gives jobs and results."""
        self.need(Capability.RESERVE)
        found, results = self.backend.reserve(queues, limit, first=first)
        return [ReservedJob(self.context, each) for each in found], results

    # -- operating --------------------------------------------------------------------------------

    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue by state."""
        self.need(Capability.SIZE)
        return self.backend.sizes(queue_name(queue or self.default_queue))

    def size(self, queue: str | None = None) -> int:
        """Count the ready, delayed and reserved jobs of a queue."""
        return self.sizes(queue).total

    def queues(self) -> list[str]:
        """Name the queues that hold jobs, sorted."""
        self.need(Capability.LIST)
        return self.backend.queues()

    def clear(self, queue: str | None = None) -> int:
        """Delete the ready and delayed jobs of a queue; gives how many there were.

        Those that have features are taken one by one, so that their locks are freed.
        """
        self.need(Capability.PURGE)
        name = queue_name(queue or self.default_queue)
        count = 0
        if Capability.SEARCH in self.capabilities:
            for feature in self.context.features:
                for found in self._waiting_with(name, feature.key):
                    count += self.remove(found)
        return count + self.backend.purge(name)

    def _waiting_with(self, queue: str, key: str) -> Iterator[Found]:
        """Give the jobs that wait and whose payload may have a key, some at a time."""
        text = f'"{key}"'.encode()
        while found := [
            each
            for each in self.backend.search(queue, text)
            if each.place in {Place.READY, Place.DELAYED}
        ]:
            yield from found

    def remove(self, found: Found) -> bool:
        """Remove a job that was found waiting, with what belongs to its end; false: it moved."""
        reservation = self.backend.take(found)
        if reservation is None:
            return False
        job = ReservedJob(self.context, reservation)
        try:
            job.settle(End(State.CANCELLED, remark="cancelled while it waited"))
        except LeaseLost:
            return False
        return True

    def make_ready(self, found: Found) -> bool:
        """Have a job that was found delayed run as soon as its turn comes; false: it moved."""
        if found.place is not Place.DELAYED:
            return False
        reservation = self.backend.take(found)
        if reservation is None:
            return False
        (result,) = self.backend.apply(Step(reservation, Release()))
        return result.applied

    def history(self, found: Found) -> History:
        """Give the attempts of a job that was found waiting or running."""
        notes = self.backend.notes_of(found)
        return History.from_json(notes.decode("utf-8", "replace") or None)

    def kick(self, queue: str | None = None) -> int:
        """Make the buried jobs of a queue ready; gives how many there were."""
        self.need(Capability.BURY)
        return self.backend.kick(queue_name(queue or self.default_queue))

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        """Remove a job that waits, is delayed or buried.

        It is looked for in `queue`, or else everywhere. A job that is just being moved may be
        missed: who is sure that there is one asks again.
        """
        found = self.find(uuid, queue)
        if found is None:
            return Cancelling.ABSENT
        if found.place is Place.RUNNING:
            return Cancelling.RUNNING
        if found.place is Place.HELD or not self.remove(found):
            return Cancelling.HELD
        return Cancelling.REMOVED

    def find(self, uuid: str, queue: str | None = None) -> Found | None:
        """Find a job that waits or runs, in `queue` or else everywhere."""
        return self.look(uuid, queue).found

    def look(self, uuid: str, queue: str | None = None, seconds: float | None = None) -> LookResult:
        """Look for it, for about so many seconds or until it is nowhere."""
        self.need(Capability.SEARCH)
        names = [queue] if queue else self.queues()
        complete, each = True, None if seconds is None else seconds / max(1, len(names))
        for name in names:
            seen = look(self.backend, name, uuid, each)
            if seen.found is not None:
                return seen
            complete = complete and seen.is_complete
        return LookResult(None, complete)

    # -- what it is -------------------------------------------------------------------------------

    def need(self, capability: Capability) -> None:
        """Raise `Unsupported` where the backend lacks a capability."""
        if capability not in self.capabilities:
            raise self.cannot(capability)

    def cannot(self, capability: Capability) -> Unsupported:
        """Give the error for something this backend cannot do."""
        what = _VERBS.get(capability) or (capability.name or "").lower()
        return Unsupported(f"the connection {self.name!r} ({self.settings.driver}) cannot {what}")

    def described(self) -> str:
        """Say in a word where the jobs are, never with a password."""
        return self.backend.described()

    def close(self) -> None:
        """Close this thread's connections; the next call opens others."""
        if self.context.pushes is not None:
            self.context.pushes.write_at_the_end()
        self.backend.close()


class BulkPush:
    """Jobs of one connection that are to be pushed together; nothing is, until all are there.

    Of one without features only its push is kept: what is kept of a job is looked through by the
    garbage collector, again and again, and was 3 us of 12 a job.
    """

    def __init__(self, connection: Connection, queue: str | None) -> None:
        connection.learn_limits()  # what the server would refuse is refused before anything is sent
        self.connection = connection
        self.queue = queue
        self._queues: set[str] = set()
        """Those that the backend can have."""
        self._pushes: list[Operation] = []
        """Of those without features, which go in one step."""
        self._counts: dict[tuple[str, str], int] = {}
        """How many of these there are, by queue and name."""
        self._planned: list[tuple[Pushing, Plan]] = []
        """Those with features, each of which goes in a step of its own, in the same exchange."""
        self._told: list[tuple[Dispatchable, Pushing]] = []

    def add(self, job: Dispatchable) -> str:
        """Add a job, its payload built and the listeners told; gives its id."""
        return self.plan(job).uuid

    def plan(self, job: Dispatchable) -> Pushing:
        """Do so, and give the job as it is pushed."""
        connection = self.connection
        made = connection.envelope(job)
        pushing = connection.pushing(job, made, self.queue, timing.seconds_until(job.delay))
        if pushing.queue not in self._queues:
            connection.backend.check_queue(pushing.queue)
            self._queues.add(pushing.queue)
        if connection.context.features_of(pushing.message):
            plan = Plan()
            connection.context.plan_push(pushing, plan)
            self._planned.append((pushing, plan))
            self._told.append((job, pushing))
        else:
            self._pushes.append(push_of(pushing))
            pair = pushing.queue, str(pushing.message.get("job"))
            self._counts[pair] = self._counts.get(pair, 0) + 1
            if events.JobQueued.listeners:
                self._told.append((job, pushing))
        return pushing

    def push(self) -> dict[str, str]:
        """Push them, and tell the listeners.

        Gives, by the id of each that was not pushed, the id of the job that is there instead.
        """
        return self.pushed(self.connection.backend.apply(*self.steps()))

    def steps(self) -> list[Step]:
        """Give the steps that push them, in one exchange."""
        steps: list[Step] = [plan for _, plan in self._planned]
        if self._pushes:
            steps.insert(0, Step(None, *self._pushes))
        return steps

    def pushed(self, results: list[Result]) -> dict[str, str]:
        """Tell the listeners what came of the steps; gives what `push` gives."""
        context = self.connection.context
        if self._pushes:
            check(results.pop(0))
            if context.pushes is not None:
                for (queue, name), times in self._counts.items():
                    context.pushes.count(queue, {"job": name}, times)
        holders = {
            job.uuid: context.pushed(job, plan, result)
            for (job, plan), result in zip(self._planned, results, strict=True)
        }
        for job, pushing in self._told:
            self.connection.tell(job, pushing, holders.get(pushing.uuid, ""))
        return {uuid: holder for uuid, holder in holders.items() if holder}


class OneByOne(BulkPush):
    """Jobs that are pushed one after the other, when all payloads are built."""

    def __init__(self, connection: Connection, queue: str | None) -> None:
        super().__init__(connection, queue)
        self._made: list[tuple[Dispatchable, Envelope]] = []

    def add(self, job: Dispatchable) -> str:
        """Add a job, its payload built; gives its id."""
        made = self.connection.envelope(job)
        self._made.append((job, made))
        return made.uuid

    def push(self) -> dict[str, str]:
        """Push them; gives the id of each, or of the one that is there instead, by its own."""
        push, queue = self.connection.push_envelope, self.queue
        return {
            made.uuid: push(job, made, queue, timing.seconds_until(job.delay))
            for job, made in self._made
        }


def push_together(jobs: Iterable[tuple[Connection, Dispatchable]], queue: str | None) -> list[str]:
    """Push jobs, those of each connection together, when all payloads are built; gives their ids.

    The id of a duplicate is that of the job which is there in its place.
    """
    tracing = active.tracing
    if tracing is None:
        return _push_together(jobs, queue)
    placed = [*jobs]
    if not placed:
        return []
    with tracing.sending(placed[0][0], many=True):
        return _push_together(placed, queue)


def _push_together(jobs: Iterable[tuple[Connection, Dispatchable]], queue: str | None) -> list[str]:
    ids: list[str] = []
    gathered: dict[Connection, BulkPush] = {}
    for connection, job in jobs:
        bulk = gathered.get(connection)
        if bulk is None:
            bulk = gathered[connection] = connection.gather(queue)
        ids.append(bulk.add(job))
    others: dict[str, str] = {}
    for bulk in gathered.values():
        others |= bulk.push()
    return [others.get(uuid, uuid) for uuid in ids] if others else ids


stand_in: Callable[[Connection, Dispatchable | str | bytes], Connection | None] | None = None
"""Names what takes a job, or a raw payload, in place of a connection: in tests, a fake."""


def substitute(connection: Connection, what: Dispatchable | str | bytes) -> Connection | None:
    """Give what takes a job, or a raw payload, in place of a connection; None: nothing does."""
    return None if stand_in is None else stand_in(connection, what)


_VERBS = {Capability.PURGE: "clear", Capability.SEARCH: "cancel"}
