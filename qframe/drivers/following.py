"""What follows a job that is removed: the next link of its chain, the count of its batch.

Where the backend keeps jobs and store together (`BaseQueue.noting`), its own steps do it with the
removal. Elsewhere it is done here, before the removal, so that a worker that dies in between
leaves a job that comes again, and whose removal does it again without harm.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qframe import events, tail, tracebacks
from qframe.contracts import Capability, Store
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.membership import Member
from qframe.tail import Gone, Link, Step

if TYPE_CHECKING:
    from qframe.contracts import FailedJob, FailedStore
    from qframe.drivers.base import BaseQueue
    from qframe.drivers.reservation import BaseJob

log = logging.getLogger("qframe")

CAUSE = "cause"
"""The key of a callback's payload that says which job failed, and how."""
_TRIES = 20


def pass_on(job: BaseJob, chain: str) -> bool:
    """Delete a link that is done and push the one behind it; false where its lease was lost."""
    store = _store(job)
    for _ in range(_TRIES):
        step = tail.next_step(store, chain, job.uuid, joint=job.connection.noting)
        if isinstance(step, Gone):
            return _leave(job, step)
        if step.push is None:
            removed = remove(job)
            if removed:
                _tell_skipped(job, step)
                _forget(store, chain, step)
            return removed
        job.uncounted = True
        handed = job.hand_over(step)
        if handed is not None:
            if handed:
                _tell_skipped(job, step)
                job.connection.link_pushed(step.push)
            return handed
        job.uncounted = False  # what comes next may be the end
    raise BackendUnavailable(f"the chain {chain} is changed again and again")


def _leave(job: BaseJob, gone: Gone) -> bool:
    """Delete a link the chain is not at: it was done before, and comes again.

    Where nothing of the chain is kept, nobody else will count its member.
    """
    job.uncounted = gone.elsewhere
    if gone.repeat is not None:
        job.connection.put_link(gone.repeat)
    if not gone.elsewhere:
        log.warning("%s %s: nothing is kept of its chain (any more)", job.name, job.uuid)
    return remove(job)


def advance(queue: BaseQueue, chain: str, uuid: str) -> bool:
    """Go on in a chain from a link that is over and is no job any more; says whether one follows.

    Said again it pushes the next link again, unless that has ended.
    """
    store = queue.lock_store()
    if store is None:
        return False
    for _ in range(_TRIES):
        step = tail.next_step(store, chain, uuid, joint=False)
        if isinstance(step, Gone):
            if step.repeat is not None:
                queue.put_link(step.repeat)
            return step.elsewhere
        if step.push is None:
            _forget(store, chain, step)
            return False
        if _made(store, step):
            queue.put_link(step.push)
            queue.link_pushed(step.push)
            return True
    raise BackendUnavailable(f"the chain {chain} is changed again and again")


def has_begun(job: BaseJob) -> bool:
    """Whether the batch is there that a link begins: one that was skipped has none to wait for."""
    batches = job.connection.batch_store()
    return batches is not None and batches.read(job.uuid) is not None


def hand_over_apart(job: BaseJob, step: Step) -> bool | None:
    """Make the step to the next link where the backend cannot make it one with the removal.

    None, and nothing is done, where the chain has changed.
    """
    if not _still_held(job):
        return False
    if not _made(_store(job), step):
        return None
    if step.push is not None:
        job.connection.put_link(step.push)
    return job._delete()  # noqa: SLF001 (its own steps)


def _made(store: Store, step: Step) -> bool:
    """Make the changes of a step one by one, but the last two, which say whose turn it is."""
    *others, record, head = step.changes
    for change in others:
        if not store.swap({change.key: (change.expected, change.wanted)}, change.seconds):
            return False
    both = {each.key: (each.expected, each.wanted) for each in (record, head)}
    if store.swap(both, head.seconds):
        return True
    for change in others:
        if change.expected is None and change.wanted is not None:
            store.delete(change.key, change.wanted)
    return False


def _forget(store: Store, chain: str, step: Step) -> None:
    """Remove what is kept of a chain that is at its end."""
    tail.forget(store, chain)
    for change in step.changes:
        store.delete(change.key)


def remove(job: BaseJob) -> bool:
    """Delete a job that is done, or was cancelled, and count it in its batch."""
    if job.member is not None and not job.connection.noting and not job.uncounted:
        if not _still_held(job):
            return False
        count(job, failed=job.ends_in_failure)
    return job._delete()  # noqa: SLF001 (its own steps)


def fail(job: BaseJob, record: FailedJob, store: FailedStore, error: BaseException) -> bool:
    """Record and remove a job that failed, its chain and its batch told before."""
    catch = [] if job.chain is None else tail.catch_of(_store(job), job.chain)
    apart = job.member is not None and not job.connection.noting
    if (catch or apart) and not _still_held(job):
        return False
    if catch:
        queue, cause = job.connection, (job.uuid, job.name, tracebacks.brief(error, 500))
        put(queue, [caused(queue, link, *cause) for link in catch])
    if apart:
        count(job, failed=True)
    return job._fail(record, store)  # noqa: SLF001 (its own steps)


def put(queue: BaseQueue, links: Sequence[Link]) -> None:
    """Push callbacks; the listeners are told of unique ones that are not, as one like them is."""
    holders = queue.put_links(links)
    for link in links:
        holder = holders.get(link.uuid)
        if holder is not None:
            log.info("the callback %s is dropped: %s has its lock", link.uuid, holder)
            events.fire(events.JobDuplicate, queue.name, link.queue, None, holder)


def caused(queue: BaseQueue, link: Link, uuid: str, name: str, error: str) -> Link:
    """Give a callback that is told which job failed, and how.

    One that leaves no room for it is told less, or nothing: it must not be too large to be pushed.
    """
    queue.learn_limits()
    for words in (error, ""):
        told = queue.changed(link, {CAUSE: {"uuid": uuid, "name": name, "error": words}})
        if len(told.raw) <= queue.max_payload:
            return told
    return link


def count(job: BaseJob, *, failed: bool) -> None:
    """Count a job in its batch, apart from its removal, and push what is due then."""
    if job.member is not None:
        count_in(job.connection, job.member, job.uuid, failed=failed)


def count_in(queue: BaseQueue, member: Member, uuid: str, *, failed: bool) -> None:
    """Count a member of a batch that was done, or failed, by the job `uuid`."""
    batches = queue.batch_store()
    teller = (
        None
        if batches is None
        else batches.settle(member.batch, member.number, uuid, failed=failed)
    )
    if teller is not None:
        queue.put_teller(teller)


def is_over(job: BaseJob, chain: str) -> bool:
    """Whether the chain has gone on from this link, which comes again."""
    try:
        return tail.is_over(_store(job), chain, job.uuid)
    except BackendUnavailable:
        raise
    except QframeError as error:
        log.warning("%s is run: nobody knows where its chain is: %s", job.name, error)
        return False


def _still_held(job: BaseJob) -> bool:
    """Look whether the lease was lost, by renewing it, before anything is done for the job."""
    if Capability.RENEW not in job.connection.capabilities:
        return True
    return job._renew()  # noqa: SLF001 (its own steps)


def _store(job: BaseJob) -> Store:
    store = job.connection.lock_store()
    if store is None:
        raise QframeError(f"the connection {job.connection_name!r} keeps no chains")
    return store


def _tell_skipped(job: BaseJob, step: Step) -> None:
    """Say which unique links were passed over: a job like them waits or runs."""
    for lock in step.skipped:
        log.info("%s: a link of its chain is passed over, %s is taken", job.name, lock.key)
        events.fire(events.JobDuplicate, job.connection_name, job.queue, None, lock.uuid)
