"""bulk: queues many jobs at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from qframe.exceptions import InvalidTransaction
from qframe.hooks import OpenTransaction
from qframe.jobs import execution
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.registry import refuse_while_importing
from qframe.jobs.tracing import sending
from qframe.jobs.typed import Handles
from qframe.payload import envelope

R = TypeVar("R")

_MANY = 1000
"""Jobs from which a bulk goes to the long sender, because it would delay other calls."""


@overload
def bulk(
    jobs: Iterable[Handles[R]], queue: str | None = None, *, within: object = None
) -> list[JobId[R]]: ...


@overload
def bulk(
    jobs: Iterable[Dispatchable], queue: str | None = None, *, within: object = None
) -> list[JobId[Any]]: ...


def bulk(
    jobs: Iterable[Any], queue: str | None = None, *, within: object = None
) -> list[JobId[Any]]:
    """Queue many jobs at once. Returns their ids in order.

    The jobs of one connection are pushed together, all or none where the backend can; unique and
    debounced jobs, and those with `once`, follow one by one. For a duplicate, the id is that of the
    other job.
    `within` is a transaction of the program, as for `PendingDispatch.within`. Raises `InvalidJob`
    before anything is pushed, `BackendUnavailable`, or `SynchronousOnly` on a running event loop:
    await `abulk` there.
    """
    execution.refuse_on_loop("bulk()", "abulk()")
    refuse_while_importing()
    if is_async(within):
        raise InvalidTransaction("an asynchronous transaction is awaited: abulk(jobs, within=...)")
    ids = _bulk_joined(jobs, queue, within)
    if ids is None:
        pusher.wait_for_tasks()
        ids = push_together((_placed(job, queue) for job in jobs), queue)
    return ids


@overload
async def abulk(
    jobs: Iterable[Handles[R]], queue: str | None = None, *, within: object = None
) -> list[JobId[R]]: ...


@overload
async def abulk(
    jobs: Iterable[Dispatchable], queue: str | None = None, *, within: object = None
) -> list[JobId[Any]]: ...


async def abulk(
    jobs: Iterable[Any], queue: str | None = None, *, within: object = None
) -> list[JobId[Any]]:
    """As `bulk`, without blocking the event loop; `within` may be asynchronous, too.

    Once begun it completes even if the awaiting task is cancelled; an error is then reported like
    that of a dropped dispatch.
    """
    refuse_while_importing()
    if is_async(within):
        return await run_in(within, lambda inside: _bulk_within(jobs, queue, inside))
    ids = _bulk_joined(jobs, queue, within)
    if ids is not None:
        return ids
    return await _bulk_on_loop([_placed(job, queue) for job in jobs], queue)


def _bulk_joined(jobs: Iterable[Any], queue: str | None, within: object) -> list[JobId[Any]] | None:
    """Push in the given or open transaction, or at its commit; None if there is none."""
    if within is not None:
        return _bulk_within(jobs, queue, within)
    opened = open_for(manager.default().connection())
    if opened is None:
        return None
    inside = opened.within()
    if inside is None:
        return _bulk_committed([_placed(job, queue) for job in jobs], queue, opened)
    return _bulk_within(jobs, queue, inside)


def _bulk_within(jobs: Iterable[Any], queue: str | None, transaction: object) -> list[JobId[Any]]:
    through: dict[Connection, Connection] = {}

    def placed(job: Dispatchable) -> tuple[Connection, Dispatchable]:
        connection, _ = _placed(job, queue)
        if substitute(connection, job) is not None:
            return connection, job
        if connection not in through:
            through[connection] = joined(connection, transaction)
        return through[connection], job

    return push_together(map(placed, jobs), queue)


def _bulk_committed(
    placed: Sequence[tuple[Connection, Dispatchable]], queue: str | None, opened: OpenTransaction
) -> list[JobId[Any]]:
    """Build all payloads now, and push them at the commit of the transaction."""
    if any(substitute(connection, job) is not None for connection, job in placed):
        return push_together(placed, queue)
    if not placed:
        return []
    gathered: dict[Connection, BulkPush] = {}
    built: list[Unpushed] = []
    with sending(placed[0][0], many=True):
        for connection, job in placed:
            if connection not in gathered:
                gathered[connection] = connection.gather(queue)
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
    placed: Sequence[tuple[Connection, Dispatchable]], queue: str | None
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
        lambda: push_together(placed, queue),
        lambda: _pushing(placed, queue, built),
        places,
        unpushed,
        is_long=len(placed) > _MANY,
    )


def _pushing(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    built: list[tuple[str, bytes, float]],
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
                gathered[connection] = BulkPush(connection, queue)
            made = gathered[connection].plan(job)
            uuids.append(made.uuid)
            built.append((made.queue, made.raw, made.delay))
        for connection, together in gathered.items():
            results = yield Apply(connection.backend, together.steps())
            others |= together.pushed(results)
    return job_ids(uuids, [type(job) for _, job in placed], others)
