"""bulk: queues many jobs at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

from qframe import manager
from qframe.connection import BulkPush, Connection, push_together, substitute
from qframe.contracts.identity import JobId, job_ids
from qframe.contracts.transaction import is_async, run_in
from qframe.dispatch import lost, pusher, sender
from qframe.dispatch.after_commit import open_for
from qframe.dispatch.calls import Apply, Call
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.pending import check_job
from qframe.dispatch.within import joined
from qframe.exceptions import InvalidJob, InvalidTransaction
from qframe.hooks import OpenTransaction
from qframe.jobs import execution
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.registry import refuse_while_importing
from qframe.jobs.tracing import sending
from qframe.jobs.typed import Handles
from qframe.payload import envelope
from qframe.payload.text import one_line
from qframe.payload.timing import When, seconds_until

R = TypeVar("R")

_MANY = 1000
"""Jobs from which a bulk goes to the long sender, because it would delay other calls."""


@overload
def bulk(
    jobs: Iterable[Handles[R]],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[R]]: ...


@overload
def bulk(
    jobs: Iterable[Dispatchable],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[Any]]: ...


def bulk(
    jobs: Iterable[Any],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[Any]]:
    """Queue many jobs at once. Returns their ids in order.

    The jobs of one connection are pushed together, all or none where the backend can; unique and
    debounced jobs, and those with `once`, follow one by one. For a duplicate, the id is that of the
    other job.
    `within` is a transaction of the program, as for `PendingDispatch.within`. With `spread`
    (seconds, a timedelta, or an aware datetime in the future) each job gets a delay, besides its
    own: evenly, the first none, the last almost `spread`. Raises `InvalidJob` before anything is
    pushed, `ValueError` or `TypeError` for a wrong `spread`, `BackendUnavailable`, or
    `SynchronousOnly` on a running event loop: await `abulk` there.
    """
    execution.refuse_on_loop("bulk()", "abulk()")
    refuse_while_importing()
    if is_async(within):
        raise InvalidTransaction("an asynchronous transaction is awaited: abulk(jobs, within=...)")
    jobs, later = _spread(jobs, spread)
    ids = _bulk_joined(jobs, queue, within, later)
    if ids is None:
        pusher.wait_for_tasks()
        ids = push_together((_placed(job, queue) for job in jobs), queue, later)
    return ids


def _spread(jobs: Iterable[Any], over: When) -> tuple[Iterable[Any], Iterator[float] | None]:
    """Return the jobs, and by how many seconds each is delayed; None: by none."""
    if not isinstance(jobs, Iterable):
        raise InvalidJob(f"bulk takes a list of jobs, not {one_line(type(jobs).__name__, 60)}")
    seconds = seconds_until(over, "spread")
    if not seconds:
        return jobs, None
    jobs = [*jobs]
    count = len(jobs)
    return jobs, (round(seconds * number / count, 3) for number in range(count))


@overload
async def abulk(
    jobs: Iterable[Handles[R]],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[R]]: ...


@overload
async def abulk(
    jobs: Iterable[Dispatchable],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[Any]]: ...


async def abulk(
    jobs: Iterable[Any],
    queue: str | None = None,
    *,
    within: object = None,
    spread: When = 0,
) -> list[JobId[Any]]:
    """As `bulk`, without blocking the event loop; `within` may be asynchronous, too.

    Once begun it completes even if the awaiting task is cancelled; an error is then reported like
    that of a dropped dispatch.
    """
    refuse_while_importing()
    jobs, later = _spread(jobs, spread)
    if is_async(within):
        return await run_in(within, lambda inside: _bulk_within(jobs, queue, inside, later))
    ids = _bulk_joined(jobs, queue, within, later)
    if ids is not None:
        return ids
    return await _bulk_on_loop([_placed(job, queue) for job in jobs], queue, later)


def _bulk_joined(
    jobs: Iterable[Any], queue: str | None, within: object, later: Iterator[float] | None
) -> list[JobId[Any]] | None:
    """Push in the given or open transaction, or at its commit; None if there is none."""
    if within is not None:
        return _bulk_within(jobs, queue, within, later)
    opened = open_for(manager.default().connection())
    if opened is None:
        return None
    inside = opened.within()
    if inside is None:
        return _bulk_committed([_placed(job, queue) for job in jobs], queue, opened, later)
    return _bulk_within(jobs, queue, inside, later)


def _bulk_within(
    jobs: Iterable[Any], queue: str | None, transaction: object, later: Iterator[float] | None
) -> list[JobId[Any]]:
    through: dict[Connection, Connection] = {}

    def placed(job: Dispatchable) -> tuple[Connection, Dispatchable]:
        connection, _ = _placed(job, queue)
        if substitute(connection, job) is not None:
            return connection, job
        if connection not in through:
            through[connection] = joined(connection, transaction)
        return through[connection], job

    return push_together(map(placed, jobs), queue, later)


def _bulk_committed(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    opened: OpenTransaction,
    later: Iterator[float] | None,
) -> list[JobId[Any]]:
    """Build all payloads now, and push them at the commit of the transaction."""
    if any(substitute(connection, job) is not None for connection, job in placed):
        return push_together(placed, queue, later)
    if not placed:
        return []
    gathered: dict[Connection, BulkPush] = {}
    built: list[Unpushed] = []
    with sending(placed[0][0], many=True):
        for connection, job in placed:
            if connection not in gathered:
                gathered[connection] = connection.gather(queue, later)
            made = gathered[connection].plan(job)
            built.append(Unpushed(connection, made.queue, job, made.message, made.delay))

    def push() -> None:
        try:
            for together in gathered.values():
                together.push()
        except Exception as error:  # noqa: BLE001 (after the commit nobody can handle it)
            lost.report(f"a bulk of {len(placed):,} jobs", built, error)

    opened.on_commit(push)
    uuids = [each.payload["uuid"] for each in built]
    return job_ids(uuids, [type(job) for _, job in placed], {})


def _placed(job: Any, queue: str | None) -> tuple[Connection, Dispatchable]:  # noqa: ANN401 (checked here)
    check_job(job)
    return manager.default().connection_of(job, None, queue), job


# -- on an event loop -----------------------------------------------------------------------------


async def _bulk_on_loop(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    later: Iterator[float] | None,
) -> list[JobId[Any]]:
    built: list[tuple[str, bytes, float]] = []
    places = dict.fromkeys(connection for connection, _ in placed)

    def unpushed(error: BaseException) -> None:
        left = [
            Unpushed(connection, to, job, envelope.parse(raw), delay)
            for (connection, job), (to, raw, delay) in zip(placed, built, strict=False)
        ]
        left += [Unpushed.unbuilt(*each, queue) for each in placed[len(built) :]]
        lost.report(f"a bulk of {len(placed):,} jobs", left, error)

    return await sender.done(
        lambda: push_together(placed, queue, later),
        lambda: _pushing(placed, queue, built, later),
        places,
        unpushed,
        is_long=len(placed) > _MANY,
    )


def _pushing(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    built: list[tuple[str, bytes, float]],
    later: Iterator[float] | None,
) -> Call[list[JobId[Any]]]:
    """As `push_together`, together with other calls; `built` receives the payloads."""
    if not placed:
        return []
    uuids: list[str] = []
    gathered: dict[Connection, BulkPush] = {}
    others: dict[str, str] = {}
    with sending(placed[0][0], many=True):
        for connection, job in placed:
            if connection not in gathered:
                gathered[connection] = BulkPush(connection, queue, later)
            made = gathered[connection].plan(job)
            uuids.append(made.uuid)
            built.append((made.queue, made.raw, made.delay))
        for connection, together in gathered.items():
            results = yield Apply(connection.backend, together.steps())
            others |= together.pushed(results)
    return job_ids(uuids, [type(job) for _, job in placed], others)
