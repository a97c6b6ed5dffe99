"""Batch: jobs that were dispatched side by side and are counted."""

from __future__ import annotations

import hashlib
import time
from collections.abc import (
    Callable,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from qframe import manager
from qframe.connection import Connection
from qframe.contracts.batch import BatchRecord
from qframe.dispatch import lost, sender
from qframe.dispatch.calls import direct
from qframe.dispatch.chain import (
    PendingChain,
    connection_of,
    own_job,
    stand_in_for,
)
from qframe.dispatch.sender import asked
from qframe.exceptions import QframeError
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features.batch import BatchMember, BatchPlan
from qframe.features.batches import BatchStore
from qframe.features.chain import ChainPlan
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import on_a_running_loop, refuse_on_loop
from qframe.jobs.options import seconds
from qframe.payload import encryption

MemberJobs = JobDefinition | PendingChain | Sequence[JobDefinition]
"""A member: a job, or a chain of jobs."""

T = TypeVar("T")


def find_batch(identity: str, connection: str | None = None) -> Batch | None:
    """Return a batch by its id; None if there is none (any more).

    Raises `SynchronousOnly` on a running event loop: await `afind_batch` there.
    """
    refuse_on_loop("find_batch()", "afind_batch()")
    return _found(identity, connection)


async def afind_batch(identity: str, connection: str | None = None) -> Batch | None:
    """As `find_batch`, without blocking the event loop."""
    return await asked(partial(_found, identity, connection))


def _found(identity: str, connection: str | None) -> Batch | None:
    place = stand_in_for(manager.default().connection(connection), ())
    record = record_of(place, identity)
    return None if record is None else Batch(place, record)


def record_of(connection: Connection, identity: str) -> BatchRecord | None:
    """Read the record of a batch; None if there is none."""
    batches = connection.batches()
    return None if batches is None else batches.read(identity)


class Batch:
    """A batch as it was when it was read; `fresh()` reads it again.

    On a running event loop, `self.batch()` in a job returns a batch that is read on first access,
    which blocks; `await self.batch().afresh()` does not block.
    """

    def __init__(
        self,
        connection: Connection,
        record: BatchRecord | None,
        adder: JobDefinition | None = None,
        identity: str = "",
    ) -> None:
        self._connection = connection
        self._adder = adder
        """The running job that asked for the batch."""
        self._record = record
        self.id = identity if record is None else record.id
        """The id for `find_batch` and `qframe batch`."""

    @property
    def record(self) -> BatchRecord:
        """Everything that is stored of the batch. Raises `QframeError` if it is gone."""
        if self._record is None:
            self._record = self._read()
        return self._record

    @property
    def name(self) -> str:
        """The name; "" if it has none."""
        return self.record.name

    @property
    def total(self) -> int:
        """The number of members; a chain counts as one."""
        return self.record.total

    @property
    def done(self) -> int:
        """The number of members that are done."""
        return self.record.done

    @property
    def failed(self) -> int:
        """The number of members that have failed."""
        return self.record.failed

    @property
    def pending(self) -> int:
        """The number of members that are neither done nor failed."""
        return self.record.pending

    @property
    def progress(self) -> float:
        """The settled share of the members, from 0 to 1."""
        record = self.record
        return record.settled / record.total if record.total else 1.0

    @property
    def is_finished(self) -> bool:
        """Whether every member is done or has failed."""
        return self.record.is_finished

    @property
    def is_cancelled(self) -> bool:
        """Whether the batch was cancelled, by `cancel` or by a failure."""
        return self.record.cancelled_at is not None

    @property
    def has_failures(self) -> bool:
        """Whether a member has failed."""
        return self.record.failed > 0

    @property
    def failed_jobs(self) -> list[str]:
        """The ids of the jobs that failed their members, as in the failed store (at most 1,000).

        Like the calls below it raises `SynchronousOnly` on a running event loop: await the call
        with the prefix `a` there.
        """
        refuse_on_loop("failed_jobs of a batch", "afailed_jobs()")
        return self._failed_jobs()

    async def afailed_jobs(self) -> list[str]:
        """As `failed_jobs`, without blocking the event loop."""
        return await asked(self._failed_jobs)

    def _failed_jobs(self) -> list[str]:
        return self._batches().failures(self.id)

    def fresh(self) -> Batch:
        """Read the batch again. Raises `QframeError` if it is gone."""
        refuse_on_loop("fresh() of a batch", "afresh()")
        return self._again()

    async def afresh(self) -> Batch:
        """As `fresh`, without blocking the event loop."""
        return await asked(self._again)

    def _again(self) -> Batch:
        return Batch(self._connection, self._read(), self._adder)

    def _read(self) -> BatchRecord:
        record = self._batches().read(self.id)
        if record is None:
            raise QframeError(f"the batch {self.id} is not kept any more")
        return record

    def cancel(self) -> bool:
        """Cancel the batch. Returns False if it was already cancelled or finished.

        Waiting members still run, unless they have the middleware `SkipIfBatchCancelled` or check
        `self.batch()`. The `finally_` jobs follow when all have ended, the `then` jobs do not.
        """
        refuse_on_loop("cancel() of a batch", "acancel()")
        return self._cancelled()

    async def acancel(self) -> bool:
        """As `cancel`, without blocking the event loop."""
        return await self._done("acancel", self._cancelled)

    def _cancelled(self) -> bool:
        return self._batches().cancel(self.id)

    def add(self, *jobs: MemberJobs) -> Batch:
        """Add members from a job of the batch. Raises `InvalidJob` if the batch is over."""
        refuse_on_loop("add() of a batch", "aadd()")
        return self._adding(jobs)()

    async def aadd(self, *jobs: MemberJobs) -> Batch:
        """As `add`, without blocking the event loop."""
        return await self._done("aadd", self._adding(jobs))

    def _adding(self, jobs: Sequence[MemberJobs]) -> Callable[[], Batch]:
        """Return what adds the members: the same ones if the adding job runs again."""
        adder, running, word = self._adder, None, ""
        if jobs and adder is not None:
            running = adder.job
            object.__setattr__(adder, "_growths", adder._growths + 1)  # noqa: SLF001 (also on a frozen job)
            place = f"{running.uuid}\n{adder._growths}"  # noqa: SLF001 (the job's own package)
            word = hashlib.blake2b(place.encode(), digest_size=16).hexdigest()

        def added() -> Batch:
            if jobs:
                queue = self.record.options.get("queue")
                makers = [
                    partial(member_plan, self._connection, self.id, each, queue) for each in jobs
                ]
                self._connection.extend_batch(self.id, makers, running, word)
            return self._again()

        return added

    async def _done(self, what: str, act: Callable[[], T]) -> T:
        """Run `act` in a thread, to the end even if the awaiting task is cancelled."""

        def report(error: BaseException) -> None:
            lost.report_undone(f"{what}() of the batch {self.id}", error)

        places = [self._connection]
        return await sender.done(act, partial(direct, act), places, report, is_long=True)

    def _batches(self) -> BatchStore:
        batches = self._connection.batches()
        if batches is None:
            raise QframeError(f"the connection {self._connection.name!r} keeps no batches")
        return batches

    def __repr__(self) -> str:
        return (
            f"<Batch {self.name or self.id}: {self.done} done and {self.failed} failed "
            f"of {self.total}>"
        )


def unkept(connection: Connection, plan: BatchPlan) -> BatchRecord:
    """Return the record of a batch that is not stored: on the null connection, or in a fake."""
    return BatchRecord(
        id=plan.id, name=plan.name, connection=connection.name, total=0, done=0, failed=0,
        closed=True, notified=frozenset(), notified_progress=0, options=dict(plan.options),
        created_at=time.time(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caught:
    """The failed job, for the jobs that `catch` dispatches."""

    id: str
    name: str
    error: str


class Previous(NamedTuple):
    """The link before a job in its chain, if that returned something."""

    id: str = ""
    name: str = ""
    result: Any = None
    """What its `handle` returned, as JSON has it."""


def previous_of(job: JobDefinition) -> Previous:
    """Return what the link before a running job has returned."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    found = None if reserved is None else reserved.payload.get(chain_feature.PREVIOUS)
    if reserved is None or not isinstance(found, dict):
        return Previous()
    name = str(found.get("name", ""))
    if "remark" in found:
        raise QframeError(f"what {name} returned was not passed on: {found['remark']}")
    result = found.get("result")
    if encryption.KEY in found:
        result = connection_of(reserved).context.keyring.opened(chain_feature.PREVIOUS, found)
    return Previous(str(found.get("uuid", "")), name, result)


def batch_of(job: JobDefinition) -> Batch | None:
    """Return the batch that a running job is a member or callback of."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    identity = None if reserved is None else batch_feature.batch_of(reserved.payload)
    if reserved is None or identity is None:
        return None
    connection = connection_of(reserved)
    if on_a_running_loop():
        return Batch(connection, None, job, identity)
    record = record_of(connection, identity)
    return None if record is None else Batch(connection, record, job)


def caught_by(job: JobDefinition) -> Caught | None:
    """Return the failed job that a callback of `catch` follows."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    cause = None if reserved is None else reserved.payload.get(chain_feature.CAUSE)
    if not isinstance(cause, dict):
        return None
    return Caught(*(str(cause.get(key, "")) for key in ("uuid", "name", "error")))


def member_plan(
    connection: Connection, identity: str, each: MemberJobs, queue: str | None, number: int
) -> ChainPlan:
    """Build the payloads of a member when its number is known."""
    keys = BatchMember(identity, number).keys()
    if isinstance(each, PendingChain):
        return each.plan(connection, queue, keys)
    if isinstance(each, Sequence):
        return PendingChain(each).plan(connection, queue, keys)
    job = own_job(each, connection, "a batch")
    prepared = connection.prepare(job, job.queue or queue, seconds(job.delay), keys)
    return ChainPlan("", [job], [prepared])
