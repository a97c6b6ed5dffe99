"""An alert that is on, where people and machines look: the page, the API and the terminal."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from qframe import QueueManager, config, manager
from qframe.alerts import checker, side_task
from qframe.alerts.checker import Checker
from qframe.console.app import main
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from tests.alerts.conftest import SECRET, Hook
from tests.alerts.test_subjects import Clock
from tests.support.process import Project, wait_for
from tests.web.conftest import Site

HOSTILE = "app.<script>alert(1)</script>\u202e\x1b[31m"
RULES = 'rules = ["ready > 1 on mail", "failed > 0 in 5m of *"]'


class Shown:
    """A project with rules, and who looks."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        (folder / "qframe.toml").write_text(f"[alerts]\n{RULES}\ncalm = 0\n")
        self.clock = clock
        self.site = Site(QueueManager(config.load()))
        manager.use(self.site.queues)
        self.looks: Checker = side_task.checker(self.site.queues, threading.Event())

    def look(self) -> None:
        self.clock.ahead += 10
        self.looks.check()


@pytest.fixture
def shown(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    clock = Clock()
    stand_in = SimpleNamespace(time=clock.time, monotonic=clock.monotonic)
    monkeypatch.setattr(checker, "time", stand_in)
    yield Shown(fresh, clock)
    manager.use(None)


def test_the_page_the_api_and_the_terminal_show_it(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = shown.site.queue
    for _ in range(2):
        queue.push_raw('{"uuid": "u", "job": "app.A"}', "mail")
    recorder = Recorder()
    recorder.ended(HOSTILE, "mail", "failed", 1.0)
    Metrics(queue.store, queue.name).write(recorder)
    shown.look()

    client = shown.site.client()
    page = client.get("/").text
    assert re.search(r">alert</span><span>database:mail has 2 ready jobs", page)
    assert "ready &gt; 1 on mail" in page
    assert "&lt;script&gt;alert(1)" in page
    assert not any(each in page for each in ("<script>alert", "\u202e", "\x1b"))

    found = {each["subject"]: each for each in client.get("/api/v1/alerts").json()["alerts"]}
    assert found["mail"] | {"id": "", "since": "", "seconds": 0.0} == {
        "id": "", "rule": "ready > 1 on mail", "connection": "database", "subject": "mail",
        "value": 2.0, "text": "database:mail has 2 ready jobs", "since": "", "seconds": 0.0,
        "is_ending": False,
    }  # fmt: skip
    assert len(found) == 2
    assert len(client.get("/api/v1/overview").json()["alerts"]) == 2

    monkeypatch.setattr(sys, "argv", ["qframe", "top"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert "!!  alert for " in said
    assert ": database:mail has 2 ready jobs" in said
    assert "\x1b" not in said


def test_it_is_shown_no_more_when_it_is_over(shown: Shown) -> None:
    for _ in range(2):
        shown.site.queue.push_raw('{"uuid": "u", "job": "app.A"}', "mail")
    shown.look()
    shown.site.queue.clear("mail")
    shown.look()
    client = shown.site.client()
    assert client.get("/api/v1/alerts").json() == {"alerts": []}
    assert "<b>Alert</b>" not in client.get("/").text


def test_who_may_see_nothing_sees_no_alert(shown: Shown) -> None:
    client = shown.site.client(lambda _: None)
    assert client.get("/api/v1/alerts").status_code in {401, 403}


@pytest.mark.slow
def test_monitor_watches_and_tells_until_it_is_ended(tmp_path: Path, hook: Hook) -> None:
    toml = (
        '[alerts]\nrules = ["size > 0 on mail"]\nevery = 1\ncalm = 0\n'
        f'[alerts.webhook]\nurl = "{hook.url}"\nsecret = "{SECRET}"\n'
    )
    with Project(tmp_path / "app", toml) as project:
        watching = project.start("monitor", "--watch")
        wait_for(lambda: "looking after 1 rule\n" in watching.out, "its first line")
        project.push("Note", queue="mail")
        wait_for(lambda: hook.told == ["raised"], "the telling")
        project.queue.clear("mail")
        wait_for(lambda: hook.told == ["raised", "resolved"], "that it is over")
        watching.signal(signal.SIGTERM)
        assert watching.wait() == 0
        assert watching.err == ""
        assert project.queue.store.get(checker._TURN) == [None], "the next has the turn at once"
        for wrong, said in (
            (("--watch", "size > 1"), "--watch looks after the rules of [alerts]: give none"),
            (("sise > 1",), "(did you mean 'size'?)"),
        ):
            done = project.qframe("monitor", *wrong)
            assert (done.code, said in done.one_line()) == (2, True)
        assert project.qframe("monitor").code == 0
        project.push("Note", queue="mail")
        done = project.qframe("monitor")
        assert (done.code, "database:mail has 1 job\n" in done.out) == (1, True)
        project.configure("")
        assert "no rule is configured" in project.qframe("monitor", "--watch").one_line()
