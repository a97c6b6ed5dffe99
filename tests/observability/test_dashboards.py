"""Dashboard and alert rules: all they ask for is on the page that Prometheus reads."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from qframe.metrics.series import OUTCOMES
from qframe.web.prometheus import _Collector
from tests.support import promtool

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
ALERTS = DOCS / "prometheus" / "alerts.yml"
DASHBOARD = DOCS / "grafana" / "qframe.json"
OURS = {"le", "alertname"}
PAIR = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


class Nothing:
    """A board on which each family has no sample, but its labels."""

    silent: frozenset[str] = frozenset()

    def totals(self, **_how: object) -> list[Any]:
        return []

    queues = workers = connections = tag_totals = totals

    @property
    def failed(self) -> Any:
        """The failed jobs: none."""
        return self

    def summary(self) -> Any:
        return type("Summary", (), {"kept_by": {}})()


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Give the labels of each metric there is, by the name of its samples."""
    board: Any = Nothing()
    families: list[Metric] = list(_Collector(board).collect())
    found: dict[str, set[str]] = {}
    for family in families:
        own = {*getattr(family, "_labelnames", ())}
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        for ending in endings.get(family.type, [""]):
            found[family.name + ending] = own
    return found


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable.get("definition", "")
    text = re.sub(
        r"expr: >-\n((?:          .*\n)+)",
        lambda m: "expr: " + " ".join(m[1].split()) + "\n",
        ALERTS.read_text(),
    )
    yield from re.findall(r"expr: (.*)", text)


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    for name, chosen in re.findall(r"\b(qframe_\w+)(?:\{([^}]*)\})?", expression):
        yield name, {key for key, _ in PAIR.findall(chosen)}


def test_every_metric_and_label_exists(labels: dict[str, set[str]]) -> None:
    asked = [*expressions()]
    assert len(asked) > 30
    for expression in asked:
        names = set[str]()
        for name, chosen in used(expression):
            assert name in labels, expression
            assert chosen <= labels[name] | OURS, expression
            names |= labels[name]
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {each.strip() for each in group.split(",")} <= names | OURS, expression


def test_every_metric_is_shown(labels: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions() for name, _ in used(expression)}
    family = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels} == family


def test_the_states_and_outcomes_exist() -> None:
    known = {
        "state": {"ready", "delayed", "reserved", "buried", "idle", "running", "paused", "gone"}
    }
    known["outcome"] = {each.replace(" ", "_") for each in OUTCOMES}
    for expression in expressions():
        for key, value in PAIR.findall(expression):
            if key in known:
                assert set(value.split("|")) <= known[key], expression


def test_panels_do_not_lie_on_each_other() -> None:
    taken = set[tuple[int, int]]()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@promtool.needed
def test_promtool_accepts_the_rules_and_they_fire(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    shutil.copy(HERE / "alerts_test.yml", tmp_path / "alerts_test.yml")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        code, out, err = promtool.run(*words, folder=tmp_path)
        assert code == 0, out + err
