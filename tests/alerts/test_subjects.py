"""What each rule is about, read from backends as they are: raised once, and over again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from qframe import Queueable, QueueManager, Worker, dispatch, events, manager
from qframe.alerts import channels, checker, readings, side_task, view
from qframe.alerts.checker import Checker
from qframe.alerts.readings import Readings
from qframe.config import AlertSettings
from qframe.connection import Connection
from qframe.contracts.outbox import Lag
from qframe.contracts.step import Push, Step
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable
from qframe.metrics import kept
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.operations import queues as operations
from qframe.outbox.relay import Relay
from qframe.outbox.text import encoded
from qframe.rules import parse
from qframe.worker import queue_facts, roster
from qframe.worker.options import WorkerOptions
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer


class Clock:
    """The time of day and since the boot, some seconds ahead of what they are."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class Watch:
    """Looks by some rules, and notes what listeners hear."""

    def __init__(self, queues: QueueManager, clock: Clock, rules: tuple[str, ...]) -> None:
        settings = AlertSettings(rules=list(rules), calm=0)
        told = channels.configured(settings)
        self.clock = clock
        self.heard: list[events.AlertEvent] = []
        self.readings = Readings(queues)
        self._one = Checker(side_task.place(queues), settings, self.readings.look, told)
        events.listen(events.AlertEvent)(self.heard.append)

    def looks(self, seconds: float = 10.0) -> list[str]:
        """Look once some seconds later; gives what was told, as `+subject` or `-subject`."""
        self.clock.ahead += seconds
        before = len(self.heard)
        while True:
            self._one.check()
            wait_for(lambda: self._one._ends.qsize() == self._one._running, "what is told")
            if not self._one._running:
                break
        signs = {events.AlertRaised: "+", events.AlertResolved: "-"}
        return [signs[type(each)] + each.subject for each in self.heard[before:]]

    @property
    def text(self) -> str:
        """What was told last."""
        return self.heard[-1].text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stand_in = SimpleNamespace(time=clock.time, monotonic=clock.monotonic)
    for module in (checker, readings, queue_facts, view, kept):
        monkeypatch.setattr(module, "time", stand_in)
    return clock


@pytest.fixture
def queues(fresh: Path) -> Iterator[QueueManager]:
    """Give a connection in memory, and a database with an outbox."""
    made = QueueManager(
        {
            "default": "here",
            "root": fresh,
            "jobs": [__name__],
            "connections": {"here": {"driver": "memory"}, "main": {"driver": "database"}},
            "outbox": {"connection": "main"},
        }
    )
    manager.use(made)
    yield made
    manager.use(None)


@pytest.fixture
def here(queues: QueueManager) -> Connection:
    return queues.connection("here")


@pytest.fixture
def watch(queues: QueueManager, clock: Clock) -> Callable[..., Watch]:
    return lambda *rules: Watch(queues, clock, rules)


class Ends(Queueable):
    """Comes to the outcome that it is told."""

    how: str = ""
    tries = 1

    def handle(self) -> None:
        if self.how == "failed":
            raise ValueError("no")
        if self.how == "released":
            self.release(3600)


class Again(Queueable):
    tries = 2
    backoff = 3600

    def handle(self) -> None:
        raise ValueError("no")


class Holds(Queueable):
    """Runs until it may end."""

    may_end: ClassVar[threading.Event]

    def handle(self) -> None:
        assert Holds.may_end.wait(30)


@contextmanager
def working(queues: QueueManager, *names: str) -> Iterator[Worker]:
    """Let a worker work in a thread."""
    worker = Worker(queues, WorkerOptions(queues=names, sleep=0.05, memory=0))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(lambda: roster.listed(worker.connection.store), "the worker")
        yield worker
    finally:
        worker.stop()
        thread.join(20)


# -- queues -------------------------------------------------------------------------------------


def test_a_wait(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("wait > 60s on mail")
    dispatch(Ends()).on_queue("mail").send()
    dispatch(Ends()).on_queue("other").send()
    dispatch(Ends()).on_queue("mail").delay(3000).send()
    assert one.looks(40) == []
    assert one.looks(40) == ["+mail"]
    assert re.fullmatch("the next job of here:mail has waited 1m 2[0-9]s", one.text)
    assert one.looks() == []
    here.clear("mail")
    assert one.looks() == ["-mail"]
    assert one.looks() == []


def test_a_job_that_is_due_later_waits_from_then(watch: Callable[..., Watch]) -> None:
    one = watch("wait > 60s")
    dispatch(Ends()).on_queue("mail").delay(300).send()
    assert one.looks(200) == []


@pytest.mark.parametrize("connection", ["here", "main"])
def test_sizes(queues: QueueManager, watch: Callable[..., Watch], connection: str) -> None:
    kinds = ("size", "ready", "delayed", "reserved", "buried")
    one = watch(*(f"{kind} > 1 on mail at {connection}" for kind in kinds))
    held = queues.connection(connection)

    def looks() -> set[tuple[str, str]]:
        before = len(one.heard)
        one.looks()
        return {
            (each.rule.split()[0], "on" if type(each) is events.AlertRaised else "over")
            for each in one.heard[before:]
        }

    for _ in range(2):
        dispatch(Ends()).on_connection(connection).on_queue("mail").send()
    assert looks() == {("size", "on"), ("ready", "on")}
    jobs = held.reserve(["mail"], 2)
    assert looks() == {("ready", "over"), ("reserved", "on")}
    for job in jobs:
        job.release(3600)
    assert looks() == {("reserved", "over"), ("delayed", "on")}
    held.clear("mail")
    assert looks() == {("delayed", "over"), ("size", "over")}
    for _ in range(2):
        dispatch(Ends()).on_connection(connection).on_queue("mail").send()
    looks()
    for job in held.reserve(["mail"], 2):
        job.bury()
    assert looks() == {("ready", "over"), ("size", "over"), ("buried", "on")}
    held.clear("mail")
    assert looks() <= {("buried", "over")}


def test_each_queue_of_a_pattern_by_itself(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("ready > 1 on sms.*,mail")
    for name in ("sms.a", "sms.b", "mail", "other"):
        for _ in range(2):
            dispatch(Ends()).on_queue(name).send()
    assert sorted(one.looks()) == ["+mail", "+sms.a", "+sms.b"]
    here.clear("sms.b")
    assert one.looks() == ["-sms.b"]


@pytest.mark.usefixtures("stopped_clock")
def test_a_pause(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("paused > 30m on mail")
    operations.pause(here, "mail")
    operations.pause(here, "other")
    assert one.looks(29 * 60) == []
    assert one.looks(2 * 60) == ["+mail"]
    assert one.text == "here:mail has been paused for 31m"
    operations.resume(here, "mail")
    assert one.looks() == ["-mail"]
    operations.pause(here)
    assert one.looks(1900) == ["+"]
    assert one.text.startswith("all of here has been paused for ")
    operations.resume(here)
    assert one.looks() == ["-"]


# -- what is counted ----------------------------------------------------------------------------


def test_what_becomes_of_jobs(queues: QueueManager, watch: Callable[..., Watch]) -> None:
    """A real worker counts; later it is over."""
    subjects = ("failed", "retried", "released", "done", "started")
    one = watch(*(f"{each} > 0 in 5m" for each in subjects))
    assert one.looks() == []
    for job in (Ends(), Ends(how="failed"), Ends(how="released"), Again()):
        dispatch(job).on_queue("mail").send()
    Worker(queues, WorkerOptions(queues=("mail",), stop_when_empty=True, memory=0)).run()
    one.looks()
    raised = {each.rule.split()[0]: each.value for each in one.heard}
    assert raised == {"failed": 1, "retried": 1, "released": 1, "done": 1, "started": 4}
    assert one.looks(60) == []
    assert one.looks(400) == ["-"] * 5


@pytest.mark.parametrize("subject", ["failed", "skipped", "cancelled", "lost", "timed out"])
def test_a_count_by_queue_class_and_share(
    here: Connection, watch: Callable[..., Watch], subject: str
) -> None:
    one = watch(
        f"{subject} > 3 in 5m on mail",
        f"{subject} > 3 in 5m of app.*",
        f"{subject} > 30% in 5m of app.Bad",
        f"{subject} > 50% in 5m on mail",
    )
    recorder = Recorder()

    def ended(job: str, count: int, outcome: str) -> None:
        for _ in range(count):
            recorder.started(job, "mail", None)
            if outcome == "timed out":
                recorder.ended(job, "mail", "failed", 1.0, timed_out=True)
            else:
                recorder.ended(job, "mail", outcome, 1.0)
        Metrics(here.store, here.name).write(recorder)

    ended("app.Good", 9, "done")
    ended("app.Bad", 3, "done")
    ended("app.Bad", 2, subject)
    assert one.looks() == ["+app.Bad"], "40 % of the jobs of that class"
    assert one.text == f"2 of 5 jobs {subject} in 5m on here (app.Bad)"
    ended("app.Bad", 2, subject)
    assert sorted(one.looks()) == ["+app.Bad", "+mail"], "four of them, by class and by queue"
    assert sorted(one.looks(400)) == ["-app.Bad", "-app.Bad", "-mail"]


def test_too_few(here: Connection, watch: Callable[..., Watch]) -> None:
    """Also where nothing at all was counted."""
    one = watch("done < 2 in 5m on mail at here")
    assert one.looks() == ["+mail"]
    recorder = Recorder()
    for _ in range(2):
        recorder.ended("app.Job", "mail", "done", 0.1)
    Metrics(here.store, here.name).write(recorder)
    assert one.looks() == ["-mail"]


def test_a_program_that_pushes_nothing_any_more(
    here: Connection, watch: Callable[..., Watch]
) -> None:
    one = watch("pushed < 1 in 5m of app.Import at here", "pushed > 1 in 5m on mail")
    assert one.looks() == ["+app.Import"]
    recorder = Recorder()
    recorder.pushed("app.Import", "mail", 2)
    Metrics(here.store, here.name).write(recorder)
    assert sorted(one.looks()) == ["+mail", "-app.Import"]
    assert sorted(one.looks(400)) == ["+app.Import", "-mail"]


def test_one_is_said_in_the_singular(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("size > 0 on mail", "ready > 0 on mail", "failed > 0 in 5m", "failed > 1% in 5m")
    dispatch(Ends()).on_queue("mail").send()
    recorder = Recorder()
    recorder.ended("app.Job", "mail", "failed", 0.1)
    Metrics(here.store, here.name).write(recorder)
    one.looks()
    assert sorted(each.text for each in one.heard) == [
        "1 job failed in 5m on here", "1 of 1 job failed in 5m on here",
        "here:mail has 1 job", "here:mail has 1 ready job",
    ]  # fmt: skip


# -- workers ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stopped_clock")
def test_a_job_that_runs_long(queues: QueueManager, watch: Callable[..., Watch]) -> None:
    one = watch("run > 10m")
    Holds.may_end = threading.Event()
    dispatch(Holds()).on_queue("mail").send()
    try:
        with working(queues, "mail"):
            store = queues.connection("here").store
            wait_for(lambda: any(each.jobs for each in roster.listed(store)), "the job", 60)
            assert one.looks(500) == []
            assert one.looks(200) == [f"+{__name__}.Holds"]
            assert "of here:mail on" in one.text
            assert one.text.endswith(" has run for 11m 40s")
            Holds.may_end.set()
            wait_for(lambda: not any(each.jobs for each in roster.listed(store)), "its end", 60)
            assert one.looks() == [f"-{__name__}.Holds"]
    finally:
        Holds.may_end.set()


def test_no_worker(queues: QueueManager, watch: Callable[..., Watch]) -> None:
    one = watch("no worker on mail", "no worker", "no worker on sms.* at here")
    assert sorted(one.looks()) == ["+", "+mail"]
    dispatch(Ends()).on_queue("sms.a").send()
    assert one.looks() == ["+sms.a"]
    assert one.text == "no worker works on here:sms.a"
    with working(queues, "mail"):
        assert sorted(one.looks()) == ["-", "-mail"]
    assert sorted(one.looks()) == ["+", "+mail"]


@contextmanager
def entered(connection: Connection) -> Iterator[tuple[subprocess.Popen[bytes], roster.Entry]]:
    """Give another process, and what it would say of itself if it were a worker."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        entry = roster.introduced(WorkerOptions(), connection.name, ("mail",)).model_copy(
            update={"pid": other.pid, "born": process.born(other.pid), "beat_at": time.time()}
        )
        connection.store.set(entry.key, entry.model_dump_json())
        yield other, entry
    finally:
        other.kill()
        other.wait()


def test_a_worker_that_was_killed(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("dead worker", "no worker on mail")
    with entered(here) as (other, entry):
        what = f"{entry.host}:{other.pid}"
        assert one.looks() == []
        other.kill()
        other.wait()
        assert sorted(one.looks()) == ["+mail", f"+{what}"]
        assert {each.text for each in one.heard} == {
            f"the worker {what} of here has died", "no worker works on mail",
        }  # fmt: skip
        here.store.delete(entry.key)
        assert one.looks() == [f"-{what}"]


def test_a_worker_that_is_not_heard_of(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("dead worker on mail")
    with entered(here) as (other, entry):
        what = f"{entry.host}:{other.pid}"
        assert one.looks() == one.looks() == []
        assert one.looks() == [f"+{what}"]
        assert one.text == f"the worker {what} of here was not heard of for 20 s"
        heard = entry.model_copy(update={"beat_at": time.time() + 5})
        here.store.set(entry.key, heard.model_dump_json())
        assert one.looks() == [f"-{what}"]


def expire(connection: Connection, entry: roster.Entry) -> None:
    """Have a worker's entry gone, and its registration there."""
    connection.store.delete(entry.key)
    connection.store.set(entry.registration, entry.model_dump_json())


def test_one_that_was_killed_is_told_of_however_seldom_somebody_looks(
    here: Connection, watch: Callable[..., Watch]
) -> None:
    one = watch("dead worker on mail", "dead worker on sms", "dead worker on mail for 1h")
    with entered(here) as (other, entry):
        assert one.looks() == []
        other.kill()
        other.wait()
    expire(here, entry)
    what = f"{entry.host}:{other.pid}"
    assert one.looks(3000) == [f"+{what}"]
    assert one.text == f"the worker {what} of here has died"
    assert one.looks(3000) == [f"-{what}"]
    assert here.store.keys("registered:") == []


def test_one_elsewhere_that_was_killed_too(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("dead worker")
    with entered(here) as (other, entry):
        pass
    expire(here, entry.model_copy(update={"host": "elsewhere"}))
    assert one.looks(3000) == [], "it may have been cut off, and write in a moment"
    assert one.looks(3000) == [f"+elsewhere:{other.pid}"]
    assert one.text == f"the worker elsewhere:{other.pid} of here was not heard of for 30 s"


def test_one_that_was_cut_off_and_writes_again_is_not_dead(
    here: Connection, watch: Callable[..., Watch]
) -> None:
    one = watch("dead worker")
    with entered(here) as (_, mine):
        entry = mine.model_copy(update={"host": "elsewhere"})
        for _ in range(3):
            expire(here, entry)
            assert one.looks() == []
            here.store.set(entry.key, entry.model_dump_json())
            assert one.looks() == []


def test_a_single_look_finds_it_for_ten_minutes(queues: QueueManager, here: Connection) -> None:
    with entered(here) as (_, entry):
        pass
    expire(here, entry)
    rules = [parse("dead worker")]
    for _ in range(2):
        assert len(Readings(queues, once=True).look(rules).found) == 1
    expire(here, entry.model_copy(update={"beat_at": time.time() - 601}))
    assert Readings(queues, once=True).look(rules).found == []


def test_one_that_ends_takes_itself_off(
    queues: QueueManager, here: Connection, watch: Callable[..., Watch]
) -> None:
    one = watch("dead worker")
    with working(queues, "mail"):
        assert len(here.store.keys("registered:")) == 1
        assert one.looks() == []
    assert here.store.keys("registered:") == []
    assert one.looks() == one.looks() == []


def test_who_was_stopped_takes_none_for_dead(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("dead worker")
    with entered(here):
        assert one.looks() == []
        assert one.looks(60) == [], "nobody listened meanwhile"
        assert one.looks(15) == []
        assert len(one.looks(15)) == 1


def test_who_looks_is_not_dead(here: Connection, watch: Callable[..., Watch]) -> None:
    one = watch("dead worker")
    entry = roster.introduced(WorkerOptions(), here.name, ("mail",))
    here.store.set(entry.key, entry.model_dump_json())
    assert [one.looks(15) for _ in range(4)] == [[]] * 4


# -- connections --------------------------------------------------------------------------------


def hand_on(queues: QueueManager) -> None:
    outbox = queues.outbox()
    assert outbox is not None
    Relay(queues, outbox).run(0, lambda: False, until_empty=True)


def test_the_lag_of_the_relay(queues: QueueManager, watch: Callable[..., Watch]) -> None:
    one = watch("lag of the relay > 10ms", "lag of the relay > 1h", "lag of the relay > 0s at main")
    queues.backend("main").migrate()
    outbox = queues.outbox()
    assert outbox is not None
    assert one.looks() == []
    outbox.add("here", [encoded(Step(None, Push("default", b"{}")))])
    assert wait_for(one.looks, "the lag") == ["+"]
    assert one.heard[-1].connection == "here"
    assert one.text.startswith("the outbox holds 1 dispatch for here, the oldest for ")
    hand_on(queues)
    assert one.looks() == ["-"]


def test_an_outbox_that_does_not_answer_ends_no_alert(
    queues: QueueManager, watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watch("set aside > 0", "connection here down")
    outbox = queues.outbox()
    assert outbox is not None
    queues.backend("main").migrate()
    outbox.add("here", ['{"version":1,"operations":[{"is":"Nothing"}]}'])
    hand_on(queues)
    assert one.looks() == ["+"]
    lags = outbox.lags

    def away() -> list[Lag]:
        raise BackendUnavailable("away")

    monkeypatch.setattr(outbox, "lags", away)
    assert [one.looks() for _ in range(3)] == [[]] * 3
    monkeypatch.setattr(outbox, "lags", lags)
    outbox.retry()
    assert one.looks() == ["-"]


def test_what_was_set_aside(queues: QueueManager, watch: Callable[..., Watch]) -> None:
    one = watch("set aside > 0")
    queues.backend("main").migrate()
    outbox = queues.outbox()
    assert outbox is not None
    outbox.add("here", ['{"version":1,"operations":[{"is":"Nothing"}]}'])
    outbox.add("here", [encoded(Step(None, Push("default", b"{}")))])
    assert one.looks() == []
    hand_on(queues)
    assert one.looks() == ["+"]
    assert one.text == "the outbox has set 1 dispatch for here aside"
    outbox.retry()
    assert one.looks() == ["-"]


@pytest.fixture
def far(
    fresh: Path, redis_running: RedisServer, clock: Clock
) -> Iterator[tuple[QueueManager, Proxy]]:
    """Give a connection in memory, and a Redis whose line can be cut."""
    redis_running.command("FLUSHALL")
    with Proxy("127.0.0.1", redis_running.port) as line:
        redis: dict[str, Any] = {
            "driver": "redis",
            "url": f"redis://127.0.0.1:{line.address[1]}/0",
            "connect_timeout": 0.5,
        }
        made = QueueManager(
            {
                "default": "here",
                "root": fresh,
                "connections": {"here": {"driver": "memory"}, "redis": redis},
            }
        )
        manager.use(made)
        yield made, line
        manager.use(None)
        line.switch(Mode.PASS)
        made.close()


def test_a_connection_is_down(far: tuple[QueueManager, Proxy], clock: Clock) -> None:
    """Of what is not known nothing is over, and what runs elsewhere is not taken for dead."""
    queues, line = far
    rules = ("connection redis down", "connection down", "ready > 1 on mail", "dead worker")
    one = Watch(queues, clock, rules)
    with entered(queues.connection("redis")):
        for _ in range(2):
            dispatch(Ends()).on_connection("redis").on_queue("mail").send()
        assert one.looks() == ["+mail"]
        line.switch(Mode.CUT)
        assert one.looks() == ["+", "+"]
        assert {each.connection for each in one.heard} == {"redis"}
        assert one.text.startswith("redis does not answer: ")
        for _ in range(4):
            assert one.looks() == []
        line.switch(Mode.PASS)
        assert sorted(wait_for(one.looks, "that it answers")) == ["-", "-"]
        queues.connection("redis").clear("mail")
        assert one.looks() == ["-mail"]
