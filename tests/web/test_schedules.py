"""The page of schedules: what it shows of what workers tell, and what it does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import schedule
from qframe.contracts.status import State
from qframe.features.base import End
from qframe.schedules.definition import book
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.schedulers import Schedulers
from tests.schedules.conftest import START, Send
from tests.support.clock import Clock
from tests.web.conftest import FROM_HERE, Site


@pytest.fixture(autouse=True)
def _empty_book() -> Iterator[None]:
    book.clear()
    yield
    book.clear()


def host(site: Site, clock: Callable[[], float]) -> None:
    """Let a worker have a turn."""
    Schedulers(site.queues, [site.queue], clock=clock).scheduler(site.queue).turn()


def test_it_shows_and_acts_without_the_code_of_the_jobs(small: Site) -> None:
    clock = Clock(START)
    schedule(Send()).daily_at("13:00").timezone("Europe/Vienna").name("<nightly>")
    host(small, clock)
    client = small.client()
    page = client.get("/schedules").text
    assert "&lt;nightly&gt;" in page
    assert "Europe/Vienna" in page
    (state,) = client.get("/api/v1/schedules").json()["schedules"]
    assert (state["name"], state["source"], state["runs"]) == ("<nightly>", "code", [])

    def act(action: str, **more: str) -> int:
        wanted = {"connection": "database", "id": "<nightly>", **more}
        answer = client.post(f"/api/v1/actions/{action}", json=wanted, headers=FROM_HERE)
        return answer.status_code

    assert act("pause-schedule") == 200
    assert client.get("/api/v1/schedules").json()["schedules"][0]["paused"]
    assert act("resume-schedule") == 200
    assert act("remove-schedule") == 422
    assert act("run-schedule") == 200
    assert small.queue.size() == 0
    host(small, clock)
    host(small, clock)
    assert small.queue.size() == 1
    act("run-schedule", id="none")
    (state,) = client.get("/api/v1/schedules").json()["schedules"]
    assert [each["manual"] for each in state["runs"]] == [True]


def test_rows_are_added_and_removed(small: Site, fresh: Path) -> None:
    (fresh / "shop_of_rows.py").write_text(
        "from qframe import Queueable\nclass Order(Queueable):\n    number: int\n"
        "    def handle(self) -> None: ...\n"
    )
    client = small.client()
    row = {
        "connection": "database",
        "id": "extra",
        "job": "shop_of_rows.Order",
        "data": '{"number": 3}',
        "when": "every 10s",
    }

    def act(action: str, **more: str) -> tuple[int, str]:
        answer = client.post(f"/api/v1/actions/{action}", json={**row, **more}, headers=FROM_HERE)
        return answer.status_code, answer.text

    assert act("add-schedule", when="* *")[0] == 422
    assert act("add-schedule", data="{")[0] == 422
    assert "number" in act("add-schedule", data="{}")[1]
    assert act("add-schedule")[0] == 200
    assert "already" in act("add-schedule")[1]
    assert "no such row" in act("change-schedule", id="other")[1]
    assert act("change-schedule", when="every 10s; between 0:00 23:59")[0] == 200
    clock = Clock(START)
    scheduler = Schedulers(small.queues, [small.queue], clock=clock).scheduler(small.queue)
    scheduler.turn()
    clock.now += 10
    scheduler.turn()
    assert small.queue.size() == 1
    assert act("remove-schedule")[0] == 200
    clock.now += 30
    while scheduler.turn() == 0:
        pass
    assert small.queue.size() == 1
    assert client.get("/api/v1/schedules").json()["schedules"] == []


SAID: dict[str, str | float] = {
    "missed": "all", "grace": 7200.0, "spread": 5, "overlap": 600.0, "maintenance": True,
    "foreign": False,
}  # fmt: skip
"""What a row is told besides when, each other than its default, but for `foreign`."""


def kept(site: Site, name: str) -> dict[str, Any]:
    """Give the fields of a row as it is kept."""
    (text,) = site.queue.store.get(keys_of(site.queues, site.queue).row(name))
    assert text is not None
    return dict(json.loads(text))


@pytest.mark.parametrize("through", ["form", "api"])
def test_a_change_keeps_what_it_does_not_say(small: Site, fresh: Path, through: str) -> None:
    (fresh / "shop_of_changes.py").write_text(
        "from qframe import Queueable\nclass Order(Queueable):\n    number: int\n"
        "    def handle(self) -> None: ...\n"
    )
    client = small.client()

    def act(action: str, **given: str | float) -> None:
        wanted = {"connection": "database", "id": "extra", **given}
        if through == "api":
            answer = client.post(f"/api/v1/actions/{action}", json=wanted, headers=FROM_HERE)
            assert answer.status_code == 200, answer.text
            return
        page = client.get("/schedules").text
        form = dict.fromkeys(re.findall(r'<(?:input|select)[^>]*? name="(\w+)"', page), "")
        assert set(wanted) <= set(form), "the form has a field for each"
        for key, value in wanted.items():
            form[key] = ("no", "yes")[value] if isinstance(value, bool) else str(value)
        answer = client.post(f"/actions/{action}", data=form, headers=FROM_HERE)
        assert answer.status_code == 303, answer.text

    order = {"job": "shop_of_changes.Order", "data": '{"number": 3}', "when": "every 10s"}
    act("add-schedule", **order)
    assert {key: kept(small, "extra")[key] for key in SAID} == {
        "missed": "last", "grace": 3600.0, "spread": 0, "overlap": 0.0, "maintenance": False,
        "foreign": False,
    }  # fmt: skip
    act("change-schedule", **SAID, timezone="Europe/Vienna", queue="night")
    before = kept(small, "extra")
    assert {key: before[key] for key in SAID} == SAID
    assert (before["data"], before["queue"]) == ({"number": 3}, "night")
    act("change-schedule", when="every 20s")
    new = {"when": "every 20s", "added_at": kept(small, "extra")["added_at"]}
    assert kept(small, "extra") == {**before, **new}
    shown = client.get("/schedules").text
    assert "missed: all, within 2 h" in shown
    assert "also in maintenance" in shown
    act("change-schedule", maintenance=False, overlap=0)
    act("change-schedule", foreign=True, job="App\\Jobs\\Order")
    assert kept(small, "extra")["maintenance"] is False
    assert kept(small, "extra")["overlap"] == 0
    assert kept(small, "extra")["foreign"] is True


def test_a_change_that_meets_another_keeps_both(
    small: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ScheduleRows(small.queues)
    rows.add(small.queue, "extra", ScheduleRow(job="App.Order", when="every 10s", foreign=True))
    checked = rows._checked

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(rows, "_checked", checked)
        ScheduleRows(small.queues).change(small.queue, "extra", spread=7)
        return checked(*given)

    monkeypatch.setattr(rows, "_checked", meanwhile)
    rows.change(small.queue, "extra", missed="none")
    assert (kept(small, "extra")["spread"], kept(small, "extra")["missed"]) == (7, "none")


def test_who_may_only_read_has_no_buttons(small: Site) -> None:
    schedule(Send()).daily().name("nightly")
    host(small, Clock(START))
    page = small.client(lambda _: "read").get("/schedules").text
    assert "nightly" in page
    assert "/actions/" not in page
    assert "/confirm/" not in page


def test_it_shows_how_the_last_runs_ended(small: Site) -> None:
    clock = Clock(START)
    schedule(Send()).every_seconds(10).name("often")
    scheduler = Schedulers(small.queues, [small.queue], clock=clock).scheduler(small.queue)
    scheduler.turn()
    client = small.client()

    def runs() -> list[tuple[str, str]]:
        small.queues.close()
        (state,) = small.client().get("/api/v1/schedules").json()["schedules"]
        return [(each["state"], each["error"]) for each in state["runs"]]

    ends = [End(State.COMPLETE), End(State.FAILED, error=ValueError("no <b>luck</b>"))]
    ends.append(End(State.SKIPPED, remark="not today"))
    for end in ends:
        clock.now += 10
        while scheduler.turn() == 0:
            pass
        assert runs()[0] == ("dispatched", "")
        (job,) = small.queue.reserve(["default"])
        small.queue.backend.apply(job.start_plan())
        job.settle(end)
    assert runs() == [
        ("skipped", "not today"),
        ("failed", "ValueError: no <b>luck</b>"),
        ("complete", ""),
    ]
    page = client.get("/schedules").text
    assert re.search(r'>skipped</span> <a href="/jobs/[^"]+"><time', page)
    assert '<span class="quiet">ValueError: no &lt;b&gt;luck' in page
    found = client.get("/api/v1/schedules?filter=state:skipped error:today").json()["schedules"]
    assert [each["name"] for each in found] == ["often"]


def test_a_filter_chooses_them_by_what_became_of_them(small: Site) -> None:
    for name in ("nightly", "hourly"):
        schedule(Send()).daily().name(name)
    host(small, time.time)  # the page goes by today's date
    client = small.client()

    def named(text: str) -> list[str]:
        found = client.get("/api/v1/schedules", params={"filter": text}).json()["schedules"]
        return sorted(each["name"] for each in found)

    assert named("name:night*") == ["nightly"]
    assert named("class:*Send state:planned connection:database") == ["hourly", "nightly"]
    assert named("state:failed") == named("error:x") == []
    page = client.get("/schedules?filter=!name:nightly").text
    assert "hourly" in page
    assert ">nightly<" not in page
    assert "Nothing matches the filter." in client.get("/schedules?filter=state:late").text
    assert client.get("/api/v1/schedules?filter=state:tired").status_code == 422
