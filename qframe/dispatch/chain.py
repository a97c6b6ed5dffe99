"""chain: jobs that run one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, overload

from qframe import connection as connections
from qframe import manager
from qframe.connection import Connection
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import lost, sender
from qframe.dispatch.after_commit import joined_or_committed
from qframe.dispatch.calls import Call, applying
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidJob, QframeError
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features.chain import ChainPlan
from qframe.features.context import Prepared
from qframe.hooks import OpenTransaction
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import refuse_on_loop
from qframe.jobs.foreign import Dispatchable, Foreign
from qframe.jobs.options import seconds
from qframe.jobs.registry import refuse_while_importing
from qframe.jobs.tracing import sending
from qframe.payload.text import queue_name
from qframe.payload.timing import When

if TYPE_CHECKING:
    from qframe.contracts.job import Job


_MANY = 100
"""Links from which a chain goes to the long sender, because it would delay other calls."""


def chain(jobs: Iterable[JobDefinition | Pending]) -> PendingChain:
    """Run jobs one after the other: `chain([Pack(...), Ship(...)]).on_queue("x").dispatch()`.

    The next job is pushed in the step that removes the one before, where the backend keeps both; a
    job that fails for good ends the chain. A link may be a batch: the chain continues when the
    batch has finished. Raises `InvalidJob` for anything else.
    """
    return PendingChain(jobs)


class Pending:
    """Jobs to be dispatched together, on one connection and queue."""

    jobs: Iterable[Any]
    _connection: str | None = None
    _queue: str | None = None

    def on_connection(self, name: str) -> Self:
        """Use this connection for all jobs; default: that of the first.

        Raises `ConfigurationError` for an unknown connection.
        """
        manager.default().connection(name)
        self._connection = name
        return self

    def on_queue(self, name: str) -> Self:
        """Use this queue for the jobs that set none themselves. Raises `InvalidQueueName`."""
        self._queue = queue_name(name)
        return self

    def as_job(self, connection: Connection, queue: str | None, identity: str) -> JobDefinition:
        """Return the job that begins a batch, with this id, when its turn in a chain has come."""
        del connection, queue, identity
        raise InvalidJob(f"a chain takes jobs, not {type(self).__name__}")

    def _chosen(self, jobs: Sequence[object]) -> Connection:
        """Return the connection for all jobs, or its stand-in."""
        refuse_while_importing()
        first, queues = next(_single(jobs), None), manager.default()
        if isinstance(first, JobDefinition):
            own = queues.connection_of(first, self._connection, first.queue or self._queue)
        else:
            own = queues.connection(self._connection)
        return stand_in_for(own, jobs)

    def _queue_within(self, connection: Connection, queue: str | None, what: str) -> str | None:
        """Return the queue inside another chain or batch, which must use the same connection.

        Raises `InvalidJob`.
        """
        if self._connection not in {None, connection.name}:
            raise InvalidJob(
                f"{what} is on its connection, here {connection.name!r}, not on "
                f"{self._connection!r}"
            )
        return self._queue or queue


class PendingChain(Pending):
    """A chain before its dispatch (Laravel's PendingChain); `dispatch()` pushes it."""

    jobs: list[Any]
    """The links in order."""

    def __init__(self, jobs: Iterable[JobDefinition | Pending]) -> None:
        if not isinstance(jobs, Iterable):
            raise InvalidJob(f"a chain takes a list of jobs, not {type(jobs).__name__}")
        self.jobs = list(jobs)
        if not self.jobs:
            raise InvalidJob("a chain needs a job: chain([First(...), Second(...)])")
        self.callbacks: list[Dispatchable] = []
        """The jobs to dispatch when a link fails."""
        self._delay: When | None = None

    def delay(self, delay: When) -> Self:
        """Make the first link ready after `delay`: seconds, timedelta or aware datetime.

        It replaces that link's own `delay`; the delays of the others begin when the job before them
        is done. Raises `InvalidJob`.
        """
        seconds(delay)
        self._delay = delay
        return self

    def catch(self, *jobs: Dispatchable) -> Self:
        """Dispatch these jobs when a link fails for good; `self.caught` in them tells why."""
        self.callbacks = [*self.callbacks, *(dispatchable(job, "catch") for job in jobs)]
        return self

    def dispatch(self) -> str:
        """Dispatch the first link and store the others. Returns the chain's id.

        Raises `InvalidJob` before anything is pushed, `BackendUnavailable`, and on the sync
        connection the exception of a link. Raises `SynchronousOnly` on a running event loop: await
        the chain itself there, or `adispatch`.
        """
        refuse_on_loop("dispatch() of a chain", "adispatch()")
        connection, identity = self._chosen(self.jobs), str(uuid.uuid4())
        if not (joined := self._dispatch_joined(connection, identity)):
            self._dispatch_here(connection, identity)
        return joined or identity

    async def adispatch(self) -> str:
        """As `dispatch`, without blocking the event loop.

        Once begun it completes even if the awaiting task is cancelled; an error is then reported
        like that of a dropped dispatch.
        """
        connection, identity = self._chosen(self.jobs), str(uuid.uuid4())
        joined = self._dispatch_joined(connection, identity)
        return joined or await self._dispatch_on_loop(connection, identity)

    def __await__(self) -> Generator[Any, Any, str]:
        """Dispatch the chain without blocking the event loop. Returns the chain's id."""
        return self.adispatch().__await__()

    def _dispatch_joined(self, connection: Connection, identity: str) -> str:
        """Dispatch it in the open transaction or at its commit; "" if there is none."""
        committed = partial(self._dispatch_committed, connection, identity)
        return joined_or_committed(connection, self.within, committed) or ""

    def _dispatch_here(self, connection: Connection, identity: str) -> str:
        with sending(connection, many=True):
            connection.start_chain(self.plan(connection, None, {}, identity))
        return identity

    def _dispatch_committed(
        self, connection: Connection, identity: str, opened: OpenTransaction
    ) -> str:
        """Build it now, and push it at the commit of the transaction."""
        with sending(connection, many=True):
            plan = self.plan(connection, None, {}, identity)

        def push() -> None:
            try:
                connection.start_chain(plan)
            except Exception as error:  # noqa: BLE001 (after the commit nobody can handle it)
                link = plan.links[0]
                first = Unpushed(connection, link.queue, plan.jobs[0], link.message or {})
                lost.report(f"the chain {identity} of {len(self.jobs)} links", [first], error)

        opened.on_commit(push)
        return identity

    async def _dispatch_on_loop(self, connection: Connection, identity: str) -> str:
        built: list[ChainPlan] = []

        def unpushed(error: BaseException) -> None:
            first = Unpushed.unbuilt(connection, self.jobs[0], self._queue)
            for plan in built:
                link = plan.links[0]
                payload = link.message or {}
                first = Unpushed(connection, link.queue, plan.jobs[0], payload, link.delay)
            lost.report(f"the chain {identity} of {len(self.jobs)} links", [first], error)

        return await sender.done(
            lambda: self._dispatch_here(connection, identity),
            lambda: self._dispatching(connection, identity, built),
            [connection],
            unpushed,
            is_long=len(self.jobs) > _MANY,
        )

    def _dispatching(
        self, connection: Connection, identity: str, built: list[ChainPlan]
    ) -> Call[str]:
        """Dispatch it together with other calls; `built` receives the plan."""
        with sending(connection, many=True):
            plan = self.plan(connection, None, {}, identity)
            built.append(plan)
            yield from applying(connection.backend, connection.starting_chain(plan))
        return identity

    @overload
    def within(self, transaction: AsyncTransaction) -> Awaitable[str]: ...  # type: ignore[overload-overlap] # any object that is no such transaction

    @overload
    def within(self, transaction: object) -> str: ...

    def within(self, transaction: object) -> str | Awaitable[str]:
        """Dispatch the chain in a transaction of the program. Returns what `dispatch` returns.

        See `PendingDispatch.within`; with an asynchronous transaction, await the result.
        """
        connection = self._chosen(self.jobs)
        with sending(connection, many=True):
            plan = self.plan(connection, None, {})

        def start(inside: object) -> str:
            joined(connection, inside).start_chain(plan)
            return plan.id

        return run_in(transaction, start) if is_async(transaction) else start(transaction)

    def plan(
        self,
        connection: Connection,
        queue: str | None,
        keys: dict[str, Any],
        identity: str | None = None,
    ) -> ChainPlan:
        """Build the payloads of all links for a connection, with these keys in each."""
        queue = self._queue_within(connection, queue, "a chain within a batch")
        identity = identity or str(uuid.uuid4())
        jobs: list[Dispatchable] = []
        links = []
        for each in self.jobs:
            job, more = _link_job(connection, each, queue)
            delay = seconds(job.delay if jobs or self._delay is None else self._delay)
            more_keys = {chain_feature.KEY: {"id": identity, **more}, **keys}
            links.append(connection.prepare(job, job.queue or queue, delay, more_keys))
            jobs.append(job)
        return ChainPlan(identity, jobs, links, callbacks(connection, self.callbacks, queue, {}))


def _link_job(
    connection: Connection, each: JobDefinition | Pending, queue: str | None
) -> tuple[JobDefinition, dict[str, Any]]:
    """Return the job of a link, and its payload's additional keys about the chain."""
    if not isinstance(each, Pending):
        return own_job(each, connection, "a chain"), {}
    identity = str(uuid.uuid4())
    return each.as_job(connection, queue, identity), {"batch": {"id": identity}}


# -- shared by chains and batches -----------------------------------------------------------------


def own_job(job: object, connection: Connection, place: str) -> JobDefinition:
    """Check that a job may be a link or a member. Raises `InvalidJob`."""
    if isinstance(job, Foreign):
        raise InvalidJob(
            f"{job.name} runs in another program, which would not tell {place} of its end"
        )
    if not isinstance(job, JobDefinition):
        shown = f"the class {job.__name__}" if isinstance(job, type) else type(job).__name__
        raise InvalidJob(f"{place} takes jobs, not {shown}")
    if job.connection not in {None, connection.name}:
        raise InvalidJob(
            f"{type(job).__name__} belongs to the connection {job.connection!r}, and all jobs of "
            f"{place} are on one: here {connection.name!r} (on_connection)"
        )
    return job


def dispatchable(job: object, where: str) -> Dispatchable:
    """Check that a job may be a callback. Raises `InvalidJob`."""
    if isinstance(job, type) and issubclass(job, JobDefinition):
        raise InvalidJob(f"{where} takes a job, not a class: {job.__name__}(...)")
    if not isinstance(job, (JobDefinition, Foreign)):
        raise InvalidJob(f"{where} takes jobs, not {type(job).__name__}: its work may outlive this")
    return job


def callbacks(
    connection: Connection, jobs: Sequence[Dispatchable], queue: str | None, more: dict[str, Any]
) -> list[Prepared]:
    """Build the payloads of callbacks."""
    for job in jobs:
        if job.connection not in {None, connection.name}:
            raise InvalidJob(
                "a callback is dispatched on the connection of what it follows, "
                f"{connection.name!r}, not on {job.connection!r}"
            )
    return [connection.prepare(job, job.queue or queue, seconds(job.delay), more) for job in jobs]


def stand_in_for(connection: Connection, jobs: Sequence[object]) -> Connection:
    """Return the connection's stand-in for these jobs: in tests, a fake."""
    stand_in = connections.stand_in
    if stand_in is None:
        return connection
    for job in list(_single(jobs)) or [b"{}"]:  # an empty batch, whatever its jobs would be
        if (
            isinstance(job, JobDefinition | bytes)
            and (other := stand_in(connection, job)) is not None
        ):
            return other
    return connection


def _single(jobs: Iterable[object]) -> Iterator[object]:
    """Iterate over the jobs inside links and members."""
    for each in jobs:
        if isinstance(each, Pending):
            if isinstance(each.jobs, Iterator):
                each.jobs = list(each.jobs)
            yield from _single(each.jobs)
        elif isinstance(each, list | tuple):
            yield from _single(each)
        else:
            yield each


def connection_of(reserved: Job) -> Connection:
    """Return the connection that a running job came from."""
    context = getattr(reserved, "context", None)
    if context is not None and isinstance(context.owner, Connection):
        return context.owner
    return manager.default().connection(reserved.connection_name)


# -- from inside a link ---------------------------------------------------------------------------


def extend(running: JobDefinition, job: JobDefinition, *, first: bool) -> None:
    """Add a job to the chain of the running one. Raises `QframeError` if it is in no chain."""
    reserved = running.job
    connection = connection_of(reserved)
    payload = reserved.payload
    keys = {key: payload[key] for key in (chain_feature.KEY, batch_feature.KEY) if key in payload}
    own = own_job(job, connection, "a chain")
    link = connection.prepare(own, own.queue or reserved.queue, seconds(own.delay), keys)
    if not connection.extend_chain(reserved, link, first=first):
        name = type(running).__name__
        raise QframeError(f"{name} is in no chain, or that has gone on without it")
