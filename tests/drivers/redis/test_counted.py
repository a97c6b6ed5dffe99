"""Members of batches: counted by the scripts that remove their jobs, and only by these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qframe.contracts import BatchRecord, Cancelling, State
from qframe.drivers.redis.batches import RedisBatchStore
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.queue import RedisQueue
from qframe.exceptions import BackendUnusable, LeaseLost
from qframe.unique import HANDLED, STARTED
from tests.drivers.redis.conftest import Connect
from tests.drivers.redis.support import (
    begin,
    body,
    drain,
    new_batch,
    push,
    push_member,
    take,
)
from tests.support.redis_server import RedisServer

QUEUE = "emails"
MONTH = 30 * 86400 * 1000

Remove = Callable[[RedisQueue, RedisJob], None]


def remove_with_start(queue: RedisQueue, job: RedisJob) -> None:
    push(queue, "next")
    following = take(queue, "next")
    assert queue.start(following, finished=job)
    queue.sizes(QUEUE)  # which hears what became of it
    assert not following.is_lost
    following.delete()


def remove_with_reserve(queue: RedisQueue, job: RedisJob) -> None:
    assert queue.reserve(["next"], finished=job) == []


WAYS: dict[str, Remove] = {
    "delete": lambda _, job: job.delete(),
    "start": remove_with_start,
    "reserve": remove_with_reserve,
    "fail": lambda _, job: job.fail(ValueError("no")),
}
"""How a job is removed; by the last it has failed."""
ways = pytest.mark.parametrize("way", list(WAYS))


@pytest.fixture
def batches(queue: RedisQueue) -> RedisBatchStore:
    made = queue.own_batches()
    assert isinstance(made, RedisBatchStore)
    return made


def begin_batch(batches: RedisBatchStore, members: int, **more: Any) -> None:
    assert batches.create(new_batch(**more))
    assert batches.grow("b", members) == 0
    assert batches.seal("b") is None


def record(batches: RedisBatchStore) -> BatchRecord:
    found = batches.read("b")
    assert found is not None
    return found


def counts(batches: RedisBatchStore) -> tuple[int, int]:
    found = record(batches)
    return found.done, found.failed


def member(queue: RedisQueue, number: int, **more: object) -> RedisJob:
    """Give a member that runs."""
    push_member(queue, QUEUE, "b", number, **more)
    return begin(queue, QUEUE)


def told(queue: RedisQueue) -> int:
    """Give how often something was to tell of a batch, and let it be over."""
    found = drain(queue, "tellers")
    assert set(found) <= {"told"}
    return len(found)


# -- in the step that removes the job --------------------------------------------------------------


@ways
def test_a_member_is_counted_where_it_is_removed(
    queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    begin_batch(batches, 2)
    WAYS[way](queue, member(queue, 1))
    assert counts(batches) == ((0, 1) if way == "fail" else (1, 0))
    assert record(batches).finished_at is None
    assert told(queue) == (1 if way == "fail" else 0), "only of the first failure"
    WAYS[way](queue, member(queue, 0))
    found = record(batches)
    assert (found.pending, found.is_finished) == (0, True)
    assert found.finished_at is not None
    assert told(queue) == 1, "of the end"
    assert queue.refused() == []


@ways
def test_the_count_is_no_exchange_of_its_own(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    begin_batch(batches, 2)

    def asked(job: RedisJob) -> int:
        before = scripts_run(server)
        WAYS[way](queue, job)
        return scripts_run(server) - before

    def plain() -> RedisJob:
        push(queue, QUEUE)
        return begin(queue, QUEUE)

    asked(plain())  # the server has its scripts
    asked(member(queue, 0))
    assert asked(member(queue, 1)) == asked(plain())
    assert record(batches).is_finished


def scripts_run(server: RedisServer) -> int:
    return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])


@ways
def test_where_its_news_cannot_be_pushed_a_job_is_not_removed(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    """It comes again then, is counted no second time, and the news is told."""
    begin_batch(batches, 1)
    job = member(queue, 0)
    server.command("SET", "queues:tellers", "in the way")
    if way == "start":  # whose answer nobody waits for
        push(queue, "next")
        assert queue.start(take(queue, "next"), finished=job)
        queue.sizes(QUEUE)
        assert queue.refused() == [job]
    else:
        with pytest.raises(BackendUnusable, match="in the way"):
            WAYS[way](queue, job)
    assert queue.sizes(QUEUE).reserved == 1
    server.command("DEL", "queues:tellers")
    job.mark("")
    job.delete()
    assert queue.sizes(QUEUE).reserved == 0
    found = record(batches)
    assert (found.settled, found.is_finished) == (1, True)
    assert told(queue) == 1


@ways
def test_with_its_lock_and_its_status(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    """All that a script can do besides, one inside the other."""
    begin_batch(batches, 1)
    store, statuses = queue.own_store(), queue.own_statuses()
    store.set("unique:done", "a", 60)
    store.set("unique:next", "b", 60)
    lock = {"for": 60, "until": HANDLED}
    job = member(queue, 0, uuid="a", track=60, unique={"key": "unique:done", **lock})
    if way == "start":
        said = {"key": "unique:next", "for": 60, "until": STARTED}
        queue.push_raw(body("b", track=60, unique=said), QUEUE)
        following = take(queue, QUEUE)
        assert queue.start(following, finished=job)
        queue.sizes(QUEUE)
        assert store.get("unique:next") == [None]
        assert statuses.read("b").state is State.RUNNING  # type: ignore[union-attr]
        following.delete()
    else:
        WAYS[way](queue, job)
    assert counts(batches) == ((0, 1) if way == "fail" else (1, 0))
    assert store.get("unique:done") == [None]
    status = statuses.read("a")
    assert status is not None
    assert status.state is (State.FAILED if way == "fail" else State.COMPLETE)
    assert told(queue) == 1


@ways
def test_a_job_that_was_lost_counts_nothing(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    """Whoever has it now will count it."""
    begin_batch(batches, 1)
    job = member(queue, 0)
    server.command("ZADD", f"queues:{QUEUE}:reserved", 1, job.stored)
    assert take(queue, QUEUE).uuid == job.uuid
    if way in {"start", "reserve"}:
        WAYS[way](queue, job)
        assert queue.refused() == [job]
    else:
        with pytest.raises(LeaseLost):
            WAYS[way](queue, job)
    assert counts(batches) == (0, 0)
    assert told(queue) == 0
    assert keys_of_members(server) == []


def keys_of_members(server: RedisServer) -> list[bytes]:
    """Name what is kept of single members."""
    return [*server.command("KEYS", "*{batch}done*"), *server.command("KEYS", "*{batch}failed*")]


@pytest.mark.parametrize("way", ["delete", "start", "reserve"])
def test_a_cancelled_member_has_failed(
    queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    begin_batch(batches, 2)
    job = member(queue, 0)
    job.ends_as(State.CANCELLED, "while it ran")
    WAYS[way](queue, job)
    assert counts(batches) == (0, 1)
    assert batches.failures("b") == [job.uuid]


@ways
def test_one_whose_chain_goes_on_is_not_counted(
    queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    begin_batch(batches, 1)
    job = member(queue, 0)
    job.uncounted = True
    WAYS[way](queue, job)
    assert counts(batches) == (0, 0)


def test_a_failure_recorded_elsewhere_is_one(
    queue: RedisQueue, batches: RedisBatchStore, another: Connect
) -> None:
    elsewhere = another(prefix="other_").own_failed_store()
    assert elsewhere is not None
    queue.failed_store = elsewhere
    assert not queue.shares(elsewhere)
    begin_batch(batches, 2)
    job = member(queue, 1)
    job.fail(ValueError("no"))
    assert (counts(batches), batches.failures("b")) == ((0, 1), [job.uuid])
    assert elsewhere.count() == 1


def test_a_member_cancelled_while_it_waited_has_failed(
    queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 1)
    uuid = push_member(queue, QUEUE, "b", 0)
    assert queue.cancel(uuid) is Cancelling.REMOVED
    assert (counts(batches), batches.failures("b")) == ((0, 1), [uuid])
    assert told(queue) == 1
    assert queue.cancel(push(queue)) is Cancelling.REMOVED


@ways
def test_what_is_no_member_leaves_nothing(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore, way: str
) -> None:
    """Of no batch there is, or with a number that was never given out: bits would be made."""
    begin_batch(batches, 2)
    for said in ({"id": "gone", "n": 0}, {"id": "b", "n": 2}, {"id": "b", "n": 2**31 - 1}):
        queue.push_raw(body(batch=said), QUEUE)
        WAYS[way](queue, begin(queue, QUEUE))
    assert counts(batches) == (0, 0)
    assert (keys_of_members(server), told(queue)) == ([], 0)
    assert batches.read("gone") is None


def test_a_batch_of_a_prefix_tells_in_its_queue(server: RedisServer, another: Connect) -> None:
    queue = another(prefix="app_")
    batches = queue.own_batches()
    assert isinstance(batches, RedisBatchStore)
    begin_batch(batches, 1)
    member(queue, 0).delete()
    assert server.command("LLEN", "app_queues:tellers") == 1
    assert queue.queues() == ["tellers"]
    assert told(queue) == 1


def test_who_waits_for_the_queue_of_the_news_is_woken(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 1)
    member(queue, 0).delete()
    assert server.command("LLEN", "queues:tellers:notify") == 1


def test_progress_is_told_each_time_so_many_are_done(
    queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 7, progress_step=3)
    news = []
    for number in range(7):
        member(queue, number).delete()
        news.append(told(queue))
    assert news == [0, 0, 1, 0, 0, 1, 1]


# -- how long, and how much -----------------------------------------------------------------------


def lives(server: RedisServer) -> list[int]:
    """Give for how many days more each key of the batch is kept, rounded up."""
    keys = ("qframe:{batch}:b", "qframe:{batch}done:b", "qframe:{batch}failed:b")
    return [-(-server.command("PTTL", key) // 86_400_000) for key in keys]


def test_each_key_of_a_batch_is_kept_thirty_days(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 5)
    assert lives(server) == [30, 0, 0]
    member(queue, 0).delete()
    assert lives(server) == [30, 30, 0]
    member(queue, 1).fail(ValueError("no"))
    assert lives(server) == [30, 30, 30]


def test_a_count_prolongs_the_life_where_a_day_of_it_is_over(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 5)
    member(queue, 0).delete()
    key, bits = "qframe:{batch}:b", "qframe:{batch}done:b"
    for each in (key, bits):
        server.command("PEXPIRE", each, MONTH - 3_600_000)
    member(queue, 1).delete()
    assert server.command("PTTL", key) <= MONTH - 3_600_000, "not each count writes"
    for each in (key, bits):
        server.command("PEXPIRE", each, 86_400_000)
    member(queue, 1, uuid="ran twice").delete()
    assert lives(server) == [1, 1, 0], "what changes nothing prolongs nothing"
    member(queue, 2).delete()
    assert lives(server) == [30, 30, 0]


def test_an_expired_batch_is_listed_no_more(server: RedisServer, batches: RedisBatchStore) -> None:
    for number in range(4):
        assert batches.create(new_batch(str(number)))
    server.command("DEL", "qframe:{batch}:1", "qframe:{batch}:2")
    assert [each.id for each in batches.page()] == ["3", "0"]
    assert server.command("ZRANGE", "qframe:{batch}es", 0, -1) == [b"0", b"3"]
    server.command("DEL", "qframe:{batch}:0")
    assert batches.prune(0) == 0
    assert server.command("ZRANGE", "qframe:{batch}es", 0, -1) == [b"3"]


def test_a_hundred_thousand_members_are_as_many_bits(
    server: RedisServer, queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 100_000)
    member(queue, 99_999).delete()
    assert counts(batches) == (1, 0)
    assert server.command("STRLEN", "qframe:{batch}done:b") == 12_500


def test_the_id_of_a_batch_is_not_taken_for_another_key(
    queue: RedisQueue, batches: RedisBatchStore
) -> None:
    """Whoever pushes by hand may name any."""
    for name in ("x", ":x", "es", "done:x", "b}:{"):
        assert batches.create(new_batch(name))
        assert batches.grow(name, 1) == 0
        push_member(queue, QUEUE, name, 0)
        begin(queue, QUEUE).delete()
        found = batches.read(name)
        assert found is not None
        assert found.done == 1
    assert len(batches.page()) == 5


def test_many_batches_are_listed_and_pruned_some_at_a_time(
    server: RedisServer, batches: RedisBatchStore
) -> None:
    names = [f"{number:03}" for number in range(250)]
    for name in names:
        assert batches.create(new_batch(name))
        if int(name) % 2:
            assert batches.seal(name) is not None
            batches.told(name, "then", "finally")
    listed: list[str] = []
    while page := batches.page(60, listed[-1] if listed else None):
        listed += [each.id for each in page]
    assert listed == names[::-1]
    latest = record_of(batches, "249").created_at + 60
    assert batches.prune(latest) == 125
    assert [each.id for each in batches.page(250)] == names[-2::-2]
    assert batches.prune(0, unfinished=latest) == 125
    assert server.command("KEYS", "*{batch}*") == []


def record_of(batches: RedisBatchStore, name: str) -> BatchRecord:
    found = batches.read(name)
    assert found is not None
    return found


def test_failures_come_in_the_order_of_the_members(
    queue: RedisQueue, batches: RedisBatchStore
) -> None:
    begin_batch(batches, 200)
    for number in (100, 9, 20):
        member(queue, number, uuid=f"{number}:x").fail(ValueError("no"))
    assert batches.failures("b") == ["9:x", "20:x", "100:x"]
    assert batches.failures("b", 2) == ["9:x", "20:x"]
    assert batches.failures("b", 0) == []
    member(queue, 20, uuid="again").delete()
    assert batches.failures("b") == ["9:x", "100:x"]
