"""Connection: the queue that users call, the same for every backend."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Self, TypeVar, overload

from qframe import events
from qframe.config import ConnectionSettings, Places
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.browsing import Found, Place
from qframe.contracts.history import History
from qframe.contracts.identity import JobId, job_ids
from qframe.contracts.job import Job
from qframe.contracts.queue import Cancelling, Sizes
from qframe.contracts.status import State
from qframe.contracts.step import Delete, Operation, Release, Reservation, Result, Step
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.lookup import LookResult, look
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, LeaseLost, PayloadTooLarge, Unsupported
from qframe.features import chain, group_lines, in_line, steps
from qframe.features.base import End, Plan, Pushing
from qframe.features.batch import BatchPlan, MakeMember
from qframe.features.batches import BatchStore
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared, check, push_of
from qframe.features.flows import FlowPlan, FlowStore
from qframe.features.in_line import LinedJob
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.routing import route_of
from qframe.jobs.tracing import active, resending
from qframe.jobs.typed import Handles
from qframe.payload import envelope, timing
from qframe.payload.envelope import WIRE, Envelope
from qframe.payload.text import queue_name

R = TypeVar("R")

_OF_FLOWS = b'"job":"qframe.features.flow_jobs.'
"""What the payloads have of the internal jobs by which flows go on."""
_OF_BATCHES = b'"job":"qframe.features.batch_jobs.RunBatchCallbacks"'
"""What the payloads have of the internal jobs by which batches go on."""
_PAGE = 500


class Connection:
    """A configured, named connection to a backend, with any number of queues.

    It builds and signs payloads, calls listeners, and makes the steps that push and remove jobs.
    Thread-safe, and usable in a forked child.
    """

    runs_elsewhere = True
    """Whether another process must be able to find a job's class."""

    def __init__(self, context: Context, settings: ConnectionSettings) -> None:
        self.context = context
        context.owner = context.owner or self
        self.backend: Backend = context.backend
        self.name = context.connection
        self.hooks = context.hooks
        self.settings = settings
        self.default_queue = settings.queue
        self.retry_after = settings.retry_after
        self.max_payload = settings.max_payload
        self.capabilities = self.backend.capabilities
        self.store = Store(self.backend)
        """The small shared values of the connection."""
        self.failed = FailedStore(self.backend, partial(steps.forget_of, context))
        """The failed jobs of the connection."""
        self.failed.forgetting = partial(group_lines.forgetting, context)
        self.is_measured = False
        """Whether its workers record metrics of its jobs."""
        self.find_middleware: Callable[[], Sequence[Any]] = tuple
        self.payload_keys: Mapping[str, Any] = {}
        """Keys of each payload, besides those of its job."""
        self.places: Places | None = None
        """The routes and forwards of its manager; None if there are none."""
        self.find_forwarded: Callable[[Connection, str], Connection] = lambda here, _queue: here
        """Returns the connection for a push to a queue of a connection, which may have moved."""
        self._learned = False

    def middleware(self) -> Sequence[Any]:
        """Return the middleware of every job that runs for this connection, outermost first."""
        return self.find_middleware()

    def through(self, backend: Backend, *, counts: bool = True) -> Self:
        """Return this connection with another view of its backend, such as for one transaction.

        `counts`: whether its pushes are counted in the metrics here, rather than later.
        """
        made = copy.copy(self)
        pushes = self.context.pushes if counts else None
        made.context = replace(self.context, backend=backend, pushes=pushes, in_transaction=True)
        made.backend = backend
        made.capabilities = backend.capabilities
        made.store, made.failed = Store(backend), FailedStore(backend)
        return made

    def with_default(self, queue: str) -> Self:
        """Return this connection with another queue for jobs that name none."""
        made = copy.copy(self)
        made.default_queue = queue
        return made

    # -- payloads ---------------------------------------------------------------------------------

    def envelope(self, job: Dispatchable, more: Mapping[str, Any] | None = None) -> Envelope:
        """Build the payload of a job, with `more` keys. Raises `InvalidJob`."""
        if self.runs_elsewhere and not job.is_reachable:
            job.check_reachable()
        context = self.context
        if self.payload_keys and not isinstance(job, Foreign):
            more = {**self.payload_keys, **(more or {})}
        made = Envelope(envelope.create(job, context.keyring, more))
        if len(made.raw) + context.overhead > self.max_payload:
            self._check_envelope(made)  # raises
        return made

    def track(self, made: Envelope, seconds: float) -> None:
        """Keep the status of a job that is about to be pushed."""
        envelope.track(made.payload, seconds)
        made.encode()
        self._check_envelope(made)

    def add(self, made: Envelope, more: Mapping[str, Any]) -> None:
        """Add keys to the payload of a job that is about to be pushed."""
        envelope.add(made.payload, more)
        made.encode()
        self._check_envelope(made)

    def signed(self, raw: bytes, queue: str) -> bytes:
        """Return a payload of this program as it is pushed: signed if there is a key.

        `push_raw` pushes bytes unchanged: first sign with this what you vouch for.
        """
        signer = self.context.signer
        return raw if signer is None else signer.signed(raw, queue)

    def learn_limits(self) -> None:
        """Ask the server for its limit on payloads, if only the server knows it.

        Without an answer, the next call asks again: a push to the server raises anyway, and a push
        elsewhere needs no answer.
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
        """Raise `PayloadTooLarge` if the connection does not accept this many bytes."""
        if size > self.max_payload:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes, the connection {self.name!r} takes "
                f"{self.max_payload:,} (max_payload); queue a reference to the data instead"
            )

    def prepare(
        self, job: Dispatchable, queue: str | None, delay: float, more: Mapping[str, Any]
    ) -> Prepared:
        """Build the payload of a job to push later, with `more` keys.

        Listeners of `JobQueueing` are called now. Raises `InvalidJob`.
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

    @overload
    def push(self, job: Handles[R], queue: str | None = None) -> JobId[R]: ...

    @overload
    def push(self, job: Foreign, queue: str | None = None) -> JobId[Any]: ...

    def push(self, job: Any, queue: str | None = None) -> JobId[Any]:
        """Queue a job now. Returns its id. Raises `InvalidJob` or `BackendUnavailable`."""
        return self.later(0, job, queue)

    @overload
    def later(self, delay: timing.When, job: Handles[R], queue: str | None = None) -> JobId[R]: ...

    @overload
    def later(self, delay: timing.When, job: Foreign, queue: str | None = None) -> JobId[Any]: ...

    def later(self, delay: timing.When, job: Any, queue: str | None = None) -> JobId[Any]:
        """Queue a job that becomes ready after `delay`. Returns its id.

        `delay` is seconds, a timedelta, or an aware datetime.
        """
        to = self
        if self.places is not None:
            to = self.find_forwarded(self, self.queue_for(job, queue))
        return to.push_envelope(job, to.envelope(job), queue, timing.seconds_until(delay))

    def push_envelope(
        self, job: Dispatchable, made: Envelope, queue: str | None, delay: float
    ) -> JobId[Any]:
        """Push a payload that was built before, and call listeners.

        Returns its id, or that of the unique job already queued.
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
        self.fire_dispatched(job, pushing, holder)
        identity = JobId(holder or made.uuid)  # here, and not in a function: each dispatch does it
        identity.job_class = type(job)
        return identity

    @overload
    def bulk(self, jobs: Iterable[Handles[R]], queue: str | None = None) -> list[JobId[R]]: ...

    @overload
    def bulk(self, jobs: Iterable[Dispatchable], queue: str | None = None) -> list[JobId[Any]]: ...

    def bulk(self, jobs: Iterable[Any], queue: str | None = None) -> list[JobId[Any]]:
        """Queue many jobs, all or none where the backend can. Returns their ids in order."""
        if self.places is None:
            return push_together(((self, job) for job in jobs), queue)
        to = partial(self.find_forwarded, self)
        return push_together(((to(self.queue_for(job, queue)), job) for job in jobs), queue)

    def gather(self, queue: str | None, later: Iterator[float] | None = None) -> BulkPush:
        """Return a collector for jobs to push together."""
        return (BulkPush if stand_in is None else OneByOne)(self, queue, later)

    def queue_for(self, job: Dispatchable, queue: str | None = None) -> str:
        """Return the queue here for a job: `queue`, its own, that of its route, or the default one.

        If pushes for it are forwarded to another queue of this connection: that one.
        """
        name = queue or job.queue
        if not name and self.places is not None:
            name = route_of(self.places, job).queue
        name = queue_name(name or self.default_queue)
        return name if self.places is None else self.places.on(name, self.name)

    def pushing(
        self, job: Dispatchable, made: Envelope, queue: str | None, delay: float
    ) -> Pushing:
        """Return a job before its push, after the listeners, who may add to its payload."""
        if job.unique_rule is not None:
            delay = max(delay, job.unique_rule.delay)
        if self.places is None:  # without a call, as it is of each dispatch
            name = queue_name(queue or job.queue or self.default_queue)
        else:
            name = self.queue_for(job, queue)
        if job.besides is not None and WIRE in job.besides:
            self._check_wire(job)
        if delay and isinstance(job, JobDefinition):  # Laravel would read it as the backoff
            made.payload["delay"] = int(delay) if delay == int(delay) else delay
        tracing = active.tracing
        if delay or tracing is not None or events.JobQueueing.listeners:
            if tracing is not None:  # before the listeners, who see everything that is sent
                tracing.queueing(self, name, made.payload)
            events.fire(events.JobQueueing, self.name, name, job, made.payload, delay)
            made.encode()
            self._check_envelope(made)
        signer = self.context.signer
        raw = made.raw if signer is None else signer.signed(made.raw, name)
        return Pushing(made.payload, raw, made.uuid, name, delay)

    def _check_wire(self, job: Dispatchable) -> None:
        owner, wire = self.context.owner or self, str((job.besides or {})[WIRE])
        if wire not in owner.backend.wires:
            raise Unsupported(
                f"{job.wire_name()} is for {wire.capitalize()}'s workers, and the connection "
                f"{self.name!r} is not to a broker that they share: dispatch it on RabbitMQ"
            )

    def fire_dispatched(self, job: Dispatchable, pushing: Pushing, holder: str) -> None:
        """Fire the event that a job was pushed, or that `holder` is in the way."""
        if holder or events.JobQueued.listeners:
            self.context.fire_pushed(pushing, holder, job)

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Queue a payload unchanged and unchecked. Returns the job's id, "" if it has none.

        `delay` is in seconds.
        """
        if (other := substitute(self, payload)) is not None:
            return other.push_raw(payload, queue, delay)
        name = queue_name(queue or self.default_queue)
        if self.places is not None:
            if (to := self.find_forwarded(self, name)) is not self:
                return to.push_raw(payload, name, delay)
            name = self.places.on(name, self.name)
        raw = payload.encode() if isinstance(payload, str) else payload
        self.check_size(len(raw))
        pushing = self.context.as_it_is(raw, name, timing.seconds_until(delay))
        uuid = pushing.message.get("uuid")
        with resending(self, name, pushing.message):
            self.context.push(pushing)
        return uuid if isinstance(uuid, str) else ""

    # -- chains, batches, flows --------------------------------------------------------------------

    def start_chain(self, plan: ChainPlan) -> None:
        """Store a chain and push its first link."""
        chain.start(self.context, plan)

    def starting_chain(self, plan: ChainPlan) -> Generator[Plan, Result, None]:
        """As `start_chain`, for a caller that applies the plans and sends their results."""
        return chain.starting(self.context, plan)

    def extend_chain(self, running: Job, link: Prepared, *, first: bool) -> bool:
        """Add a link behind the running one, or at the end. Returns False if the chain is gone."""
        identity = chain.named_id(running.payload, chain.KEY)
        if identity is None or Capability.FACTS not in self.capabilities:
            return False
        return chain.extend(self.context, identity, running.uuid, link, first=first)

    def start_batch(self, plan: BatchPlan) -> None:
        """Store a batch and push its members."""
        for _ in self.starting_batch(plan):
            pass

    def starting_batch(self, plan: BatchPlan) -> Iterator[None]:
        """As `start_batch`, in parts, between which other calls may run."""
        if Capability.FACTS in self.capabilities:
            yield from BatchStore(self.context).starting(plan)

    def extend_batch(
        self, identity: str, makers: Sequence[MakeMember], running: Job | None, word: str
    ) -> None:
        """Add members to a batch; the same ones if the running job repeats `word`."""
        job = running if isinstance(running, ReservedJob) else None
        BatchStore(self.context, job).add(identity, makers, word)

    def batches(self) -> BatchStore | None:
        """Return the batches of this connection; None if it stores none."""
        return BatchStore(self.context) if Capability.FACTS in self.capabilities else None

    def start_flow(self, plan: FlowPlan) -> None:
        """Store a flow and push its first nodes."""
        for _ in self.starting_flow(plan):
            pass

    def starting_flow(self, plan: FlowPlan) -> Iterator[None]:
        """As `start_flow`, in parts, between which other calls may run."""
        if Capability.FACTS in self.capabilities:
            yield from FlowStore(self.context).starting(plan)

    def flows(self) -> FlowStore | None:
        """Return the flows of this connection; None if it stores none."""
        return FlowStore(self.context) if Capability.FACTS in self.capabilities else None

    # -- working ----------------------------------------------------------------------------------

    def reserve(self, queues: Sequence[str], limit: int = 1) -> list[ReservedJob]:
        """Hold up to `limit` jobs for about a second each. Never waits for one."""
        return self.reserve_after((), queues, limit)[0]

    def reserve_after(
        self, first: Sequence[Step], queues: Sequence[str], limit: int = 1
    ) -> tuple[list[ReservedJob], list[Result]]:
        """Apply steps, then hold up to `limit` jobs, in one exchange. Returns jobs and results."""
        self.need(Capability.RESERVE)
        found, results = self.backend.reserve(queues, limit, first=first)
        return [ReservedJob(self.context, each) for each in found], results

    # -- operating --------------------------------------------------------------------------------

    def sizes(self, queue: str | None = None) -> Sizes:
        """Count the jobs of a queue by state."""
        self.need(Capability.SIZE)
        name = queue_name(queue or self.default_queue)
        sizes = self.backend.sizes(name)
        lined = group_lines.count(self.context, name)
        return replace(sizes, ready=sizes.ready + lined) if lined else sizes

    def size(self, queue: str | None = None) -> int:
        """Count the ready, delayed and reserved jobs of a queue."""
        return self.sizes(queue).total

    def queues(self) -> list[str]:
        """List the queues that hold jobs, sorted."""
        self.need(Capability.LIST)
        return self.backend.queues()

    def clear(self, queue: str | None = None) -> int:
        """Delete the ready and delayed jobs of a queue. Returns how many there were.

        Jobs with features are removed one by one, which frees their locks. What flows need to go
        on stays.
        """
        self.need(Capability.PURGE)
        name = queue_name(queue or self.default_queue)
        count, internal = group_lines.clear(self.context, name), list[Reservation]()
        if Capability.SEARCH in self.capabilities:
            for feature in self.context.features:
                for found in self._waiting_with(name, feature.key):
                    count += self.remove(found)
            count += sum(map(self.remove, self._waiting_with_steps(name)))
            internal = self._held_internal(name)
            others = [each for each in internal if not self._is_of_flow(each)]
            deletions = [Step(each, Delete()) for each in others]
            count += sum(each.applied for each in self.backend.apply(*deletions)) if others else 0
            internal = [each for each in internal if each not in others]
        count += self.backend.purge(name)
        if internal:  # if this is not reached, they come back when their leases end
            self.backend.apply(*(Step(each, Release()) for each in internal))
        group_lines.forget_missing(self.context, name, partial(self._is_there, name))
        return count

    def _is_there(self, queue: str, uuid: str) -> bool:
        """Whether a job waits, runs, or is kept as failed; the last alone where no search is."""
        searches = Capability.SEARCH in self.capabilities
        waits = searches and self.find(uuid, queue) is not None
        return waits or self.failed.find(uuid) is not None

    def _held_internal(self, queue: str) -> list[Reservation]:
        """Take the waiting internal jobs of flows and batches, so that a purge leaves them."""
        texts = _OF_FLOWS, _OF_BATCHES
        found = (each for text in texts for each in self._waiting_with_text(queue, text))
        return [each for each in map(self.backend.take, found) if each is not None]

    def _is_of_flow(self, reservation: Reservation) -> bool:
        """Whether a flow needs an internal job: its own, or one of a batch that is its node."""
        if _OF_FLOWS in reservation.raw_body:
            return True
        message = ReservedJob(self.context, reservation).message or {}
        data = message.get("data")
        batch = data.get("of") if isinstance(data, dict) else None
        kept = BatchStore(self.context).read(batch) if isinstance(batch, str) else None
        link = None if kept is None else kept.options.get("chain")
        return isinstance(link, dict) and link.get("flow") is not None

    def _waiting_with(self, queue: str, key: str) -> Iterator[Found]:
        """Iterate over waiting jobs whose payload may have a key."""
        return self._waiting_with_text(queue, f'"{key}"'.encode())

    def _waiting_with_text(self, queue: str, text: bytes) -> Iterator[Found]:
        """Iterate over waiting jobs with a text in their payload, until the caller took all."""
        while found := [
            each
            for each in self.backend.search(queue, text)
            if each.place in {Place.READY, Place.DELAYED}
        ]:
            yield from found

    def _waiting_with_steps(self, queue: str) -> list[Found]:
        """Return the waiting jobs of which steps are kept, which their payloads do not tell."""
        if not self.backend.scan(steps.index_key(""), 1):
            return []
        kept: list[Found] = []
        for place in (Place.READY, Place.DELAYED):
            page = self.backend.browse(queue, place, _PAGE)
            while True:
                having = steps.have_steps(self.context, [each.raw_body for each in page.found])
                kept += compress(page.found, having)
                if not page.after:
                    break
                page = self.backend.browse(queue, place, _PAGE, page.after)
        return kept

    def remove(self, found: Found, prepare: Callable[[ReservedJob], object] | None = None) -> bool:
        """Remove a waiting job, with everything that belongs to its end.

        `prepare` is called with the job, which is held, before that. Returns False if it moved, or
        if another message of the job has started.
        """
        reservation = self.backend.take(found)
        if reservation is None:
            return False
        job = ReservedJob(self.context, reservation)
        is_job = not job.is_second()
        if is_job and prepare is not None:
            prepare(job)
        try:
            job.settle(End(State.CANCELLED, remark="cancelled while it waited"))
        except LeaseLost:
            return False
        return is_job

    def remove_in_line(
        self,
        job: LinedJob,
        also: Sequence[Operation] = (),
        prepare: Callable[[ReservedJob], object] | None = None,
    ) -> bool:
        """Remove a job of a group that stands in line, with everything that belongs to its end.

        `also` is applied with the removal from the line; if the job must be pushed to be removed,
        `prepare` is called as by `remove` instead. Returns False if it is held or runs meanwhile.
        Raises `Unsupported` for one with a status or a lock, for example, if its message could not
        be searched.
        """
        searches = Capability.SEARCH in self.capabilities
        if not searches and in_line.has_more_features(self.context, job):
            raise self.cannot(Capability.SEARCH)
        if in_line.remove(self.context, job, also):
            return True
        if not searches:
            return False
        found = self.find(job.uuid, job.queue)
        if found is None or found.place not in {Place.READY, Place.DELAYED}:
            return False
        return self.remove(found, prepare)

    def make_ready(self, found: Found) -> bool:
        """Make a delayed job ready. Returns False if it moved."""
        if found.place is not Place.DELAYED:
            return False
        reservation = self.backend.take(found)
        if reservation is None:
            return False
        (result,) = self.backend.apply(Step(reservation, Release()))
        return result.applied

    def history(self, found: Found) -> History:
        """Return the attempts of a job that was found waiting or running."""
        notes = self.backend.notes_of(found)
        return History.from_json(notes.decode("utf-8", "replace") or None)

    def kick(self, queue: str | None = None) -> int:
        """Make the buried jobs of a queue ready. Returns how many there were."""
        self.need(Capability.BURY)
        return self.backend.kick(queue_name(queue or self.default_queue))

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        """Remove a job that waits, is delayed or buried. Returns what became of it.

        Searches `queue`, or all queues. It may miss a job that is just moving: repeat the call if
        you are sure that there is one.
        """
        found = self.find(uuid, queue)
        if found is None:
            lined, _ = self.look_in_line(uuid, queue)
            if lined is not None and in_line.remove(self.context, lined):
                return Cancelling.REMOVED
            found = None if lined is None else self.find(uuid, queue)
        if found is None:
            return Cancelling.ABSENT
        if found.place is Place.RUNNING:
            return Cancelling.RUNNING
        if found.place is Place.HELD or not self.remove(found):
            return Cancelling.HELD
        return Cancelling.REMOVED

    def find(self, uuid: str, queue: str | None = None) -> Found | None:
        """Find a job that waits or runs, in `queue` or in all queues."""
        return self.look(uuid, queue).found

    def look(self, uuid: str, queue: str | None = None, seconds: float | None = None) -> LookResult:
        """Search for a job, for about `seconds`, or until all places are searched."""
        self.need(Capability.SEARCH)
        names = [queue] if queue else self.queues()
        complete, each = True, None if seconds is None else seconds / max(1, len(names))
        for name in names:
            seen = look(self.backend, name, uuid, each)
            if seen.found is not None:
                return seen
            complete = complete and seen.is_complete
        return LookResult(None, complete)

    def look_in_line(
        self, uuid: str, queue: str | None = None, seconds: float = math.inf
    ) -> tuple[LinedJob | None, bool]:
        """Search for a job of a group that stands in line, for about `seconds`.

        Also returns whether it was found, or all were looked at.
        """
        if Capability.FACTS not in self.capabilities:
            return None, True
        names = [queue] if queue else group_lines.waiting_queues(self.context)
        return in_line.find(self.context, names, uuid, seconds)

    # -- attributes -------------------------------------------------------------------------------

    def need(self, capability: Capability) -> None:
        """Raise `Unsupported` if the backend lacks a capability."""
        if capability not in self.capabilities:
            raise self.cannot(capability)

    def cannot(self, capability: Capability) -> Unsupported:
        """Return the error for something that this backend cannot do."""
        what = _VERBS.get(capability) or (capability.name or "").lower()
        return Unsupported(f"the connection {self.name!r} ({self.settings.driver}) cannot {what}")

    def described(self) -> str:
        """Describe in a word where the jobs are, never with a password."""
        return self.backend.described()

    def close(self) -> None:
        """Close this thread's connections; the next call opens new ones."""
        if self.context.pushes is not None:
            self.context.pushes.write_at_the_end()
        self.backend.close()


class BulkPush:
    """Jobs of one connection to push together; nothing is pushed until all are added.

    For a job without features it keeps only the push: the garbage collector visits everything that
    is kept of a job again and again, which took 3 us of 12 a job.

    `later` has by how many seconds each job is delayed besides its own delay; None: by none.
    """

    def __init__(
        self, connection: Connection, queue: str | None, later: Iterator[float] | None = None
    ) -> None:
        connection.learn_limits()  # refused before anything is sent
        self.connection = connection
        self.queue = queue
        self._later = later
        self._queues: set[str] = set()
        """Queue names that the backend accepts."""
        self._pushes: list[Operation] = []
        """Pushes without features, for one step."""
        self._counts: dict[tuple[str, str], int] = {}
        """The number of these, by queue and name."""
        self._planned: list[tuple[Pushing, Plan]] = []
        """Jobs with features, each in its own step, in the same exchange."""
        self._pushed_jobs: list[tuple[Dispatchable, Pushing]] = []

    def add(self, job: Dispatchable) -> str:
        """Build the payload of a job, call listeners and add it. Returns its id."""
        return self.plan(job).uuid

    def plan(self, job: Dispatchable) -> Pushing:
        """As `add`, returning the job to push."""
        connection = self.connection
        made = connection.envelope(job)
        delay = timing.seconds_until(job.delay)
        if self._later is not None:
            delay += next(self._later)
        pushing = connection.pushing(job, made, self.queue, delay)
        if pushing.queue not in self._queues:
            connection.backend.check_queue(pushing.queue)
            self._queues.add(pushing.queue)
        if connection.context.features_of(pushing.message):
            plan = Plan()
            plan.is_alone = True
            connection.context.plan_push(pushing, plan)
            self._planned.append((pushing, plan))
            self._pushed_jobs.append((job, pushing))
        else:
            self._pushes.append(push_of(pushing))
            pair = pushing.queue, str(pushing.message.get("job"))
            self._counts[pair] = self._counts.get(pair, 0) + 1
            if events.JobQueued.listeners:
                self._pushed_jobs.append((job, pushing))
        return pushing

    def push(self) -> dict[str, str]:
        """Push the jobs, and call listeners.

        For each job that was not pushed, returns the id of the job in the way by its own id.
        """
        return self.pushed(self.connection.backend.apply(*self.steps()))

    def steps(self) -> list[Step]:
        """Return the steps that push them, for one exchange."""
        steps: list[Step] = [plan for _, plan in self._planned]
        if self._pushes:
            steps.insert(0, Step(None, *self._pushes))
        return steps

    def pushed(self, results: list[Result]) -> dict[str, str]:
        """Call listeners with the results of the steps. Returns what `push` returns."""
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
        for job, pushing in self._pushed_jobs:
            self.connection.fire_dispatched(job, pushing, holders.get(pushing.uuid, ""))
        return {uuid: holder for uuid, holder in holders.items() if holder}


class OneByOne(BulkPush):
    """Jobs that are pushed one after the other, when all payloads are built."""

    def __init__(
        self, connection: Connection, queue: str | None, later: Iterator[float] | None = None
    ) -> None:
        super().__init__(connection, queue, later)
        self._made: list[tuple[Dispatchable, Envelope, float]] = []

    def add(self, job: Dispatchable) -> str:
        """Build the payload of a job and add it. Returns its id."""
        made = self.connection.envelope(job)
        self._made.append((job, made, 0.0 if self._later is None else next(self._later)))
        return made.uuid

    def push(self) -> dict[str, str]:
        """Push the jobs. Returns, by id, the id of each, or of the job in the way."""
        push, queue = self.connection.push_envelope, self.queue
        return {
            made.uuid: push(job, made, queue, timing.seconds_until(job.delay) + later)
            for job, made, later in self._made
        }


def push_together(
    jobs: Iterable[tuple[Connection, Dispatchable]],
    queue: str | None,
    later: Iterator[float] | None = None,
) -> list[JobId[Any]]:
    """Push jobs, those of each connection together, after building all payloads. Returns their ids.

    For a duplicate, that is the id of the job already queued. `later` has seconds for each job, by
    which it is delayed besides its own delay.
    """
    tracing = active.tracing
    if tracing is None:
        return _push_together(jobs, queue, later)
    placed = [*jobs]
    if not placed:
        return []
    with tracing.sending(placed[0][0], many=True):
        return _push_together(placed, queue, later)


def _push_together(
    jobs: Iterable[tuple[Connection, Dispatchable]],
    queue: str | None,
    later: Iterator[float] | None,
) -> list[JobId[Any]]:
    uuids: list[str] = []
    classes: list[type[Any]] = []
    gathered: dict[Connection, BulkPush] = {}
    for connection, job in jobs:
        bulk = gathered.get(connection)
        if bulk is None:
            bulk = gathered[connection] = connection.gather(queue, later)
        uuids.append(bulk.add(job))
        classes.append(type(job))
    others: dict[str, str] = {}
    for bulk in gathered.values():
        others |= bulk.push()
    return job_ids(uuids, classes, others)


stand_in: Callable[[Connection, Dispatchable | str | bytes], Connection | None] | None = None
"""Returns the stand-in for a connection that takes a job or raw payload: in tests, a fake.

Of the process, not of a manager: a fake takes what any application dispatches.
"""


def substitute(connection: Connection, what: Dispatchable | str | bytes) -> Connection | None:
    """Return the stand-in that takes a job or raw payload; None if there is none."""
    return None if stand_in is None else stand_in(connection, what)


_VERBS = {Capability.PURGE: "clear", Capability.SEARCH: "cancel"}
