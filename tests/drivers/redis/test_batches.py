"""Many at once: moved in order, a hundred at a time, and never lost or doubled."""

from __future__ import annotations

import threading
import time

import pytest

from qframe.contracts import Sizes
from qframe.drivers.redis.queue import RedisQueue
from qframe.exceptions import BackendUnavailable
from tests.drivers.redis.conftest import Connect
from tests.drivers.redis.support import body
from tests.support.redis_server import RedisServer

DUE = 100_000


def taken(queue: RedisQueue, limit: int = 100) -> list[str]:
    """Take, start and delete everything there is; gives the uuids in order."""
    found: list[str] = []
    while jobs := queue.reserve(["many"], limit):
        done = None
        for job in jobs:
            assert queue.start(job, finished=done)
            found.append(job.uuid)
            done = job
        assert done is not None
        done.delete()
    assert queue.refused() == []
    return found


@pytest.mark.timeout(300)
def test_a_hundred_thousand_due_in_one_second_come_in_order(
    server: RedisServer, queue: RedisQueue
) -> None:
    """As PHP delays them, with whole seconds: then their bytes decide, as Redis sorts them."""
    with server.client() as client:
        moment = int(time.time()) - 5
        for first in range(0, DUE, 10_000):
            client.zadd(
                "queues:many:delayed",
                {body(f"{number:06}"): moment for number in range(first, first + 10_000)},
            )
    jobs = queue.reserve(["many"], 50)
    assert server.command("ZCARD", "queues:many:delayed") == DUE - 100, "a hundred at a time"
    assert server.command("LLEN", "queues:many:notify") == 50, "a token for each that is ready"
    uuids = [job.uuid for job in jobs]
    for job in jobs:
        job.delete()
    uuids += taken(queue)
    assert uuids == [f"{number:06}" for number in range(DUE)]
    assert queue.sizes("many") == Sizes()


def test_ten_thousand_of_one_bulk_due_at_once_come_in_their_order(queue: RedisQueue) -> None:
    messages = [(body(str(number)).encode(), str(number)) for number in range(10_000)]
    queue.put(messages, "many", 0.5)
    deadline = time.monotonic() + 60
    uuids: list[str] = []
    while len(uuids) < 10_000 and time.monotonic() < deadline:
        uuids += taken(queue)
    assert uuids == [str(number) for number in range(10_000)]


def test_several_workers_share_what_is_due_and_none_is_taken_twice(
    server: RedisServer, another: Connect
) -> None:
    with server.client() as client:
        moment = int(time.time()) - 1
        client.zadd("queues:many:delayed", {body(str(number)): moment for number in range(5000)})
    found: list[list[str]] = []

    def work() -> None:
        queue = another()
        found.append(taken(queue))
        queue.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    everything = [uuid for each in found for uuid in each]
    assert len(everything) == len(set(everything)) == 5000


def test_a_bulk_for_several_queues_comes_whole(queue: RedisQueue) -> None:
    groups = [
        (
            [(body(f"{name}-{number}").encode(), f"{name}-{number}") for number in range(7000)],
            name,
            0.0,
        )
        for name in ("a", "b")
    ]
    queue.put_groups(groups)
    assert [queue.size(name) for name in ("a", "b")] == [7000, 7000]


def test_a_bulk_for_several_queues_is_stored_whole_or_not_at_all(
    server: RedisServer, queue: RedisQueue
) -> None:
    server.command("SET", "queues:b", "not a list")
    groups = [([(body().encode(), "x"), (body().encode(), "y")], name, 0.0) for name in ("b", "a")]
    with pytest.raises(BackendUnavailable, match="in the way"):
        queue.put_groups(groups)
    server.command("DEL", "queues:b")
    assert (queue.size("a"), queue.size("b")) in {(0, 0), (2, 0)}, "no half of one queue's jobs"


def test_a_thousand_leases_that_end_at_once_are_all_given_back_in_order(
    server: RedisServer, another: Connect
) -> None:
    dead, queue = another(retry_after=1), another(retry_after=1)
    dead.put([(body(str(number)).encode(), str(number)) for number in range(1000)], "many", 0)
    held = dead.reserve(["many"], 1000)
    assert len(held) == 1000
    deadline = time.monotonic() + 30
    uuids: list[str] = []
    while len(uuids) < 1000 and time.monotonic() < deadline:
        uuids += taken(queue)
    assert uuids == [str(number) for number in range(1000)]
    assert server.command("LLEN", "queues:many:notify") <= 1


@pytest.mark.parametrize("delay", [0, 0.2])
def test_the_same_bytes_five_hundred_times_are_five_hundred_jobs(
    queue: RedisQueue, delay: float
) -> None:
    raw = body("same").encode()
    for _ in range(500):
        queue.push_raw(raw, "many", delay)
    assert queue.sizes("many").total == 500
    time.sleep(delay)  # until they are due; the loop below waits for what is not
    found = 0
    deadline = time.monotonic() + 30
    while found < 500 and time.monotonic() < deadline:
        jobs = queue.reserve(["many"], 100)
        assert {job.raw_body for job in jobs} <= {raw}
        for job in jobs:
            assert queue.start(job)
            assert job.attempts() == 1
        for job in jobs:
            job.delete()
        found += len(jobs)
    assert queue.sizes("many") == Sizes()
    assert found == 500


def test_tokens_never_grow_beyond_the_jobs(server: RedisServer, queue: RedisQueue) -> None:
    for number in range(300):
        queue.push_raw(body(), "many", 3600 if number % 3 == 0 else 0)
        for job in queue.reserve(["many"], number % 4):
            assert queue.start(job)
            if number % 5:
                job.delete()
            else:
                job.release(0 if number % 2 else 3600)
        ready = server.command("LLEN", "queues:many")
        assert server.command("LLEN", "queues:many:notify") <= max(1, ready)
    taken(queue)
    assert server.command("LLEN", "queues:many:notify") <= 1
