"""The list of the classes, and that of the tags: what it says of jobs whose times are known."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from qframe import QueueManager, manager
from qframe.metrics.by_tag import metrics_of
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from tests.web.conftest import Site

TIMES = {
    "even": [60.0] * 3,
    "brief": [1.0] * 3,
    "mixed": [1.0] * 18 + [60.0] * 2,
    "spread": [1.09] * 12 + [10.4] * 6 + [59.0] * 2,
}
MEASURES = ("p50", "p95", "mean", "longest")
SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}


def known(values: Sequence[float]) -> dict[str, float]:
    """Give what the list ought to say of jobs that took so many seconds, in order."""
    return {
        "p50": values[(len(values) - 1) // 2],
        "p95": values[round(0.95 * len(values)) - 1],
        "mean": sum(values) / len(values),
        "longest": max(values),
    }


@pytest.fixture
def site(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Give a page of jobs, and of tags, that waited and ran for known times."""
    now = time.time()
    monkeypatch.setattr("qframe.metrics.recorder.time", SimpleNamespace(time=lambda: now))
    queues = QueueManager({"root": fresh, "metric_tags": ["tenant:*"]})
    manager.use(queues)
    site = Site(queues)
    for kept, prefix in ((Metrics, "app."), (metrics_of, "tenant:")):
        recorder = Recorder()
        for name, values in TIMES.items():
            for seconds in values:
                recorder.started(f"{prefix}{name}", "mail", now - seconds)
                recorder.ended(f"{prefix}{name}", "mail", "done", seconds)
        kept(site.queue.store, "database").write(recorder)
    yield site
    manager.use(None)


def seconds_of(shown: str) -> float:
    parts = re.findall(r"([\d.]+) (ms|s|min)\b", shown)
    assert parts, shown
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def row_of(page: str, name: str) -> dict[str, str]:
    """Give the text of each cell of the first row with such a name, by its label."""
    found = re.search(rf'<tr><th scope="row"[^>]*>(?:<a [^>]*>)?{name}<.*?</tr>', page)
    assert found is not None
    cells = re.findall('<td data-label="([^"]+)".*?>(.*?)</td>', found[0])
    return {label: re.sub("<[^>]+>", "", text) for label, text in cells}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("prefix", ["app.", "tenant:"])
def test_the_page_has_the_mean_and_the_longest_beside(site: Site, prefix: str, name: str) -> None:
    page = site.client().get("/classes").text.replace("<wbr>", "")
    expected = known(TIMES[name])
    row = row_of(page, f"{prefix}{name}")
    for label in ("Run", "Wait"):
        for quantile, beside in (("p50", "mean"), ("p95", "longest")):
            shown = row[f"{label} {quantile}"].split(beside)
            wanted = [expected[quantile], expected[beside]]
            assert [seconds_of(each) for each in shown] == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize(("path", "prefix"), [("classes", "app."), ("tags", "tenant:")])
def test_so_has_the_api(site: Site, path: str, prefix: str) -> None:
    listed = site.client().get(f"/api/v1/{path}").json()["classes"]
    found = {each["job"].removeprefix(prefix): each for each in listed}
    assert found.keys() == TIMES.keys()
    for name, values in TIMES.items():
        for kind in ("run", "wait"):
            shown = {measure: found[name][f"{kind}_{measure}"] for measure in MEASURES}
            assert shown == pytest.approx(known(values), rel=0.05)


@pytest.mark.parametrize(("by", "prefix"), [("class", "app."), ("tag", "tenant:")])
def test_who_uses_the_workers_has_them_of_the_waits(site: Site, by: str, prefix: str) -> None:
    listed = site.client().get(f"/api/v1/usage?by={by}").json()["usage"]
    for each in listed:
        expected = known(TIMES[each["name"].removeprefix(prefix)])
        for measure in ("p95", "mean", "longest"):
            assert each[f"wait_{measure}"] == pytest.approx(expected[measure], rel=0.05)
    page = site.client().get("/classes").text.replace("<wbr>", "")
    row = row_of(page[page.index("the workers") :], f"{prefix}mixed")
    assert row["Waited"].endswith("mean 6.9 s")
    assert seconds_of(row["Wait p95"].split("longest")[1]) == pytest.approx(60, rel=0.05)
