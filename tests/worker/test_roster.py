"""The parts of a worker's presence, each by itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import BackendUnavailable
from qframe.contracts.step import Result, Set, Step
from qframe.drivers import process
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store
from qframe.metrics import counters
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.worker import presence, roster
from qframe.worker.options import WorkerOptions
from qframe.worker.presence import Doing, Presence, Sight
from qframe.worker.roster import Entry


class Flaky(MemoryBackend):
    """A backend that can be out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.writes = 0

    def apply(self, *steps: Step) -> list[Result]:
        self.writes += any(isinstance(each, Set) for step in steps for each in step.operations)
        if self.down:
            raise BackendUnavailable("down")
        return super().apply(*steps)


class Moment:
    """The worker's clock."""

    now = 1000.0


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> type[Moment]:
    monkeypatch.setattr(Moment, "now", 1000.0)
    monkeypatch.setattr(presence, "time", SimpleNamespace(
        monotonic=lambda: Moment.now, time=lambda: Moment.now + 1e9
    ))  # fmt: skip
    return Moment


class Told:
    """A presence without a thread, and what it is to see."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.sight = Sight((), paused=False)
        self.recorder = Recorder()
        store = Store(backend)
        self.metrics = Metrics(store, "here")
        self.heard: list[Entry] = []
        self.presence = Presence(
            store,
            roster.introduced(WorkerOptions(name="name"), "here", ("q",)),
            self.recorder,
            lambda: self.sight,
            self.heard.append,
            self.metrics,
        )

    def count(self, name: str, outcome: str, times: int) -> None:
        for _ in range(times):
            self.recorder.ended(name, "q", outcome)

    def beat(self) -> Entry:
        Moment.now += 1
        self.presence.beat()
        return self.presence.entry


class FakeJob(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment] # a namespace has none


def job(name: str = "app.Job") -> Any:
    return FakeJob(uuid="u", name=name, queue="q", attempts=lambda: 2, payload={"tags": ["user:7"]})


def test_an_entry_is_written_when_something_changed_or_is_due(moment: type[Moment]) -> None:
    store = Flaky()
    told = Told(store)
    assert told.beat().state == "idle"
    assert store.writes == 1
    for _ in range(9):
        told.beat()
    assert store.writes == 1
    told.beat()
    assert store.writes == 2
    told.sight = Sight((Doing(job(), Moment.now - 5),), paused=False)
    entry = told.beat()
    (running,) = entry.jobs
    assert (entry.state, running.name, running.tags) == ("running", "app.Job", ("user:7",))
    assert running.since == Moment.now - 6 + 1e9
    told.beat()
    assert store.writes == 3, "the same job is no change"
    told.sight = Sight((), paused=True)
    assert told.beat().state == "paused"
    assert roster.listed(Store(store)) == [told.presence.entry]
    store.timing.skew += 31
    assert roster.listed(Store(store)) == [], "it expires by itself"


def test_between_two_short_jobs_a_worker_is_not_idle(moment: type[Moment]) -> None:
    told = Told(Flaky())
    told.beat()
    told.count("app.Job", "done", 7)
    entry = told.beat()
    assert (entry.state, entry.jobs, entry.counts) == ("running", (), {"processed": 7})
    assert told.beat().state == "idle"


def test_counts_go_to_the_store_once_whatever_happens_between(moment: type[Moment]) -> None:
    backend = Flaky()
    told = Told(backend)
    told.count("app.Job", "done", 5)
    told.beat()
    told.count("app.Job", "done", 2)
    told.count("", "failed", 1)
    backend.down = True
    told.beat()
    told.count("app.Job", "done", 1)
    told.beat()
    backend.down = False
    told.count("app.Job", "done", 2)
    told.presence.leave()
    store = Store(backend)
    assert {(e.what, e.name): e.counts["processed"] for e in counters.read(told.metrics)} == {
        ("queue", "q"): 10, ("job", "app.Job"): 10, ("job", "(unknown)"): 0,
    }  # fmt: skip
    assert store.keys("worker:") == []


def test_a_store_that_is_down_disturbs_nothing_and_is_told_once(
    moment: type[Moment], caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky()
    store.down = True
    told = Told(store)
    told.count("app.Job", "done", 1)
    for _ in range(4):
        told.beat()
    assert caplog.records == [], "a moment is not worth a word"
    for _ in range(10):
        told.beat()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "the worker's entry and counters cannot be written: down"
    assert told.heard, "the title is kept up to date all the same"
    store.down = False
    told.beat()
    found = counters.read(told.metrics)
    assert counters.added_up(found)["processed"] == 2  # of its queue and of its class
    told.presence.leave()


def test_whatever_a_store_raises_disturbs_nothing(
    moment: type[Moment], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Flaky()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "apply", broken)
    told = Told(store)
    told.beat()
    told.presence.leave()


def entry(**over: object) -> Entry:
    return roster.introduced(WorkerOptions(name="n"), "c", ("q",)).model_copy(update=over)


def test_who_is_gone() -> None:
    assert not entry().is_gone
    assert entry(born="1").is_gone, "another process has its pid now"
    assert not entry(born="1", host="elsewhere").is_gone
    assert not entry(born="1", place="another container").is_gone
    assert not entry(born="").is_gone
    ended = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert ended.stdout is not None
    ended.stdout.read()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert process.born(ended.pid) == "", "it only waits for its parent"
    assert entry(pid=ended.pid).is_gone
    ended.wait()
    ended.stdout.close()
    assert entry(pid=ended.pid).is_gone
    assert entry(pid=ended.pid, born="").is_gone
