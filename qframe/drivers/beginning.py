"""How chains and batches begin: what is to follow is kept first, then the first jobs are pushed."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qframe import events, membership, tail
from qframe.contracts import BatchStore, NewBatch, Store
from qframe.drivers import following
from qframe.exceptions import InvalidJob, QframeError, Unsupported
from qframe.foreign import Dispatchable
from qframe.membership import Member
from qframe.tail import Link

if TYPE_CHECKING:
    from qframe.drivers.base import BaseQueue

log = logging.getLogger("qframe")

CHUNK = 500
"""So many members are counted in and pushed together."""
_LARGEST = 2**31 - 1
"""No member has a longer number: what has room for this one has room for any."""


class ChainPlan(NamedTuple):
    """A chain about to begin; one without `id` is a single job."""

    id: str
    jobs: Sequence[Dispatchable | None]
    links: Sequence[Link]
    catch: Sequence[Link] = ()
    """What is pushed when a link fails."""


MakeMember = Callable[[int], ChainPlan]
"""Makes the member of a batch that has this number."""


class BatchPlan(NamedTuple):
    """A batch about to begin."""

    new: NewBatch
    before: Sequence[Link]
    """What is pushed before the first member."""
    members: Iterable[MakeMember]
    size: int | None = None
    """How many these are, where a job begins the batch: it comes again where it was broken off."""


def chain(queue: BaseQueue, plan: ChainPlan) -> None:
    """Keep a chain and push its first link."""
    store = queue.lock_store()
    if store is None:  # null: nothing is kept
        return
    tail.begin(store, plan.id, plan.links, plan.catch)
    first = plan.links[0]
    try:
        holder = queue.put_link(first)
    except BaseException:
        with contextlib.suppress(QframeError):
            tail.forget(store, plan.id, plan.links)
        raise
    if holder:
        events.fire(events.JobDuplicate, queue.name, first.queue, plan.jobs[0], holder)
        following.advance(queue, plan.id, first.uuid)
    else:
        queue.link_pushed(first, plan.jobs[0])


def batch(queue: BaseQueue, plan: BatchPlan) -> None:
    """Keep a batch and push its members, some at a time.

    Where it raises, the batch is cancelled, and ends when the members that were pushed have; one
    that a job begins is gone on with when that comes again.
    """
    store = queue.batch_store()
    identity = plan.new.id
    if store is None:  # null: nothing is kept
        return
    kept = queue.lock_store()
    if plan.size is not None and kept is not None:
        _in_job(queue, store, kept, plan, plan.size)
        return
    store.create(plan.new)  # false only where that was said again: no other batch has its id
    try:
        following.put(queue, plan.before)
        for makers in _chunks(plan.members):
            add(queue, store, identity, makers)
    except BaseException:
        with contextlib.suppress(QframeError):
            store.cancel(identity)
            queue.seal_batch(store, identity)
        raise
    queue.seal_batch(store, identity)


def _in_job(queue: BaseQueue, store: BatchStore, kept: Store, plan: BatchPlan, size: int) -> None:
    """Begin a batch, or go on where a worker that died had begun it.

    All members are counted in before the first is pushed, so that each has its number whenever it
    is. How many were pushed is kept; of those that were being pushed, some are pushed again.
    """
    identity, key = plan.new.id, f"batch:{plan.new.id}:begun"
    store.create(plan.new)
    begun = store.read(identity)
    if begun is None or begun.sealed:
        return
    if not begun.total and size:
        store.grow(identity, size)
    (text,) = kept.get(key)
    if text is None:
        following.put(queue, plan.before)
    pushed = int(text or 0)
    again = bool(begun.total)
    for makers in _chunks(itertools.islice(plan.members, pushed, None)):
        kept.set(key, str(pushed), tail.KEPT)
        plans = [make(pushed + place) for place, make in enumerate(makers)]
        left = [_left(kept, each) for each in plans] if again else plans
        holders = queue.put_plans([each for each in left if each is not None])
        _pushed(queue, identity, pushed, plans, holders)
        pushed += len(plans)
        again = False
    queue.seal_batch(store, identity)
    kept.delete(key)


def _left(kept: Store, plan: ChainPlan) -> ChainPlan | None:
    """Give what is left to be pushed of a member that may have been pushed before."""
    at = tail.place(kept, plan.id) if plan.id else None
    if at is None:
        return plan
    return plan._replace(id="") if at == plan.links[0].uuid else None


def built(queue: BaseQueue, identity: str, make: MakeMember) -> MakeMember:
    """Build a member now, its number put in later: one that cannot be built is never counted in."""
    plan = make(_LARGEST)

    def numbered(number: int) -> ChainPlan:
        said = {membership.KEY: Member(identity, number).wire()}
        return plan._replace(links=[queue.changed(link, said) for link in plan.links])

    return numbered


def add(
    queue: BaseQueue,
    store: BatchStore,
    identity: str,
    makers: Sequence[MakeMember],
    once: str = "",
) -> None:
    """Count members in and push them; said again with the same word `once`, they are the same.

    Raises `InvalidJob` where the batch is over; where they cannot be pushed they have failed.
    """
    first = store.grow(identity, len(makers), once)
    if first is None:
        raise InvalidJob(f"the batch {identity} is finished, cancelled or gone: it takes no jobs")
    try:
        plans = [make(first + place) for place, make in enumerate(makers)]
        holders = queue.put_plans(plans)
    except BaseException:
        with contextlib.suppress(QframeError):
            for place in range(len(makers)):
                following.count_in(queue, Member(identity, first + place), "", failed=True)
        raise
    _pushed(queue, identity, first, plans, holders)


def _pushed(
    queue: BaseQueue,
    identity: str,
    first: int,
    plans: Sequence[ChainPlan],
    holders: Mapping[str, str],
) -> None:
    """Tell the listeners of members that were pushed; those whose lock another has are done."""
    for place, plan in enumerate(plans):
        link = plan.links[0]
        holder = holders.get(link.uuid)
        if holder is None:
            queue.link_pushed(link, plan.jobs[0])
            continue
        events.fire(events.JobDuplicate, queue.name, link.queue, plan.jobs[0], holder)
        if not plan.id or not following.advance(queue, plan.id, link.uuid):
            following.count_in(queue, Member(identity, first + place), link.uuid, failed=False)


def keep(queue: BaseQueue, plan: ChainPlan) -> None:
    """Keep the links of a chain."""
    store = queue.lock_store()
    if store is None:
        raise Unsupported(f"the connection {queue.name!r} keeps no chains")
    tail.begin(store, plan.id, plan.links, plan.catch)


def _chunks(makers: Iterable[MakeMember]) -> Iterator[list[MakeMember]]:
    rest = iter(makers)
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield chunk
