"""batch: jobs that run side by side and are counted, and jobs that follow them."""

from __future__ import annotations

import contextvars
import hashlib
import time
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar, overload

from qframe import connection as connections
from qframe import forks, manager
from qframe.connection import Connection
from qframe.contracts.batch import BatchRecord
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import lost, sender
from qframe.dispatch.after_commit import OpenTransaction, open_for
from qframe.dispatch.calls import Call, CallPause, direct
from qframe.dispatch.chain import (
    Pending,
    PendingChain,
    callbacks,
    connection_of,
    dispatchable,
    own_job,
    stand_in_for,
)
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.sender import awaited
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidJob, QframeError
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features.batch import BatchMember, BatchPlan, about
from qframe.features.batches import BatchStore, whole
from qframe.features.chain import ChainPlan
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import on_a_running_loop, refuse_on_loop
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.options import seconds
from qframe.jobs.tracing import sending
from qframe.payload.text import one_line

MemberJobs = JobDefinition | PendingChain | Sequence[JobDefinition]
"""A member: a job, or a chain of jobs."""
_CALLBACKS = ("before", "progress", "then", "catch", "finally")
_STEPS = 100
"""The most progress callbacks of a batch; a small one has one for each member."""
_LONGEST_NAME = 200

T = TypeVar("T")


def batch(jobs: Iterable[MemberJobs] = ()) -> PendingBatch:
    """Run jobs side by side: `batch([Import(part=1), ...]).then(Report()).dispatch()`.

    A list of jobs in `jobs` is a chain, which counts as one member. All members are built before
    anything is pushed; but an iterator is read while its jobs are pushed, 500 at a time.
    """
    return PendingBatch(jobs)


def find_batch(identity: str, connection: str | None = None) -> Batch | None:
    """Return a batch by its id; None if there is none (any more).

    Raises `SynchronousOnly` on a running event loop: await `afind_batch` there.
    """
    refuse_on_loop("find_batch()", "afind_batch()")
    return _found(identity, connection)


async def afind_batch(identity: str, connection: str | None = None) -> Batch | None:
    """As `find_batch`, without blocking the event loop."""
    return await _asked(partial(_found, identity, connection))


def _found(identity: str, connection: str | None) -> Batch | None:
    place = stand_in_for(manager.default().connection(connection), ())
    record = _record(place, identity)
    return None if record is None else Batch(place, record)


async def _asked(ask: Callable[[], T]) -> T:
    return await awaited(direct(ask), is_long=True)


def _record(connection: Connection, identity: str) -> BatchRecord | None:
    batches = connection.batches()
    return None if batches is None else batches.read(identity)


class PendingBatch(Pending):
    """A batch before its dispatch (Laravel's PendingBatch); `dispatch()` pushes it.

    Its callbacks are jobs: dispatched at least once, retried like any other job, and never before
    what they follow. `self.batch()` in them returns the batch.
    """

    def __init__(self, jobs: Iterable[MemberJobs] = ()) -> None:
        if not isinstance(jobs, Iterable):
            raise InvalidJob(f"a batch takes a list of jobs, not {type(jobs).__name__}")
        self.jobs = jobs
        self.callbacks: dict[str, list[Dispatchable]] = {name: [] for name in _CALLBACKS}
        self.allows_failures = False
        self.label = ""

    def name(self, name: str) -> Self:
        """Give the batch a name for people. Raises `InvalidJob` unless it is a text."""
        if not isinstance(name, str):
            raise InvalidJob(f"the name of a batch is a text, not {type(name).__name__}")
        self.label = one_line(name, _LONGEST_NAME)
        return self

    def allow_failures(self, allow: bool = True) -> Self:
        """Continue after a failure; otherwise the first failure cancels the batch."""
        self.allows_failures = allow
        return self

    def before(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs before the first member."""
        return self._follow("before", jobs)

    def progress(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs as members finish: after each, or about a hundred times in all."""
        return self._follow("progress", jobs)

    def then(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs when every member is done and none has failed."""
        return self._follow("then", jobs)

    def catch(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs when the first member fails; `self.caught` in them tells why."""
        return self._follow("catch", jobs)

    def finally_(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs when every member is done or has failed."""
        return self._follow("finally", jobs)

    def _follow(self, event: str, jobs: Sequence[Dispatchable]) -> Self:
        more = [dispatchable(job, event.rstrip("_")) for job in jobs]
        self.callbacks = {**self.callbacks, event: [*self.callbacks[event], *more]}
        return self

    def dispatch(self) -> Batch:
        """Dispatch the members, some hundred at a time. Returns the batch.

        Raises `InvalidJob` or `BackendUnavailable`; the members pushed so far still run, and the
        batch is cancelled. Raises `SynchronousOnly` on a running event loop: await the batch itself
        there, or `adispatch`.
        """
        refuse_on_loop("dispatch() of a batch", "adispatch()")
        place = self._placed()
        return self._dispatch_joined(place) or self._dispatch_here(place)

    async def adispatch(self) -> Batch:
        """As `dispatch`, without blocking the event loop.

        Once begun it completes even if the awaiting task is cancelled; an error is then reported
        like that of a dropped dispatch.
        """
        place = self._placed()
        return self._dispatch_joined(place) or await self._dispatch_on_loop(place)

    def __await__(self) -> Generator[Any, Any, Batch]:
        """Dispatch the batch without blocking the event loop."""
        return self.adispatch().__await__()

    def _dispatch_joined(self, connection: Connection) -> Batch | None:
        """Dispatch it in the open transaction or at its commit; None if there is none."""
        opened = None if connections.stand_in is not None else open_for(connection)
        if opened is None:
            return None
        if (inside := opened.within()) is not None:
            return self.within(inside)
        return self._dispatch_committed(connection, opened)

    def _dispatch_here(self, connection: Connection) -> Batch:
        return _started(connection, connection, self._planned(connection))

    def _dispatch_committed(self, connection: Connection, opened: OpenTransaction) -> Batch:
        """Dispatch it at the commit of the transaction. The returned batch has its id already."""
        self.jobs = list(self.jobs)
        plan = self._planned(connection)
        with sending(connection, many=True):
            plan = whole(connection.context, plan)

        def push() -> None:
            try:
                connection.start_batch(plan)
            except Exception as error:  # noqa: BLE001 (after the commit nobody can handle it)
                what = f"the batch {self.label}" if self.label else "a batch"
                lost.tell(what, [Unpushed.unbuilt(connection, self, self._queue)], error)

        opened.on_commit(partial(contextvars.copy_context().run, push))
        return Batch(connection, _unkept(connection, plan))

    async def _dispatch_on_loop(self, connection: Connection) -> Batch:
        def unpushed(error: BaseException) -> None:
            what = f"the batch {self.label}" if self.label else "a batch"
            lost.tell(what, [Unpushed.unbuilt(connection, self, self._queue)], error)

        return await sender.done(
            lambda: self._dispatch_here(connection),
            lambda: self._dispatching(connection),
            [connection],
            unpushed,
            is_long=True,
        )

    def _dispatching(self, connection: Connection) -> Call[Batch]:
        """Dispatch it together with other calls."""
        plan = self._planned(connection)
        with sending(connection, many=True):
            for _ in connection.starting_batch(plan):
                yield CallPause(0)
        return Batch(connection, _record(connection, plan.id) or _unkept(connection, plan))

    @overload
    def within(self, transaction: AsyncTransaction) -> Awaitable[Batch]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def within(self, transaction: object) -> Batch: ...

    def within(self, transaction: object) -> Batch | Awaitable[Batch]:
        """Dispatch the batch in a transaction of the program. Returns what `dispatch` returns.

        See `PendingDispatch.within`; with an asynchronous transaction, await the result.
        """
        connection = self._placed()
        plan = self._planned(connection)

        def start(inside: object) -> Batch:
            return _started(connection, joined(connection, inside), plan)

        return run_in(transaction, start) if is_async(transaction) else start(transaction)

    def _placed(self) -> Connection:
        jobs: list[object] = []
        if connections.stand_in is not None or not isinstance(self.jobs, Iterator):
            self.jobs = list(self.jobs)
            jobs = [*self.jobs]
        return self._chosen(jobs)

    def _planned(self, connection: Connection) -> BatchPlan:
        return self.plan(connection, self._queue, str(uuid.uuid4()))

    def plan(self, connection: Connection, queue: str | None, identity: str) -> BatchPlan:
        """Build the batch's facts; its members are built when they are pushed."""
        with forks.undisturbed():
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
        makers = (partial(_member, connection, identity, each, queue) for each in self.jobs)
        return BatchPlan(
            id=identity,
            name=self.label,
            options={"queue": queue, "follow": follow},
            allows_failures=self.allows_failures,
            progress_step=step,
            callback_job=connection.prepare(RunBatchCallbacks(of=identity), queue, 0, {}),
            members=makers if isinstance(self.jobs, Iterator) else [*makers],
        )

    def as_job(self, connection: Connection, queue: str | None, identity: str) -> JobDefinition:
        """Return the job, with all payloads, that begins this batch as a link of a chain."""
        with forks.undisturbed():
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
    """Build the payloads of a member when its number is known."""
    keys = BatchMember(identity, number).keys()
    if isinstance(each, PendingChain):
        return each.plan(connection, queue, keys)
    if isinstance(each, Sequence):
        return PendingChain(each).plan(connection, queue, keys)
    job = own_job(each, connection, "a batch")
    prepared = connection.prepare(job, job.queue or queue, seconds(job.delay), keys)
    return ChainPlan("", [job], [prepared])


def _started(connection: Connection, through: Connection, plan: BatchPlan) -> Batch:
    """Dispatch a batch `through` its connection, or through that bound to a transaction."""
    with sending(connection, many=True):
        through.start_batch(plan)
    return Batch(connection, _record(through, plan.id) or _unkept(connection, plan))


# -- a dispatched batch ---------------------------------------------------------------------------


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
        return await _asked(self._failed_jobs)

    def _failed_jobs(self) -> list[str]:
        return self._batches().failures(self.id)

    def fresh(self) -> Batch:
        """Read the batch again. Raises `QframeError` if it is gone."""
        refuse_on_loop("fresh() of a batch", "afresh()")
        return self._again()

    async def afresh(self) -> Batch:
        """As `fresh`, without blocking the event loop."""
        return await _asked(self._again)

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
            said = f"{running.uuid}\n{adder._growths}"  # noqa: SLF001 (the job's own package)
            word = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

        def added() -> Batch:
            if jobs:
                queue = self.record.options.get("queue")
                makers = [partial(_member, self._connection, self.id, each, queue) for each in jobs]
                self._connection.extend_batch(self.id, makers, running, word)
            return self._again()

        return added

    async def _done(self, what: str, act: Callable[[], T]) -> T:
        """Run `act` in a thread, to the end even if the awaiting task is cancelled."""

        def untold(error: BaseException) -> None:
            lost.tell_undone(f"{what}() of the batch {self.id}", error)

        places = [self._connection]
        return await sender.done(act, partial(direct, act), places, untold, is_long=True)

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


def _unkept(connection: Connection, plan: BatchPlan) -> BatchRecord:
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


def batch_of(job: JobDefinition) -> Batch | None:
    """Return the batch that a running job is a member or callback of."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    identity = None if reserved is None else batch_feature.batch_of(reserved.payload)
    if reserved is None or identity is None:
        return None
    connection = connection_of(reserved)
    if on_a_running_loop():
        return Batch(connection, None, job, identity)
    record = _record(connection, identity)
    return None if record is None else Batch(connection, record, job)


def caught_by(job: JobDefinition) -> Caught | None:
    """Return the failed job that a callback of `catch` follows."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    said = None if reserved is None else reserved.payload.get(chain_feature.CAUSE)
    if not isinstance(said, dict):
        return None
    return Caught(*(str(said.get(key, "")) for key in ("uuid", "name", "error")))
