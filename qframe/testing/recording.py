"""The connection that stands in for another one and only writes down what is pushed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Union

from qframe import events, membership, onward, payload, sealing, unique
from qframe.drivers.base import BaseQueue
from qframe.drivers.null import NullFailedStore
from qframe.exceptions import CannotDecrypt, InvalidArguments, InvalidJob, InvalidPayload
from qframe.foreign import Dispatchable, foreign
from qframe.queueable import index
from qframe.sealing import Keyring
from qframe.tail import Link
from qframe.testing.batches import MemoryBatches

if TYPE_CHECKING:
    from qframe.contracts import BatchStore, Job, Store
    from qframe.drivers.beginning import BatchPlan, ChainPlan
    from qframe.payload import Envelope


@dataclass(frozen=True, slots=True)
class Dispatched:
    """One job that was dispatched and not pushed.

    `job` is None for a raw payload whose job this process cannot make; `delay` is in seconds,
    counted from the epoch time `at`.
    """

    id: str
    job: Dispatchable | None
    connection: str
    queue: str
    delay: float
    payload: dict[str, Any] = field(repr=False)  # with secrets in clear, where it is not encrypted
    at: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The job's name on the wire."""
        return str(self.payload.get("job", ""))


LinkJob = Union[Dispatchable, "DispatchedBatch", None]
"""A link of a chain: a job, or a batch; None where the job cannot be made here."""
MemberJob = Dispatchable | list[LinkJob] | None
"""A member of a batch: a job, or a chain of them."""


@dataclass(frozen=True, slots=True)
class DispatchedChain:
    """One chain that was dispatched and not pushed.

    `queue` is that of the first link, `delay`, in seconds, what it waits for.
    """

    id: str
    jobs: list[LinkJob]
    """The links in order; of a batch, what is a `DispatchedBatch`."""
    catch: list[Dispatchable | None]
    connection: str
    queue: str
    delay: float


@dataclass(frozen=True, slots=True)
class DispatchedBatch:
    """One batch that was dispatched, or is a link of a chain that was, and not pushed.

    `queue` is what was named by `on_queue`.
    """

    id: str
    name: str
    jobs: list[MemberJob]
    """The members in order; one that is a chain is a list. What `add` adds later is there, too."""
    connection: str
    queue: str | None
    allows_failures: bool
    before: list[Dispatchable | None]
    progress: list[Dispatchable | None]
    then: list[Dispatchable | None]
    catch: list[Dispatchable | None]
    finally_: list[Dispatchable | None]

    @property
    def total(self) -> int:
        """How many members there are; a chain is one."""
        return len(self.jobs)


class Notes(Protocol):
    """Who is told what was dispatched."""

    def note_job(self, dispatched: Dispatched) -> None:
        """Hear of a job."""

    def note_chain(self, dispatched: DispatchedChain) -> None:
        """Hear of a chain."""

    def note_batch(self, dispatched: DispatchedBatch) -> None:
        """Hear of a batch."""

    def note_added(self, batch: str, jobs: Iterable[MemberJob]) -> None:
        """Hear of members that were added to a batch."""

    def note_extended(self, job: LinkJob, *, first: bool) -> None:
        """Hear of a link that was put into the chain of the job that runs."""


class RecordingQueue(BaseQueue):
    """Takes jobs as the connection it stands in for would, and tells `notes` of them.

    Everything a push does before the backend is asked is done here too: listeners hear of it and
    may add to the payload, names and sizes are checked. Locks are kept in `store`, batches in
    `batches`.
    """

    noting = True  # so locks are looked for in its own store

    def __init__(
        self, original: BaseQueue, notes: Notes, store: Store, batches: BatchStore | None = None
    ) -> None:
        super().__init__(original.name, original.settings)
        self.max_payload = original.max_payload
        self.keyring, self.signer = original.keyring, original.signer
        self.find_middleware = original.find_middleware
        self.failed_store = NullFailedStore()
        self._notes = notes
        self._store = store
        self._batches = MemoryBatches() if batches is None else batches
        self._coming: dict[str, Dispatchable] = {}

    def push_envelope(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        """Write a job down, with the object that was dispatched."""
        self._coming[envelope.uuid] = job
        try:
            return super().push_envelope(job, envelope, queue, delay)
        finally:
            self._coming.pop(envelope.uuid, None)

    def push_envelopes(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None
    ) -> list[str]:
        """Write jobs down, with the objects that were dispatched."""
        coming = {envelope.uuid: job for job, envelope in made}
        self._coming.update(coming)
        try:
            return super().push_envelopes(made, queue)
        finally:
            for uuid in coming:
                self._coming.pop(uuid, None)

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Write messages down."""
        for raw, uuid in messages:
            try:
                message = payload.parse(raw)
            except InvalidPayload:
                message = {}  # any bytes can be pushed as they are
            job = self._coming.get(uuid) or _job_of(message)
            self._notes.note_job(Dispatched(uuid, job, self.name, queue, delay, message))
        return ""

    def begin_chain(self, plan: ChainPlan) -> None:
        """Write a chain down, and its first link as dispatched: the first that is no duplicate."""
        for link, job in zip(plan.links, plan.jobs, strict=True):
            if self._is_duplicate(link, job):
                continue
            if not isinstance(job, onward.BeginBatch):
                message = payload.parse(link.raw)
                self._notes.note_job(
                    Dispatched(link.uuid, job, self.name, link.queue, link.delay, message)
                )
                self.link_pushed(link, job)
            break
        first = plan.links[0]
        jobs = self._links_of(plan.links, plan.jobs)
        catch = self._jobs_of(plan.catch)
        self._notes.note_chain(
            DispatchedChain(plan.id, jobs, catch, self.name, first.queue, first.delay)
        )

    def begin_batch(self, plan: BatchPlan) -> None:
        """Write a batch down; all its members wait."""
        new = plan.new
        plans = [make(number) for number, make in enumerate(plan.members)]
        self._batches.create(new)
        self._batches.grow(new.id, len(plans))
        self._batches.seal(new.id)
        follow = {
            event: self._jobs_of([Link.of(fields) for fields in links])
            for event, links in new.options["follow"].items()
        }
        self._notes.note_batch(
            self._batch(
                new.id, new.name, self._members(plans), new.options["queue"], follow,
                allows=new.allows_failures,
            )
        )  # fmt: skip

    def put_plans(self, plans: Sequence[ChainPlan]) -> dict[str, str]:
        """Write down members that are added to a batch; `link_pushed` is for who adds them."""
        message = payload.parse(plans[0].links[0].raw)
        self._notes.note_added(membership.batch_of(message) or "", self._jobs_in(plans))
        return {}

    def extend_chain(self, running: Job, link: Link, *, first: bool) -> bool:
        """Write down a link that a job puts into its chain."""
        del running
        self._notes.note_extended(self._job(link), first=first)
        return True

    def batch_store(self) -> BatchStore:
        """Give where batches are meanwhile."""
        return self._batches

    def _members(self, plans: Sequence[ChainPlan]) -> list[MemberJob]:
        """Give the jobs of members, their listeners told and their locks taken."""
        for plan in plans:
            link, job = plan.links[0], plan.jobs[0]
            if not self._is_duplicate(link, job):
                self.link_pushed(link, job)
        return self._jobs_in(plans)

    def _jobs_in(self, plans: Sequence[ChainPlan]) -> list[MemberJob]:
        return [
            self._links_of(plan.links, plan.jobs) if plan.id else plan.jobs[0] for plan in plans
        ]

    def _links_of(
        self, links: Sequence[Link], jobs: Sequence[Dispatchable | None]
    ) -> list[LinkJob]:
        return [
            self._batch_of(job, link.uuid) if isinstance(job, onward.BeginBatch) else job
            for link, job in zip(links, jobs, strict=True)
        ]

    def _batch_of(self, begins: onward.BeginBatch, identity: str) -> DispatchedBatch:
        """Give the batch that a link begins."""
        members: list[MemberJob] = []
        for kept in begins.members:
            links = [Link.of(fields) for fields in kept["links"]]
            jobs = self._links_of(links, self._jobs_of(links))
            members.append(jobs if kept["chain"] else self._job(links[0]))
        follow = {
            event: self._jobs_of([Link.of(fields) for fields in links])
            for event, links in begins.follow.items()
        }
        return self._batch(
            identity, begins.label, members, begins.default_queue, follow, allows=begins.allows
        )

    def _batch(
        self,
        identity: str,
        name: str,
        members: list[MemberJob],
        queue: str | None,
        follow: Mapping[str, list[Dispatchable | None]],
        *,
        allows: bool,
    ) -> DispatchedBatch:
        return DispatchedBatch(
            identity, name, members, self.name, queue, allows,
            follow["before"], follow["progress"], follow["then"], follow["catch"],
            follow["finally"],
        )  # fmt: skip

    def _jobs_of(self, links: Sequence[Link]) -> list[Dispatchable | None]:
        return [self._job(link) for link in links]

    def _job(self, link: Link) -> Dispatchable | None:
        message = payload.parse(link.raw)
        if name_in(message) in index:
            return _job_of(message, self.keyring)
        try:
            return foreign(str(message.get("job")), message.get("data"))
        except InvalidJob:
            return None

    def _is_duplicate(self, link: Link, job: Dispatchable | None) -> bool:
        """Take the lock of a unique job; whether another one has it, which listeners hear."""
        lock = unique.of_raw(link.raw)
        holder = "" if lock is None or lock.is_token else lock.take(self._store, link.delay)
        if holder in {"", link.uuid}:
            return False
        events.fire(events.JobDuplicate, self.name, link.queue, job, holder)
        return True

    def own_store(self) -> Store:
        """Give the store that locks are kept in."""
        return self._store

    def ping(self) -> str:
        """Say what this is."""
        return "writes down what is dispatched"


def _job_of(message: dict[str, Any], keys: Keyring | None = None) -> Dispatchable | None:
    """Make the job of a raw payload, where its class is known here and its data fits."""
    job_class = index.get(name_in(message))
    if job_class is None:
        return None
    data = message.get("data")
    try:
        if (
            keys is not None
            and type(data) is dict
            and sealing.KEY in data
            and job_class.opens(data)
        ):
            data = keys.opened(str(message.get("job")), data)
        return job_class.from_data(data)
    except (InvalidArguments, CannotDecrypt):
        return None


def name_in(message: dict[str, Any]) -> str:
    """Give the name of the job in a payload, "" where there is none."""
    try:
        return payload.job_name(message)
    except InvalidPayload:
        return str(message.get("job") or "")
