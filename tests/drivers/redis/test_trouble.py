"""A server that is full, keys that are somebody else's, names, waits, forks."""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest

from qframe.contracts.step import (
    Bury,
    Delete,
    Operation,
    Push,
    Release,
    Renew,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnavailable, BackendUnusable, InvalidQueueName
from tests.drivers.redis.conftest import Opener
from tests.support.redis_server import RedisServer

QUEUE = "q"


def _push(backend: RedisBackend, *raws: bytes, queue: str = QUEUE, delay: float = 0.0) -> None:
    backend.apply(*(Step(None, Push(queue, raw, delay)) for raw in raws))


def test_jobs_are_worked_off_when_the_memory_is_full(
    server: RedisServer, backend: RedisBackend
) -> None:
    _push(backend, *(b"%d" % n for n in range(6)))
    backend.apply(Step(None, Set("lock", "1")))
    server.set("maxmemory", 1)
    with pytest.raises(BackendUnavailable, match="memory is full"):
        _push(backend, b"x")
    jobs, _ = backend.reserve([QUEUE], 6)
    operations: list[Operation] = [
        Delete(), Release(), Release(5.0), Bury(), Renew(9), Release(front=True)
    ]  # fmt: skip
    for job, operation in zip(jobs, operations, strict=True):
        assert backend.apply(Step(job, Start(60, b"notes")))[0].applied
        assert backend.apply(Step(job, operation))[0].applied
    assert backend.apply(Step(None, Unset("lock")))[0].applied
    server.set("maxmemory", 0)
    assert backend.sizes(QUEUE).ready == 2
    _push(backend, b"x")
    assert backend.sizes(QUEUE).ready == 3


@pytest.mark.parametrize("end", ["", ":notify", ":delayed", ":reserved"])
def test_a_key_of_somebody_else_stops_nobody(
    end: str, server: RedisServer, backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    _push(backend, b"a", queue="bad")
    server.command("DEL", f"queues:bad{end}")
    server.command("SET", f"queues:bad{end}", "mine")
    _push(backend, b"b", queue="good")
    (job,), _ = backend.reserve(["bad", "good"], 2)
    assert job.raw_body == b"b"
    assert f"queues:bad{end} is a string" in caplog.text
    assert backend.queues() == (["bad", "good"] if end == ":notify" else ["good"])
    assert backend.reserve(["bad", "good"], 2)[0] == []
    began = time.monotonic()
    backend.wait(["bad", "good"], 0.2)
    assert time.monotonic() - began >= 0.19
    server.command("DEL", "queues:bad", f"queues:bad{end}")
    _push(backend, b"c", queue="bad")
    assert len(backend.reserve(["bad"])[0]) == 1
    server.command("SET", "queues:bad", "mine")
    with pytest.raises(BackendUnusable, match="queues:bad is a string"):
        _push(backend, b"c", queue="bad")


def test_names_of_empty_queues_are_forgotten(
    server: RedisServer, backend: RedisBackend, open_backend: Opener
) -> None:
    for n in range(20):
        _push(backend, b"a", queue=f"q{n}")
    for n in range(19):
        backend.purge(f"q{n}")
    other = open_backend()
    assert other.queues() == ["q19"]
    assert server.command("SCARD", "qframe:queues") == 1
    _push(backend, b"a", queue="q3")
    _push(backend, b"a", queue="q5", delay=60)
    assert other.queues() == ["q19", "q3", "q5"]


def test_queues_only_php_pushed_to_are_found(server: RedisServer, backend: RedisBackend) -> None:
    server.command("RPUSH", "queues:php", b"{}")
    assert backend.queues() == ["php"]
    with pytest.raises(InvalidQueueName):
        backend.check_queue("php:delayed")


def test_a_reservation_stops_after_many_bytes(backend: RedisBackend) -> None:
    backend.timing.most_bytes = 100
    _push(backend, *[b"%060d" % n for n in range(5)])
    assert [len(backend.reserve([QUEUE], 10)[0]) for _ in range(3)] == [2, 2, 1]


def test_an_empty_queue_keeps_at_most_one_token(server: RedisServer, backend: RedisBackend) -> None:
    _push(backend, *(b"%d" % n for n in range(5)))
    assert server.command("LLEN", "queues:q:notify") == 5
    backend.reserve([QUEUE], 3)
    assert server.command("LLEN", "queues:q:notify") == 2
    backend.reserve([QUEUE], 3)
    assert server.command("LLEN", "queues:q:notify") <= 1


def test_who_is_woken_by_a_signal_leaves_the_token_to_others(
    server: RedisServer, backend: RedisBackend
) -> None:
    backend.reserve([QUEUE])
    reader, writer = os.pipe()
    os.write(writer, b"x")
    _push(backend, b"a")
    backend.wait([QUEUE], 5, reader)
    assert server.command("LLEN", "queues:q:notify") == 1
    os.close(reader)
    os.close(writer)


def _connected(server: RedisServer) -> int:
    """Give how often anybody has connected."""
    return int(server.command("INFO", "stats")["total_connections_received"])


def test_an_idle_worker_starts_soon(
    server: RedisServer, backend: RedisBackend, open_backend: Opener
) -> None:
    """And costs one connection more, not one each time."""
    other = open_backend()
    took = []
    assert backend.reserve([QUEUE]) == ([], [])
    _push(other, b"to connect")
    (first,), _ = backend.reserve([QUEUE])
    backend.apply(Step(first, Delete()))
    before = _connected(server)
    for n in range(20):
        assert backend.reserve([QUEUE]) == ([], [])
        pushing = threading.Timer(0.02, lambda n=n: _push(other, b"%d" % n))
        pushing.start()
        backend.wait([QUEUE], 5)
        woken = time.monotonic()
        (job,), _ = backend.reserve([QUEUE])
        took.append(time.monotonic() - woken)
        backend.apply(Step(job, Delete()))
        pushing.join()
    assert statistics.median(took) < 0.5  # it does not wait for its next look, a second
    assert _connected(server) - before <= len(took) + 2  # each push has a thread; and who asks here


def test_a_forked_child_has_connections_of_its_own(
    server: RedisServer, backend: RedisBackend
) -> None:
    _push(backend, b"a")
    (job,), _ = backend.reserve([QUEUE])
    backend.apply_async([Step(job, Start(60))], lambda _: None)
    child = os.fork()
    if not child:
        try:
            _push(backend, b"from the child")
            backend.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert backend.apply(Step(job, Delete()))[0].applied
    assert backend.sizes(QUEUE).ready == 1


def test_the_parts_of_a_payload_are_of_one_slot_on_a_cluster(open_backend: Opener) -> None:
    keys = open_backend(cluster=True).keys
    queue = keys.of("q")
    for key in (queue.ready, queue.delayed, queue.notes.decode(), keys.markers_beside(queue.ready)):
        assert "{q}" in key
        assert key.index("{q}") == key.index("{")
    assert "{facts}" in keys.markers_beside(keys.facts)
