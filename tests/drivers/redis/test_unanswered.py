"""Starts that are not waited for: counted before the job runs, never twice, and never for others.

Where a test needs a start to go unawaited, the worker's clock stands still; the server's does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from qframe.contracts import Job, Sizes
from qframe.drivers.base import HOLD
from qframe.drivers.redis import member
from qframe.drivers.redis.clock import clock as true_clock
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.link import Link
from qframe.drivers.redis.queue import RedisQueue
from qframe.drivers.redis.scripts import Command
from qframe.drivers.redis.wire import Wire
from qframe.exceptions import BackendUnavailable, JobAlreadySettled, LeaseLost
from qframe.worker.leases import LeaseKeeper
from tests.drivers.redis.conftest import Connect
from tests.drivers.redis.support import RedisProject, push
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

QUEUE = "emails"
RESERVED = f"queues:{QUEUE}:reserved"


class Clock:
    """The worker's clock, which moves only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(RedisQueue, "clock", staticmethod(made))
    return made


def link_of(queue: RedisQueue) -> Link:
    return queue.links.of("")


def unanswered(queue: RedisQueue) -> int:
    return len(link_of(queue)._unanswered)


def hear(queue: RedisQueue) -> None:
    """Read all answers."""
    link_of(queue).ask()


def hold(queue: RedisQueue, count: int = 1) -> list[RedisJob]:
    """Push jobs and reserve them."""
    for _ in range(count):
        push(queue, QUEUE)
    jobs = queue.reserve([QUEUE], count)
    assert len(jobs) == count
    return [job for job in jobs if isinstance(job, RedisJob)]


def begin(queue: RedisQueue) -> RedisJob:
    """Start a job without waiting for the answer."""
    (job,) = hold(queue)
    assert queue.start(job)
    assert unanswered(queue)
    return job


def run_all(queue: RedisQueue, jobs: Sequence[Job]) -> None:
    """Run jobs, each deleted with the start of the next; the last is left."""
    done = None
    for job in jobs:
        assert queue.start(job, finished=done)
        done = job


def counted(server: RedisServer) -> dict[str, int]:
    """Give the attempts of what is reserved, as the server has them."""
    found = [member.read(each) for each in server.command("ZRANGE", RESERVED, 0, -1)]
    return {str((each.payload or {})["uuid"]): each.attempts for each in found}


def lease(server: RedisServer, job: RedisJob) -> float:
    """Give how long the server lets a job be ours from now on."""
    seconds, us = server.command("TIME")
    score = float(server.command("ZSCORE", RESERVED, job.stored))
    return score - int(seconds) - int(us) / 1e6


def answers_its_own(queue: RedisQueue) -> bool:
    """Whether the link gives the answer to what was asked."""
    nonce = os.urandom(8)
    return link_of(queue).ask(Command("ECHO", nonce)) == [nonce]


# -- sent before the job runs, and counted exactly ------------------------------------------------


def test_a_start_arrives_though_nobody_reads_its_answer(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    first, second = hold(queue, 2)
    assert queue.start(first)
    assert queue.start(second, finished=first)
    assert unanswered(queue) == 2
    wait_for(lambda: counted(server) == {second.uuid: 1}, "the start of one, the end of the other")
    assert unanswered(queue) == 2


def test_the_lease_of_an_unawaited_start_is_never_too_short(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    before = time.monotonic()
    job = begin(queue)
    hear(queue)
    passed = time.monotonic() - before
    assert queue.retry_after - passed < lease(server, job) <= queue.retry_after + HOLD / 3


def test_a_thousand_starts_are_counted_once_each(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    """Each job is released once and done at its second start; the order is kept."""
    uuids = [push(queue, QUEUE) for _ in range(500)]
    ran: list[tuple[str, int]] = []
    done: Job | None = None
    while jobs := queue.reserve([QUEUE], 20, finished=done):
        done = None
        for job in jobs:
            assert queue.start(job, finished=done)
            ran.append((job.uuid, job.attempts()))
            done = None
            if job.attempts() == 1:
                job.release()
            else:
                done = job
    assert ran == [(uuid, attempt) for attempt in (1, 2) for uuid in uuids]
    assert queue.refused() == []
    assert queue.sizes(QUEUE) == Sizes()


def test_answers_are_read_before_too_many_wait(queue: RedisQueue, clock: Clock) -> None:
    jobs = hold(queue, 300)
    run_all(queue, jobs)
    assert 0 < unanswered(queue) < 100
    hear(queue)
    assert queue.sizes(QUEUE) == Sizes(reserved=1)
    jobs[-1].delete()
    assert queue.refused() == []


# -- waited for, unless the lease is certain ------------------------------------------------------


@pytest.mark.parametrize(("passed", "waited"), [(HOLD * 0.32, False), (HOLD * 0.34, True)])
def test_a_start_is_waited_for_after_a_third_of_the_hold(
    queue: RedisQueue, clock: Clock, passed: float, waited: bool
) -> None:
    (job,) = hold(queue)
    clock.now += passed
    assert queue.start(job)
    assert unanswered(queue) == (0 if waited else 1)


@pytest.mark.parametrize(("passed", "waited"), [(19.9, False), (20.1, True)])
def test_a_start_is_waited_for_after_a_third_of_the_lease_of_the_job_done(
    queue: RedisQueue, clock: Clock, passed: float, waited: bool
) -> None:
    assert queue.retry_after == 60
    first = begin(queue)
    clock.now += passed
    (second,) = hold(queue)
    assert queue.start(second, finished=first)
    assert unanswered(queue) == (0 if waited else 1)
    second.delete()
    assert queue.refused() == []


def test_a_renewal_makes_the_lease_certain_again(queue: RedisQueue, clock: Clock) -> None:
    first = begin(queue)
    clock.now += 50
    first.renew()
    clock.now += 19
    (second,) = hold(queue)
    assert queue.start(second, finished=first)
    assert unanswered(queue) == 1


def test_the_clock_counts_the_time_a_machine_sleeps() -> None:
    assert abs(true_clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5


def test_a_job_lost_while_the_machine_slept_is_not_run(
    server: RedisServer, queue: RedisQueue, connect: Connect, clock: Clock
) -> None:
    """It slept longer than the hold; meanwhile another worker took the job and started it."""
    other = connect(url=server.url)
    (job,) = hold(queue)
    clock.now += 3600
    theirs = wait_for(lambda: other.reserve([QUEUE]), "the end of the hold")
    assert other.start(theirs[0])
    hear(other)
    assert not queue.start(job)
    assert job.is_lost
    assert not job.started
    with pytest.raises(LeaseLost):
        job.delete()
    assert counted(server) == {job.uuid: 1}
    theirs[0].delete()
    assert queue.sizes(QUEUE) == Sizes()


def test_a_job_only_held_by_another_worker_is_not_run_either(
    server: RedisServer, queue: RedisQueue, connect: Connect, clock: Clock
) -> None:
    other = connect(url=server.url)
    (job,) = hold(queue)
    clock.now += HOLD
    (theirs,) = wait_for(lambda: other.reserve([QUEUE]), "the end of the hold")
    assert not queue.start(job)
    assert counted(server) == {job.uuid: 0}
    assert other.start(theirs)
    theirs.delete()


@pytest.mark.parametrize("with_done", [False, True])
def test_a_worker_stopped_just_before_it_says_a_start_runs_no_lost_job(
    server: RedisServer, queue: RedisQueue, connect: Connect, clock: Clock, with_done: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its look at the clock had told it that it may go unawaited."""
    other = connect(url=server.url)
    first, second = hold(queue, 2)
    assert queue.start(first)
    hear(queue)
    tell = Link.tell
    theirs = []

    def stopped(link: Link, *arguments: Any) -> None:
        theirs.extend(wait_for(lambda: other.reserve([QUEUE]), "the end of the hold"))
        clock.now += HOLD
        tell(link, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "tell", stopped)
        assert not queue.start(second, finished=first if with_done else None)
    assert second.is_lost
    assert unanswered(queue) == 0
    (job,) = theirs
    assert job.uuid == second.uuid
    assert other.start(job)
    assert job.attempts() == 1
    job.delete()
    if not with_done:
        first.delete()
    assert first.is_deleted
    assert queue.refused() == []
    assert queue.sizes(QUEUE) == Sizes()


# -- told later that it was not ours --------------------------------------------------------------


def test_a_start_refused_late_is_told_at_the_settle(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    (job,) = hold(queue)
    server.command("DEL", RESERVED)
    assert queue.start(job), "nobody has heard yet"
    with pytest.raises(LeaseLost):
        job.delete()
    assert job.is_lost


@pytest.mark.parametrize("settle", ["release", "give_back", "bury", "fail", "retry", "renew"])
def test_a_start_refused_late_is_never_applied(
    server: RedisServer, queue: RedisQueue, clock: Clock, settle: str
) -> None:
    (job,) = hold(queue)
    server.command("FLUSHALL")
    assert queue.start(job)
    arguments = {"retry": (0, "error", "no"), "fail": (ValueError("no"),)}
    with pytest.raises(LeaseLost):
        getattr(job, settle)(*arguments.get(settle, ()))
    with pytest.raises(LeaseLost):
        job.delete()
    assert server.command("DBSIZE") == 0
    assert queue.sizes(QUEUE) == Sizes()


def test_a_job_done_and_lost_is_told_by_refused(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    first, second, third = hold(queue, 3)
    assert queue.start(first)
    server.command("ZREM", RESERVED, first.stored)
    assert queue.start(second, finished=first)
    assert queue.start(third, finished=second)
    assert queue.refused() == [], "nobody has heard yet"
    third.delete()
    assert queue.refused() == [first]
    assert first.is_lost
    assert second.is_deleted
    assert queue.refused() == []


def test_a_job_done_and_lost_is_told_by_the_next_reservation(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    job = begin(queue)
    hear(queue)
    server.command("ZREM", RESERVED, job.stored)
    assert queue.reserve([QUEUE], finished=job) == []
    assert queue.refused() == [job]


def test_what_another_worker_has_is_left_alone_by_a_late_start(
    server: RedisServer, queue: RedisQueue, connect: Connect, clock: Clock
) -> None:
    """The clock stood still while the hold ran out: the worst a clock can do."""
    other = connect(url=server.url)
    (job,) = hold(queue)
    (theirs,) = wait_for(lambda: other.reserve([QUEUE]), "the end of the hold")
    assert other.start(theirs)
    hear(other)
    assert queue.start(job)
    (next_one,) = hold(queue)
    assert queue.start(next_one, finished=job)
    hear(queue)
    assert queue.refused() == [job]
    assert counted(server) == {theirs.uuid: 1, next_one.uuid: 1}
    theirs.delete()
    next_one.delete()
    assert queue.sizes(QUEUE) == Sizes()


# -- connections that break -----------------------------------------------------------------------


@pytest.fixture
def behind(proxy: Proxy, connect: Connect) -> RedisQueue:
    """Give a connection through the proxy."""
    return connect(url=f"redis://127.0.0.1:{proxy.port}/0", timeout=2)


@pytest.mark.parametrize("mode", [Mode.CUT_REQUEST, Mode.CUT_AFTER_REQUEST])
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_what_was_not_answered_is_said_again(
    own_server: RedisServer, proxy: Proxy, behind: RedisQueue, clock: Clock, mode: Mode, after: int
) -> None:
    """The connection breaks at one of several starts: all are counted, nothing is doubled."""
    jobs = hold(behind, 6)
    run_all(behind, jobs[:after])
    proxy.switch(mode, times=1)
    run_all(behind, jobs[after:])
    if after:
        jobs[after - 1].delete()
    proxy.switch(Mode.PASS)
    hear(behind)
    assert unanswered(behind) == 0
    assert counted(own_server) == {jobs[-1].uuid: 1}
    jobs[-1].delete()
    assert behind.refused() == []
    assert behind.sizes(QUEUE) == Sizes()
    assert answers_its_own(behind)


def test_starts_survive_a_server_that_was_killed(
    own_server: RedisServer, own_queue: RedisQueue, clock: Clock
) -> None:
    jobs = hold(own_queue, 4)
    run_all(own_queue, jobs)
    own_server.restart(kill=True)
    hear(own_queue)
    assert counted(own_server) == {jobs[-1].uuid: 1}
    jobs[-1].delete()
    assert own_queue.refused() == []
    assert own_queue.sizes(QUEUE) == Sizes()


def break_off(queue: RedisQueue) -> None:
    """Let the connection be one on which nothing can be said, which nobody has noticed yet."""
    wire = link_of(queue)._connection
    assert wire is not None
    with suppress(OSError):  # the server was faster
        wire._socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("noticed", [False, True])
def test_a_start_nobody_took_does_not_happen_later(
    own_server: RedisServer, own_queue: RedisQueue, clock: Clock, noticed: bool
) -> None:
    """The server is gone when a job is started: it is not run, and so must not be counted."""
    first, second = hold(own_queue, 2)
    assert own_queue.start(first)
    hear(own_queue)
    own_server.kill()
    break_off(own_queue)
    if noticed:
        link_of(own_queue).drop()
    with pytest.raises(BackendUnavailable):
        own_queue.start(second, finished=first)
    assert not second.started
    assert second.attempts() == 0
    assert not first.is_settled
    own_server.start()
    assert own_queue.reserve(["other"], finished=first) == []
    assert first.is_deleted
    assert own_queue.refused() == []
    assert counted(own_server) == {second.uuid: 0}
    (again,) = wait_for(lambda: own_queue.reserve([QUEUE]), "the end of the hold")
    assert again.attempts() == 0
    assert again.history.attempts == ()


def test_a_start_nobody_took_can_be_tried_again(
    own_server: RedisServer, own_queue: RedisQueue, clock: Clock
) -> None:
    first, second = hold(own_queue, 2)
    assert own_queue.start(first)
    own_server.kill()
    break_off(own_queue)
    with pytest.raises(BackendUnavailable):
        own_queue.start(second, finished=first)
    own_server.start()
    assert own_queue.start(second, finished=first)
    hear(own_queue)
    assert counted(own_server) == {second.uuid: 1}
    assert second.attempts() == 1
    second.delete()
    assert own_queue.refused() == []
    assert own_queue.sizes(QUEUE) == Sizes()


def test_the_end_of_a_job_that_was_not_answered_is_no_loss(
    own_server: RedisServer, proxy: Proxy, behind: RedisQueue, clock: Clock
) -> None:
    """Its deletion is done, unheard, and the server cannot be asked again at once."""
    begin(behind).delete()
    job = begin(behind)
    hear(behind)
    proxy.switch(Mode.CUT_AFTER_REQUEST)
    with pytest.raises(BackendUnavailable):
        behind.reserve([QUEUE], finished=job)
    proxy.switch(Mode.PASS)
    assert counted(own_server) == {}
    assert behind.reserve([QUEUE], finished=job) == []
    assert behind.refused() == []
    assert job.is_deleted


# -- a server that has forgotten the scripts ------------------------------------------------------


def test_scripts_forgotten_between_starts_cost_nothing(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    jobs = hold(queue, 5)
    run_all(queue, jobs[:2])
    server.command("SCRIPT", "FLUSH")
    assert queue.start(jobs[2], finished=jobs[1])
    assert queue.start(jobs[3], finished=jobs[2])
    assert queue.start(jobs[4], finished=jobs[3])
    hear(queue)
    assert counted(server) == {jobs[4].uuid: 1}
    jobs[4].delete()
    assert queue.refused() == []
    assert answers_its_own(queue)


def test_scripts_brought_back_in_between_change_no_order(
    server: RedisServer, queue: RedisQueue, connect: Connect, clock: Clock
) -> None:
    """A start is refused, and what follows it is done, since somebody else used the script."""
    other = connect(url=server.url)
    jobs = hold(queue, 3)
    run_all(queue, jobs[:1])
    hear(queue)
    server.command("SCRIPT", "FLUSH")
    assert queue.start(jobs[1], finished=jobs[0])
    clock.now += HOLD
    (theirs,) = hold(other)
    clock.now += HOLD
    assert other.start(theirs)
    clock.now -= 2 * HOLD
    assert queue.start(jobs[2], finished=jobs[1])
    hear(queue)
    assert counted(server) == {jobs[2].uuid: 1, theirs.uuid: 1}
    jobs[2].delete()
    theirs.delete()
    assert queue.refused() == []
    assert queue.sizes(QUEUE) == Sizes()


def test_many_unheard_starts_after_a_flush_are_all_counted(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    jobs = hold(queue, 200)
    run_all(queue, jobs[:1])
    server.command("SCRIPT", "FLUSH")
    done = jobs[0]
    for job in jobs[1:]:
        assert queue.start(job, finished=done)
        done = job
    done.delete()
    assert queue.refused() == []
    assert queue.sizes(QUEUE) == Sizes()


@pytest.fixture
def keeper(queue: RedisQueue) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(queue)
    made.begin()
    yield made
    made.end()


def test_a_long_job_whose_start_was_refused_is_confirmed_in_time(
    server: RedisServer, queue: RedisQueue, connect: Connect, keeper: LeaseKeeper, clock: Clock
) -> None:
    """The server had no script for it; the lease keeper counts it before the hold ends."""
    other = connect(url=server.url)
    begin(queue).delete()
    (job,) = hold(queue)
    server.command("SCRIPT", "FLUSH")
    assert queue.start(job)
    keeper.keep(job, 0)
    assert counted(server) == {job.uuid: 0}
    deadline = time.monotonic() + 2 * HOLD
    while time.monotonic() < deadline:
        assert other.reserve([QUEUE]) == []
        time.sleep(0.02)
    keeper.drop()
    assert counted(server) == {job.uuid: 1}
    job.delete()
    assert not job.is_lost
    assert queue.refused() == []


# -- jobs that end their process --------------------------------------------------------------


ENDS = """
import os, signal, time
from jobs import Queueable, note

class End(Queueable):
    how: str
    def handle(self):
        note("start", "end", self.attempts, os.getpid())
        time.sleep(0.1)  # a moment for a busy server to read what was sent to it
        os._exit(0) if self.how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "before"), [("exit", 0), ("exit", 60), ("kill", 60)])
def test_a_start_is_counted_though_the_job_ends_its_process(
    app: RedisProject, end: str, before: int
) -> None:
    """Among short jobs, whose starts are not waited for: one try is one try."""
    app.configure(retry_after=1)
    app.write("ends.py", ENDS)
    for number in range(before):
        app.push("Note", {"word": str(number)}, maxTries=0)
    uuid = app.push("ends.End", {"how": end}, maxTries=1)
    for number in range(before, before + 10):
        app.push("Note", {"word": str(number)}, maxTries=0)
    worker = app.work()
    assert worker.wait() == (0 if end == "exit" else -signal.SIGKILL)
    assert "stopped" not in worker.out
    (attempts,) = (job.attempts for job in stored_jobs(app) if job.uuid == uuid)
    assert attempts == 1
    other = app.work()
    wait_for(app.empty, "the rest")
    assert other.stop() == 0
    assert len(app.notes("start")) == 1
    record = app.failure()
    assert (record.uuid, record.attempts) == (uuid, 1)
    assert f"pid {worker.pid}" in record.exception
    assert "never ended" in record.exception
    assert {int(line[1]) for line in app.notes("note")} == set(range(before + 10))


class Stored:
    """What the server has of a reserved job."""

    def __init__(self, stored: bytes) -> None:
        found = member.read(stored)
        self.uuid = str((found.payload or {})["uuid"])
        self.attempts = found.attempts


def stored_jobs(app: RedisProject) -> list[Stored]:
    queue = app.queue
    assert isinstance(queue, RedisQueue)
    with queue.links.of("") as link:
        (found,) = link.ask(Command("ZRANGE", queue.keys.of("default").reserved, 0, -1))
    return [Stored(each) for each in found]


# -- in step --------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """What a signal handler may raise, if nobody stops it."""


class Chaos:
    """A worker to whom anything can happen between two exchanges, or in the middle of one."""

    def __init__(
        self, server: RedisServer, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._server, self._queue, self._patch = server, queue, monkeypatch
        self.running: Job | None = None
        self.held: list[RedisJob] = []

    def start(self) -> None:
        self.held = self.held or hold(self._queue, 5)
        job = self.held.pop(0)
        assert self._queue.start(job, finished=self.running)
        self.running = job

    def settle(self) -> None:
        if self.running is not None:
            self.running.delete()
            self.running = None

    def ask(self) -> None:
        assert answers_its_own(self._queue)

    def cut(self) -> None:
        self._server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def forget(self) -> None:
        self._server.command("SCRIPT", "FLUSH")

    def interrupt(self) -> None:
        """Break into an exchange whose answer has been read in part."""
        read = Wire.read

        def reads_and_raises(wire: Wire) -> None:
            read(wire)
            raise Interrupted

        with self._patch.context() as patch:
            patch.setattr(Wire, "read", reads_and_raises)
            with contextlib.suppress(Interrupted):
                link_of(self._queue).ask(Command("ECHO", b"not this"))


@pytest.mark.parametrize("seed", range(6))
def test_answers_never_get_out_of_step(
    own_server: RedisServer, own_queue: RedisQueue, clock: Clock, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Starts, exchanges, breaks and interruptions in any order: each answer is to its question."""
    chance = random.Random(seed)
    chaos = Chaos(own_server, own_queue, monkeypatch)
    for _ in range(150):
        often = [chaos.start] * 6
        chance.choice([*often, chaos.ask, chaos.cut, chaos.forget, chaos.interrupt, chaos.settle])()
        assert own_queue.refused() == []
    chaos.settle()
    chaos.ask()
    assert own_queue.refused() == []
    assert set(counted(own_server)) == {job.uuid for job in chaos.held}


# -- forks and threads ----------------------------------------------------------------------------

FORKS = """
import os
from jobs import Note, Queueable, note
from qframe import dispatch, manager

class Fork(Queueable):
    number: int
    def handle(self):
        child = os.fork()
        if not child:
            try:
                dispatch(Note(word=f"child-{self.number}")).on_queue("made").send()
                manager.default().connection("redis").size("made")
                manager.default().close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        dispatch(Note(word=f"parent-{self.number}")).on_queue("made").send()
        note("forked", self.number, self.attempts)

class ForkAndClose(Queueable):
    number: int
    def handle(self):
        child = os.fork()
        if not child:
            try:
                manager.default().close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        note("forked", self.number, self.attempts)
"""


@pytest.mark.parametrize("job", ["Fork", "ForkAndClose"])
def test_a_child_of_a_job_leaves_its_parents_connection_alone(app: RedisProject, job: str) -> None:
    """The start of the job that forks has not been answered then."""
    app.write("forks.py", FORKS)
    for number in range(20):
        app.push("Note", {"word": str(number)})
        app.push(f"forks.{job}", {"number": number})
    worker = app.work("redis", "--queue", "default,made", "--stop-when-empty")
    assert worker.wait() == 0
    assert app.notes("forked") == [["forked", str(number), "1"] for number in range(20)]
    made = [line[1] for line in app.notes("note")]
    expected = {str(number) for number in range(20)}
    if job == "Fork":
        expected |= {f"{who}-{number}" for who in ("child", "parent") for number in range(20)}
    assert sorted(made) == sorted(expected)
    assert {line[2] for line in app.notes("note")} == {"1"}
    assert app.empty()
    assert app.failed() == []
    assert worker.err == ""
    assert " gone: " not in worker.out
    assert " lost" not in worker.out


def test_threads_have_a_connection_each_and_close_it(
    own_server: RedisServer, own_queue: RedisQueue
) -> None:
    own_queue.ping()
    before = own_server.info("clients")["connected_clients"]
    meet, failures = threading.Barrier(9), []

    def act(number: int) -> None:
        try:
            name = f"q{number}"
            for _ in range(20):
                push(own_queue, name)
                (job,) = own_queue.reserve([name])
                assert own_queue.start(job)
                job.delete()
            meet.wait(30)
            meet.wait(30)
            if number % 2:
                own_queue.close()  # the others just end
        except Exception as error:  # noqa: BLE001 (told below)
            failures.append(error)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    meet.wait(30)
    assert own_server.info("clients")["connected_clients"] == before + 8
    meet.wait(30)
    for thread in threads:
        thread.join(30)
    assert failures == []
    wait_for(
        lambda: own_server.info("clients")["connected_clients"] == before, "the others to close"
    )
    assert own_queue.queues() == []


def test_a_closed_connection_has_heard_its_starts(
    server: RedisServer, queue: RedisQueue, clock: Clock
) -> None:
    job = begin(queue)
    queue.close()
    assert counted(server) == {job.uuid: 1}
    assert unanswered(queue) == 0
    job.delete()
    assert queue.sizes(QUEUE) == Sizes()


class Stalled:
    """Holds back what this thread tells the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._send = Link._send
        self._thread = threading.get_ident()
        self._late: list[tuple[Link, Any, Sequence[Command]]] = []
        self._patch = monkeypatch

    def begin(self) -> None:
        def send(link: Link, connection: Any, commands: Sequence[Command]) -> None:
            if threading.get_ident() == self._thread:
                self._late.append((link, connection, commands))
            else:
                self._send(link, connection, commands)

        self._patch.setattr(Link, "_send", send)

    def end(self) -> None:
        self._patch.setattr(Link, "_send", self._send)
        assert self._late
        for each in self._late:
            self._send(*each)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Stalled:
    return Stalled(monkeypatch)


def in_thread(queue: RedisQueue, step: Any) -> None:
    """Do something in another thread, on a connection of its own."""
    failures = []

    def act() -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 (raised below)
            failures.append(error)
        queue.close()

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(30)
    for failure in failures:
        raise failure


@pytest.mark.parametrize("settle", ["release", "delete", "bury"])
def test_a_job_settled_by_another_thread_has_started(
    server: RedisServer, queue: RedisQueue, clock: Clock, stalled: Stalled, settle: str
) -> None:
    """The settle overtakes the start, which is on its way on another connection."""
    first, second = hold(queue, 2)
    assert queue.start(first)
    hear(queue)
    stalled.begin()
    assert queue.start(second, finished=first)
    in_thread(queue, getattr(second, settle))
    assert not second.is_lost
    stalled.end()
    hear(queue)
    assert queue.refused() == []
    assert not second.is_lost
    expected = {"release": Sizes(ready=1), "delete": Sizes(), "bury": Sizes(buried=1)}
    assert queue.sizes(QUEUE) == expected[settle]
    queue.kick(QUEUE)
    for job in queue.reserve([QUEUE]):
        assert job.attempts() == 1


def test_a_start_confirmed_by_the_lease_keeper_first_is_not_refused(
    server: RedisServer, queue: RedisQueue, clock: Clock, stalled: Stalled
) -> None:
    """The first connection stalls for a moment; the keeper, on its own, is quicker."""
    first, second = hold(queue, 2)
    assert queue.start(first)
    hear(queue)
    stalled.begin()
    assert queue.start(second, finished=first)
    in_thread(queue, second.confirm)
    assert counted(server) == {second.uuid: 1}
    stalled.end()
    hear(queue)
    assert queue.refused() == []
    assert not second.is_lost
    second.delete()
    assert queue.sizes(QUEUE) == Sizes()


# -- renewals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", [1, 60])
def test_a_lost_answer_to_a_renewal_loses_no_lease(
    own_server: RedisServer, proxy: Proxy, connect: Connect, retry_after: float
) -> None:
    queue = connect(url=f"redis://127.0.0.1:{proxy.port}/0", retry_after=retry_after)
    (job,) = hold(queue)
    assert queue.start(job)
    hear(queue)
    for _ in range(3):
        proxy.switch(Mode.CUT_AFTER_REQUEST, times=1)
        job.renew()
        assert proxy.mode is Mode.PASS
    assert lease(own_server, job) > retry_after / 2
    job.delete()
    assert queue.sizes(QUEUE) == Sizes()


@pytest.mark.parametrize("retry_after", [1, 60])
@pytest.mark.parametrize("settle", ["delete", "release", "bury", "renew"])
def test_a_renewal_nobody_answers_leaves_the_job_ours(
    own_server: RedisServer, proxy: Proxy, connect: Connect, retry_after: float, settle: str
) -> None:
    """Its score there is not known to us any more: the settle that follows is applied."""
    queue = connect(url=f"redis://127.0.0.1:{proxy.port}/0", retry_after=retry_after)
    (job,) = hold(queue)
    assert queue.start(job)
    job.renew()
    proxy.switch(Mode.CUT_AFTER_REQUEST)
    with pytest.raises(BackendUnavailable):
        job.renew()
    proxy.switch(Mode.PASS)
    getattr(job, settle)()
    assert not job.is_lost
    if settle == "renew":
        job.delete()
    expected = {"release": Sizes(ready=1), "bury": Sizes(buried=1)}
    assert queue.sizes(QUEUE) == expected.get(settle, Sizes())


def test_a_renewal_nobody_answers_leaves_what_is_another_workers(
    own_server: RedisServer, proxy: Proxy, connect: Connect, own_queue: RedisQueue
) -> None:
    """A job that another worker only holds has the very bytes of ours."""
    queue = connect(url=f"redis://127.0.0.1:{proxy.port}/0", retry_after=1)
    (job,) = hold(queue)
    assert queue.start(job)
    job.renew()
    proxy.switch(Mode.CUT_AFTER_REQUEST)
    with pytest.raises(BackendUnavailable):
        job.renew()
    proxy.switch(Mode.PASS)
    (theirs,) = wait_for(lambda: own_queue.reserve([QUEUE]), "the end of the lease")
    with pytest.raises(LeaseLost):
        job.delete()
    assert own_queue.start(theirs)
    assert theirs.attempts() == 2
    theirs.delete()
    assert own_queue.sizes(QUEUE) == Sizes()


@pytest.mark.parametrize("retry_after", [1, 60])
def test_an_awaited_start_whose_answer_got_lost_was_made(
    own_server: RedisServer, proxy: Proxy, connect: Connect, clock: Clock, retry_after: float
) -> None:
    queue = connect(url=f"redis://127.0.0.1:{proxy.port}/0", retry_after=retry_after)
    first, second = hold(queue, 2)
    assert queue.start(first)
    hear(queue)
    clock.now += HOLD / 2
    proxy.switch(Mode.CUT_AFTER_REQUEST, times=1)
    assert queue.start(second, finished=first)
    assert unanswered(queue) == 0
    assert counted(own_server) == {second.uuid: 1}
    second.delete()
    assert queue.refused() == []


# -- the lease keeper -----------------------------------------------------------------------------


class Watched:
    """Stands in for a job; notes when it was renewed and confirmed."""

    name, uuid = "job", "uuid"
    is_deleted = is_released = False

    def __init__(self, time_is: list[float], error: Exception | None = None) -> None:
        self._time = time_is
        self._error = error
        self.renewed: list[float] = []
        self.confirmed: list[float] = []

    def renew(self) -> None:
        self.renewed.append(self._time[0])
        if self._error is not None:
            raise self._error

    def confirm(self) -> None:
        self.confirmed.append(self._time[0])


class Timed:
    """A queue that has a lease time and nothing else."""

    def __init__(self, retry_after: float, confirm_within: float) -> None:
        self.retry_after = retry_after
        self.confirm_within = confirm_within


def watch(
    monkeypatch: pytest.MonkeyPatch, retry_after: float, begins: float, seconds: float,
    error: Exception | None = None, limit: float = 0,
) -> Watched:  # fmt: skip
    """Let a keeper look at a job that begins so long after one of its looks."""
    time_is = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: time_is[0])
    queue: Any = Timed(retry_after, RedisQueue.confirm_within)
    keeper = LeaseKeeper(queue)
    job: Any = Watched(time_is, error)
    look = keeper.every
    time_is[0] += begins * look
    keeper.keep(job, limit)
    began = time_is[0]
    time_is[0] = 100.0
    while time_is[0] + look <= began + seconds:
        time_is[0] += look
        if keeper._job is not None and time_is[0] < keeper._until:
            keeper._look_at(keeper._job)
    job.renewed = [moment - began for moment in job.renewed]
    job.confirmed = [moment - began for moment in job.confirmed]
    watched: Watched = job
    return watched


@pytest.mark.parametrize("begins", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("retry_after", [1, 1.5, 3, 60, 900])
def test_a_lease_is_renewed_long_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, retry_after: float, begins: float
) -> None:
    job = watch(monkeypatch, retry_after, begins, 5 * retry_after)
    first, *others = job.renewed
    assert first <= retry_after * 0.4
    pauses = [later - before for before, later in zip(job.renewed, others, strict=False)]
    assert max(pauses) <= retry_after * 0.4
    assert min(pauses) >= retry_after * 0.3


@pytest.mark.parametrize("begins", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("retry_after", [1, 3, 60])
def test_a_start_is_confirmed_before_its_hold_ends(
    monkeypatch: pytest.MonkeyPatch, retry_after: float, begins: float
) -> None:
    job = watch(monkeypatch, retry_after, begins, 5)
    assert min(job.confirmed + job.renewed) <= HOLD * 0.6


def test_a_short_job_is_neither_confirmed_nor_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = watch(monkeypatch, 60, 0.5, 0.2)
    assert (job.renewed, job.confirmed) == ([], [])


def test_a_lease_that_was_lost_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    job = watch(monkeypatch, 3, 0.5, 30, error=LeaseLost("gone"))
    assert len(job.renewed) == 1


def test_a_renewal_that_reached_nobody_is_tried_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = watch(monkeypatch, 60, 0.5, 30, error=BackendUnavailable("gone"))
    pauses = [later - before for before, later in zip(job.renewed, job.renewed[1:], strict=False)]
    assert pauses
    assert max(pauses) <= 1.3


def test_a_lease_is_not_renewed_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    job = watch(monkeypatch, 3, 0.5, 60, limit=10)
    assert max(job.renewed) < 10


def test_a_job_that_was_settled_meanwhile_ends_the_keeping_in_silence(
    queue: RedisQueue, keeper: LeaseKeeper, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    (job,) = hold(queue)
    assert queue.start(job)
    keeper.keep(job, 0)
    job.release()
    wait_for(lambda: keeper._job is None or keeper._seen is job, "the keeper to look")
    keeper.drop()
    with pytest.raises(JobAlreadySettled):
        job.renew()
    assert caplog.records == []
    assert json.loads(job.raw_body)["uuid"] == job.uuid
