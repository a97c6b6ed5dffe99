"""The one thread beside the jobs, and the leases it keeps."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from qframe.contracts.status import State
from qframe.drivers import heartbeat
from qframe.drivers.heartbeat import Heartbeat
from qframe.drivers.redis.backend import RedisBackend
from qframe.drivers.redis.settings import RedisSettings
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.features.status import cancel_key
from qframe.worker.cancellation import Cancellation
from qframe.worker.leases import LeaseKeeper
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer
from tests.worker.bench import Bench

DONE = End(State.COMPLETE)

# -- the thread -----------------------------------------------------------------------------------


def test_it_does_each_thing_every_so_many_seconds() -> None:
    beats, times, other = Heartbeat(), [], []
    beats.add(0.05, lambda: times.append(time.monotonic()))
    beats.add(10, lambda: other.append(0))
    beats.add(10, lambda: other.append(1), first=0)
    wait_for(lambda: len(times) >= 5, "five beats")
    beats.end(lambda: None, 20)
    assert times[4] - times[0] > 0.9 * 4 * 0.05
    assert other == [1]


def test_what_is_due_sooner_wakes_it() -> None:
    beats, done = Heartbeat(), threading.Event()
    beats.add(60, lambda: None)
    time.sleep(0.02)
    beats.add(0.02, done.set)
    assert done.wait(60)
    beats.end(lambda: None, 30)


def test_what_was_dropped_is_done_no_more() -> None:
    beats, times = Heartbeat(), []
    beats.drop(beats.add(0.02, lambda: times.append(0)))
    time.sleep(0.1)
    beats.end(lambda: None, 30)
    assert times == []


def test_what_the_network_swallows_holds_it_up_no_longer_than_it_may(
    redis_running: RedisServer,
) -> None:
    proxy = Proxy(*redis_running.address)
    backend = RedisBackend("here", RedisSettings(url=redis_running.url_at(proxy.port), timeout=60))
    beats, refused = Heartbeat(longest=0.2, close=backend.close), threading.Event()

    def ask() -> None:
        try:
            backend.read("some fact")
        except BackendUnavailable:
            refused.set()

    backend.read("some fact")
    backend.close()
    proxy.switch(Mode.BLACKHOLE)
    beats.add(0.01, ask)
    assert refused.wait(60)
    beats.end(lambda: None, 30)
    proxy.close()


def test_what_raises_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    beats, times = Heartbeat(threaded=False), []

    def fail() -> None:
        times.append(0)
        raise ZeroDivisionError("boom")

    beats.add(0, fail)
    beats.beat()
    time.sleep(0.01)
    beats.beat()
    assert len(times) == 2
    assert [record.message for record in caplog.records] == [
        "the heartbeat: ZeroDivisionError: boom"
    ] * 2


def test_an_action_may_say_when_it_is_next() -> None:
    beats, times = Heartbeat(threaded=False), []

    def seldom() -> float:
        times.append(0)
        return 60

    beats.add(0, seldom)
    beats.beat()
    beats.beat()
    assert len(times) == 1


def test_one_that_hangs_is_done_no_more_than_half_of_the_time() -> None:
    beats, ended = Heartbeat(threaded=False), []

    def hang() -> None:
        time.sleep(0.1)
        ended.append(time.monotonic())

    beat = beats.add(0.001, hang)
    time.sleep(0.002)
    beats.beat()
    assert beat.due - ended[0] > 0.09


def test_without_a_thread_who_waits_has_it_done() -> None:
    beats, times = Heartbeat(threaded=False), []
    beats.add(0.01, lambda: times.append(0))
    time.sleep(0.05)
    assert times == []
    beats.beat()
    assert times == [0]
    beats.end(lambda: times.append(1), 30)
    assert times == [0, 1]


def test_at_its_end_it_waits_for_the_last_thing_but_not_for_ever() -> None:
    said = []
    beats = Heartbeat(close=lambda: said.append("closed"))
    beats.add(60, lambda: None)
    beats.end(lambda: said.append("last"), 30)
    assert said == ["last", "closed"]
    hangs, over = Heartbeat(), threading.Event()

    def hang() -> None:
        over.wait(60)

    hangs.add(60, lambda: None)
    began = time.monotonic()
    hangs.end(hang, 0.1)
    assert time.monotonic() - began < 30
    over.set()


def test_no_signal_is_handed_to_its_thread() -> None:
    blocked: list[set[signal.Signals]] = []
    beats = Heartbeat()
    beats.add(60, lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), first=0)  # type: ignore[arg-type]
    wait_for(lambda: blocked, "a beat")
    beats.end(lambda: None, 30)
    assert {signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM} <= set(blocked[0])


def test_a_job_uses_its_workers_and_anybody_else_the_processs() -> None:
    beats = Heartbeat()
    shared = heartbeat.current()
    assert shared is heartbeat.current()
    heartbeat.use(beats)
    assert heartbeat.current() is beats
    heartbeat.use(None)
    assert heartbeat.current() is shared


# -- leases ---------------------------------------------------------------------------------------


class Kept:
    """A keeper with its clock, and a job it keeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, retry_after: float = 3) -> None:
        self.bench = Bench()
        self.bench.context.retry_after = retry_after
        self.now = 1000.0
        self.lost: list[ReservedJob] = []
        self.watched: list[ReservedJob] = []
        settler = self.bench.runner.settler
        self.keeper = LeaseKeeper(
            retry_after, settler.confirm, self.watched.append, self.lost.append
        )
        monkeypatch.setattr("qframe.worker.leases.time.monotonic", lambda: self.now)
        self.bench.push("A", track=60)
        self.job = self.bench.held()
        assert settler.start(self.job)
        self.bench.backend.apply()  # it hears the answer
        self.said = self.bench.backend.said
        self.said.clear()

    def pass_time(self, seconds: float) -> None:
        """Look as often as the heartbeat does."""
        until = self.now + seconds
        while self.now < until:
            self.now += self.keeper.every
            self.keeper.look()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def test_a_lease_is_renewed_every_third_of_it_while_the_job_runs(kept: Kept) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.pass_time(10)
    assert kept.said.count("apply Renew") == 10
    kept.keeper.drop(kept.job)
    kept.said.clear()
    kept.pass_time(10)
    assert kept.said == []


def test_a_job_that_is_over_at_the_second_look_costs_nothing(kept: Kept) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.keeper.look()
    kept.job.settle(DONE)
    kept.keeper.drop(kept.job)
    kept.pass_time(5)
    assert kept.said == ["apply Raise Delete"]
    assert kept.watched == []


def test_it_is_renewed_until_its_time_is_up(kept: Kept) -> None:
    kept.keeper.keep(kept.job, 4)
    kept.pass_time(20)
    assert kept.said.count("apply Renew") == 3


def test_a_job_that_runs_on_is_looked_at(kept: Kept) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.pass_time(1)
    assert kept.watched
    assert set(kept.watched) == {kept.job}


def test_a_renewal_that_does_not_reach_the_backend_is_soon_tried_again(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.pass_time(0.6)
    kept.bench.backend.down = 1
    kept.pass_time(1.5)
    assert "could not be renewed: down" in caplog.text
    assert kept.lost == []
    assert kept.said.count("apply Renew") == 2


def test_a_lease_that_was_lost_is_told_once(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.bench.backend.lose(kept.job)
    kept.pass_time(5)
    assert kept.lost == [kept.job]
    assert caplog.text.count("its lease has passed to another worker") == 1


def test_a_backend_that_hardly_answers_is_asked_for_one_lease_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    for name in ("B", "C"):
        kept.bench.push(name)
    jobs = [kept.job, *(kept.bench.held() for _ in range(2))]
    for job in jobs[1:]:
        assert kept.bench.runner.settler.start(job)
    kept.bench.backend.apply()
    for job in jobs:
        kept.keeper.keep(job, 0)
    renewed: list[ReservedJob] = []

    def slowly(job: ReservedJob) -> None:
        renewed.append(job)
        kept.now += 2

    monkeypatch.setattr(ReservedJob, "renew", slowly)
    while not renewed:
        kept.pass_time(kept.keeper.every)
    assert len(renewed) == 1, "who calls it may have other things to do"
    kept.keeper.look()
    kept.keeper.look()
    assert set(renewed) == set(jobs), "what is due first comes first"


def test_one_that_has_settled_itself_is_left_alone(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.keeper.keep(kept.job, 0)
    kept.job.settle(End(State.BURIED))
    kept.pass_time(5)
    assert kept.lost == []
    assert caplog.text == ""


def test_looks_are_a_whole_number_to_a_renewal() -> None:
    for retry_after in (1, 1.7, 10, 60):
        every = LeaseKeeper(retry_after, lambda _: False, lambda _: None, lambda _: None).every
        assert every <= 0.25
        assert round(retry_after / 3 / every, 6).is_integer()


# -- cancelling -----------------------------------------------------------------------------------


class Wish:
    """A cancellation, with its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = Bench()
        self.bench.push("A")
        self.job = self.bench.held()
        self.cancelled: list[ReservedJob] = []
        self.cancellation = Cancellation("here", self.bench.backend, self.cancelled.append)
        self.now = 1000.0
        monkeypatch.setattr("qframe.worker.cancellation.time.monotonic", lambda: self.now)
        self.key = cancel_key("a")

    @property
    def is_there(self) -> bool:
        return self.bench.backend.read(self.key) != [None]


@pytest.fixture
def wish(monkeypatch: pytest.MonkeyPatch) -> Wish:
    return Wish(monkeypatch)


def test_a_wish_ends_the_job_and_goes_with_it(wish: Wish) -> None:
    wish.cancellation.look(wish.job)
    assert wish.cancelled == []
    wish.bench.connection.store.set(wish.key, "1")
    wish.cancellation.look(wish.job)
    assert wish.cancelled == [], "looked at a moment ago"
    wish.now += 1
    wish.cancellation.look(wish.job)
    assert wish.cancelled == [wish.job]
    wish.cancellation.ended(wish.job)
    wish.cancellation.tidy()
    assert not wish.is_there


def test_a_wish_for_a_job_that_ends_by_itself_goes_within_a_second(wish: Wish) -> None:
    wish.cancellation.look(wish.job)
    wish.bench.connection.store.set(wish.key, "1")
    wish.cancellation.ended(wish.job)
    wish.cancellation.tidy()
    assert not wish.is_there


def test_a_short_job_costs_nothing(wish: Wish) -> None:
    said = wish.bench.backend.said
    said.clear()
    wish.cancellation.ended(wish.job)
    wish.cancellation.tidy()
    assert said == []


def test_a_backend_that_is_down_changes_nothing(wish: Wish) -> None:
    wish.cancellation.look(wish.job)
    wish.cancellation.ended(wish.job)
    wish.bench.backend.down = 1
    wish.cancellation.tidy()
    wish.bench.backend.down = 1
    wish.cancellation.look(wish.job)
    assert wish.cancelled == []
