"""What is measured: counted by minute, written whole, put together once, read at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qframe.contracts.step import Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.metrics import counters, kept, recorder
from qframe.metrics.kept import BY_MINUTE, BY_TEN_MINUTES, Gauge, Metrics, added_up
from qframe.metrics.recorder import Recorder
from qframe.metrics.series import BOUNDS, FINE, OTHER, RUN, UNKNOWN, WAIT, Pair
from tests.support.clock import Clock

START = 1_800_000_000.0
JOB = Pair("q", "app.Job")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(START)
    for module in (kept, recorder):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock))
    return clock


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Store(MemoryBackend()), "here")


def counted(metrics: Metrics, clock: Clock, kind: kept.Resolution = BY_MINUTE) -> dict[Pair, Any]:
    series = metrics.series(kind, START, clock.now)
    return {pair: added_up(fields) for pair, fields in series.items()}


def two_who_find_a_part(clock: Clock) -> tuple[Metrics, Metrics]:
    """Give two on one store, where a part waits to be put together."""
    backend, each = MemoryBackend(), Recorder()
    each.ended("app.Job", "q", "done")
    metrics, other = Metrics(Store(backend), "here"), Metrics(Store(backend), "here")
    metrics.write(each)
    clock.now += 1000
    return metrics, other


def test_a_minute_is_written_whole_and_counts_once(clock: Clock, metrics: Metrics) -> None:
    mine, yours = Recorder(), Recorder()
    mine.started("app.Job", "q", START - 3)
    mine.ended("app.Job", "q", "done", 0.02)
    assert metrics.write(mine)
    assert not metrics.write(mine), "nothing is new"
    mine.ended("app.Job", "q", "failed", 4.0, timed_out=True)
    yours.ended("", "q", "skipped")
    for each in (mine, mine, yours):
        metrics.write(each)
    expected = {"started": 1, "done": 1, "failed": 1, "timed out": 1}
    fields = metrics.totals()[JOB]
    assert {name: fields[name] for name in expected} == expected
    assert (sum(RUN.counts(fields)), fields[RUN.total]) == (2, 4_020_000)
    assert (sum(WAIT.counts(fields)), fields[WAIT.total]) == (1, 3_000_000)
    assert metrics.totals()[Pair("q", UNKNOWN)] == {"skipped": 1}


def test_some_counts_are_read_without_the_others(clock: Clock, metrics: Metrics) -> None:
    each = Recorder()
    each.ended("app.Job", "q", "done", 0.5)
    metrics.write(each)
    for _ in range(2):  # of a part, then of what was put together
        series = metrics.series(BY_MINUTE, START, clock.now, {"done", "failed"})
        assert {pair: added_up(fields) for pair, fields in series.items()} == {JOB: {"done": 1}}
        clock.now += 1000
        metrics.put_together()


def test_parts_are_put_together_when_nobody_writes_them_any_more(
    clock: Clock, metrics: Metrics
) -> None:
    recorders = [Recorder() for _ in range(3)]
    for minute in range(25):
        clock.now = START + 60 * minute
        for each in recorders:
            each.ended("app.Job", "q", "done")
            metrics.write(each)
        before = counted(metrics, clock)
        metrics.put_together([Gauge("q", {"ready": minute, "delayed": 0})])
        after = counted(metrics, clock)
        assert before[JOB] == after[JOB] == {"done": 3 * (minute + 1)}
        assert metrics.totals() == {JOB: {"done": 3 * (minute + 1)}}
    left = metrics.store.keys(f"{kept.PREFIX}part:")
    assert len(left) == 3 * 3, "of the last minutes, which somebody may still write"
    by_ten = metrics.series(BY_TEN_MINUTES, START, clock.now)
    assert [*by_ten[JOB]["done"].values()] == [30, 30, 15]
    assert [*by_ten[Pair("q", "")]["ready"].values()] == [9, 19, 24], "the highest of each time"
    by_hours = metrics.series(kept.BY_TWO_HOURS, START, clock.now)
    assert sum(by_hours[JOB]["done"].values()) == 75
    clock.now += 3600
    assert metrics.put_together() == 9
    assert metrics.store.keys(f"{kept.PREFIX}part:") == []
    assert metrics.totals() == {JOB: {"done": 75}}


def test_of_two_who_put_together_at_once_one_does_nothing(clock: Clock) -> None:
    metrics, other = two_who_find_a_part(clock)
    read = metrics.store.get

    def meanwhile(*keys: str) -> list[str | None]:
        found = read(*keys)
        other.put_together()
        return found

    metrics.store.get = meanwhile  # type: ignore[method-assign]
    metrics.put_together()
    assert other.totals() == {JOB: {"done": 1}}
    assert counted(other, clock) == {JOB: {"done": 1}}


class Away(MemoryBackend):
    """Does what it is told, and does not answer."""

    deaf = False

    def apply(self, *steps: Step) -> list[Result]:
        results = super().apply(*steps)
        if self.deaf:
            raise BackendUnavailable("away")
        return results


@pytest.mark.parametrize("minutes", [0, 1, 3, 90])
def test_what_was_not_heard_is_said_again_and_counts_once(clock: Clock, minutes: int) -> None:
    """Of a minute long past, what had been written before counts once, and the rest later."""
    backend = Away()
    metrics, each = Metrics(Store(backend), "here"), Recorder()
    each.ended("app.Job", "q", "done")
    metrics.write(each)
    each.ended("app.Job", "q", "done")
    each.lost("app.Job", "q", was_done=True)
    clock.now += 60 * minutes
    if minutes < 2:
        backend.deaf = True
        with pytest.raises(BackendUnavailable):
            metrics.write(each)
        backend.deaf = False
    else:
        metrics.put_together()
    metrics.write(each)
    each.ended("app.Job", "q", "done")
    metrics.write(each)
    clock.now += 1000
    metrics.put_together()
    assert metrics.totals()[JOB] == {"done": 2, "lost": 1}
    assert each.by_outcome() == {"done": 2, "lost": 1}


def test_there_are_not_too_many_series(clock: Clock, metrics: Metrics) -> None:
    for minute in range(4):
        clock.now = START + 60 * minute
        each = Recorder()
        for number in range(recorder.MOST + 50):
            each.ended(f"app.Job{minute}.{number}", f"q{minute}.{number}", "done")
        metrics.write(each)
        metrics.put_together()
    clock.now += 1000
    metrics.put_together(Gauge(f"q{number}", {"ready": 1}) for number in range(1000))
    totals = metrics.totals()
    assert sum(fields["done"] for fields in totals.values()) == 4 * (recorder.MOST + 50)
    assert len(totals) <= 2 * kept.MOST + 1
    assert totals[Pair(OTHER, OTHER)]["done"] > 0
    assert len(metrics.series(BY_MINUTE, START, clock.now)) <= 2 * kept.MOST + 2


def test_spans_are_gone_in_time(clock: Clock, metrics: Metrics) -> None:
    each = Recorder()
    each.ended("app.Job", "q", "done")
    metrics.write(each)
    clock.now += 600
    metrics.put_together()
    backend = metrics.store.backend
    for days, left in ((0.9, 3), (1.1, 2), (2.3, 1), (14.9, 1), (15.1, 0)):
        backend.timing.skew = days * 86_400
        found = [len(metrics.series(kind, START, clock.now)) for kind in kept.RESOLUTIONS]
        assert found == [0] * (3 - left) + [1] * left
    assert metrics.totals() == {JOB: {"done": 1}}, "these stay"


def test_one_at_a_time_has_the_turn(metrics: Metrics) -> None:
    assert metrics.takes_turn("a", 90)
    assert metrics.takes_turn("a", 90)
    assert not metrics.takes_turn("b", 90)
    metrics.store.backend.timing.skew = 91
    assert metrics.takes_turn("b", 90)
    assert not metrics.takes_turn("a", 90)


def test_connections_of_one_store_are_apart(clock: Clock) -> None:
    store = Store(MemoryBackend())
    mine, yours = Metrics(store, "a|b"), Metrics(store, "a")
    each = Recorder()
    each.ended("app.J|ob", "q:1", "done")
    mine.write(each)
    assert yours.totals() == {}
    assert [(e.what, e.connection, e.name) for e in counters.read(mine)] == [
        ("queue", "a|b", "q:1"), ("job", "a|b", "app.J|ob"),
    ]  # fmt: skip
    yours.reset()
    assert mine.totals()
    mine.reset()
    assert store.keys(kept.PREFIX) == []


def test_quantiles_lie_in_the_buckets_of_the_values() -> None:
    each = Recorder()
    values = [number / 100 for number in range(1, 1001)]  # 10 ms to 10 s, evenly
    for value in values:
        each.ended("app.Job", "q", "done", value)
    ((_, text),) = each.unwritten()
    ((_, _, fields),) = json.loads(text)
    for part in (0.01, 0.5, 0.95, 0.99, 1.0):
        found, exact = RUN.quantile(fields, part), values[round(part * 1000) - 1]
        assert found is not None
        assert found == pytest.approx(exact, rel=0.05)
    assert RUN.longest(fields) == pytest.approx(10, rel=0.05)
    mean = RUN.mean(fields)
    assert mean == pytest.approx(5.005)
    assert (RUN.quantile({}, 0.5), RUN.mean({}), RUN.longest({})) == (None, None, None)
    each.ended("app.Job", "q", "done", 1e9)
    ((_, text),) = each.unwritten()
    ((_, _, fields),) = json.loads(text)
    assert RUN.quantile(fields, 1.0) == FINE[-1], "a bucket without a bound"


@pytest.mark.parametrize("seconds", [0.0002, 0.02, 0.5, 1.0, 1.003, 2.6, 60.0, 61.5, 90.0, 4000.0])
def test_whatever_jobs_take_is_shown_within_five_of_a_hundred(seconds: float) -> None:
    each = Recorder()
    for _ in range(9):
        each.ended("app.Job", "q", "done", seconds)
    each.ended("app.Job", "q", "failed", seconds / 3)
    ((_, text),) = each.unwritten()
    ((_, _, fields),) = json.loads(text)
    for shown in (RUN.quantile(fields, 0.5), RUN.quantile(fields, 0.95), RUN.longest(fields)):
        assert shown == pytest.approx(seconds, rel=0.05)


def test_jobs_that_all_take_as_long_are_shown_exactly() -> None:
    each = Recorder()
    for _ in range(3):
        each.ended("app.Job", "q", "done", 60.0)
    ((_, text),) = each.unwritten()
    ((_, _, fields),) = json.loads(text)
    shown = (RUN.quantile(fields, 0.5), RUN.mean(fields), RUN.longest(fields))
    assert shown == (60.0, 60.0, 60.0)


def test_prometheus_has_the_few_bounds_of_before_and_counts_rightly() -> None:
    each = Recorder()
    for seconds in (0.0001, 0.001, 0.0011, 60.0, 60.1, 4000.0, 1e7):
        each.ended("app.Job", "q", "done", seconds)
    ((_, text),) = each.unwritten()
    ((_, _, fields),) = json.loads(text)
    counts = dict(zip((*BOUNDS, float("inf")), RUN.counts(fields), strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {
        0.001: 2, 0.0025: 1, 60.0: 1, 120.0: 1, float("inf"): 2,
    }  # fmt: skip


def test_what_was_kept_before_is_no_trouble(clock: Clock) -> None:
    metrics, _ = two_who_find_a_part(clock)
    old = json.dumps([["q", "app.Job", {"done": {"29000000": 3}, "run5": {"29000000": 3}}]])
    keys = [
        metrics._span_key(kind, clock.now - back) for kind in kept.RESOLUTIONS for back in (0, 60)
    ]
    for key in keys:
        metrics.store.set(key, old)
    assert metrics.put_together()
    assert metrics.series(kept.BY_MINUTE, clock.now - 3600, clock.now)


def test_reading_amid_a_putting_together_counts_nothing_twice(clock: Clock) -> None:
    metrics, other = two_who_find_a_part(clock)
    items = metrics.store.items

    def meanwhile(prefix: str) -> Iterator[tuple[str, str]]:
        found = [*items(prefix)]
        other.put_together()
        return iter(found)

    metrics.store.items = meanwhile  # type: ignore[method-assign]
    assert metrics.totals() == {JOB: {"done": 1}}
    assert counted(metrics, clock) == {JOB: {"done": 1}}
