"""`qframe schedule`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
from starlette.testclient import TestClient

from qframe.schedules.definition import book
from qframe.schedules.schedulers import Schedulers
from qframe.web import app
from tests.console.conftest import Shop

PLANNED = """
from qframe import Queueable, queueable, schedule

class Report(Queueable):
    number: int = 0
    def handle(self) -> str:
        return f"report {self.number} for {self.scheduled_for:%Z}"

schedule(Report(number=1)).daily_at("13:00").timezone("Europe/Vienna").name("nightly")
schedule(Report(number=2)).every_minute().name("often")
"""


@pytest.fixture
def planned(shop: Shop) -> Iterator[Shop]:
    """Give a shop with two schedules in its code."""
    book.clear()
    shop.write("plan.py", PLANNED)
    shop.write("qframe.toml", 'default = "database"\n[schedule]\nmodules = ["plan"]\n')
    yield shop
    book.clear()


def test_list_gives_the_next_first(planned: Shop) -> None:
    said = planned.run("schedule", "list", "--json")
    assert [each["name"] for each in said.rows] == ["often", "nightly"]
    assert said.rows[1]["timezone"] == "Europe/Vienna"
    assert "often" in planned.run("schedule", "list").lines[1]


def test_next_gives_planned_times_in_order(planned: Shop) -> None:
    said = planned.run("schedule", "next", "3", "nightly", "--json")
    assert [each["at"][11:] for each in said.rows] in (
        ["12:00:00"] * 3, ["11:00:00"] * 3, ["12:00:00", "11:00:00", "11:00:00"],
        ["12:00:00", "12:00:00", "11:00:00"], ["11:00:00", "11:00:00", "12:00:00"],
        ["11:00:00", "12:00:00", "12:00:00"],
    )  # fmt: skip
    assert len(planned.run("schedule", "next").lines) == 11


def test_run_queues_it_now_and_test_runs_it_here(planned: Shop) -> None:
    said = planned.run("schedule", "run", "nightly", "--json")
    assert planned.run("size", "--json").rows[0]["ready"] == 1
    assert said.rows["schedule"] == "nightly"
    state = planned.run("schedule", "list", "--json").rows[1]["runs"][0]
    assert (state["uuid"], state["state"], state["manual"]) == (
        said.rows["uuid"], "dispatched", True,
    )  # fmt: skip
    assert "report 1 for CE" in planned.run("schedule", "test", "nightly").out


def test_pause_and_resume(planned: Shop) -> None:
    planned.run("schedule", "pause", "often")
    assert [each["paused"] for each in planned.run("schedule", "list", "--json").rows] == [
        False, True,
    ]  # fmt: skip
    planned.run("schedule", "pause")
    planned.run("schedule", "resume")
    assert not any(each["paused"] for each in planned.run("schedule", "list", "--json").rows)


def test_rows_are_added_changed_and_removed(planned: Shop) -> None:
    add = ("schedule", "add", "extra", "plan.Report")
    assert planned.run(*add, "every 5m", "--data", '{"number": 3}').code == 0
    assert "already" in planned.run(*add, "every 6m").only()
    assert planned.run(*add, "daily_at 3:00; weekdays", "--replace").code == 0
    rows = {each["name"]: each for each in planned.run("schedule", "list", "--json").rows}
    assert (rows["extra"]["when"], rows["extra"]["source"]) == ("0 3 * * *; weekdays", "row")
    assert planned.run("schedule", "remove", "extra").code == 0
    assert len(planned.run("schedule", "list", "--json").rows) == 2


def test_a_row_is_added_where_its_queue_has_moved(planned: Shop) -> None:
    toml = (planned.root / "qframe.toml").read_text()
    planned.write(
        "qframe.toml",
        f'{toml}[forward]\ndefault = "new@other"\n'
        '[connections.other]\ndriver = "database"\nurl = "sqlite:///other.db"\nqueue = "usual"\n',
    )
    add = ("schedule", "add", "extra", "plan.Report", "daily")
    assert planned.run(*add).out.startswith("added extra to other: ")
    rows = {each["name"]: each for each in planned.run("schedule", "list", "--json").rows}
    assert (rows["extra"]["connection"], rows["extra"]["queue"]) == ("other", "new")


def test_a_row_of_before_there_was_a_key_is_signed_once_it_was_looked_at(planned: Shop) -> None:
    add = ("schedule", "add", "extra", "plan.Report", "every 5m", "--data", '{"number": 3}')
    assert planned.run(*add).code == 0
    sign = ("schedule", "sign", "extra")
    assert "no signing_key" in planned.run(*sign).only()
    toml = (planned.root / "qframe.toml").read_text()
    planned.write("qframe.toml", f'signing_key = "a signing key of these tests"\n{toml}')
    assert "REFUSED: not signed" in planned.run("schedule", "list").out
    rows = {each["name"]: each for each in planned.run("schedule", "list", "--json").rows}
    assert "is not signed" in rows["extra"]["refused"]
    assert "is refused" in planned.run("schedule", "run", "extra").only()
    assert "qframe schedule sign" in planned.run("check").out
    client = TestClient(app(planned.manager, lambda _: "act"), base_url="http://localhost")
    assert "refused" in client.get("/schedules").text
    said = planned.run(*sign)
    assert said.out == "signed extra of database: Report(number=3), every 5m UTC\n"
    assert planned.run("schedule", "run", "extra").code == 0
    assert "REFUSED" not in planned.run("schedule", "list").out
    assert planned.run("schedule", "sign", "often").code == 2
    assert planned.run("schedule", "sign", "none").code == 2


def test_an_added_row_is_told_what_a_schedule_of_the_code_may_be(planned: Shop) -> None:
    options = (
        "--missed", "all", "--grace", "7200", "--without-overlapping", "--overlap-expires", "600",
        "--even-in-maintenance-mode", "--spread", "5",
    )  # fmt: skip
    assert planned.run("schedule", "add", "extra", "plan.Report", "daily", *options).code == 0
    planned.run("schedule", "add", "plain", "plan.Report", "daily", "--without-overlapping")
    rows = {each["name"]: each for each in planned.run("schedule", "list", "--json").rows}
    told = ("missed", "grace_seconds", "overlap_seconds", "spread_seconds", "maintenance")
    assert [rows["extra"][each] for each in told] == ["all", 7200, 600, 5, True]
    assert [rows["plain"][each] for each in told] == ["last", 3600, 86400, 0, False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "x", "plan.Report", "* * *"), "no cron expression"),
        (("add", "x", "plan.Report", "daily_at 25:00"), "no time of day"),
        (("add", "x", "plan.Report", "daily", "--timezone", "Europe/Wien"), "unknown time zone"),
        (("add", "x", "plan.Report", "at 2020-01-01T00:00Z"), "never due"),
        (("add", "x", "plan.Nope", "daily"), "plan.Nope"),
        (("add", "x", "plan.Report", "daily", "--data", '{"number": "x"}'), "number"),
        (("add", "x", "plan.Report", "daily", "--missed", "some"), "missed"),
        (("add", "x", "plan.Report", "daily", "--grace", "0"), "grace: "),
        (("add", "x", "plan.Report", "daily", "--overlap-expires", "9"), "--without-overlapping"),
        (
            ("add", "x", "plan.Report", "daily", "--without-overlapping", "--overlap-expires", "0"),
            "at least 1",
        ),
        (("add", "often", "plan.Report", "daily"), "the code has a schedule"),
        (("remove", "often"), "is in the code"),
        (("run", "offen"), "did you mean 'often'?"),
    ],
)
def test_mistakes_are_one_line(planned: Shop, words: tuple[str, ...], said: str) -> None:
    answer = planned.run("schedule", *words)
    assert answer.code == 2
    assert said in answer.only()


def test_check_names_mistakes(planned: Shop) -> None:
    assert planned.run("check", "--json").rows["schedules"] == 2
    planned.write("plan2.py", PLANNED.replace('.name("often")', '.name("nightly")'))
    planned.write("qframe.toml", '[schedule]\nmodules = ["plan2"]\n')
    book.clear()
    answer = planned.run("check")
    assert answer.code == 1
    assert "two schedules are named 'nightly'" in answer.err


def test_what_check_warns_of_is_what_the_overview_says(planned: Shop) -> None:
    toml = (planned.root / "qframe.toml").read_text()
    secure = f'signing_key = "{"k" * 40}"\nsigning = "accept-unsigned"\n'
    planned.write(
        "qframe.toml",
        f'{secure}{toml}[outbox]\nconnection = "database"\n'
        '[connections.database]\ndriver = "database"\nretry_after = 2\n',
    )
    planned.write("plan.py", PLANNED.replace('("often")', '("often").spread(300)'))
    about = re.compile(
        "warning +((?:signing|database|often): .*)"
    )  # nothing of servers unused here
    warned = [found[1] for line in planned.run("check").lines if (found := about.match(line))]
    for words in ("signing: ", "database: retry_after = 2 is short", "often: spread (300 s) is"):
        assert any(each.startswith(words) for each in warned), warned
    queues = planned.manager
    Schedulers(queues).scheduler(planned.queue).turn()  # as a worker, which tells of the schedules
    client = TestClient(app(queues, lambda _: "read"), base_url="http://localhost")
    told = client.get("/api/v1/overview").json()["findings"]
    assert sorted(each["text"] for each in told if each["level"] == "warn") == sorted(warned)
    page = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", "", client.get("/").text)))
    for each in warned:
        assert each in page
