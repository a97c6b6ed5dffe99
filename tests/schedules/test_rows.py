"""Rows, and pauses, from code: as docs/features/schedules.md says, and what is told of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qframe import events
from qframe.exceptions import ConfigurationError
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from tests.schedules.conftest import Bench
from tests.support.pages import docs_page

PAGE = docs_page("schedules.md").read_text()
SYNC = """
from qframe import Queueable
class Sync(Queueable):
    shop: int
    def handle(self) -> None: ...
"""
ROW = ScheduleRow(job="App.Sync", foreign=True, when="every 5m", spread=9)


def test_the_code_of_the_page_does_what_it_says(bench: Bench, fresh: Path) -> None:
    (code,) = re.findall(r"```python skip\n(from qframe import manager\n.*?)```", PAGE, re.DOTALL)
    (fresh / "app").mkdir()
    (fresh / "app" / "jobs.py").write_text(SYNC)
    summaries: list[tuple[str, str, str]] = []

    def hear(event: events.SchedulePaused | events.ScheduleResumed) -> None:
        summaries.append((type(event).__name__, event.connection, event.schedule))

    with events.kept():
        events.listen(events.SchedulePaused)(hear)
        events.listen(events.ScheduleResumed)(hear)
        exec(compile(code, "schedules.md", "exec"), {})
    assert summaries == [
        ("SchedulePaused", "memory", "nightly"), ("ScheduleResumed", "memory", "nightly"),
        ("SchedulePaused", "memory", ""), ("ScheduleResumed", "memory", ""),
    ]  # fmt: skip
    assert ScheduleRows(bench.queues).summaries(bench.queue) == []


def test_a_row_is_replaced_only_where_that_is_said_and_a_change_keeps_the_rest(
    bench: Bench,
) -> None:
    rows = ScheduleRows(bench.queues)
    with pytest.raises(ConfigurationError, match="there is no row 'sync'"):
        rows.change(bench.queue, "sync", when="every 10m")
    rows.add(bench.queue, "sync", ROW)
    with pytest.raises(ConfigurationError, match="already"):
        rows.add(bench.queue, "sync", ROW)
    with pytest.raises(ConfigurationError, match="colour"):
        rows.change(bench.queue, "sync", colour="red")
    rows.change(bench.queue, "sync", when="every 10m")
    (row,) = rows.summaries(bench.queue)
    assert (row.when, row.spread) == ("every 10m", 9)
    rows.add(bench.queue, "sync", ROW.model_copy(update={"spread": 0}), replace=True)
    (row,) = rows.summaries(bench.queue)
    assert (row.when, row.spread) == ("every 5m", 0)


def test_what_is_paused_before_it_is_there_does_not_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qframe.schedules.rows.time.time", bench.clock)
    rows = ScheduleRows(bench.queues)
    rows.pause(bench.queue, "sync")
    rows.add(bench.queue, "sync", ROW.model_copy(update={"when": "every 10s", "spread": 0}))
    host = bench.host()
    bench.pass_(host, seconds=30)
    assert bench.times() == []
    rows.resume(bench.queue)
    bench.pass_(host, seconds=10)
    assert bench.times() == ["12:01:10"]
