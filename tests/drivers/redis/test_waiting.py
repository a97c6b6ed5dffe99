"""Waiting: one blocking wait on all queues, ended by whatever comes first; its tokens."""

from __future__ import annotations

import functools
import os
import random
import select
import statistics
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from redis.connection import Connection

from qframe.contracts import Sizes
from qframe.drivers.base import HOLD
from qframe.drivers.redis import waiting as waits
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.link import Link
from qframe.drivers.redis.queue import RedisQueue
from qframe.drivers.redis.scripts import Command
from qframe.drivers.redis.wire import Wire
from tests.drivers.redis.conftest import Connect
from tests.drivers.redis.support import RedisProject, Waiting, body, push, take
from tests.support.process import Process, wait_for
from tests.support.redis_server import RedisServer, wait_until

QUEUE = "emails"
READY = f"queues:{QUEUE}"
NOTIFY = f"{READY}:notify"
LONG = 60.0
SOON = 2.0
"""Seconds within which a wait has ended that was told to; generous for a busy machine."""


@pytest.fixture
def queue(server: RedisServer, connect: Connect) -> RedisQueue:
    """Give a connection that looks for itself so seldom that nothing is found by chance."""
    return connect(url=server.url, block_for=LONG, retry_after=LONG)


@pytest.fixture
def other(server: RedisServer, connect: Connect) -> RedisQueue:
    return connect(url=server.url, block_for=LONG, retry_after=LONG)


def blocked(server: RedisServer) -> int:
    """Count the connections that wait."""
    return int(server.info("clients")["blocked_clients"])


def tokens(server: RedisServer, name: str = QUEUE) -> int:
    return int(server.command("LLEN", f"queues:{name}:notify"))


def php_push(server: RedisServer, name: str = QUEUE) -> str:
    """Push as Laravel does."""
    uuid = str(uuids.uuid4())
    script = "redis.call('rpush', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], 1)"
    keys = f"queues:{name}", f"queues:{name}:notify"
    server.command("EVAL", script, 2, *keys, body(uuid, id=uuid, attempts=0))
    return uuid


@contextmanager
def waiting(
    server: RedisServer, queue: RedisQueue, *names: str, seconds: float = LONG
) -> Iterator[Callable[[], float]]:
    """Let a thread wait; gives what waits for its end and gives the seconds since it waited."""
    before = blocked(server)
    with Waiting(queue, names or (QUEUE,), seconds) as thread:
        wait_until(lambda: blocked(server) > before or thread.over(), "the wait to begin")
        assert not thread.over()
        began = time.monotonic()

        def ended() -> float:
            wait_for(thread.over, "the wait to end", LONG)
            assert thread.error is None
            return time.monotonic() - began

        yield ended


# -- what a wait takes ----------------------------------------------------------------------------


def wait_after_a_look(queue: RedisQueue, other: RedisQueue, *names: str) -> None:
    """Find nothing, and wait for what is pushed meanwhile."""
    assert queue.reserve(names or (QUEUE,)) == []
    timer = threading.Timer(0.2, push, (other, QUEUE))
    timer.start()
    queue.wait(names or (QUEUE,), LONG)
    timer.join()
    other.close()


def test_a_wait_ends_with_the_job_held(queue: RedisQueue, other: RedisQueue) -> None:
    wait_after_a_look(queue, other, "first", QUEUE)
    assert queue.sizes(QUEUE) == Sizes(reserved=1)
    job = take(queue, "first", QUEUE)
    assert isinstance(job, RedisJob)
    assert job.sure_until > queue.clock(), "its start need not be waited for"
    assert queue.start(job)
    assert job.attempts() == 1
    job.delete()
    assert queue.sizes(QUEUE) == Sizes()


def test_what_a_wait_took_goes_back_uncounted_at_once(
    queue: RedisQueue, other: RedisQueue, connect: Connect, server: RedisServer
) -> None:
    third = connect(url=server.url)
    wait_after_a_look(queue, other)
    queue.let_go()
    queue.let_go()
    assert take(third).attempts() == 0
    third.let_go()
    assert third.sizes(QUEUE) == Sizes(reserved=1), "only what a wait took"


def test_what_a_wait_took_of_queues_not_worked_any_more_goes_back(
    queue: RedisQueue, other: RedisQueue
) -> None:
    wait_after_a_look(queue, other, "first", QUEUE)
    assert queue.reserve(["first"]) == []
    assert queue.sizes(QUEUE) == Sizes(ready=1)


def test_closing_gives_back_what_a_wait_took(
    queue: RedisQueue, other: RedisQueue, connect: Connect, server: RedisServer
) -> None:
    wait_after_a_look(queue, other)
    queue.close()
    assert connect(url=server.url).sizes(QUEUE) == Sizes(ready=1)


def test_what_a_wait_took_too_long_ago_is_not_started(
    queue: RedisQueue, other: RedisQueue, connect: Connect, server: RedisServer
) -> None:
    wait_after_a_look(queue, other)
    time.sleep(HOLD + 0.1)
    theirs = take(connect(url=server.url))
    late = take(queue)
    assert isinstance(late, RedisJob)
    assert late.sure_until < queue.clock()
    assert not queue.start(late)
    assert late.is_lost
    theirs.delete()


def test_scripts_forgotten_while_it_waits_cost_no_job(
    queue: RedisQueue, other: RedisQueue, server: RedisServer
) -> None:
    assert queue.reserve([QUEUE]) == []

    def forget_and_push() -> None:
        server.command("SCRIPT", "FLUSH")
        php_push(server)

    timer = threading.Timer(0.2, forget_and_push)
    timer.start()
    queue.wait([QUEUE], LONG)
    timer.join()
    assert take(queue).attempts() == 0


# -- what ends a wait -----------------------------------------------------------------------------


def test_a_push_of_php_ends_a_wait(server: RedisServer, queue: RedisQueue) -> None:
    with waiting(server, queue, "other", QUEUE) as ended:
        uuid = php_push(server)
        assert ended() < SOON
    assert take(queue, "other", QUEUE).uuid == uuid


def test_a_push_ends_a_wait(server: RedisServer, queue: RedisQueue, other: RedisQueue) -> None:
    with waiting(server, queue, "other", QUEUE) as ended:
        push(other, QUEUE)
        assert ended() < SOON


def test_a_wait_ends_when_the_next_delayed_job_is_due(
    server: RedisServer, queue: RedisQueue
) -> None:
    push(queue, QUEUE, delay=0.7)
    with waiting(server, queue, "other", QUEUE) as ended:
        assert 0.3 < ended() < 0.7 + SOON
    assert take(queue).attempts() == 0


def test_a_delayed_push_that_is_due_sooner_ends_a_wait(
    server: RedisServer, queue: RedisQueue, other: RedisQueue
) -> None:
    push(queue, QUEUE, delay=50)
    with waiting(server, queue) as ended:
        push(other, QUEUE, delay=30)
        assert ended() < SOON
    with waiting(server, queue) as ended:
        push(other, QUEUE, delay=40)
        time.sleep(0.3)
        assert blocked(server) == 1, "a later one changes nothing"
        push(other, QUEUE)
        assert ended() < SOON


def test_a_job_php_delays_is_found_after_block_for(server: RedisServer, connect: Connect) -> None:
    queue = connect(url=server.url, block_for=0.5, retry_after=LONG)
    with waiting(server, queue) as ended:
        server.command("ZADD", f"{READY}:delayed", time.time() - 1, body())
        assert ended() < 0.5 + SOON
    assert take(queue).attempts() == 0


def test_a_wait_ends_with_the_next_lease(
    server: RedisServer, queue: RedisQueue, other: RedisQueue
) -> None:
    push(other, QUEUE)
    uuid = take(other).uuid
    with waiting(server, queue, "low", QUEUE) as ended:
        assert ended() < HOLD + SOON
    assert take(queue, "low", QUEUE).uuid == uuid


@pytest.mark.parametrize("delayed", [True, False])
def test_a_reservation_in_vain_knows_how_long_to_wait(
    server: RedisServer, queue: RedisQueue, other: RedisQueue, delayed: bool
) -> None:
    """The next delay, or the next lease, in the last of the queues."""
    began = time.monotonic()
    push(other, QUEUE, delay=HOLD if delayed else 0)
    held = [] if delayed else [take(other)]
    assert queue.reserve(["high", "low", QUEUE]) == []
    queue.wait(["high", "low", QUEUE], LONG)
    assert HOLD * 0.9 < time.monotonic() - began < HOLD + SOON
    assert len(queue.reserve(["high", "low", QUEUE])) == 1
    assert len(held) == (not delayed)


@pytest.mark.parametrize("step", ["release", "give_back"])
def test_a_job_that_comes_back_ends_a_wait(
    server: RedisServer, queue: RedisQueue, other: RedisQueue, step: str
) -> None:
    push(other, QUEUE)
    job = take(other)
    other.start(job)
    with waiting(server, queue) as ended:
        getattr(job, step)()
        assert ended() < SOON
    assert take(queue).uuid == job.uuid


def test_a_kick_ends_a_wait(server: RedisServer, queue: RedisQueue, other: RedisQueue) -> None:
    push(other, QUEUE)
    take(other).bury()
    with waiting(server, queue) as ended:
        other.kick(QUEUE)
        assert ended() < SOON


def test_a_descriptor_ends_a_wait(server: RedisServer, queue: RedisQueue) -> None:
    reader, writer = os.pipe()
    timer = threading.Timer(0.2, os.write, (writer, b"x"))
    timer.start()
    began = time.monotonic()
    queue.wait([QUEUE], LONG, reader)
    assert time.monotonic() - began < 0.2 + SOON
    assert blocked(server) == 0
    timer.join()
    os.close(reader)
    os.close(writer)


def test_a_wait_ends_in_time_and_leaves_nobody_blocked(
    server: RedisServer, queue: RedisQueue
) -> None:
    began = time.monotonic()
    queue.wait([QUEUE], 0.3)
    assert 0.29 < time.monotonic() - began < 0.3 + SOON
    assert blocked(server) == 0


def test_a_wait_begins_only_where_there_is_nothing(server: RedisServer, queue: RedisQueue) -> None:
    php_push(server)
    server.command("DEL", NOTIFY)
    began = time.monotonic()
    queue.wait(["other", QUEUE], LONG)
    assert time.monotonic() - began < SOON


def test_fifty_queues_are_waited_for_at_once(server: RedisServer, queue: RedisQueue) -> None:
    names = [f"q{number}" for number in range(50)]
    queue.wait(names, 0.01)
    before = server.info("clients")["connected_clients"]
    for name in (names[0], names[-1]):
        with waiting(server, queue, *names) as ended:
            assert blocked(server) == 1
            php_push(server, name)
            assert ended() < SOON
        take(queue, *names).delete()
    assert server.info("clients")["connected_clients"] <= before


def test_the_order_of_the_queues_holds_whoever_wakes(
    server: RedisServer, queue: RedisQueue
) -> None:
    """The token may be that of the last queue: the job is that of the first."""
    names = ["high", "middle", "low"]
    for _ in range(3):
        with waiting(server, queue, *names) as ended:
            with server.client() as client, client.pipeline(transaction=True) as pipe:
                for name in reversed(names):
                    pipe.rpush(f"queues:{name}", body(job=f"jobs.{name}"))
                    pipe.rpush(f"queues:{name}:notify", 1)
                pipe.execute()
            assert ended() < SOON
        taken = []
        for _ in names:
            job = take(queue, *names)
            taken.append(job.queue)
            job.delete()
        assert taken == names


# -- no token is lost -----------------------------------------------------------------------------


class Worst:
    """Lets a job come at the worst moment of a wait that a descriptor ends.

    Another worker is second in line by then. The job's token is taken before, or after, the wait
    has seen that it is to end.
    """

    def __init__(self, server: RedisServer, other: RedisQueue, *, token_first: bool) -> None:
        self._server, self._other, self._token_first = server, other, token_first
        self._reader, self._writer = os.pipe()
        self._wait_for_any = waits.until_one
        self.pushed = ""
        self.seconds = LONG
        self._pushed_at = 0.0

    def end(self, wires: Sequence[Wire], wake: int | None, seconds: float) -> bool:
        """Stand in for `until_one`."""
        if self._token_first:
            self._push()
        os.write(self._writer, b"x")
        told = self._wait_for_any(wires, wake, seconds)
        if not self._token_first:
            self._push()
        return told

    def _push(self) -> None:
        wait_until(lambda: blocked(self._server) == 2, "both to be in line")
        self.pushed = php_push(self._server)
        self._pushed_at = time.monotonic()
        wait_until(lambda: blocked(self._server) == 1, "the first to have the token")

    def run(self, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        in_line = threading.Event()

        def second() -> None:
            wait_until(lambda: blocked(self._server) == 1, "the first to be in line")
            monkeypatch.undo()
            in_line.set()
            self._other.wait([QUEUE], 8)
            self.seconds = time.monotonic() - self._pushed_at

        monkeypatch.setattr("qframe.drivers.redis.idle.until_one", self.end)
        thread = threading.Thread(target=second)
        thread.start()
        queue.wait([QUEUE], LONG, self._reader)
        assert in_line.wait(SOON)
        thread.join(LONG)
        os.close(self._reader)
        os.close(self._writer)


@pytest.mark.parametrize("token_first", [True, False])
def test_a_worker_told_to_stop_takes_no_token_along(
    server: RedisServer, queue: RedisQueue, other: RedisQueue, token_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It was first in line; who is second gets the job, and soon."""
    worst = Worst(server, other, token_first=token_first)
    worst.run(queue, monkeypatch)
    assert worst.seconds < SOON
    assert take(other).uuid == worst.pushed


def test_a_wait_that_ends_before_the_server_knows_of_it_ends(
    server: RedisServer, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends it, on another connection, overtakes what began it."""
    send, ask = Connection.send_command, Link.ask
    late: list[Callable[[], None]] = []

    def send_late(connection: Connection, *words: Any, **options: Any) -> None:
        act = functools.partial(send, connection, *words, **options)
        late.append(act) if words[0] == "BLPOP" else act()

    def ask_and_let_go(link: Link, *commands: Command, **options: Any) -> list[Any]:
        replies = ask(link, *commands, **options)
        if late and commands[0].words[:2] == ("CLIENT", "UNBLOCK"):
            assert replies == [0]
            late.pop()()
        return replies

    queue.ping()
    monkeypatch.setattr(Connection, "send_command", send_late)
    monkeypatch.setattr(Link, "ask", ask_and_let_go)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    began = time.monotonic()
    queue.wait([QUEUE], LONG, reader)
    assert time.monotonic() - began < SOON
    assert blocked(server) == 0
    assert late == []
    os.close(reader)
    os.close(writer)


class Interrupted:
    """A thread that works, and leaves a wait whenever it is told to."""

    def __init__(self, queue: RedisQueue, taken: list[float]) -> None:
        self._queue, self._taken = queue, taken
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
            jobs = self._queue.reserve([QUEUE])
            for job in jobs:
                self._taken.append(time.monotonic())
                self._queue.start(job)
                job.delete()
            if not jobs:
                self._queue.wait([QUEUE], LONG, self._reader)
                if select.select([self._reader], [], [], 0)[0]:
                    os.read(self._reader, 100)
                    time.sleep(0.01)  # it does something else for a moment
        self._queue.close()


def test_of_many_workers_one_is_woken_for_each_job_and_none_is_lost(
    server: RedisServer, connect: Connect
) -> None:
    """Four workers, two of them interrupted just before each job."""
    chance = random.Random(7)
    taken: list[float] = []
    settings = {"url": server.url, "block_for": LONG, "retry_after": LONG}
    workers = [Interrupted(connect(**settings), taken) for _ in range(4)]
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
    assert statistics.median(waited) < 0.1


# -- how many tokens there are --------------------------------------------------------------------


def test_reserving_takes_as_many_tokens_as_jobs(server: RedisServer, queue: RedisQueue) -> None:
    for _ in range(10):
        php_push(server)
    assert tokens(server) == 10
    assert len(queue.reserve([QUEUE], 3)) == 3
    assert tokens(server) == 7
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    assert len(queue.reserve([QUEUE], 2)) == 2
    assert tokens(server) == 5, "those too many were taken away"
    assert len(queue.reserve([QUEUE], 20)) == 5
    assert tokens(server) <= 1


def test_an_empty_queue_leaves_no_token_that_would_wake_for_nothing(
    server: RedisServer, queue: RedisQueue
) -> None:
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    assert queue.reserve(["other", QUEUE]) == []
    assert tokens(server) == 0
    server.command("RPUSH", NOTIFY, *["1"] * 500)
    began = time.monotonic()
    rounds = 0
    while time.monotonic() - began < 0.5:
        queue.reserve([QUEUE])
        queue.wait([QUEUE], 0.5)
        rounds += 1
    assert rounds <= 3


def test_ten_thousand_cycles_leave_one_token_at_most(
    server: RedisServer, queue: RedisQueue
) -> None:
    done = None
    for number in range(10_000):
        if number % 2:
            push(queue, QUEUE)
        else:
            queue.links.of("").ask(Command("RPUSH", READY, body()), Command("RPUSH", NOTIFY, "1"))
        (job,) = queue.reserve([QUEUE], finished=done)
        assert queue.start(job)
        done = job
    assert queue.reserve([QUEUE], finished=done) == []
    assert tokens(server) <= 1
    assert queue.sizes(QUEUE) == Sizes()


class Anything:
    """Does one thing after the other to the queue."""

    def __init__(self, server: RedisServer, queue: RedisQueue, seed: int) -> None:
        self._server, self._queue = server, queue
        self._chance = random.Random(seed)
        self._held: list[RedisJob] = []
        self._steps = [
            *[self._push] * 4, *[self._reserve] * 3, *[self._settle] * 3, self._operate,
        ]  # fmt: skip

    def happen(self) -> None:
        self._chance.choice(self._steps)()

    def _push(self) -> None:
        if self._chance.random() < 0.3:
            php_push(self._server)
        else:
            push(self._queue, QUEUE, self._chance.choice([0, 0, 0.01, 30]))

    def _reserve(self) -> None:
        jobs = self._queue.reserve([QUEUE], self._chance.randint(1, 5))
        self._held += [job for job in jobs if isinstance(job, RedisJob)]

    def _settle(self) -> None:
        if self._held:
            job = self._held.pop()
            if self._queue.start(job):
                ends: list[Callable[[], None]] = [
                    job.release, lambda: job.release(0.01), job.give_back, job.delete, job.bury,
                ]  # fmt: skip
                self._chance.choice(ends)()

    def _operate(self) -> None:
        self._chance.choice([self._queue.kick, self._queue.kick, self._queue.clear])(QUEUE)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_never_more_than_the_jobs_and_one(
    server: RedisServer, queue: RedisQueue, seed: int
) -> None:
    """Whatever is done, in whatever order; and where there is a ready job there is one."""
    anything = Anything(server, queue, seed)
    with server.client() as client:
        for _ in range(1000):
            anything.happen()
            ready = int(client.execute_command("LLEN", READY))
            assert min(ready, 1) <= int(client.execute_command("LLEN", NOTIFY)) <= ready + 1
    while queue.reserve([QUEUE], 50):
        pass
    assert tokens(server) <= 1


def test_delayed_pushes_leave_one_token_at_most(server: RedisServer, queue: RedisQueue) -> None:
    for number in range(300, 0, -1):  # each is the next one to end
        push(queue, QUEUE, delay=number)
    assert tokens(server) <= 1


# -- what it costs --------------------------------------------------------------------------------


@pytest.fixture
def idle(app: RedisProject) -> Iterator[Process]:
    """Give a worker that has nothing to do."""
    worker = app.idle("redis", "--queue", "high,default")
    yield worker
    worker.stop()


def test_an_idle_worker_asks_three_times_a_round(server: RedisServer, queue: RedisQueue) -> None:
    """Restart and pause, a job, the wait; and a round lasts for more than three seconds."""
    assert queue.look_every > 3
    store = queue.own_store()
    assert store is not None

    def go_round() -> None:
        store.get("restart", "pause:redis")
        assert queue.reserve(["high", QUEUE]) == []
        queue.wait(["high", QUEUE], 0.4)

    go_round()
    with server.client() as client:
        before = client.info("stats")["total_reads_processed"]
        for _ in range(5):
            go_round()
        asked = client.info("stats")["total_reads_processed"] - before - 1
    assert asked <= 5 * 3, server.command("INFO", "commandstats")


def test_a_delayed_job_starts_when_it_is_due(app: RedisProject, idle: Process) -> None:
    late = []
    for number in range(5):
        due = time.time() + 0.4
        app.push("Note", {"word": str(number)}, delay=0.4)
        line = app.wait_for_note("note", number)
        late.append(float(line[4]) - due)
    assert min(late) > -0.1
    assert statistics.median(late) < 0.1


def test_a_job_starts_as_soon_as_it_is_dispatched(app: RedisProject, idle: Process) -> None:
    late = []
    for number in range(9):
        sent = time.time()
        app.push("Note", {"word": str(number)})
        line = app.wait_for_note("note", number)
        late.append(float(line[4]) - sent)
        wait_for(app.empty, "its end")
    assert statistics.median(late) < 0.1


def test_a_killed_idle_worker_takes_no_token_along(app: RedisProject, idle: Process) -> None:
    """It was first in line."""
    first = idle
    second = app.work("redis")
    app.wait_for_note("idle", second.pid)
    first.end()
    pushed = time.time()
    app.push("Note", {"word": "x"})
    line = app.wait_for_note("note", "x")
    assert float(line[4]) - pushed < SOON
    assert int(line[3]) == second.pid
    second.stop()
