"""batch: jobs that run side by side, with the jobs that follow them, before their dispatch."""

from __future__ import annotations

import contextvars
import uuid
from collections.abc import (
    Awaitable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from typing import Any, Self, overload

from qframe import connection as connections
from qframe import forks
from qframe.connection import Connection
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import lost, sender
from qframe.dispatch.after_commit import joined_or_committed
from qframe.dispatch.batch import Batch, MemberJobs, member_plan, record_of, unkept
from qframe.dispatch.calls import Call, CallPause
from qframe.dispatch.chain import (
    Pending,
    callbacks,
    dispatchable,
)
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidJob
from qframe.features.batch import BatchPlan, about
from qframe.features.batches import whole
from qframe.hooks import OpenTransaction
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import refuse_on_loop
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.tracing import sending
from qframe.payload.text import one_line

_CALLBACKS = ("before", "progress", "then", "catch", "finally")
_STEPS = 100
"""The most progress callbacks of a batch; a small one has one for each member."""
_LONGEST_NAME = 200


def batch(jobs: Iterable[MemberJobs] = ()) -> PendingBatch:
    """Run jobs side by side: `batch([Import(part=1), ...]).then(Report()).dispatch()`.

    A list of jobs in `jobs` is a chain, which counts as one member. All members are built before
    anything is pushed; but an iterator is read while its jobs are pushed, 500 at a time.
    """
    return PendingBatch(jobs)


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
        """Names the batch, for people. Raises `InvalidJob` unless it is a text."""
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
        committed = partial(self._dispatch_committed, connection)
        return joined_or_committed(connection, self.within, committed)

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
                lost.report(what, [Unpushed.unbuilt(connection, self, self._queue)], error)

        opened.on_commit(partial(contextvars.copy_context().run, push))
        return Batch(connection, unkept(connection, plan))

    async def _dispatch_on_loop(self, connection: Connection) -> Batch:
        def unpushed(error: BaseException) -> None:
            what = f"the batch {self.label}" if self.label else "a batch"
            lost.report(what, [Unpushed.unbuilt(connection, self, self._queue)], error)

        return await sender.done(
            lambda: self._dispatch_here(connection),
            lambda: self._dispatching(connection),
            [connection],
            unpushed,
            is_long=True,
        )

    def _dispatching(self, connection: Connection) -> Call[Batch]:
        plan = self._planned(connection)
        with sending(connection, many=True):
            for _ in connection.starting_batch(plan):
                yield CallPause(0)
        return Batch(connection, record_of(connection, plan.id) or unkept(connection, plan))

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
        makers = (partial(member_plan, connection, identity, each, queue) for each in self.jobs)
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
            progress_step=plan.progress_step,
            callback_job=plan.callback_job.fields(),
            follow=plan.options["follow"],
            members=[make(number).fields() for number, make in enumerate(plan.members)],
        )


def _started(connection: Connection, through: Connection, plan: BatchPlan) -> Batch:
    """Dispatch a batch `through` its connection, or through that bound to a transaction."""
    with sending(connection, many=True):
        through.start_batch(plan)
    return Batch(connection, record_of(through, plan.id) or unkept(connection, plan))
