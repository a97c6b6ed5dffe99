"""Everything a connection can be asked to do, each with what must hold once it was done.

A fault is put before, or into the middle of, each of them by the tests. What holds afterwards shows
that the act was done, and done once.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from dataclasses import dataclass

from qframe import tail
from qframe.contracts import BatchStore, FailedStore, Sizes, Store
from qframe.drivers.redis.queue import RedisQueue
from qframe.tail import Link
from tests.drivers.redis.support import (
    begin,
    body,
    drain,
    new_batch,
    push,
    push_member,
    take,
    take_all,
)
from tests.support.process import wait_for


@dataclass(frozen=True)
class Act:
    """`do` may be called again where it raised; `check` is called once it did not."""

    do: Callable[[], object]
    check: Callable[[], None]


def _store(queue: RedisQueue) -> Store:
    store = queue.own_store()
    assert store is not None
    return store


def _failed(queue: RedisQueue) -> FailedStore:
    store = queue.own_failed_store()
    assert store is not None
    return store


def _push(queue: RedisQueue) -> Act:
    uuid = str(uuids.uuid4())

    def check() -> None:
        assert drain(queue) == [uuid]

    return Act(lambda: queue.push_raw(body(uuid), "emails"), check)


def _push_later(queue: RedisQueue) -> Act:
    uuid = str(uuids.uuid4())

    def check() -> None:
        assert queue.sizes("emails") == Sizes(delayed=1)

    return Act(lambda: queue.push_raw(body(uuid), "emails", 60), check)


def _push_without_uuid(queue: RedisQueue) -> Act:
    def check() -> None:
        assert queue.sizes("emails") == Sizes(ready=1)

    return Act(lambda: queue.push_raw(b"no payload", "emails"), check)


def _bulk(queue: RedisQueue) -> Act:
    made = [str(uuids.uuid4()) for _ in range(250)]
    group = [(body(uuid).encode(), uuid) for uuid in made]

    def check() -> None:
        assert drain(queue) == made

    return Act(lambda: queue.put_groups([(group, "emails", 0)]), check)


def _bulk_for_several_queues(queue: RedisQueue) -> Act:
    """One transaction of several scripts."""
    made = [str(uuids.uuid4()) for _ in range(20)]
    groups = [
        ([(body(uuid).encode(), uuid) for uuid in made[n::2]], name, 0.0)
        for n, name in enumerate(("emails", "reports"))
    ]

    def check() -> None:
        assert drain(queue, "emails", "reports") == [*made[::2], *made[1::2]]

    return Act(lambda: queue.put_groups(groups), check)


def _reserve(queue: RedisQueue) -> Act:
    """What was reserved unheard comes back once it was held for a second."""
    uuid = push(queue)

    def check() -> None:
        assert wait_for(lambda: drain(queue), "the job that was held") == [uuid]

    return Act(lambda: queue.reserve(["emails"]), check)


def _reserve_and_delete(queue: RedisQueue) -> Act:
    """What is done is deleted along with the next reservation."""
    push(queue)
    job = begin(queue)
    uuid = push(queue)

    def do() -> None:
        queue.reserve(["emails"], finished=job)

    def check() -> None:
        assert job.is_deleted
        assert queue.refused() == []
        assert wait_for(lambda: drain(queue), "the job that was held") == [uuid]

    return Act(do, check)


def _start(queue: RedisQueue) -> Act:
    """A start alone may say nothing of its fate; the job can be settled all the same."""
    push(queue)
    job = take(queue)

    def do() -> None:
        if not job.started:
            assert queue.start(job)
        job.renew()

    def check() -> None:
        assert queue.sizes("emails") == Sizes(reserved=1)
        assert not job.is_lost
        job.release()
        assert begin(queue).attempts() == 2

    return Act(do, check)


def _start_and_delete(queue: RedisQueue) -> Act:
    """What is done is deleted along with the start of the next."""
    push(queue)
    push(queue)
    done, job = take_all(queue, 2)
    assert queue.start(done)
    queue.sizes("emails")

    def do() -> None:
        if not job.started:
            assert queue.start(job, finished=done)
        queue.sizes("emails")

    def check() -> None:
        assert done.is_deleted
        assert queue.refused() == []
        job.delete()
        assert queue.sizes("emails") == Sizes()

    return Act(do, check)


def _renew(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        job.renew()
        job.delete()
        assert queue.sizes("emails") == Sizes()

    return Act(job.renew, check)


def _delete(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        assert job.is_deleted
        assert queue.sizes("emails") == Sizes()

    return Act(job.delete, check)


def _release(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        assert queue.sizes("emails") == Sizes(ready=1)
        assert begin(queue).attempts() == 2

    return Act(job.release, check)


def _release_later(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        assert queue.sizes("emails") == Sizes(delayed=1)

    return Act(lambda: job.release(60), check)


def _give_back(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        assert queue.sizes("emails") == Sizes(ready=1)
        assert begin(queue).attempts() == 1

    return Act(job.give_back, check)


def _fail(queue: RedisQueue) -> Act:
    uuid = push(queue)
    job = begin(queue)

    def check() -> None:
        assert [record.uuid for record in _failed(queue).page()] == [uuid]
        assert queue.sizes("emails") == Sizes()

    return Act(lambda: job.fail(ValueError("no")), check)


def _bury(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)

    def check() -> None:
        assert queue.sizes("emails") == Sizes(buried=1)

    return Act(job.bury, check)


def _kick(queue: RedisQueue) -> Act:
    push(queue)
    begin(queue).bury()

    def check() -> None:
        assert queue.sizes("emails") == Sizes(ready=1)

    return Act(lambda: queue.kick("emails"), check)


def _clear(queue: RedisQueue) -> Act:
    push(queue)
    push(queue, delay=60)

    def check() -> None:
        assert queue.sizes("emails") == Sizes()

    return Act(lambda: queue.clear("emails"), check)


def _requeue(queue: RedisQueue) -> Act:
    uuid = push(queue)
    begin(queue).fail(ValueError("no"))
    failed = _failed(queue)
    record = failed.find(uuid)
    assert record is not None

    def do() -> None:
        assert queue.requeue(record, record.payload, failed)

    def check() -> None:
        assert drain(queue) == [uuid]
        assert failed.count() == 0

    return Act(do, check)


def _add_failed(queue: RedisQueue) -> Act:
    push(queue)
    job = begin(queue)
    record = job.failure(ValueError("no"), counted=True)

    def check() -> None:
        assert [each.uuid for each in _failed(queue).page()] == [record.uuid]

    return Act(lambda: _failed(queue).add(record), check)


def _forget(queue: RedisQueue) -> Act:
    uuid = push(queue)
    begin(queue).fail(ValueError("no"))
    failed = _failed(queue)

    def do() -> None:
        assert failed.forget(uuid)

    def check() -> None:
        assert failed.count() == 0

    return Act(do, check)


def _set(queue: RedisQueue) -> Act:
    store = _store(queue)

    def check() -> None:
        assert store.get("a") == ["1"]

    return Act(lambda: store.set("a", "1"), check)


def _add(queue: RedisQueue) -> Act:
    store = _store(queue)

    def do() -> None:
        assert store.add("a", "1")

    def check() -> None:
        assert not store.add("a", "2")
        assert store.get("a") == ["1"]

    return Act(do, check)


def _unset(queue: RedisQueue) -> Act:
    store = _store(queue)
    store.set("a", "1")

    def do() -> None:
        assert store.delete("a", "1")

    def check() -> None:
        assert store.get("a") == [None]

    return Act(do, check)


def _take(queue: RedisQueue) -> Act:
    store = _store(queue)

    def do() -> None:
        assert store.swap({"a": (None, "1"), "b": (None, "1")}, 60)

    def check() -> None:
        assert not store.swap({"a": (None, "2")})
        assert store.get("a", "b") == ["1", "1"]

    return Act(do, check)


def _swap(queue: RedisQueue) -> Act:
    store = _store(queue)
    store.set("b", "1")

    def do() -> None:
        assert store.swap({"a": (None, "1"), "b": ("1", None)}, 60)

    def check() -> None:
        assert not store.swap({"a": (None, "2")})
        assert store.get("a", "b") == ["1", None]

    return Act(do, check)


def _prolong(queue: RedisQueue) -> Act:
    store = _store(queue)
    store.set("a", "1", 60)

    def do() -> None:
        assert store.swap({"a": ("1", "1"), "b": (None, None)}, 600)

    def check() -> None:
        assert store.get("a") == ["1"]

    return Act(do, check)


def _give_up(queue: RedisQueue) -> Act:
    store = _store(queue)
    store.set("a", "1", 60)

    def do() -> None:
        assert store.swap({"a": ("1", None)})

    def check() -> None:
        assert store.get("a") == [None]

    return Act(do, check)


def _batches(queue: RedisQueue, members: int) -> BatchStore:
    """Begin the batch `b`; what tells of it goes to the queue `tellers`."""
    batches = queue.own_batches()
    assert batches.create(new_batch())
    assert batches.grow("b", members) == 0
    assert batches.seal("b") is None
    return batches


def _counts(queue: RedisQueue) -> tuple[int, int, int]:
    record = queue.own_batches().read("b")
    assert record is not None
    return record.total, record.done, record.failed


def _delete_and_count(queue: RedisQueue) -> Act:
    """The only member of a batch, and what tells of its end."""
    _batches(queue, 1)
    push_member(queue, "emails", "b", 0)
    job = begin(queue)

    def check() -> None:
        assert job.is_deleted
        assert _counts(queue) == (1, 1, 0)
        assert drain(queue, "emails", "tellers") == ["told"]

    return Act(job.delete, check)


def _start_and_count(queue: RedisQueue) -> Act:
    """A member that is done is counted along with the start of the next."""
    _batches(queue, 2)
    push_member(queue, "emails", "b", 0)
    push_member(queue, "emails", "b", 1)
    done, job = take_all(queue, 2)
    assert queue.start(done)
    queue.sizes("emails")

    def do() -> None:
        if not done.defers and not done.is_deleted:  # on a Cluster
            done.delete()
        if not job.started:
            assert queue.start(job, finished=done if done.defers else None)
        queue.sizes("emails")

    def check() -> None:
        assert done.is_deleted
        assert queue.refused() == []
        assert _counts(queue) == (2, 1, 0)
        job.delete()
        assert drain(queue, "emails", "tellers") == ["told"]

    return Act(do, check)


def _fail_and_count(queue: RedisQueue) -> Act:
    _batches(queue, 2)
    uuid = push_member(queue, "emails", "b", 1)
    job = begin(queue)

    def check() -> None:
        assert [record.uuid for record in _failed(queue).page()] == [uuid]
        assert _counts(queue) == (2, 0, 1)
        assert drain(queue, "emails", "tellers") == ["told"]

    return Act(lambda: job.fail(ValueError("no")), check)


def _count(queue: RedisQueue) -> Act:
    """Said again it gives what tells of it again."""
    batches = _batches(queue, 1)

    def do() -> None:
        assert batches.settle("b", 0, "u", failed=False) is not None

    def check() -> None:
        assert _counts(queue) == (1, 1, 0)

    return Act(do, check)


def _hand_over(queue: RedisQueue) -> Act:
    """A link of a chain that is done, and the next one."""
    links = [Link(uuid, body(uuid, chain={"id": "c"}).encode(), "emails", 0) for uuid in "12"]
    tail.begin(_store(queue), "c", links, [])
    queue.put_link(links[0])
    job = begin(queue)

    def check() -> None:
        assert job.is_deleted
        assert drain(queue) == ["2"]
        assert _store(queue).keys("chain:") == []

    return Act(job.delete, check)


def _begin_batch(queue: RedisQueue) -> Act:
    batches = queue.own_batches()

    def do() -> None:
        assert batches.create(new_batch())

    def check() -> None:
        assert [each.id for each in batches.page()] == ["b"]
        assert not batches.create(new_batch())

    return Act(do, check)


def _grow_batch(queue: RedisQueue) -> Act:
    batches = queue.own_batches()
    assert batches.create(new_batch())

    def do() -> None:
        assert batches.grow("b", 500) == 0

    def check() -> None:
        assert batches.grow("b", 1) == 500

    return Act(do, check)


def _cancel_batch(queue: RedisQueue) -> Act:
    batches = _batches(queue, 1)

    def do() -> None:
        assert batches.cancel("b")

    def check() -> None:
        record = batches.read("b")
        assert record is not None
        assert record.cancelled_at is not None
        assert batches.grow("b", 1) is None

    return Act(do, check)


Make = Callable[[RedisQueue], Act]

PUSHES: dict[str, Make] = {
    "push": _push,
    "push later": _push_later,
    "push what has no uuid": _push_without_uuid,
    "bulk": _bulk,
    "bulk for several queues": _bulk_for_several_queues,
}
WORK: dict[str, Make] = {
    "reserve": _reserve,
    "reserve and delete": _reserve_and_delete,
    "start": _start,
    "start and delete": _start_and_delete,
    "renew": _renew,
    "delete": _delete,
    "release": _release,
    "release later": _release_later,
    "give back": _give_back,
    "fail": _fail,
    "bury": _bury,
    "kick": _kick,
    "clear": _clear,
    "requeue": _requeue,
    "delete and count": _delete_and_count,
    "start, delete and count": _start_and_count,
    "fail and count": _fail_and_count,
    "count": _count,
    "hand over": _hand_over,
    "add a failed job": _add_failed,
    "forget a failed job": _forget,
    "delete from the store": _unset,
    "swap in the store": _swap,
    "prolong in the store": _prolong,
    "give up in the store": _give_up,
}
STORE: dict[str, Make] = {
    "set in the store": _set,
    "add to the store": _add,
    "take in the store": _take,
    "begin a batch": _begin_batch,
    "grow a batch": _grow_batch,
    "cancel a batch": _cancel_batch,
}
ALL: dict[str, Make] = {**PUSHES, **WORK, **STORE}
