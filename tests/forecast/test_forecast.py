"""What will be: each sentence that a forecast can say, and the alerts and warnings made of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from qframe import QueueManager, manager
from qframe.alerts.readings import Readings
from qframe.connection import Connection
from qframe.contracts.step import Push, Step
from qframe.drivers.store import pause_key
from qframe.forecast import reading
from qframe.forecast.course import QueueDemand, WorkerGroup, courses
from qframe.metrics.series import OTHER
from qframe.operations import forecast
from qframe.rules import InvalidRule, parse
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.state import PastRun, ScheduleProgress
from qframe.web import app
from tests.support.past import DAY, HOUR, MAIL, Came, remember, work
from tests.support.process import wait_for


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let it be 03:00 UTC, of tomorrow: what is delayed until later can be pushed now."""
    moment = float((time.time() // DAY + 1) * DAY + 3 * HOUR)
    monkeypatch.setattr(reading, "time", SimpleNamespace(time=lambda: moment))
    return moment


@pytest.fixture
def queues(fresh: Path) -> Iterator[QueueManager]:
    made = QueueManager(
        {"default": "here", "root": fresh, "connections": {"here": {"driver": "memory"}}}
    )
    manager.use(made)
    yield made
    manager.use(None)


@pytest.fixture
def here(queues: QueueManager) -> Connection:
    return queues.connection("here")


def from_four(rate: float) -> Came:
    """Give so many jobs a minute from 04:00 to 06:00, else ten."""
    return lambda at: rate if 4 <= at % DAY / HOUR < 6 else 10.0


def said(queues: QueueManager, here: Connection, **asked: Any) -> str:
    (found,) = forecast.states(queues, here, MAIL, **asked)
    assert (found.behind_at is not None) is (" behind at " in found.text)
    return found.text


def push(here: Connection, count: int, delay: float = 0.0) -> None:
    here.backend.apply(*(Step(None, Push(MAIL, b"%d" % n, delay)) for n in range(count)))


# -- sentences ------------------------------------------------------------------------------------


def test_what_comes_at_an_hour_is_more_than_the_workers_finish(
    queues: QueueManager, here: Connection, now: float
) -> None:
    remember(here, now, from_four(1200))
    work(here, 4)
    text = said(queues, here)
    assert text.startswith("arrives 1,200/min from 04:0"), text
    assert "the 4 workers finish 300/min: 1h behind at 05:2" in text, text
    work(here, 14)
    assert said(queues, here) == "not behind until 06:00 UTC"


def test_a_little_behind_is_said_with_the_most(
    queues: QueueManager, here: Connection, now: float
) -> None:
    remember(here, now, from_four(400))
    work(here, 4)
    text = said(queues, here)
    assert ": at most 30m behind, at 06:00 UTC" in text, text


def test_what_waits_is_named_first(queues: QueueManager, here: Connection, now: float) -> None:
    remember(here, now, lambda _: 1.0, run=60.0)
    push(here, 300)
    work(here, 1)
    assert said(queues, here).startswith(
        "300 jobs wait, arrives 1/min, the worker finishes 1/min: 1h behind at 04:"
    )


def test_no_worker_and_a_pause_are_named(
    queues: QueueManager, here: Connection, now: float
) -> None:
    remember(here, now, lambda _: 10.0)
    assert said(queues, here) == "arrives 10/min, no worker takes it: 1h behind at 04:01 UTC"
    work(here, 2)
    here.store.set(pause_key("here", MAIL), "1.0")
    assert said(queues, here) == "arrives 10/min, it is paused: 1h behind at 04:01 UTC"


def test_delayed_jobs_count_when_they_are_due(
    queues: QueueManager, here: Connection, now: float
) -> None:
    remember(here, now, lambda _: 1.0, run=10.0)
    push(here, 900, now + HOUR - time.time())
    work(here, 1)
    text = said(queues, here)
    assert text.startswith("900 delayed jobs are due from 0"), text
    assert (
        text.endswith("the worker finishes 6/min: 1h behind at 04:59 UTC")
        or "behind at 05:0" in text
    )


def test_a_schedule_that_puts_many_jobs_is_named(
    queues: QueueManager, here: Connection, now: float
) -> None:
    """Its runs a week ago and before are enough; no other day has as much."""
    week = 7 * DAY
    four = now + HOUR

    def came(at: float) -> float:
        return 20_000.0 if (at - four) % week < 300 else 10.0

    remember(here, now, came)
    work(here, 4)
    assert said(queues, here).startswith("arrives 8"), "spread over two hours"
    rows = ScheduleRows(queues)
    row = ScheduleRow(job="app.Export", when="daily_at 04:00", timezone="UTC", foreign=True)
    rows.add(here, "export", row)
    runs = tuple(PastRun(four - n * week, four - n * week, "x", 3 - n) for n in (1, 2))
    key = keys_of(queues, here).progress("export")
    here.store.set(key, ScheduleProgress(now - DAY, 2, runs).text())
    assert said(queues, here).startswith(
        "the schedule export puts about 100,000 jobs there at 04:00 (as its last 2 runs did), "
        "the 4 workers finish 300/min: 1h behind at 05:0"
    )
    (warned,) = forecast.warnings(queues, here)
    assert warned.startswith("the queue 'mail' will be behind: the schedule export puts")
    ScheduleRows(queues).pause(here, "export")
    assert forecast.warnings(queues, here) == []


def test_too_little_history_says_so(queues: QueueManager, here: Connection, now: float) -> None:
    work(here, 1)
    push(here, 3)
    assert said(queues, here).startswith(
        "too little history: metrics of 0 whole days, 2 are needed"
    )
    remember(here, now, lambda _: 1000.0, days=2)
    assert said(queues, here).startswith("too little history: metrics of 1 whole day, ")
    remember(here, now, lambda at: float(at == now - DAY), days=5)
    assert said(queues, here) == (
        "too little history: 1 job has ended in 14 days, 20 are needed to know how long they run"
    )


def test_one_odd_day_decides_nothing(queues: QueueManager, here: Connection, now: float) -> None:
    odd = [now - days * DAY for days in (1, 7)]
    remember(here, now, lambda at: 5000.0 * any(day < at < day + 4 * HOUR for day in odd) + 10)
    work(here, 1)
    assert said(queues, here, hours=5.0) == "not behind until 08:00 UTC"


def test_queues_that_are_counted_together_are_none(
    queues: QueueManager, here: Connection, now: float
) -> None:
    remember(here, now, lambda _: 10.0, queue=OTHER)
    remember(here, now, lambda _: 10.0)
    assert {each.queue for each in forecast.states(queues, here)} == {"default", MAIL}


def test_a_connection_that_cannot_count_says_so(queues: QueueManager, now: float) -> None:
    sync = queues.connection("sync")
    (found,) = forecast.states(queues, sync)
    assert (found.text, found.known) == ("sync cannot count its jobs", False)


# -- workers of several queues --------------------------------------------------------------------


def test_workers_give_their_first_queue_what_it_needs() -> None:
    flood = QueueDemand("high", [100.0] * 60, [1.0] * 60)
    rest = QueueDemand("low", [30.0] * 60, [1.0] * 60)
    found = courses([flood, rest], [WorkerGroup(("high", "low"), 2)], 60)
    assert found["high"].behind[-1] == 0
    assert sum(found["low"].served) == pytest.approx(60 * 20)
    alone = WorkerGroup(("low",), 1)
    found = courses([flood, rest], [WorkerGroup(("high", "low"), 2), alone], 60)
    assert found["low"].behind[-1] == 0


def test_a_limit_of_a_queue_bounds_what_is_finished() -> None:
    limited = QueueDemand("q", [120.0] * 60, [1.0] * 60, at_once=1)
    (course,) = courses([limited], [WorkerGroup(("q",), 10)], 60).values()
    assert course.waiting[-1] == pytest.approx(60 * 60)


# -- where it is said -----------------------------------------------------------------------------


def test_an_alert_rule_is_about_what_will_be(
    queues: QueueManager, here: Connection, now: float
) -> None:
    rule = parse("behind > 1h within 3h on mail")
    work(here, 4)
    push(here, 1000)
    seen = Readings(queues, once=True).look([rule])
    assert (seen.found, seen.unknown) == ([], {}), "too little history is no alert"
    remember(here, now, from_four(1200))
    (found,) = Readings(queues, once=True).look([rule]).found
    assert (found.what, found.connection) == (MAIL, "here")
    assert found.text.startswith("here:mail ")
    assert "1h behind at 0" in found.text
    others = [parse("behind > 3h within 3h"), parse("behind > 1h within 3h on sms,print")]
    assert Readings(queues, once=True).look(others).found == []


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("behind > 1h", "says not how soon: add 'within 3h'"),
        ("behind > 1h in 3h", "has 'in', which 'behind' does not take"),
        ("behind > 1h within 2d", "looks ahead '2d': from 1m to 1d can be forecast"),
        ("behind < 1h within 3h", "has '<' where '>' belongs"),
        ("behind within 3h", "has 'within' where '>' or '<' belongs"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(rule: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        parse(rule)


def test_a_forecast_is_json(queues: QueueManager, here: Connection, now: float) -> None:
    remember(here, now, lambda _: 10.0)
    (found,) = forecast.states(queues, here, MAIL)
    fields = json.loads(found.model_dump_json())
    assert fields["behind_at"] == f"{fields['read_at'][:10]} 04:01:00"
    assert (fields["known"], fields["workers"], fields["hours"]) == (True, 0, 3.0)


def test_the_page_and_the_api_say_it(queues: QueueManager, here: Connection, now: float) -> None:
    remember(here, now, from_four(1200))
    client = TestClient(app(queues, lambda _: "read"), base_url="http://localhost")
    answer = client.get(f"/api/v1/forecast?queue={MAIL}&connection=here").json()
    (found,) = answer["forecasts"]
    assert "no worker takes it: 1h behind at 04:0" in found["text"]
    assert client.get("/api/v1/forecast?hours=25").status_code == 422
    assert client.get("/api/v1/forecast?queue=a%20b").status_code == 422
    assert "no worker takes it: 1h behind at 04:0" in client.get("/queues").text
    wait_for(lambda: "here:mail will be behind: " in client.get("/").text.lower(), "the finding")
