"""What a priority makes of the keys: what PHP finds, what is noted of ages, what it costs."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from qframe.contracts.queue import Sizes
from qframe.contracts.step import Bury, Delete, Push, Release, Start, Step
from qframe.drivers.levels import AGING
from qframe.drivers.redis import message
from qframe.drivers.redis.backend import RedisBackend
from tests.drivers.redis.conftest import Opener
from tests.support.redis_server import RedisServer

OURS = b'{"uuid":"u","job":"app.Job","data":[],"id":"the-id","attempts":0,"delay":null}'
AGES = "qframe:notes:queues:q"


def push(backend: RedisBackend, raw: bytes, priority: int | None = None, delay: float = 0) -> None:
    assert backend.apply(Step(None, Push("q", raw, delay, priority)))[0].applied


def taken(backend: RedisBackend, limit: int = 1) -> list[bytes]:
    """Reserve some and end them."""
    jobs, _ = backend.reserve(["q"], limit)
    backend.apply(*(Step(job, Start(60)) for job in jobs))
    backend.apply(*(Step(job, Delete()) for job in jobs))
    return [job.raw_body for job in jobs]


def test_a_ready_one_is_what_laravel_takes_for_due(
    server: RedisServer, backend: RedisBackend
) -> None:
    push(backend, OURS, 0)
    assert server.command("LLEN", "queues:q") == 0
    (member, score) = server.command("ZRANGE", "queues:q:delayed", 0, -1, "WITHSCORES")
    assert float(score) < 0
    assert json.loads(member) == json.loads(OURS)
    # What Laravel's worker does before it takes one.
    due = server.command("ZRANGEBYSCORE", "queues:q:delayed", "-inf", 2**40)
    server.command("ZREMRANGEBYRANK", "queues:q:delayed", 0, len(due) - 1)
    server.command("RPUSH", "queues:q", *due)
    job = backend.reserve(["q"])[0][0]
    assert (job.raw_body, job.id, job.attempts) == (OURS, "the-id", 0)
    backend.apply(Step(job, Start(60)))
    push(backend, b"plain")
    backend.apply(Step(job, Release()))
    assert taken(backend) == [OURS], "it has its priority again"


def test_starts_are_counted_in_its_payload(server: RedisServer, backend: RedisBackend) -> None:
    push(backend, OURS, 5000)
    (job,), _ = backend.reserve(["q"])
    backend.apply(Step(job, Start(60, b"notes")))
    (member,) = server.command("ZRANGE", "queues:q:reserved", 0, -1)
    assert json.loads(member)["attempts"] == 1
    backend.apply(Step(job, Release(counted=False)))
    (member,) = server.command("ZRANGE", "queues:q:delayed", 0, -1)
    assert json.loads(member)["attempts"] == 0
    (again,), _ = backend.reserve(["q"])
    assert (again.raw_body, again.attempts, again.notes) == (OURS, 0, b"notes")
    backend.apply(Step(again, Start(60)))
    backend.apply(Step(again, Delete()))
    assert server.command("KEYS", "qframe:notes:*") == []


@pytest.mark.parametrize("priority", [0, 5, 1023, 1025, 5000, 2**32 - 1])
@pytest.mark.parametrize("aging", [1, 600, 604_800])
def test_what_it_ends_with_is_white_space(priority: int, aging: int) -> None:
    level = message.level(priority, aging)
    assert re.fullmatch(rb"\r[ \t\r]{15}", level)
    stored = message.sent(OURS, level)
    assert message.level_in(stored) == level
    assert message.tag_of(stored) + level == stored[len(OURS) :]
    assert message.read(stored, b"")[0] == OURS
    assert message.level(1024, aging) == message.level(None, aging) == b""


def test_what_looks_like_a_level_is_the_payload_s(backend: RedisBackend) -> None:
    forged = message.sent(OURS, message.level(0, 600))
    push(backend, b"first")
    push(backend, forged)
    assert taken(backend, 2) == [b"first", forged]


def test_a_queue_without_priorities_costs_no_more_commands(
    server: RedisServer, backend: RedisBackend
) -> None:
    for n in range(20):
        push(backend, b"%d" % n)
        push(backend, b"later %d" % n, delay=60)
    assert _commands_of_a_claim(server, backend) == {
        "llen": 2, "zcard": 2, "zremrangebyrank": 1, "time": 1, "zrangebyscore": 1,
        "lrange": 1, "zadd": 1, "ltrim": 2,
    }  # fmt: skip
    push(backend, b"urgent", 0)
    assert _commands_of_a_claim(server, backend)["zcount"] == 1


def _commands_of_a_claim(server: RedisServer, backend: RedisBackend) -> dict[str, int]:
    server.command("CONFIG", "RESETSTAT")
    assert backend.reserve(["q"])[0]
    said = server.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in said.items()}
    return {name: calls[name] for name in calls.keys() - {"evalsha", "eval", "config|resetstat"}}


# -- ages -----------------------------------------------------------------------------------------


def flood(backend: RedisBackend, seconds: float) -> bytes:
    """Push an urgent one, take one, and let time pass."""
    push(backend, b"urgent", 0)
    (raw,) = taken(backend)
    backend.timing.skew += seconds
    return raw


def test_plain_ones_age_while_urgent_ones_come(server: RedisServer, backend: RedisBackend) -> None:
    for n in range(3):
        push(backend, b"%d" % n)
    came = [flood(backend, AGING) for _ in range(9)]
    # Seen first at 0 s, five levels later they are before what comes.
    assert came == [b"urgent"] * 5 + [b"0", b"1", b"2"] + [b"urgent"]
    assert server.command("TTL", AGES) in {-2, *range(86_000, 86_401)}


def test_one_that_came_later_is_younger(backend: RedisBackend) -> None:
    push(backend, b"old")
    assert flood(backend, 3 * AGING) == b"urgent"
    push(backend, b"young")
    came = [flood(backend, AGING) for _ in range(8)]
    assert came.index(b"old") == 2
    assert came.index(b"young") == 6


def test_ages_are_of_those_that_were_there(backend: RedisBackend) -> None:
    push(backend, b"1")
    push(backend, b"2")
    assert flood(backend, 2 * AGING) == b"urgent"
    while taken(backend):  # without a look at ages: nothing here has a priority
        pass
    push(backend, b"3")
    push(backend, b"4")
    backend.timing.skew += 4 * AGING
    assert flood(backend, 0) == b"urgent", "3 and 4 were not seen waiting"


def test_many_ages_are_few_pairs(server: RedisServer, backend: RedisBackend) -> None:
    push(backend, b"first")
    for n in range(100):
        assert flood(backend, 1) == b"urgent"
        push(backend, b"%d" % n)
    noted = server.command("GET", AGES).split()
    assert len(noted) <= 1 + 2 * 33
    assert sum(map(int, noted[2::2])) == 100, "the last was pushed after the last look"
    assert taken(backend, 200) == [b"first", *(b"%d" % n for n in range(100))]


def test_a_purge_leaves_no_ages(server: RedisServer, backend: RedisBackend) -> None:
    push(backend, b"first")
    flood(backend, 0)
    push(backend, b"urgent", 0)
    assert server.command("EXISTS", AGES) == 1
    assert backend.purge("q") == 2
    assert server.command("KEYS", "qframe:notes:*") == []


# -- others ---------------------------------------------------------------------------------------


def test_an_idle_worker_is_woken(backend: RedisBackend, open_backend: Opener) -> None:
    backend.reserve(["q"])
    pusher = threading.Timer(0.3, push, (open_backend(), b"urgent", 0))
    pusher.start()
    began = time.monotonic()
    while not (found := taken(backend)):
        backend.wait(["q"], 60)
    assert found == [b"urgent"]
    assert time.monotonic() - began < 30
    pusher.join()


def test_a_prefix_and_aging_are_the_connection_s(server: RedisServer, open_backend: Opener) -> None:
    backend = open_backend(prefix="shop_", aging=1)
    push(backend, b"plain")
    push(backend, b"urgent", 0)
    assert server.command("ZCARD", "shop_queues:q:delayed") == 1
    assert taken(backend) == [b"urgent"]
    backend.timing.skew += 6  # five levels of one second
    push(backend, b"urgent", 0)
    assert taken(backend) == [b"plain"]


def test_a_full_memory_keeps_none_from_being_taken(
    server: RedisServer, backend: RedisBackend
) -> None:
    push(backend, b"plain")
    push(backend, b"urgent", 0)
    server.set("maxmemory", 1)
    assert taken(backend, 2) == [b"urgent", b"plain"]


def test_buried_and_found(server: RedisServer, backend: RedisBackend) -> None:
    push(backend, b"urgent", 0)
    (job,), _ = backend.reserve(["q"])
    backend.apply(Step(job, Start(60)))
    backend.apply(Step(job, Bury()))
    (member,) = server.command("LRANGE", "queues:q:buried", 0, -1)
    assert message.level_in(member) == message.level(0, AGING)
    assert backend.sizes("q") == Sizes(buried=1)
