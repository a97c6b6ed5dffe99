"""batch: jobs that run side by side, counted, with jobs that follow when all have."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from qframe import connection as connections
from qframe import manager
from qframe.connection import Connection
from qframe.contracts.batch import BatchRecord
from qframe.dispatch.chain import (
    PendingChain,
    callbacks,
    check_connection,
    connection_of,
    dispatchable,
    own_job,
    seconds,
    stand_in_for,
)
from qframe.exceptions import InvalidJob, QframeError
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features.batch import BatchMember, BatchPlan, MakeMember
from qframe.features.batches import Batches
from qframe.features.chain import ChainPlan
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.registry import refuse_while_importing
from qframe.payload.text import one_line, queue_name

MemberJobs = JobDefinition | PendingChain | Sequence[JobDefinition]
"""A member: a job, or a chain of jobs."""
_CALLBACKS = ("before", "progress", "then", "catch", "finally")
_STEPS = 100
"""Progress is told about so often in the life of a batch, and after each member of a small one."""
_LONGEST_NAME = 200


def batch(jobs: Iterable[MemberJobs] = ()) -> PendingBatch:
    """Run jobs side by side: `batch([Import(part=1), ...]).then(Report()).dispatch()`.

    A list of jobs among them is a chain, which counts as one member. An iterator is read while its
    jobs are pushed.
    """
    return PendingBatch(jobs)


def find_batch(identity: str, connection: str | None = None) -> Batch | None:
    """Give a batch by its id; None where there is none (any more)."""
    return _found(stand_in_for(manager.default().connection(connection), ()), identity)


def _found(
    connection: Connection, identity: str, adder: JobDefinition | None = None
) -> Batch | None:
    batches = connection.batches()
    record = None if batches is None else batches.read(identity)
    return None if record is None else Batch(connection, record, adder)


class PendingBatch:
    """A batch about to be dispatched (Laravel's PendingBatch); `dispatch()` does it.

    What follows it are jobs: dispatched at least once, tried again like any other, never before
    what they follow. `self.batch()` in them gives the batch.
    """

    def __init__(self, jobs: Iterable[MemberJobs] = ()) -> None:
        if not isinstance(jobs, Iterable):
            raise InvalidJob(f"a batch takes a list of jobs, not {type(jobs).__name__}")
        self.jobs = jobs
        self.callbacks: dict[str, list[Dispatchable]] = {name: [] for name in _CALLBACKS}
        self.allows_failures = False
        self.label = ""
        self._connection: str | None = None
        self._queue: str | None = None

    def name(self, name: str) -> Self:
        """Name it, for people; raises `InvalidJob` for what is no text."""
        if not isinstance(name, str):
            raise InvalidJob(f"the name of a batch is a text, not {type(name).__name__}")
        self.label = one_line(name, _LONGEST_NAME)
        return self

    def on_connection(self, name: str) -> Self:
        """Use this connection; default: the configured one. Raises `ConfigurationError`."""
        manager.default().connection(name)
        self._connection = name
        return self

    def on_queue(self, name: str) -> Self:
        """Use this queue for the jobs that name none themselves; raises `InvalidQueueName`."""
        self._queue = queue_name(name)
        return self

    def allow_failures(self, allow: bool = True) -> Self:
        """Go on after a failure; else the first one cancels the batch."""
        self.allows_failures = allow
        return self

    def before(self, *jobs: Dispatchable) -> Self:
        """Dispatch these before the first member."""
        return self._follow("before", jobs)

    def progress(self, *jobs: Dispatchable) -> Self:
        """Dispatch these as members are done: after each, or about a hundred times in all."""
        return self._follow("progress", jobs)

    def then(self, *jobs: Dispatchable) -> Self:
        """Dispatch these when every member is done and none has failed."""
        return self._follow("then", jobs)

    def catch(self, *jobs: Dispatchable) -> Self:
        """Dispatch these when the first member fails; they find why in `self.caught`."""
        return self._follow("catch", jobs)

    def finally_(self, *jobs: Dispatchable) -> Self:
        """Dispatch these when every member is done or has failed."""
        return self._follow("finally", jobs)

    def _follow(self, event: str, jobs: Sequence[Dispatchable]) -> Self:
        self.callbacks[event] += [dispatchable(job, event.rstrip("_")) for job in jobs]
        return self

    def dispatch(self) -> Batch:
        """Dispatch the members, some hundred at a time.

        Raises `InvalidJob` or `BackendUnavailable`; what was pushed by then runs, and the batch is
        cancelled.
        """
        refuse_while_importing()
        jobs: list[object] = []
        if connections.stand_in is not None or not isinstance(self.jobs, Iterator):
            self.jobs = list(self.jobs)
            jobs = list(_flat(self.jobs))
        named = self._connection or (getattr(jobs[0], "connection", None) if jobs else None)
        connection = stand_in_for(manager.default().connection(named), jobs)
        plan = self.plan(connection, str(uuid.uuid4()))
        connection.start_batch(plan)
        return _found(connection, plan.id) or Batch(connection, _unkept(connection, plan))

    def plan(self, connection: Connection, identity: str) -> BatchPlan:
        """Build what is kept of the batch; its members are built as they are pushed."""
        from qframe.features import batch_jobs  # noqa: PLC0415 (its jobs would cost every program time)

        queue = self._queue
        follow = {
            event: callbacks(connection, jobs, queue, batch_jobs.about(identity, event))
            for event, jobs in self.callbacks.items()
        }
        runs = batch_jobs.RunBatchCallbacks(of=identity)
        return BatchPlan(
            id=identity,
            name=self.label,
            options=batch_jobs.options(queue, follow),
            allows_failures=self.allows_failures,
            progress_step=self._step(),
            callback_job=connection.prepare(runs, queue, 0, {}),
            before=follow["before"],
            members=(_maker(connection, identity, each, queue) for each in self.jobs),
        )

    def _step(self) -> int:
        if not self.callbacks["progress"]:
            return 0
        return max(1, len(self.jobs) // _STEPS) if isinstance(self.jobs, Sequence) else _STEPS

    def as_job(self, connection: Connection, queue: str | None) -> JobDefinition:
        """Give the job that begins this batch when its turn in a chain has come."""
        from qframe.features import batch_jobs  # noqa: PLC0415 (its jobs would cost every program time)

        check_connection(self._connection, connection, "a batch within a chain")
        queue = self._queue or queue
        self.jobs = list(self.jobs)
        plans = [_plan_of(connection, each, queue, None) for each in self.jobs]
        runs = connection.prepare(batch_jobs.RunBatchCallbacks(of=""), queue, 0, {})
        return batch_jobs.StartBatch(
            label=self.label,
            default_queue=queue,
            allows=self.allows_failures,
            step=self._step(),
            callback_job=runs.fields(),
            follow={
                event: [each.fields() for each in callbacks(connection, jobs, queue, {})]
                for event, jobs in self.callbacks.items()
            },
            members=[
                {
                    "chain": plan.id,
                    "links": [each.fields() for each in plan.links],
                    "catch": [each.fields() for each in plan.catch],
                }
                for plan in plans
            ],
        )


def _plan_of(
    connection: Connection, each: MemberJobs, queue: str | None, member: BatchMember | None
) -> ChainPlan:
    """Build the payloads of a member."""
    if isinstance(each, PendingChain):
        return each.plan(connection, queue, member)
    if isinstance(each, Sequence):
        return PendingChain(each).plan(connection, queue, member)
    job = own_job(each, connection, "a batch")
    more = {} if member is None else member.keys()
    prepared = connection.prepare(job, job.queue or queue, seconds(job.delay), more)
    return ChainPlan("", [job], [prepared])


def _maker(
    connection: Connection, identity: str, each: MemberJobs, queue: str | None
) -> MakeMember:
    return lambda number: _plan_of(connection, each, queue, BatchMember(identity, number))


def _flat(jobs: Iterable[MemberJobs]) -> Iterator[object]:
    for each in jobs:
        if isinstance(each, PendingChain):
            yield from each.jobs
        elif isinstance(each, Sequence):
            yield from each
        else:
            yield each


# -- what there is of a batch ---------------------------------------------------------------------


class Batch:
    """A batch as it stood when it was read; `fresh()` reads it again."""

    __slots__ = ("_adder", "_connection", "_record")

    def __init__(
        self, connection: Connection, record: BatchRecord, adder: JobDefinition | None = None
    ) -> None:
        self._connection = connection
        self._record = record
        self._adder = adder
        """The running job that asked for it."""

    @property
    def record(self) -> BatchRecord:
        """Everything that is kept of it."""
        return self._record

    @property
    def id(self) -> str:
        """Its id, for `find_batch` and `qframe batch`."""
        return self._record.id

    @property
    def name(self) -> str:
        """Its name, "" where it was given none."""
        return self._record.name

    @property
    def total(self) -> int:
        """How many members there are; a chain is one."""
        return self._record.total

    @property
    def done(self) -> int:
        """How many members are done."""
        return self._record.done

    @property
    def failed(self) -> int:
        """How many members have failed."""
        return self._record.failed

    @property
    def pending(self) -> int:
        """How many members are neither done nor failed."""
        return self._record.pending

    @property
    def progress(self) -> float:
        """How much of it is over, from 0 to 1."""
        return self._record.settled / self._record.total if self._record.total else 1.0

    @property
    def is_finished(self) -> bool:
        """Whether every member is done or has failed."""
        return self._record.is_finished

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, by `cancel` or by a failure."""
        return self._record.cancelled_at is not None

    @property
    def has_failures(self) -> bool:
        """Whether a member has failed."""
        return self._record.failed > 0

    @property
    def failed_jobs(self) -> Sequence[str]:
        """The ids of the jobs by which members failed, as the failed store has them (1,000)."""
        return self._batches().failures(self.id)

    def fresh(self) -> Batch:
        """Read it again; raises `QframeError` where it is gone."""
        record = self._batches().read(self.id)
        if record is None:
            raise QframeError(f"the batch {self.id} is not kept any more")
        return Batch(self._connection, record, self._adder)

    def cancel(self) -> bool:
        """Cancel it; says whether it was neither cancelled nor finished.

        Members that wait still run, unless they go through `SkipIfBatchCancelled` or ask
        `self.batch()`. `finally` follows when all have ended, `then` does not.
        """
        return self._batches().cancel(self.id)

    def add(self, *jobs: MemberJobs) -> Batch:
        """Add members, from a job of the batch; raises `InvalidJob` where it is over."""
        if jobs:
            queue = self._record.options.get("queue")
            makers = [_maker(self._connection, self.id, each, queue) for each in jobs]
            running = None if self._adder is None else self._adder.job
            self._connection.extend_batch(self.id, makers, running, self._next_word())
        return self.fresh()

    def _next_word(self) -> str:
        """Name what is added next, the same when the job that adds it runs again."""
        adder = self._adder
        if adder is None:
            return ""
        object.__setattr__(adder, "_growths", adder._growths + 1)  # noqa: SLF001 (also on a frozen job)
        said = f"{adder.job.uuid}\n{adder._growths}"  # noqa: SLF001 (the job's own package)
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def _batches(self) -> Batches:
        batches = self._connection.batches()
        if batches is None:
            raise QframeError(f"the connection {self._connection.name!r} keeps no batches")
        return batches

    def __repr__(self) -> str:
        record = self._record
        return (
            f"<Batch {record.name or record.id}: {record.done} done and {record.failed} failed "
            f"of {record.total}>"
        )


def _unkept(connection: Connection, plan: BatchPlan) -> BatchRecord:
    """Give the record of a batch that nobody keeps: on the null connection, or in a fake."""
    return BatchRecord(
        id=plan.id, name=plan.name, connection=connection.name, total=0, done=0, failed=0,
        closed=True, notified=frozenset(), notified_progress=0, options=dict(plan.options),
        created_at=time.time(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caught:
    """Which job failed, for what is dispatched by `catch`."""

    id: str
    name: str
    error: str


def batch_of(job: JobDefinition) -> Batch | None:
    """Give the batch a running job belongs to, as member or as what follows."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    identity = None if reserved is None else batch_feature.batch_of(reserved.payload)
    if reserved is None or identity is None:
        return None
    return _found(connection_of(reserved), identity, job)


def caught_by(job: JobDefinition) -> Caught | None:
    """Give what a callback of `catch` follows."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    said = None if reserved is None else reserved.payload.get(chain_feature.CAUSE)
    if not isinstance(said, dict):
        return None
    return Caught(*(str(said.get(key, "")) for key in ("uuid", "name", "error")))
