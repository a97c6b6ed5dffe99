"""Finds a waiting job by its uuid, and removes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qframe import unique
from qframe.contracts import Cancelling
from qframe.drivers.redis import member
from qframe.drivers.redis.locks import locked
from qframe.drivers.redis.scripts import call
from qframe.drivers.redis.statuses import noted
from qframe.drivers.reservation import uuid_of

if TYPE_CHECKING:
    from qframe.drivers.redis.keys import QueueKeys
    from qframe.drivers.redis.queue import RedisQueue

_STEP = 1000
"""How many members one script looks at."""


def cancelled(queue: RedisQueue, uuid: str, names: Sequence[str]) -> Cancelling:
    """Remove the job of a uuid where it waits in one of these queues."""
    for name in names:
        keys = queue.keys.of(name)
        for stored in _holding(queue, keys, uuid):
            found = member.read(stored)
            if uuid_of(found.raw) != uuid:
                continue  # another job, which names it
            outcome = _removed(queue, keys, name, stored, found)
            if outcome is not Cancelling.ABSENT:
                return outcome
    return Cancelling.ABSENT


def cleared(queue: RedisQueue, keys: QueueKeys) -> int:
    """Remove the waiting jobs that have a lock, each with its lock; gives how many there were."""
    # What is due or whose lease ran out may become ready meanwhile: those are looked at last.
    sources = (keys.delayed, keys.reserved, keys.ready)
    # One that runs as it is looked at may be buried then, and stays: `notify` holds no jobs.
    places = (keys.ready, keys.delayed, keys.reserved, keys.notify)
    count = 0
    for stored in _holding(queue, keys, '"unique"', sources):
        lock = unique.of_raw(member.read(stored).raw)
        if lock is None or lock.is_token:
            continue
        command = call("cancel", places, stored)
        if queue.noting:
            command = locked(command, queue.keys.store, [(lock, "free", 1)])
        with queue.links.of(keys.ready) as link:
            ((removed, *_),) = link.ask(command)
        if removed and not queue.noting:
            queue.free(lock)
        count += bool(removed)
    return count


def _holding(
    queue: RedisQueue, keys: QueueKeys, text: str, places: Sequence[str] = ()
) -> Iterator[bytes]:
    """Give the members that hold a text, whatever they are otherwise."""
    for key in places or (keys.delayed, keys.ready, keys.reserved, keys.buried):
        left = -1
        is_list = int(key in {keys.ready, keys.buried})
        while left:
            with queue.links.of(keys.ready) as link:
                ((left, *members),) = link.ask(call("find", (key,), text, left, _STEP, is_list))
            yield from members


def _removed(
    queue: RedisQueue, keys: QueueKeys, name: str, stored: bytes, found: member.Member
) -> Cancelling:
    places = (keys.ready, keys.delayed, keys.reserved, keys.buried)
    notes = queue.cancelled_note(found.raw, name, found.attempts)
    if notes:
        parts = [(1, note) for note in notes]
        command = noted("cancel", places, (stored,), queue.keys.status, parts)
    else:
        command = call("cancel", places, stored)
    lock = unique.of_raw(found.raw)
    if lock is not None and queue.noting and not lock.is_token:
        command = locked(command, queue.keys.store, [(lock, "free", 1)])
    with queue.links.of(keys.ready) as link:
        (reply,) = link.ask(command)
        removed = reply[0] or link.repeated
    if removed:
        if lock is not None and not queue.noting:
            queue.free(lock)
        queue.count_removed(found.raw)
        return Cancelling.REMOVED
    if len(reply) > 1:
        return Cancelling.HELD if reply[1] == b"held" else Cancelling.RUNNING
    return Cancelling.ABSENT
