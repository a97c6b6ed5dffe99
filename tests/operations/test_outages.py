"""Outages: one that lets people wait is asked behind them, and they hear at once how it stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from qframe.contracts.backend import Health
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import BackendUnavailable
from qframe.operations import outages
from qframe.operations.outages import Outages
from tests.support.process import wait_for


class Hanging(MemoryBackend):
    """A backend that says nothing for a while, and then that it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.seconds = 0.1
        self.asked = 0
        self.looked_by: set[str] = set()

    def check(self) -> Health:
        self.looked_by.add(threading.current_thread().name)
        self.read("any")
        return super().check()

    def read(self, *keys: str) -> list[str | None]:
        self.asked += 1
        if self.is_away:
            time.sleep(self.seconds)
            raise BackendUnavailable("nobody is there")
        return super().read(*keys)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(outages, "_LONG", 0.05)
    monkeypatch.setattr(outages, "EVERY", 0.01)
    made = Hanging()
    yield made
    made.is_away = False


def test_nobody_waits_twice_and_what_answers_again_is_asked_again(hanging: Hanging) -> None:
    known = Outages()
    with pytest.raises(BackendUnavailable):
        known.ask("redis", hanging, lambda: hanging.read("a"))
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(BackendUnavailable, match="nobody is there"):
            known.ask("redis", hanging, lambda: pytest.fail("it was asked"))
    assert time.monotonic() - began < 10
    assert known.ask("other", MemoryBackend(), lambda: 7) == 7
    assert known.why == {"redis": "nobody is there"}
    hanging.is_away = False
    wait_for(lambda: not known.why, "an answer")
    assert hanging.looked_by == {"qframe-outage"}
    wait_for(lambda: not known._wanted, "that it is asked again")
    assert known.ask("redis", hanging, lambda: hanging.read("a")) == [None]


def test_one_that_says_so_at_once_is_asked_each_time(hanging: Hanging) -> None:
    known = Outages()
    hanging.seconds = 0.0
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            known.ask("redis", hanging, lambda: hanging.read("a"))
    assert hanging.asked == 3
    hanging.is_away = False
    assert known.ask("redis", hanging, lambda: hanging.read("a")) == [None]
    assert known.why == {}


def test_where_nobody_asks_nobody_looks(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_WANTED", 0.3)
    known = Outages()
    with pytest.raises(BackendUnavailable):
        known.ask("redis", hanging, lambda: hanging.read("a"))
    wait_for(lambda: not known._wanted, "the end of it")
    assert known.why == {"redis": "nobody is there"}
