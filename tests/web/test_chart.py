"""The chart: what is drawn of a trend, and the pages that have one."""

from __future__ import annotations

import json
import re
import threading
import time
from html import unescape
from typing import Any

import pytest

from qframe.metrics.deploys import Deploys
from qframe.metrics.kept import BY_MINUTE, PREFIX
from qframe.metrics.series import RUN, WAIT, Pair
from qframe.operations.activity import Activity, Trend
from qframe.operations.deploys import DeployState
from qframe.web import rendering
from qframe.web.chart import chart
from tests.support.process import wait_for
from tests.web.conftest import Site


def trend_of(**more: Any) -> Trend:
    steps = 4
    fields: dict[str, Any] = {
        "pushed": [0] * steps,
        "started": [0] * steps,
        "done": [0] * steps,
        "failed": [0] * steps,
        "wait_p95": [None] * steps,
        "run_p95": [None] * steps,
        "ready": [None] * steps,
        "oldest_seconds": [None] * steps,
        **more,
    }
    return Trend(step_seconds=60, **fields)


def measured(site: Site, ago: int, **counts: int) -> None:
    """Count jobs of a class, so many minutes ago."""
    fields = {**counts, RUN.bucket(0.5): 3, RUN.total: 1_500_000, WAIT.bucket(2): 3}
    minute = int(time.time() // 60) - ago
    key = f"{PREFIX}part:{site.queue.name}|{minute:010d}|test"
    site.queue.store.set(key, json.dumps([["mail", "app.Send", fields]]), 3600)


def test_bars_have_the_heights_of_a_round_scale() -> None:
    drawn = chart(trend_of(done=[0, 30, 90, 0], failed=[0, 0, 10, 0]), [])
    bars = re.findall(r'<rect class="(done|failed)" x="([\d.]+)%".*? height="([\d.]+)"', drawn)
    assert bars == [
        ("done", "25.00", "39.6"),
        ("done", "50.00", "132.0"),
        ("failed", "50.00", "46.0"),
    ]
    assert ">100</text>" in drawn
    assert "<b>0</b> pushed, <b>130</b> ended" in drawn


def test_a_line_ends_where_nothing_is_known() -> None:
    drawn = chart(trend_of(wait_p95=[1.0, 2.0, None, 4.0]), [])
    assert drawn.count('<line class="wait"') == 1
    assert drawn.count('<circle class="wait"') == 1
    assert "started within <b>4 s</b>" in drawn
    assert "no job started" in chart(trend_of(), [])


def test_each_step_says_its_numbers_and_deploys() -> None:
    deploy = DeployState(at="x", version="2.4 <b>", text="", seconds_ago=70)
    old = deploy.model_copy(update={"seconds_ago": 900})
    drawn = chart(trend_of(done=[0, 0, 7, 0], failed=[0, 0, 2, 0]), [deploy, old])
    assert "<b>2.4" not in drawn
    assert drawn.count('class="mark"') == 3, "one in each panel"
    assert drawn.count('class="version"') == 1
    titles = [unescape(each) for each in re.findall(r"<title>(.*?)</title>", drawn, re.DOTALL)]
    assert len(titles) == 4
    assert "9 ended, 0 pushed\n2 failed" in titles[2]
    assert [each for each in titles if "deploy 2.4 <b>" in each]


@pytest.mark.parametrize("together", [1, 3, 7])
def test_steps_are_put_together(together: int) -> None:
    counts = {slot: slot - 99 for slot in range(100, 110)}
    read = Activity({}, BY_MINUTE, 100 * 60, 109 * 60)
    read.series = {Pair("mail", "app.Send"): {"done": counts}, Pair("mail", ""): {"ready": counts}}
    trend = read.trend(together=together)
    values = [*counts.values()]
    groups = [values[at : at + together] for at in range(0, 10, together)]
    assert trend.done == [sum(each) for each in groups]
    assert trend.ready == [max(each) for each in groups]
    assert trend.step_seconds == 60 * together


@pytest.mark.parametrize("period", ["1h", "24h", "14d", "", "<b>"])
def test_the_overview_has_a_chart_of_each_period(small: Site, period: str) -> None:
    measured(small, 5, done=40, failed=2, started=42, pushed=50)
    Deploys(small.queue.store).mark("2.4.1")
    client = small.client()
    page = client.get("/", params={"period": period}).text
    assert "<b>50</b> pushed, <b>42</b> ended" in page
    assert 'class="mark"' in page
    assert "<b>&lt;b" not in page


def test_a_class_has_its_page(small: Site) -> None:
    measured(small, 5, done=40, failed=2, started=42, pushed=50)
    small.keep("f-1", "KeyError: 'a'")
    other = b'{"uuid": "f-2", "job": "app.Other", "data": {}}'
    small.keep("f-2", "ValueError: <b>", name="app.Other", payload=other)
    page = small.client().get("/classes/app.Send").text
    assert "<dd>500 ms</dd><dd>mean " in page
    assert "of 42 started" in page
    assert "KeyError" in page
    assert 'href="/jobs/f-1"' in page
    assert "f-2" not in page
    assert "Run time</h3>" in page
    assert 'href="/classes/app.Send"' in small.client().get("/classes").text
    empty = small.client().get("/classes/app.%3Cb%3E").text
    assert "No job of this class ran in this time" in empty
    assert "app.<b>" not in empty


def test_a_slow_trend_is_shown_later(small: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(small, 5, done=40, failed=2, started=42, pushed=50)
    go_on = threading.Event()
    trend = Activity.trend

    def slow(self: Activity, *given: Any) -> Trend:
        if given[-1] > 1:
            go_on.wait(20)
        return trend(self, *given)

    monkeypatch.setattr(Activity, "trend", slow)
    monkeypatch.setattr(rendering, "_PATIENCE", 0.0)
    client = small.client()
    try:
        assert "Still loading: 14 days of measurements." in client.get("/?period=14d").text
    finally:
        go_on.set()
    wait_for(lambda: "<b>42</b> ended" in client.get("/?period=14d").text, "the chart")
