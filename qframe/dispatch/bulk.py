"""bulk: many jobs queued at once."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, cast, overload

from qframe import manager
from qframe.connection import Bulk, Connection, push_together, substitute
from qframe.contracts.transaction import AsyncTransaction, is_async, run_in
from qframe.dispatch import lost, pusher
from qframe.dispatch.after_commit import OpenTransaction, open_for
from qframe.dispatch.awaiting import PendingCall, handed_over
from qframe.dispatch.calls import Apply, Call
from qframe.dispatch.lost import Unpushed
from qframe.dispatch.pending import check_job
from qframe.dispatch.within import joined
from qframe.jobs.execution import on_a_running_loop
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.registry import refuse_while_importing
from qframe.jobs.tracing import sending
from qframe.payload import envelope

if TYPE_CHECKING:
    from qframe.dispatch.awaiting import AwaitableIds

_MANY = 1000
"""So many jobs take long: they would keep other calls waiting."""


@overload
def bulk(  # type: ignore[overload-overlap] # any object that is no such transaction
    jobs: Iterable[Dispatchable], queue: str | None = None, *, within: AsyncTransaction
) -> Awaitable[list[str]]: ...


@overload
def bulk(
    jobs: Iterable[Dispatchable], queue: str | None = None, *, within: object = None
) -> AwaitableIds: ...


def bulk(
    jobs: Iterable[Dispatchable], queue: str | None = None, *, within: object = None
) -> AwaitableIds | Awaitable[list[str]]:
    """Queue many jobs at once and give their ids in order.

    Those of one connection go together, all or none where the backend can; unique and debounced
    jobs each for itself, after the others. A duplicate has the id of the job that is there in its
    place. `within` is a transaction of the program's own, as for `PendingDispatch.within`; with an
    asynchronous one this is to be awaited. Raises `InvalidJob` before anything is pushed, or
    `BackendUnavailable`.

    On a running event loop it does not block: `await bulk(jobs)` gives the ids and raises what goes
    wrong; not awaited, the jobs are pushed all the same.
    """
    refuse_while_importing()
    if within is None and (opened := open_for(manager.default().connection())) is not None:
        if (inside := opened.within()) is None:
            return cast("AwaitableIds", _bulk_committed([*map(_placed, jobs)], queue, opened))
        within = inside
    if within is None:
        if on_a_running_loop():
            return cast("AwaitableIds", _on_loop(jobs, queue))
        pusher.wait()
        return cast("AwaitableIds", push_together(map(_placed, jobs), queue))
    if is_async(within):
        return run_in(within, lambda inside: _bulk_within(jobs, queue, inside))
    return cast("AwaitableIds", _bulk_within(jobs, queue, within))


def _bulk_within(jobs: Iterable[Dispatchable], queue: str | None, transaction: object) -> list[str]:
    through: dict[Connection, Connection] = {}

    def placed(job: Dispatchable) -> tuple[Connection, Dispatchable]:
        connection, _ = _placed(job)
        if substitute(connection, job) is not None:
            return connection, job
        if connection not in through:
            through[connection] = joined(connection, transaction)
        return through[connection], job

    return push_together(map(placed, jobs), queue)


def _bulk_committed(
    placed: Sequence[tuple[Connection, Dispatchable]], queue: str | None, opened: OpenTransaction
) -> list[str]:
    """Build all payloads now, and push them when the transaction is committed."""
    if any(substitute(connection, job) is not None for connection, job in placed):
        return push_together(placed, queue)
    if not placed:
        return []
    gathered: dict[Connection, Bulk] = {}
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
        except Exception as error:  # noqa: BLE001 (it is committed: nobody is to hear it)
            lost.tell(f"a bulk of {len(placed):,} jobs", built, error)

    opened.on_commit(push)
    return [each.payload["uuid"] for each in built]


def _placed(job: Dispatchable) -> tuple[Connection, Dispatchable]:
    check_job(job)
    return manager.default().connection(job.connection), job


# -- on an event loop -----------------------------------------------------------------------------


def _on_loop(jobs: Iterable[Dispatchable], queue: str | None) -> PendingCall[list[str]]:
    placed = [*map(_placed, jobs)]
    built: list[tuple[str, bytes, float]] = []
    places = dict.fromkeys(connection for connection, _ in placed)

    def unpushed(error: BaseException) -> None:
        left = [
            Unpushed(connection, to, job, envelope.parse(raw), delay)
            for (connection, job), (to, raw, delay) in zip(placed, built, strict=False)
        ]
        left += [Unpushed.unbuilt(*each, queue) for each in placed[len(built) :]]
        lost.tell(f"a bulk of {len(placed):,} jobs", left, error)

    return handed_over(
        "bulk",
        lambda: push_together(placed, queue),
        lambda: _pushing(placed, queue, built),
        places,
        unpushed,
        retries=min((each.settings.push_retries for each in places), default=0),
        is_long=len(placed) > _MANY,
    )


def _pushing(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    built: list[tuple[str, bytes, float]],
) -> Call[list[str]]:
    """Do as `push_together`, beside others; notes what it has built."""
    if not placed:
        return []
    with sending(placed[0][0], many=True):
        return (yield from _pushing_each(placed, queue, built))


def _pushing_each(
    placed: Sequence[tuple[Connection, Dispatchable]],
    queue: str | None,
    built: list[tuple[str, bytes, float]],
) -> Call[list[str]]:
    ids: list[str] = []
    gathered: dict[Connection, Bulk] = {}
    for connection, job in placed:
        if connection not in gathered:
            gathered[connection] = Bulk(connection, queue)
        made = gathered[connection].plan(job)
        ids.append(made.uuid)
        built.append((made.queue, made.raw, made.delay))
    others: dict[str, str] = {}
    for connection, together in gathered.items():
        results = yield Apply(connection.backend, together.steps())
        others |= together.pushed(results)
    return [others.get(uuid, uuid) for uuid in ids] if others else ids
