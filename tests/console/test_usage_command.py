"""`qframe usage`: which classes or tags use the workers."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from qframe.metrics.by_tag import metrics_of
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from tests.console.conftest import Shop


def counted(shop: Shop) -> None:
    recorder, tags = Recorder(), Recorder()
    recorder.ended("shop.Order", "default", "done", 90.0, processor=30.0, memory=512.3)
    recorder.ended("shop.Order", "mail", "failed", 90.0, timed_out=True)
    recorder.ended("shop.\x1b[31mShip", "default", "done", 20.0, processor=0.5)
    tags.ended("tenant:7", "default", "done", 50.0, processor=10.0)
    Metrics(shop.queue.store, "database").write(recorder)
    metrics_of(shop.queue.store, "database").write(tags)


def test_the_longest_run_time_comes_first(shop: Shop) -> None:
    counted(shop)
    said = shop.run("usage", "--last", "2h")
    assert said.lines[0].split() == [
        "class", "connection", "attempts", "run", "share", "processor", "memory", "waited",
        "wait_mean", "wait_p95", "wait_longest",
    ]  # fmt: skip
    assert "30s (partly known)" in said.lines[1]
    assert said.lines[1].split()[:6] == ["shop.Order", "database", "2", "3m", "90%", "30s"]
    assert "513 MB" in said.lines[1]
    assert "\x1b" not in said.out
    rows = shop.run("usage", "--json").rows
    assert [row["name"] for row in rows] == ["shop.Order", "shop.\x1b[31mShip"]
    assert (rows[0]["run_seconds"], rows[0]["processor_seconds"]) == (180.0, 30.0)
    assert (rows[0]["attempts"], rows[0]["measured"], rows[0]["memory_mb"]) == (2, 1, 513)
    assert shop.run("usage", "--json", "--limit", "1").rows == rows[:1]


def test_the_mean_and_the_longest_wait_are_beside_the_percentile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, recorder = time.time(), Recorder()
    monkeypatch.setattr("qframe.metrics.recorder.time", SimpleNamespace(time=lambda: now))
    for seconds in [1.0] * 19 + [41.0]:
        recorder.started("shop.Order", "default", now - seconds)
        recorder.ended("shop.Order", "default", "done", 1.0)
    Metrics(shop.queue.store, "database").write(recorder)
    waited, mean, most, longest = shop.run("usage", "--last", "2h").lines[1].split()[-4:]
    assert (waited, mean) == ("1m", "3s")
    assert float(most.removesuffix("s")) == pytest.approx(1.0, rel=0.05)
    assert float(longest.removesuffix("s")) == pytest.approx(41.0, rel=0.05)


@pytest.mark.parametrize("by", ["class", "tag"])
def test_a_connection_that_does_not_answer_is_named(shop: Shop, by: str) -> None:
    down = '[connections.down]\ndriver = "redis"\nurl = "redis://127.0.0.1:1/0"\n'
    shop.write("qframe.toml", f'metric_tags = ["tenant:*"]\n{down}')
    said = shop.run("usage", "--by", by)
    assert "redis://127.0.0.1:1/0" in said.err
    assert (said.code, said.lines) == (0, ["nothing was measured"])
    said = shop.run("usage", "--by", by, "--connection", "down")
    assert "redis://127.0.0.1:1/0" in said.err
    assert (said.code, said.out) == (69, "")


def test_by_tag(shop: Shop) -> None:
    counted(shop)
    assert "metric_tags" in shop.run("usage", "--by", "tag").only()
    shop.write("qframe.toml", 'metric_tags = ["tenant:*"]\n')
    (row,) = shop.run("usage", "--by", "tag", "--last", "7d", "--json").rows
    assert (row["name"], row["run_seconds"], row["share"]) == ("tenant:7", 50.0, 0.25)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--by", "host"], "--by takes class or tag, not 'host'"),
        (["--last", "soon"], "--last: takes a time like"),
        (["--last", "15d"], "--last takes up to 14d"),
        (["--last", "0"], "--last takes up to 14d"),
        (["--last", "1e3d"], "--last: takes a time like"),
        (["--limit", "-1"], "--limit must not be negative"),
        (["--connection", "no"], "unknown connection 'no'"),
    ],
)
def test_what_is_wrong_is_one_line(shop: Shop, words: list[str], why: str) -> None:
    said = shop.run("usage", *words)
    assert said.code == 2
    assert why in said.only()


def test_without_metrics_there_is_one_line_or_an_empty_array(shop: Shop) -> None:
    assert shop.run("usage").out == "nothing was measured\n"
    assert shop.run("usage", "--json").out == "[]\n"
