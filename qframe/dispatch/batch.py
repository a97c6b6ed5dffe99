"""batch: jobs that run side by side, counted, with jobs that follow when all have."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, overload

from qframe import connection as connections
from qframe import manager
from qframe.connection import Connection
from qframe.contracts.batch import BatchRecord
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch.chain import (
    Pending,
    PendingChain,
    callbacks,
    connection_of,
    dispatchable,
    own_job,
    stand_in_for,
)
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidJob, QframeError
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features.batch import BatchMember, BatchPlan, about
from qframe.features.batches import Batches
from qframe.features.chain import ChainPlan
from qframe.jobs.definition import JobDefinition
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.options import seconds
from qframe.payload.text import one_line

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


class PendingBatch(Pending):
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

    def name(self, name: str) -> Self:
        """Name it, for people; raises `InvalidJob` for what is no text."""
        if not isinstance(name, str):
            raise InvalidJob(f"the name of a batch is a text, not {type(name).__name__}")
        self.label = one_line(name, _LONGEST_NAME)
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
        connection, plan = self._planned()
        return _started(connection, connection, plan)

    @overload
    def within(self, transaction: AsyncTransaction) -> Awaitable[Batch]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def within(self, transaction: object) -> Batch: ...

    def within(self, transaction: object) -> Batch | Awaitable[Batch]:
        """Dispatch it in a transaction of the program's own; gives what `dispatch` gives.

        As `PendingDispatch.within`; with an asynchronous transaction it is to be awaited.
        """
        connection, plan = self._planned()

        def start(inside: object) -> Batch:
            return _started(connection, joined(connection, inside), plan)

        return run_in(transaction, start) if is_async(transaction) else start(transaction)

    def _planned(self) -> tuple[Connection, BatchPlan]:
        jobs: list[object] = []
        if connections.stand_in is not None or not isinstance(self.jobs, Iterator):
            self.jobs = list(self.jobs)
            jobs = [*self.jobs]
        connection = self._chosen(jobs)
        return connection, self.plan(connection, self._queue, str(uuid.uuid4()))

    def plan(self, connection: Connection, queue: str | None, identity: str) -> BatchPlan:
        """Build what is kept of the batch; its members are built as they are pushed."""
        from qframe.features.batch_jobs import RunBatchCallbacks  # noqa: PLC0415 (its jobs would cost every program time)

        follow = {
            event: [
                each.fields() for each in callbacks(connection, jobs, queue, about(identity, event))
            ]
            for event, jobs in self.callbacks.items()
        }
        step = 0
        if self.callbacks["progress"]:
            jobs = self.jobs
            step = max(1, len(jobs) // _STEPS) if isinstance(jobs, Sequence) else _STEPS
        return BatchPlan(
            id=identity,
            name=self.label,
            options={"queue": queue, "follow": follow},
            allows_failures=self.allows_failures,
            progress_step=step,
            callback_job=connection.prepare(RunBatchCallbacks(of=identity), queue, 0, {}),
            members=(partial(_member, connection, identity, each, queue) for each in self.jobs),
        )

    def as_job(self, connection: Connection, queue: str | None, identity: str) -> JobDefinition:
        """Give the job that begins this batch, with all its payloads."""
        from qframe.features.batch_jobs import StartBatch  # noqa: PLC0415 (its jobs would cost every program time)

        queue = self._queue_within(connection, queue, "a batch within a chain")
        self.jobs = list(self.jobs)
        plan = self.plan(connection, queue, identity)
        return StartBatch(
            identity=identity,
            label=plan.name,
            default_queue=queue,
            allows=plan.allows_failures,
            step=plan.progress_step,
            callback_job=plan.callback_job.fields(),
            follow=plan.options["follow"],
            members=[make(number).fields() for number, make in enumerate(plan.members)],
        )


def _member(
    connection: Connection, identity: str, each: MemberJobs, queue: str | None, number: int
) -> ChainPlan:
    """Build the payloads of a member, once its number is known."""
    keys = BatchMember(identity, number).keys()
    if isinstance(each, PendingChain):
        return each.plan(connection, queue, keys)
    if isinstance(each, Sequence):
        return PendingChain(each).plan(connection, queue, keys)
    job = own_job(each, connection, "a batch")
    prepared = connection.prepare(job, job.queue or queue, seconds(job.delay), keys)
    return ChainPlan("", [job], [prepared])


def _started(connection: Connection, through: Connection, plan: BatchPlan) -> Batch:
    """Dispatch a batch `through` its connection, or that in a transaction."""
    through.start_batch(plan)
    batches = through.batches()
    record = None if batches is None else batches.read(plan.id)
    return Batch(connection, record or _unkept(connection, plan))


# -- what there is of a batch ---------------------------------------------------------------------


class Batch:
    """A batch as it stood when it was read; `fresh()` reads it again."""

    def __init__(
        self, connection: Connection, record: BatchRecord, adder: JobDefinition | None = None
    ) -> None:
        self._connection = connection
        self._adder = adder
        """The running job that asked for it."""
        self.record = record
        """Everything that is kept of it."""
        self.id = record.id
        """Its id, for `find_batch` and `qframe batch`."""
        self.name = record.name
        """Its name, "" where it was given none."""
        self.total = record.total
        """How many members there are; a chain is one."""
        self.done = record.done
        """How many members are done."""
        self.failed = record.failed
        """How many members have failed."""
        self.pending = record.pending
        """How many members are neither done nor failed."""
        self.progress = record.settled / record.total if record.total else 1.0
        """How much of it is over, from 0 to 1."""
        self.is_finished = record.is_finished
        """Whether every member is done or has failed."""
        self.is_cancelled = record.cancelled_at is not None
        """Whether it was cancelled, by `cancel` or by a failure."""
        self.has_failures = record.failed > 0
        """Whether a member has failed."""

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
            adder, running, word = self._adder, None, ""
            if adder is not None:  # named the same when the job that adds runs again
                running = adder.job
                object.__setattr__(adder, "_growths", adder._growths + 1)  # noqa: SLF001 (also on a frozen job)
                said = f"{running.uuid}\n{adder._growths}"  # noqa: SLF001 (the job's own package)
                word = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
            queue = self.record.options.get("queue")
            makers = [partial(_member, self._connection, self.id, each, queue) for each in jobs]
            self._connection.extend_batch(self.id, makers, running, word)
        return self.fresh()

    def _batches(self) -> Batches:
        batches = self._connection.batches()
        if batches is None:
            raise QframeError(f"the connection {self._connection.name!r} keeps no batches")
        return batches

    def __repr__(self) -> str:
        return (
            f"<Batch {self.name or self.id}: {self.done} done and {self.failed} failed "
            f"of {self.total}>"
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
