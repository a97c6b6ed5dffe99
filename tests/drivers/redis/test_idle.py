"""An idle worker: what it costs, what wakes it, and what it leaves for others when it is woken."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest

from qframe.drivers.redis.queue import RedisQueue
from tests.drivers.redis.conftest import Connect, MakeProject
from tests.drivers.redis.support import body, push
from tests.support.redis_server import RedisServer

LONG = 30.0
SOON = 10.0


def round_trips(server: RedisServer) -> int:
    """Count how often it has read something from a client, the question included."""
    return int(server.info("stats")["total_reads_processed"])


def test_an_idle_worker_makes_at_most_one_round_trip_a_second(
    server: RedisServer, make_project: MakeProject
) -> None:
    worker = make_project(url=server.url).idle()
    time.sleep(1)
    process = psutil.Process(worker.pid)
    asking = -round_trips(server) + round_trips(server)
    before, began, cpu = round_trips(server), time.monotonic(), process.cpu_times()
    time.sleep(14)
    seconds = time.monotonic() - began
    used = process.cpu_times()
    assert 1 <= round_trips(server) - before - asking <= seconds
    assert used.user + used.system - cpu.user - cpu.system < 0.02 * seconds
    assert worker.stop() == 0


def test_a_push_as_php_makes_it_wakes_the_wait(server: RedisServer, queue: RedisQueue) -> None:
    def push_like_laravel() -> None:
        server.command("RPUSH", "queues:emails", body("php"))
        server.command("RPUSH", "queues:emails:notify", "1")

    assert queue.reserve(["high", "emails"]) == []
    timer = threading.Timer(0.3, push_like_laravel)
    timer.start()
    began = time.monotonic()
    queue.wait(["high", "emails"], LONG)
    assert 0.2 < time.monotonic() - began < SOON / 2
    timer.join()
    (job,) = queue.reserve(["high", "emails"])
    assert job.uuid == "php"


@pytest.mark.parametrize("again", range(5))
def test_a_wait_given_up_takes_no_wake_up_from_another(
    server: RedisServer, another: Connect, again: int
) -> None:
    """One is told to stop in the moment of a push: the other one gets the job at once."""
    readable, writable = os.pipe()
    first, second = another(), another()
    assert first.reserve(["emails"]) == []
    gives_up = threading.Thread(target=first.wait, args=(["emails"], LONG, readable))
    gives_up.start()
    time.sleep(0.1)  # it is first in the server's line, whatever happens then
    assert second.reserve(["emails"]) == []
    waits = threading.Thread(target=second.wait, args=(["emails"], LONG))
    waits.start()
    time.sleep(0.1)
    os.write(writable, b"!")
    time.sleep(0.0005 * again)
    push(second)
    gives_up.join(SOON)
    waits.join(SOON)
    assert not waits.is_alive()
    assert len(another().reserve(["emails"])) == 1
    for end in (readable, writable):
        os.close(end)


def test_a_stop_signal_ends_an_idle_worker_at_once(
    server: RedisServer, make_project: MakeProject
) -> None:
    worker = make_project(url=server.url).idle()
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - began < 3


def test_a_delayed_job_starts_when_it_is_due(
    server: RedisServer, make_project: MakeProject
) -> None:
    """Promptly: bounds for a busy machine here, milliseconds in the benchmarks."""
    project = make_project(url=server.url)
    worker = project.idle()
    for number in range(3):
        project.push("Note", {"word": str(number)}, delay=1.5)
        due = time.time() + 1.5
        words = project.wait_for_note("note", number)
        assert -0.05 < float(words[-1]) - due < 1
    assert worker.stop() == 0


def test_jobs_wait_in_strict_order_for_who_was_woken(
    server: RedisServer, queue: RedisQueue
) -> None:
    assert queue.reserve(["high", "low"]) == []
    push_both = """
    for i, name in ipairs({'low', 'high'}) do
        redis.call('RPUSH', KEYS[2 * i - 1], ARGV[i])
        redis.call('RPUSH', KEYS[2 * i], 1)
    end"""
    keys = [key for name in ("low", "high") for key in (f"queues:{name}", f"queues:{name}:notify")]
    timer = threading.Timer(
        0.2, server.command, ("EVAL", push_both, 4, *keys, body("low"), body("high"))
    )
    timer.start()
    queue.wait(["high", "low"], LONG)
    timer.join()
    taken = [job.uuid for _ in range(2) for job in queue.reserve(["high", "low"])]
    assert taken == ["high", "low"]
