"""The parts of a worker's presence, each by itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import BackendUnavailable, host
from qframe.worker import presence, roster, tally
from qframe.worker.presence import Presence, Sight
from qframe.worker.roster import Entry
from qframe.worker.tally import Tally
from tests.plugins.memory_driver.qframe_memory import Memory, MemoryStore


class Flaky(MemoryStore):
    """A store that can be out of order, or do what it is told and then break."""

    def __init__(self) -> None:
        super().__init__(Memory())
        self.down = False
        self.unheard = False
        self.writes = 0

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        self.writes += 1
        self._may_break()
        super().set(key, value, ttl)

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        self._may_break()
        done = super().increment(amounts, marker, step)
        if self.unheard:
            self.unheard = False
            raise BackendUnavailable("the answer got lost")
        return done

    def _may_break(self) -> None:
        if self.down:
            raise BackendUnavailable("down")


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

    def __init__(self, store: MemoryStore) -> None:
        self.sight = Sight(None, 0.0, paused=False)
        self.tally = Tally()
        self.heard: list[Entry] = []
        self.store = store
        self.presence = Presence(
            store,
            roster.introduced("name", "here", ("q",)),
            self.tally,
            lambda: self.sight,
            close=lambda: None,
            told=self.heard.append,
        )

    def beat(self) -> Entry:
        Moment.now += 1
        self.presence.beat()
        return self.presence.entry


def job(name: str = "app.Job") -> Any:
    return SimpleNamespace(uuid="u", name=name, queue="q", attempts=lambda: 2)


def test_an_entry_is_written_when_something_changed_or_is_due(moment: type[Moment]) -> None:
    store = Flaky()
    told = Told(store)
    assert told.beat().state == "idle"
    assert store.writes == 1
    told.presence.beat()  # not a second later
    for _ in range(9):
        told.beat()
    assert store.writes == 1
    told.beat()
    assert store.writes == 2
    told.sight = Sight(job(), Moment.now - 5, paused=False)
    entry = told.beat()
    assert (entry.state, entry.job and entry.job.name) == ("running", "app.Job")
    assert entry.job is not None
    assert entry.job.since == Moment.now - 6 + 1e9
    told.beat()
    assert store.writes == 3, "the same job is no change"
    told.sight = Sight(None, 0.0, paused=True)
    assert told.beat().state == "paused"
    assert roster.listed(store) == [told.presence.entry]
    Moment.now = 1000.0
    store.memory.clock = lambda: 2e10
    assert roster.listed(store) == [], "it expires by itself"


def test_between_two_short_jobs_a_worker_is_not_idle(moment: type[Moment]) -> None:
    told = Told(Flaky())
    told.beat()
    told.tally["app.Job", "q", "done"] = 7
    entry = told.beat()
    assert (entry.state, entry.job, entry.counts) == ("running", None, {"processed": 7})
    assert told.beat().state == "idle"


def test_counts_go_to_the_store_once_although_an_answer_gets_lost(moment: type[Moment]) -> None:
    store = Flaky()
    told = Told(store)
    told.tally["app.Job", "q", "done"] = 5
    store.unheard = True
    told.beat()
    told.tally["app.Job", "q", "done"] = 7
    told.tally["", "q", "failed"] = 1
    told.beat()
    store.down = True
    told.tally["app.Job", "q", "done"] = 8
    told.beat()
    store.down = False
    told.tally["app.Job", "q", "done"] = 10
    told.presence.end()
    assert {(e.what, e.name): e.counts["processed"] for e in tally.read(store)} == {
        ("queue", "q"): 10, ("job", "app.Job"): 10, ("job", "(unknown)"): 0,
    }  # fmt: skip
    assert list(store.keys("worker:")) == list(store.keys("counted:")) == []


def test_a_store_that_is_down_disturbs_nothing_and_is_told_once(
    moment: type[Moment], caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky()
    store.down = True
    told = Told(store)
    told.tally["app.Job", "q", "done"] = 1
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
    assert tally.added_up(tally.read(store))["processed"] == 2  # of its queue and of its class
    told.presence.end()


def test_whatever_a_store_raises_disturbs_nothing(
    moment: type[Moment], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Flaky()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "set", broken)
    told = Told(store)
    told.beat()
    told.presence.end()


def test_a_loss_noticed_late_takes_back_what_was_counted() -> None:
    ended = Tally({("app.Job", "q", "done"): 3})
    ended.lost("app.Job", "q", was_done=True)
    ended.lost("app.Job", "q", was_done=False)
    assert ended.by_outcome() == {"processed": 2, "lost": 2}
    added = tally.amounts("a|b", {("app.Job", "q", "done"): 3}, ended)
    assert added == {
        "counter:queue:a/b|q|processed": -1, "counter:job:a/b|app.Job|processed": -1,
        "counter:queue:a/b|q|lost": 2, "counter:job:a/b|app.Job|lost": 2,
    }  # fmt: skip


def test_counters_of_one_connection_are_reset_alone() -> None:
    store = MemoryStore(Memory())
    for name in ("a", "b"):
        added = tally.amounts(name, {}, {("app.J|ob", "q:1", "done"): 2})
        store.increment(added, "marker", name)
    tally.reset(store, "a")
    assert [(e.what, e.connection, e.name) for e in tally.read(store)] == [
        ("queue", "b", "q:1"), ("job", "b", "app.J|ob"),
    ]  # fmt: skip


def entry(**over: object) -> Entry:
    return roster.introduced("n", "c", ("q",)).model_copy(update=over)


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
    assert host.born(ended.pid) == "", "it only waits for its parent"
    assert entry(pid=ended.pid).is_gone
    ended.wait()
    ended.stdout.close()
    assert entry(pid=ended.pid).is_gone
    assert entry(pid=ended.pid, born="").is_gone
