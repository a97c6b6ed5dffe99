"""Waiting: one blocking wait on all queues, ended by whatever comes first; its tokens."""

from __future__ import annotations

import os
import random
import select
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    Bury,
    Delete,
    Operation,
    Push,
    Release,
    Reservation,
    Start,
    Step,
)
from qframe.drivers.redis.backend import RedisBackend
from qframe.testing.conformance.steps import apply, push, reserve, started, tried
from tests.drivers.redis.acts import payload
from tests.drivers.redis.conftest import MakeProject, Opener
from tests.drivers.redis.producing import Waiting, blocked
from tests.support.process import wait_for
from tests.support.projects import RedisProject, body, lines_with, wait_for_line
from tests.support.redis_server import RedisServer, wait_until

QUEUE = "q"
READY = f"queues:{QUEUE}"
NOTIFY = f"{READY}:notify"
LONG = 60.0
SOON = LONG / 2
"""Seconds within which a wait has ended that was told to; generous for a busy machine."""


@pytest.fixture
def backend(open_backend: Opener) -> RedisBackend:
    """A backend that looks for itself so seldom that nothing is found by chance."""
    return open_backend(block_for=LONG, retry_after=LONG)


@pytest.fixture
def other(open_backend: Opener) -> RedisBackend:
    return open_backend(block_for=LONG, retry_after=LONG)


def tokens(server: RedisServer, name: str = QUEUE) -> int:
    return int(server.command("LLEN", f"queues:{name}:notify"))


def php_push(server: RedisServer, *names: str, raw: str = "") -> None:
    """Push as Laravel does, to several queues at once."""
    names = names or (QUEUE,)
    keys = [key for name in names for key in (f"queues:{name}", f"queues:{name}:notify")]
    script = """
    for i = 1, #KEYS, 2 do
        redis.call('rpush', KEYS[i], ARGV[1])
        redis.call('rpush', KEYS[i + 1], 1)
    end"""
    server.command("EVAL", script, len(keys), *keys, raw or body(attempts=0))


@contextmanager
def waiting(
    server: RedisServer, backend: RedisBackend, *names: str
) -> Iterator[Callable[[], float]]:
    """Let a thread wait; gives what waits for its end and gives the seconds since it waited."""
    before = blocked(server)
    with Waiting(backend, names or (QUEUE,), LONG) as thread:
        wait_until(lambda: blocked(server) > before or thread.over(), "the wait to begin")
        assert not thread.over(), thread.error
        began = time.monotonic()

        def ended() -> float:
            wait_for(thread.over, "the wait to end", LONG)
            assert thread.error is None
            return time.monotonic() - began

        yield ended


# -- what ends a wait -----------------------------------------------------------------------------


ENDS: dict[str, Callable[[RedisServer, RedisBackend, Reservation], object]] = {
    "php's push": lambda server, _, __: php_push(server),
    "a push": lambda _, other, __: push(other, payload(1)),
    "a sooner delay": lambda _, other, __: push(other, payload(1), delay=0.2),
    "a release": lambda _, other, job: apply(other, job, Release()),
    "a give back": lambda _, other, job: apply(other, job, Release(front=True, counted=False)),
    "a later release": lambda _, other, job: apply(other, job, Release(0.2)),
    "a kick": lambda _, other, job: (tried(other, job, Bury()), other.kick(QUEUE)),
    "scripts forgotten": lambda server, other, _: (
        server.command("SCRIPT", "FLUSH"),
        other.apply(Step(None, Push(QUEUE, payload(1)))),
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_it_ends_when_there_may_be_something(
    server: RedisServer,
    backend: RedisBackend,
    other: RedisBackend,
    end: Callable[[RedisServer, RedisBackend, Reservation], object],
) -> None:
    push(other, payload())
    job = started(other)
    push(other, payload(), delay=50)
    with waiting(server, backend, "first", QUEUE) as ended:
        end(server, other, job)
        assert ended() < SOON
    wait_for(lambda: backend.reserve(["first", QUEUE])[0], "what came")


def test_a_delayed_push_that_is_not_the_next_changes_nothing(
    server: RedisServer, backend: RedisBackend, other: RedisBackend
) -> None:
    push(other, payload(), delay=40)
    with waiting(server, backend) as ended:
        push(other, payload(), delay=50)
        time.sleep(0.3)
        assert blocked(server) == 1
        push(other, payload())
        assert ended() < SOON


def test_it_ends_with_a_delay_and_with_a_lease(
    server: RedisServer, backend: RedisBackend, other: RedisBackend
) -> None:
    pushed = time.monotonic()
    push(other, payload(), delay=1.5)
    with waiting(server, backend, "low", QUEUE) as ended:
        assert ended() < 1.5 + SOON
    assert time.monotonic() - pushed > 1.4
    reserve(backend)
    with waiting(server, other, "low", QUEUE) as ended:
        assert ended() < backend.timing.hold + SOON
    assert reserve(other).attempts == 0


def test_what_php_delays_is_found_after_block_for(
    server: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(block_for=0.5, retry_after=LONG)
    with waiting(server, backend) as ended:
        server.command("ZADD", f"{READY}:delayed", time.time() - 1, body())
        assert ended() < 0.5 + SOON
    assert reserve(backend).attempts == 0


def test_it_ends_in_time_or_by_a_descriptor_and_leaves_nobody_blocked(
    server: RedisServer, backend: RedisBackend
) -> None:
    began = time.monotonic()
    backend.wait([QUEUE], 0.3)
    assert 0.29 < time.monotonic() - began < 0.3 + SOON
    wait_until(lambda: blocked(server) == 0, "nobody blocked")
    reader, writer = os.pipe()
    timer = threading.Timer(0.2, os.write, (writer, b"x"))
    timer.start()
    began = time.monotonic()
    backend.wait([QUEUE], LONG, reader)
    assert time.monotonic() - began < 0.2 + SOON
    wait_until(lambda: blocked(server) == 0, "nobody blocked")
    timer.join()
    os.close(reader)
    os.close(writer)


def test_it_begins_only_where_there_is_nothing(server: RedisServer, backend: RedisBackend) -> None:
    php_push(server)
    server.command("DEL", NOTIFY)
    began = time.monotonic()
    backend.wait(["other", QUEUE], LONG)
    assert time.monotonic() - began < SOON


def test_fifty_queues_are_waited_for_at_once(server: RedisServer, backend: RedisBackend) -> None:
    names = [f"q{number}" for number in range(50)]
    for name in (names[0], names[-1]):
        with waiting(server, backend, *names) as ended:
            assert blocked(server) == 1
            php_push(server, name)
            assert ended() < SOON
        assert reserve(backend, name).queue == name


def test_the_order_of_the_queues_holds_whoever_wakes(
    server: RedisServer, backend: RedisBackend
) -> None:
    """The token may be that of the last queue: the job is that of the first."""
    names = ["high", "middle", "low"]
    with waiting(server, backend, *names) as ended:
        php_push(server, *reversed(names))
        assert ended() < SOON
    assert [backend.reserve(names)[0][0].queue for _ in names] == names


def test_restarts_and_killed_connections_between_waits_go_unnoticed(
    own_server: RedisServer, open_backend: Opener
) -> None:
    backend = open_backend(own_server.url)
    for trouble in (
        own_server.restart,
        lambda: own_server.command("CLIENT", "KILL", "TYPE", "normal"),
    ):
        assert backend.reserve([QUEUE])[0] == []
        backend.wait([QUEUE], 0.01)
        trouble()
    assert backend.reserve([QUEUE])[0] == []


# -- no token is lost -----------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 0.0005, 0.001, 0.002, None])
def test_a_wait_given_up_takes_no_wake_up_from_another(
    server: RedisServer, backend: RedisBackend, other: RedisBackend, late: float | None
) -> None:
    """One is told to stop in the moment of a push, or before: the other gets the job at once."""
    readable, writable = os.pipe()
    assert backend.reserve([QUEUE])[0] == []

    def give_up() -> None:
        backend.wait([QUEUE], LONG, readable)
        backend.wait((), 0)  # as a worker does that ends, or is paused
        backend.close()

    gives_up = threading.Thread(target=give_up)
    gives_up.start()
    wait_until(lambda: blocked(server) == 1, "it is first in the server's line")
    with Waiting(other, [QUEUE], LONG) as second:
        wait_until(lambda: blocked(server) == 2, "the other is second")
        if late is None:
            php_push(server)
        os.write(writable, b"!")
        if late is not None:
            time.sleep(late)
            php_push(server)
        gives_up.join(SOON)
        began = time.monotonic()
        wait_for(second.over, "the other to be woken")
        assert time.monotonic() - began < SOON
    assert len(other.reserve([QUEUE])[0]) == 1
    os.close(readable)
    os.close(writable)


class Interrupted:
    """A thread that works, and leaves a wait whenever it is told to."""

    def __init__(self, backend: RedisBackend, taken: list[float]) -> None:
        self._backend, self._taken = backend, taken
        self._reader, self._writer = os.pipe()
        self._stopped = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def interrupt(self) -> None:
        os.write(self._writer, b"x")

    def stop(self) -> None:
        self._stopped = True
        self.interrupt()
        self._thread.join(30)
        os.close(self._reader)
        os.close(self._writer)

    def _work(self) -> None:
        while not self._stopped:
            jobs, _ = self._backend.reserve([QUEUE])
            for job in jobs:
                self._taken.append(time.monotonic())
                self._backend.apply(Step(job, Start(60)))
                self._backend.apply(Step(job, Delete()))
            if not jobs:
                self._backend.wait([QUEUE], LONG, self._reader)
                if select.select([self._reader], [], [], 0)[0]:
                    os.read(self._reader, 100)
                    time.sleep(0.01)  # it does something else for a moment
        self._backend.close()


def test_of_many_workers_one_is_woken_for_each_job_and_none_is_lost(
    server: RedisServer, open_backend: Opener
) -> None:
    """Four workers, two of them interrupted just before each job."""
    chance = random.Random(7)
    taken: list[float] = []
    workers = [Interrupted(open_backend(block_for=LONG), taken) for _ in range(4)]
    waited = []
    for number in range(80):
        for worker in chance.sample(workers[:3], 2):
            worker.interrupt()
        pushed = time.monotonic()
        php_push(server)
        wait_for(lambda wanted=number: len(taken) > wanted, f"job {number}", LONG)  # type: ignore[misc]
        waited.append(taken[number] - pushed)
    for worker in workers:
        worker.stop()
    assert len(taken) == 80
    assert max(waited) < SOON
    assert statistics.median(waited) < 0.5  # nobody looks without being woken: that takes a minute


# -- how many tokens there are --------------------------------------------------------------------


def test_reserving_takes_as_many_tokens_as_jobs(server: RedisServer, backend: RedisBackend) -> None:
    for _ in range(10):
        php_push(server)
    assert tokens(server) == 10
    assert len(backend.reserve([QUEUE], 3)[0]) == 3
    assert tokens(server) == 7
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    assert len(backend.reserve([QUEUE], 2)[0]) == 2
    assert tokens(server) == 5, "those too many were taken away"
    assert len(backend.reserve([QUEUE], 20)[0]) == 5
    assert tokens(server) <= 1


def test_an_empty_queue_leaves_no_token_that_would_wake_for_nothing(
    server: RedisServer, backend: RedisBackend
) -> None:
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    assert backend.reserve(["other", QUEUE])[0] == []
    assert tokens(server) == 0
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    began = time.monotonic()
    rounds = 0
    while time.monotonic() - began < 0.5:
        backend.reserve([QUEUE])
        backend.wait([QUEUE], 0.5)
        rounds += 1
    assert rounds <= 3


class Anything:
    """Does one thing after the other to the queue."""

    def __init__(self, server: RedisServer, backend: RedisBackend, seed: int) -> None:
        self._server, self._backend = server, backend
        self._chance = random.Random(seed)
        self._held: list[Reservation] = []
        self._steps = [
            *[self._push] * 4, *[self._reserve] * 3, *[self._settle] * 3, self._operate,
        ]  # fmt: skip

    def happen(self) -> None:
        self._chance.choice(self._steps)()

    def _push(self) -> None:
        if self._chance.random() < 0.3:
            php_push(self._server)
        else:
            push(self._backend, payload(), delay=self._chance.choice([0, 0, 0.01, 30]))

    def _reserve(self) -> None:
        self._held += self._backend.reserve([QUEUE], self._chance.randint(1, 5))[0]

    def _settle(self) -> None:
        if self._held:
            job = self._held.pop()
            ends: list[Operation] = [
                Release(),
                Release(0.01),
                Release(counted=False),
                Delete(),
                Bury(),
            ]
            if self._backend.apply(Step(job, Start(60)))[0].applied:
                self._backend.apply(Step(job, self._chance.choice(ends)))

    def _operate(self) -> None:
        self._chance.choice([self._backend.kick, self._backend.kick, self._backend.purge])(QUEUE)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_never_more_than_the_jobs_and_one(
    server: RedisServer, backend: RedisBackend, seed: int
) -> None:
    """Whatever is done, in whatever order; and where there is a ready job there is one."""
    anything = Anything(server, backend, seed)
    with server.client() as client:
        for _ in range(600):
            anything.happen()
            ready, there = int(client.llen(READY)), int(client.llen(NOTIFY))
            assert min(ready, 1) <= there <= ready + 1
    while backend.reserve([QUEUE], 50)[0]:
        pass
    assert tokens(server) <= 1


def test_delayed_pushes_leave_one_token_at_most(server: RedisServer, backend: RedisBackend) -> None:
    for number in range(300, 0, -1):  # each is the next one to end
        push(backend, payload(), delay=number)
    assert tokens(server) <= 1


def test_many_cycles_leave_one_token_at_most(server: RedisServer, backend: RedisBackend) -> None:
    first: list[Step] = []
    for number in range(2000):
        push(backend, payload(number))
        (job,), _ = backend.reserve([QUEUE], first=first)
        backend.apply_async([Step(job, Start(60))], lambda results: None)
        first = [job.delete()]
    assert backend.reserve([QUEUE], first=first)[0] == []
    assert tokens(server) <= 1
    assert backend.sizes(QUEUE) == Sizes()


# -- workers --------------------------------------------------------------------------------------


@pytest.fixture
def app(server: RedisServer, make_project: MakeProject) -> RedisProject:
    return make_project(url=server.url)


def test_an_idle_worker_starts_what_comes_and_ends_at_once(app: RedisProject) -> None:
    app.looks_seldom()
    worker = app.idle("redis", "--queue", "high,default")
    late = []
    for number, delay in enumerate([0, 0.4] * 4):
        due = time.time() + delay
        app.push("Note", {"word": str(number)}, delay=delay)
        late.append(float(app.wait_for_note("note", number)[4]) - due)
        wait_for(app.empty, "its end")
    assert min(late) > -0.1
    assert statistics.median(late) < SOON
    assert max(late) < SOON
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - began < 20


def test_a_killed_idle_worker_takes_no_token_along(app: RedisProject) -> None:
    """It was first in line."""
    first = app.idle("redis")
    second = app.work("redis")
    app.wait_for_note("idle", second.pid)
    first.end()
    pushed = time.time()
    app.push("Note", {"word": "x"})
    line = app.wait_for_note("note", "x")
    assert float(line[4]) - pushed < SOON
    assert int(line[3]) == second.pid
    second.stop()


def test_a_worker_whose_connections_are_killed_while_it_waits_goes_on(
    own_server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=own_server.url, block_for=60)
    worker = app.work("redis", "--sleep", 60)
    for turn in range(3):
        wait_until(lambda: blocked(own_server) > 0, "the wait")
        own_server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        app.push("Note", {"word": str(turn)})
        app.wait_for_note("note", turn)
    assert worker.stop() == 0
    assert app.done() == ["0", "1", "2"]
    assert worker.err == ""


def test_a_worker_says_once_that_its_server_became_a_replica(
    own_server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=own_server.url, block_for=60)
    worker = app.work("redis", "--sleep", 60)
    wait_until(lambda: blocked(own_server) > 0, "the wait")
    own_server.command("REPLICAOF", "127.0.0.1", "1")
    assert "read-only replica" in wait_for_line(worker, "redis gone: ")
    own_server.command("REPLICAOF", "NO", "ONE")
    app.push("Note", {"word": "after"})
    app.wait_for_note("note", "after")
    assert worker.stop() == 0
    assert [len(lines_with(worker, word)) for word in ("gone", "back")] == [1, 1]
    assert worker.err == ""


@pytest.mark.slow
def test_an_idle_worker_makes_at_most_one_round_trip_a_second(
    server: RedisServer, app: RedisProject
) -> None:
    worker = app.idle("redis")

    def round_trips() -> int:
        return int(server.info("stats")["total_reads_processed"])

    time.sleep(1)
    process = psutil.Process(worker.pid)
    asking = -round_trips() + round_trips()
    before, began, cpu = round_trips(), time.monotonic(), process.cpu_times()
    time.sleep(14)
    seconds = time.monotonic() - began
    used = process.cpu_times()
    assert 1 <= round_trips() - before - asking <= seconds
    assert used.user + used.system - cpu.user - cpu.system < 0.02 * seconds
    assert worker.stop() == 0
