"""Metrics: parts that are put together, on every backend that keeps facts."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.drivers.store import Store
from qframe.metrics import recorder
from qframe.metrics.kept import RESOLUTIONS, Gauge, Metrics, added_up
from qframe.metrics.recorder import Recorder
from qframe.metrics.series import Pair
from qframe.testing.conformance.steps import needs


def test_parts_are_put_together_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(backend, Capability.FACTS)
    metrics, now, past = Metrics(Store(backend), "here"), Recorder(), Recorder()
    now.ended("app.Jöb", "q", "done", 0.1)
    metrics.write(now)
    monkeypatch.setattr(recorder, "time", SimpleNamespace(time=lambda: time.time() - 600))
    past.ended("app.Jöb", "q", "failed", 0.1)
    metrics.write(past)
    monkeypatch.undo()
    for _ in range(2):
        metrics.put_together([Gauge("q", {"ready": 7})])
        fields = metrics.totals()[Pair("q", "app.Jöb")]
        assert (fields["done"], fields["failed"]) == (1, 1)
        for kind in RESOLUTIONS:
            series = metrics.series(kind, time.time() - 3600, time.time())
            counted = added_up(series[Pair("q", "app.Jöb")])
            assert (counted["done"], counted["failed"]) == (1, 1)
            assert added_up(series[Pair("q", "")])["ready"] >= 7
    assert metrics.takes_turn("a", 90)
    assert not metrics.takes_turn("b", 90)
    metrics.reset()
    assert metrics.totals() == {}
