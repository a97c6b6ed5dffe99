"""The connection that replaces another one and only records what is pushed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

from qframe.connection import Connection
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import CannotDecrypt, InvalidArguments, InvalidJob, InvalidPayload
from qframe.features import batch_jobs
from qframe.features.batches import BatchStore
from qframe.features.chain import ChainPlan
from qframe.features.context import Context, Prepared
from qframe.jobs.definition import index
from qframe.jobs.foreign import Dispatchable, foreign
from qframe.payload import encryption, envelope, timing

if TYPE_CHECKING:
    from qframe.contracts.job import Job
    from qframe.features.base import Pushing
    from qframe.features.batch import BatchPlan, MakeMember
    from qframe.features.flows import FlowPlan, NodePlan


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
    payload: dict[str, Any] = field(repr=False)  # with secrets in clear, unless it is encrypted
    at: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The job's name on the wire."""
        return str(self.payload.get("job", ""))


LinkJob = Union[Dispatchable, "DispatchedBatch", None]
"""A link of a chain: a job, or a batch; None if the job cannot be made here."""
MemberJob = Dispatchable | list[LinkJob] | None
"""A member of a batch: a job, or a chain of them."""


@dataclass(frozen=True, slots=True)
class DispatchedChain:
    """One chain that was dispatched and not pushed.

    `queue` and `delay`, in seconds, are those of the first link.
    """

    id: str
    jobs: list[LinkJob]
    """The links in order; a batch is a `DispatchedBatch`."""
    catch: list[Dispatchable | None]
    connection: str
    queue: str
    delay: float
    at: float = field(default_factory=time.time)
    """The epoch time from which the delay counts."""


@dataclass(frozen=True, slots=True)
class DispatchedBatch:
    """One batch that was dispatched, or is a link of a chain that was, and not pushed.

    `queue` is that of `on_queue`.
    """

    id: str
    name: str
    jobs: list[MemberJob]
    """The members in order; a chain is a list. What `add` adds later is included."""
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


@dataclass(frozen=True, slots=True)
class DispatchedFlow:
    """One flow that was dispatched and not pushed."""

    id: str
    name: str
    jobs: list[MemberJob | DispatchedBatch]
    """The jobs of its nodes, in order; a chain is a list, a map the job without its item. Where a
    job gets a result, its field is a reference to that.
    """
    after: list[list[int]]
    """What each node follows: numbers of nodes, from 0."""
    on_failure: list[str]
    """What the failure of each node does: "block", "continue" or "cancel"."""
    catch: list[Dispatchable | None]
    connection: str
    queue: str


class Notes:
    """What was dispatched, in order."""

    def __init__(self) -> None:
        self.jobs: list[Dispatched] = []
        self.chains: list[DispatchedChain] = []
        self.batches: list[DispatchedBatch] = []
        self.flows: list[DispatchedFlow] = []
        self.added: list[MemberJob] = []
        """Members that were added to a batch."""
        self.appended: list[LinkJob] = []
        self.prepended: list[LinkJob] = []
        """Links that a running job has put into its chain."""


class RecordingConnection(Connection):
    """Takes jobs as the connection it replaces would, and records them in `notes`.

    Everything is done as usual, but in memory, without workers: listeners are called and may add to
    the payload, names and sizes are checked, locks are taken, batches have members. The batch of a
    running job may be in another place, `apart`.
    """

    def __init__(
        self,
        original: Connection,
        notes: Notes,
        memory: MemoryBackend,
        apart: Context | None = None,
    ) -> None:
        limit = original.max_payload
        context = replace(
            original.context, backend=memory, max_payload=limit, owner=self, pushes=None
        )
        super().__init__(context, original.settings)
        self.max_payload = limit
        self.find_middleware = original.find_middleware
        self.places = original.places
        self._notes = notes
        self._apart = apart

    def fire_dispatched(self, job: Dispatchable, pushing: Pushing, holder: str) -> None:
        """Records a pushed job, and fires the events."""
        if not holder:
            self._note(job, pushing.uuid, pushing.queue, pushing.delay, pushing.message)
        super().fire_dispatched(job, pushing, holder)

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Records a payload, with its job if that can be made here."""
        uuid = super().push_raw(payload, queue, delay)
        message, seconds = parsed(payload), timing.seconds_until(delay)
        self._note(self._made(message), uuid, queue or self.default_queue, seconds, message)
        return uuid

    def _note(
        self, job: Dispatchable | None, uuid: str, queue: str, delay: float, message: dict[str, Any]
    ) -> None:
        self._notes.jobs.append(Dispatched(uuid, job, self.name, queue, delay, message))

    # -- chains -----------------------------------------------------------------------------------

    def start_chain(self, plan: ChainPlan) -> None:
        """Records a chain, and its first link as dispatched: the first that is no duplicate."""
        super().start_chain(plan)
        (head,) = self.backend.read(f"chain:{plan.id}")
        at = None if head is None else json.loads(head)["at"]
        for link, job in zip(plan.links, plan.jobs, strict=True):
            if link.uuid == at and not isinstance(job, batch_jobs.StartBatch):
                self._note(job, at, link.queue, link.delay, envelope.parse(link.raw))
        first, jobs, catch = plan.links[0], self._links(plan), [*map(self._job, plan.catch)]
        self._notes.chains.append(
            DispatchedChain(plan.id, jobs, catch, self.name, first.queue, first.delay)
        )

    def extend_chain(self, running: Job, link: Prepared, *, first: bool) -> bool:
        """Records a link that a job puts into its chain."""
        del running
        there = self._notes.prepended if first else self._notes.appended
        there.append(self._job(link))
        return True

    # -- batches ----------------------------------------------------------------------------------

    def start_batch(self, plan: BatchPlan) -> None:
        """Records a batch; all its members wait."""
        made: list[ChainPlan] = []
        super().start_batch(plan._replace(members=[_recorded(each, made) for each in plan.members]))
        queue, follow = plan.options["queue"], plan.options["follow"]
        self._notes.batches.append(
            self._batch(plan.id, plan.name, made, queue, follow, plan.allows_failures)
        )

    def extend_batch(
        self, identity: str, makers: Sequence[MakeMember], running: Job | None, word: str
    ) -> None:
        """Records members that are added to a batch."""
        made: list[ChainPlan] = []
        recorded = [_recorded(each, made) for each in makers]
        if self._apart is None:
            super().extend_batch(identity, recorded, running, word)
        elif isinstance(self._apart.backend, MemoryBackend):
            BatchStore(self._apart).add(identity, recorded)
        else:
            for number, make in enumerate(recorded):
                make(number)
        jobs = [*map(self._member, made)]
        self._notes.added += jobs
        for batch in self._notes.batches:
            if batch.id == identity:
                batch.jobs.extend(jobs)

    def batches(self) -> BatchStore:
        """Returns the batches in memory."""
        return BatchStore(self._apart or self.context)

    def _batch(
        self,
        identity: str,
        name: str,
        members: Iterable[ChainPlan],
        queue: str | None,
        follow: Mapping[str, Iterable[Mapping[str, Any]]],
        allows: bool,
    ) -> DispatchedBatch:
        follows = (
            [self._job(Prepared.of(fields)) for fields in follow[event]]
            for event in ("before", "progress", "then", "catch", "finally")
        )
        jobs = [*map(self._member, members)]
        return DispatchedBatch(identity, name, jobs, self.name, queue, allows, *follows)

    # -- flows ------------------------------------------------------------------------------------

    def start_flow(self, plan: FlowPlan) -> None:
        """Records a flow, and the jobs of its first nodes as dispatched."""
        super().start_flow(plan)
        for node in plan.nodes:
            link, job = node.jobs.links[0], node.jobs.jobs[0]
            is_own = node.mapped is not None or isinstance(job, batch_jobs.StartBatch)
            if not node.edges.after and not is_own:
                self._note(job, link.uuid, link.queue, link.delay, envelope.parse(link.raw))
        self._notes.flows.append(
            DispatchedFlow(
                id=plan.id,
                name=plan.name,
                jobs=[self._node(each) for each in plan.nodes],
                after=[[*each.edges.after] for each in plan.nodes],
                on_failure=[each.edges.on_failure for each in plan.nodes],
                catch=[*map(self._job, plan.catch)],
                connection=self.name,
                queue=plan.queue,
            )
        )

    def _node(self, node: NodePlan) -> MemberJob | DispatchedBatch:
        if node.mapped is not None:
            mapped: Dispatchable = node.mapped
            return mapped
        links = self._links(node.jobs)
        is_chain = len(links) > 1 or (node.jobs.id and not isinstance(links[0], DispatchedBatch))
        return links if is_chain else links[0]

    # -- jobs -------------------------------------------------------------------------------------

    def _member(self, plan: ChainPlan) -> MemberJob:
        links = self._links(plan)
        if plan.id:
            return links
        job = links[0]
        assert not isinstance(job, DispatchedBatch)  # noqa: S101 (a batch is a link of a chain)
        return job

    def _links(self, plan: ChainPlan) -> list[LinkJob]:
        links = zip(plan.links, plan.jobs, strict=True)
        return [self._link(job or self._job(link)) for link, job in links]

    def _link(self, job: Dispatchable | None) -> LinkJob:
        """Returns the batch that a link begins, or the link's job."""
        if not isinstance(job, batch_jobs.StartBatch):
            return job
        members = map(ChainPlan.of, job.members)
        return self._batch(
            job.identity, job.label, members, job.default_queue, job.follow, job.allows
        )

    def _job(self, prepared: Prepared) -> Dispatchable | None:
        """Makes a job whose class may be another program's."""
        message = envelope.parse(prepared.raw)
        if name_in(message) in index:
            return self._made(message)
        with suppress(InvalidJob):
            return foreign(str(message.get("job")), message.get("data"))
        return None

    def _made(self, message: dict[str, Any]) -> Dispatchable | None:
        """Makes the job of a payload, if its class is known here and its data fits."""
        job_class, data = index.get(name_in(message)), message.get("data")
        if job_class is None:
            return None
        try:
            if type(data) is dict and encryption.KEY in data and job_class.opens(data):
                data = self.context.keyring.opened(str(message.get("job")), data)
            return job_class.from_data(data)
        except (InvalidArguments, CannotDecrypt):
            return None


def _recorded(make: MakeMember, made: list[ChainPlan]) -> MakeMember:
    """Returns a function that makes a member of a batch and records it."""

    def makes(number: int) -> ChainPlan:
        made.append(make(number))
        return made[-1]

    return makes


def parsed(payload: str | bytes) -> dict[str, Any]:
    """Reads a payload; returns {} for other bytes, which can be pushed, too."""
    try:
        return envelope.parse(payload.encode() if isinstance(payload, str) else payload)
    except InvalidPayload:
        return {}


def name_in(message: dict[str, Any]) -> str:
    """Returns the name of the job in a payload, "" if there is none."""
    try:
        return envelope.job_name(message)
    except InvalidPayload:
        return str(message.get("job") or "")
