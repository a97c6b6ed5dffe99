"""chain: jobs that run one after the other, each when the one before it is done."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from qframe import manager, membership, tail
from qframe.drivers import base
from qframe.drivers.base import BaseQueue
from qframe.drivers.beginning import ChainPlan
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import InvalidJob, QframeError
from qframe.foreign import Dispatchable, Foreign
from qframe.membership import Member
from qframe.names import queue_name
from qframe.queueable import Queueable
from qframe.registry import refuse_while_importing
from qframe.tail import Link
from qframe.timing import When, seconds_until

if TYPE_CHECKING:
    from qframe.batch import PendingBatch
    from qframe.contracts import Job


def chain(jobs: Iterable[Queueable | PendingBatch]) -> PendingChain:
    """Run jobs one after the other: `chain([Pack(...), Ship(...)]).on_queue("x").dispatch()`.

    The next is pushed in the step that removes the one before it, where the backend keeps both;
    a job that fails for good ends the chain. A link may be a batch: the chain goes on when that
    has finished. Raises `InvalidJob` for what cannot be a link.
    """
    return PendingChain(jobs)


class PendingChain:
    """A chain about to be dispatched (Laravel's PendingChain); `dispatch()` does it."""

    def __init__(self, jobs: Iterable[Queueable | PendingBatch]) -> None:
        if not isinstance(jobs, Iterable):
            raise InvalidJob(f"a chain takes a list of jobs, not {type(jobs).__name__}")
        self.jobs = list(jobs)
        """Its links in order."""
        if not self.jobs:
            raise InvalidJob("a chain needs a job: chain([First(...), Second(...)])")
        self.callbacks: list[Dispatchable] = []
        """What is dispatched when a link fails."""
        self._connection: str | None = None
        self._queue: str | None = None
        self._delay: When | None = None

    def on_connection(self, name: str) -> Self:
        """Use this connection for all links; default: that of the first.

        Raises `ConfigurationError`.
        """
        manager.default().connection(name)
        self._connection = name
        return self

    def on_queue(self, name: str) -> Self:
        """Use this queue for the links that name none themselves; raises `InvalidQueueName`."""
        self._queue = queue_name(name)
        return self

    def delay(self, delay: When) -> Self:
        """Make the first link ready after `delay`: seconds, timedelta or aware datetime.

        It is in place of that link's own `delay`; the others' begin when the one before them is
        done. Raises `InvalidJob`.
        """
        seconds(delay)
        self._delay = delay
        return self

    def catch(self, *jobs: Dispatchable) -> Self:
        """Dispatch these when a link fails for good; they find why in `self.caught`."""
        self.callbacks += [dispatchable(job, "catch") for job in jobs]
        return self

    def dispatch(self) -> str:
        """Dispatch the first link and keep the others; gives the chain's id.

        Raises `InvalidJob` before anything is pushed, `BackendUnavailable`, and on the sync
        connection what a link raised.
        """
        refuse_while_importing()
        first = self.jobs[0]
        named = self._connection or getattr(first, "connection", None)
        queue = stand_in_for(manager.default().connection(named), self.jobs)
        plan = self.plan(queue, self._queue, None)
        queue.begin_chain(plan)
        return plan.id

    def plan(self, queue: BaseQueue, name: str | None, member: Member | None) -> ChainPlan:
        """Build the payloads of all links for a connection, as a member of a batch if it is one."""
        check_connection(self._connection, queue, "a chain within a batch")
        identity = str(uuid.uuid4())
        name = self._queue or name
        said = {} if member is None else {membership.KEY: member.wire()}
        jobs: list[Dispatchable] = []
        links = []
        for each in self.jobs:
            job, more = _link_job(queue, each, name)
            keys = {tail.KEY: {"id": identity, **more}, **said}
            delay = seconds(job.delay if jobs or self._delay is None else self._delay)
            links.append(queue.link(job, job.queue or name, delay, keys))
            jobs.append(job)
        return ChainPlan(identity, jobs, links, callbacks(queue, self.callbacks, name, {}))


def _link_job(
    queue: BaseQueue, each: Queueable | PendingBatch, name: str | None
) -> tuple[Queueable, dict[str, Any]]:
    """Give the job of a link, and what its payload says of the chain besides."""
    as_job: Callable[[BaseQueue, str | None], Queueable] | None = getattr(each, "as_job", None)
    if as_job is not None and not isinstance(each, Queueable):
        return as_job(queue, name), {"batch": True}
    return own_job(each, queue, "a chain"), {}


# -- what chains and batches have in common -------------------------------------------------------


def own_job(job: object, queue: BaseQueue, place: str) -> Queueable:
    """Check a job that is to be a link or a member; raises `InvalidJob`."""
    if isinstance(job, Foreign):
        raise InvalidJob(
            f"{job.name} runs in another program, which would not tell {place} of its end"
        )
    if not isinstance(job, Queueable):
        shown = f"the class {job.__name__}" if isinstance(job, type) else type(job).__name__
        raise InvalidJob(f"{place} takes jobs, not {shown}")
    if job.connection not in {None, queue.name}:
        raise InvalidJob(
            f"{type(job).__name__} belongs to the connection {job.connection!r}, and all jobs of "
            f"{place} are on one: here {queue.name!r} (on_connection)"
        )
    return job


def check_connection(named: str | None, queue: BaseQueue, what: str) -> None:
    """Check the connection that a chain or batch within another one names; raises `InvalidJob`."""
    if named not in {None, queue.name}:
        raise InvalidJob(f"{what} is on its connection, here {queue.name!r}, not on {named!r}")


def dispatchable(job: object, where: str) -> Dispatchable:
    """Check a job that is to be a callback; raises `InvalidJob`."""
    if isinstance(job, type) and issubclass(job, Queueable):
        raise InvalidJob(f"{where} takes a job, not a class: {job.__name__}(...)")
    if not isinstance(job, (Queueable, Foreign)):
        raise InvalidJob(f"{where} takes jobs, not {type(job).__name__}: its work may outlive this")
    return job


def callbacks(
    queue: BaseQueue, jobs: Sequence[Dispatchable], name: str | None, more: dict[str, Any]
) -> list[Link]:
    """Build the payloads of callbacks."""
    for job in jobs:
        if job.connection not in {None, queue.name}:
            raise InvalidJob(
                f"a callback is dispatched on the connection of what it follows, {queue.name!r}, "
                f"not on {job.connection!r}"
            )
    return [queue.link(job, job.queue or name, seconds(job.delay), more) for job in jobs]


def seconds(delay: When) -> float:
    """Give a delay in seconds; raises `InvalidJob`."""
    try:
        return seconds_until(delay)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from None


def stand_in_for(queue: BaseQueue, jobs: Sequence[object]) -> BaseQueue:
    """Give what takes these jobs in place of a connection: in tests, a fake."""
    if base.stand_in is None:
        return queue
    for job in list(_single(jobs)) or [b"{}"]:  # an empty batch: whatever it is
        if isinstance(job, Queueable | bytes) and (other := base.stand_in(queue, job)) is not None:
            return other
    return queue


def _single(jobs: Iterable[object]) -> Iterator[object]:
    """Give the jobs inside links and members."""
    for each in jobs:
        within = each if isinstance(each, list | tuple) else getattr(each, "jobs", None)
        if within is None or isinstance(each, Queueable):
            yield each
            continue
        if isinstance(within, Iterator):
            each.jobs = within = list(within)  # type: ignore[attr-defined] # a PendingBatch
        yield from _single(within)


def connection_of(reserved: Job) -> BaseQueue:
    """Give the connection a running job came by."""
    if isinstance(reserved, BaseJob):
        return reserved.connection
    return manager.default().connection(reserved.connection_name)


# -- from inside a link ---------------------------------------------------------------------------


def extend(running: Queueable, job: Queueable, *, first: bool) -> None:
    """Put a job into the chain of the one that runs; raises `QframeError` where that is in none."""
    reserved = running.job
    queue = connection_of(reserved)
    said = reserved.payload
    keys = {key: said[key] for key in (tail.KEY, membership.KEY) if key in said}
    own = own_job(job, queue, "a chain")
    link = queue.link(own, own.queue or reserved.queue, seconds(own.delay), keys)
    if not queue.extend_chain(reserved, link, first=first):
        name = type(running).__name__
        raise QframeError(f"{name} is in no chain, or that has gone on without it")
