"""The doctor's archive: what it has, that it has no secret and no payload, and what may be down."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from qframe import Queueable, QueueManager, Worker, WorkerOptions, dispatch, manager
from qframe.exceptions import BackendUnavailable
from qframe.operations import archive, doctor
from qframe.operations.board import Board
from qframe.operations.redaction import Redactor
from qframe.web import app
from qframe.web.access import Access
from qframe.worker import stacks
from tests.support.process import wait_for

HOSTILE = "<script>alert(1)</script>\x00\x1b[31m \U0001f4a3 \u202e"


class Waits(Queueable):
    name: str
    tries = 1

    def handle(self) -> None:
        if self.name:
            raise KeyError(self.name)
        over.wait(20)


over = threading.Event()


@pytest.fixture
def queues(fresh: Path) -> Iterator[QueueManager]:
    made = QueueManager({"root": fresh, "jobs": [__name__], "connections": {"database": {}}})
    manager.use(made)
    yield made
    manager.use(None)


def read(packed: bytes) -> tuple[dict[str, Any], str, str]:
    """Give an archive's data, and its two files as text."""
    with zipfile.ZipFile(io.BytesIO(packed)) as files:
        assert sorted(files.namelist()) == [archive.PAGE, archive.DATA]
        page, data = (files.read(each).decode() for each in (archive.PAGE, archive.DATA))
    return json.loads(data), page, data


def drain(queues: QueueManager) -> None:
    Worker(queues, WorkerOptions(memory=0, stop_when_empty=True)).run()


# -- secrets --------------------------------------------------------------------------------------


def test_no_secret_of_the_settings_or_the_environment_is_in_it(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-of-aws")
    monkeypatch.setenv("ANY_URL", "postgres://me:hidden-of-env@db/x")
    settings = {
        "root": fresh,
        "signing_keys": ["hidden-signing-key-0123456789abcdef"],
        "web": {
            "password": "hidden-of-web",
            "token": "hidden-token-0123456789",
            "dispatch": {"tokens": {"shop": "hidden-of-shop-0123456789abcdef01234567"}},
        },
        "alerts": {
            "webhook": {"url": "https://x/hidden-in-path?a=1", "secret": "hidden-hook-0123456789"},
            "command": {"run": ["page-me", "--token", "hidden-of-command", "--key=hidden-flag"]},
            "mail": {
                "to": ["a@b.c"], "from": "q@b.c", "user": "q", "password": "hidden \"of' mail",
            },
        },
        "connections": {
            "database": {},
            "one": {"driver": "redis", "url": "redis://u:hidden%2Fa%40b@127.0.0.1:1/0"},
            "two": {
                "driver": "redis", "url": "redis://127.0.0.1:1/0?ssl_password=hidden-query",
                "sentinel_password": "hidden-of-sentinel",
            },
        },
    }  # fmt: skip
    queues = QueueManager(settings)
    queues.connection("database").push_raw('{"uuid": "u", "job": "hidden-of-web"}', "mail")
    found, page, data = read(archive.packed(doctor.report(queues)))
    for text in (page, data):
        assert "hidden" not in text, text[text.find("hidden") - 200 :][:300]
    settings_shown = found["sections"]["configuration"]["settings"]
    assert settings_shown["connections"]["one"]["url"] == "redis://***@127.0.0.1:1/0"
    assert settings_shown["web"]["access"] == "act"
    assert "AWS_SECRET_ACCESS_KEY" not in data


@pytest.mark.parametrize(
    "text",
    [
        "no route to redis://u:hidden@h:1, amqp://v:hid/den@h/",
        "mysql://u:hidden@a@b:3306/x?charset=utf8",
        "Authorization: Bearer hidden.value-1",
        "auth failed: password='hidden one', user=x",
        'login(token = "hidden\\"more", retries=3)',
        '{"api_key": "hidden", "n": 1}',
        "run --password hidden --token=hidden -x",
        "DB_PASSWORD=hidden DEBUG=1",
        "-----BEGIN RSA PRIVATE KEY-----\nhidden\nhidden\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhidden",
        "at ghp_hiddenhidden1234 and xoxb-hidden-12345678 and sk_live_hidden12345",
        "eyJhiddenhidden.eyJhidden.hidden",
        "key AKIAHIDDENHIDDENX",
        "a hiddenHIDDEN0123456789hiddenHIDDEN0123 b",
        "Authorization: ApiKey hidden",
        "Cookie: theme=dark; sid=hidden",
        'connect(passwd=b"hidden")',
        "run --password 'two hidden'",
        r'said "{\"password\": \"hidden\", \"n\": 1}"',
        "form client_secret%3Dhidden",
        "CREATE USER me IDENTIFIED BY 'hidden'",
        "https://hooks.slack.com/services/T0/B0/hidden",
        "wHiddenUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKE",
        "APP base64:3Tq0l+hidden/8kq1AAb0cDEfghIjkl=",
        "sk-proj-hidden123def456ghi789jkl",
    ],
)
def test_what_looks_like_a_secret_is_not_shown(text: str) -> None:
    found = Redactor(None).text(text)
    assert "hidden" not in found.lower(), found
    assert "***" in found


@pytest.mark.parametrize(
    "text",
    [
        "the queue mail will be behind: arrives 1,200/min",
        "01a21f0e-cc6e-782e-a115-aafd840185cc",
        'File "/srv/app/tokens/import_keys.py", line 88, in read_keys',
        "redis://127.0.0.1:6379/0",
        "app.billing.jobs.SendMonthlyInvoiceReminder",
        "8c8c9620b0a7d3f0aa6b2f0c8c8c9620b0a7d3f0",
    ],
)
def test_what_is_no_secret_is_kept(text: str) -> None:
    assert Redactor(None).text(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHOP_TOKENS", "a:first-one,b:hidden-one"),
        ("APP_SECRETS", '{"a": "hidden-one"}'),
        ("SOME_KEY", "line-one\nhidden-one\n"),
        ("DB_PW", "hidden-one"),
        ("HOSTS", "redis://:hidden-one@a:1,redis://:other@b:1"),
    ],
)
def test_each_secret_of_a_variable_is_known(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert Redactor(None).text("got hidden-one here") == "got *** here"


@pytest.mark.parametrize(
    "part", ["a", "://", "password", "x-", "-key", " --key", "token ", "-eyJ", 'password="', "Aa1/"]
)
def test_a_long_text_takes_no_long_time(part: str) -> None:
    text, before = part * (40_000 // len(part)), time.thread_time()
    Redactor(None).text(text)
    assert time.thread_time() - before < 5


# -- payloads -------------------------------------------------------------------------------------


def test_payloads_and_messages_of_errors_come_only_if_asked_for(queues: QueueManager) -> None:
    dispatch(Waits(name="bob@example.com")).send()
    drain(queues)
    queues.connection().push_raw('{"uuid": "w", "job": "x", "data": "bob@example.com"}', "mail")
    found, page, data = read(archive.packed(doctor.report(queues)))
    assert "bob" not in page + data
    (cause,) = found["sections"]["causes of failure"]
    assert (cause["error"], cause["count"]) == ("KeyError: ...", 1)
    assert "failed jobs" not in found["sections"]
    found, page, data = read(archive.packed(doctor.report(queues, payloads=True)))
    (job,) = found["sections"]["failed jobs"]
    assert '"name": "bob@example.com"' in job["payload"]
    assert "KeyError: 'bob@example.com'" in job["exception"]


# -- workers --------------------------------------------------------------------------------------


def test_workers_show_where_they_are(queues: QueueManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "EVERY", 0.05)
    over.clear()
    dispatch(Waits(name="")).send()
    worker = Worker(queues, WorkerOptions(memory=0, max_jobs=1))
    thread = threading.Thread(target=worker.run)
    thread.start()
    board = Board(queues)
    wait_for(lambda: board.connections() and _runs(queues), "the running job")
    report = doctor.report(queues)
    over.set()
    thread.join(20)
    (text,) = report.sections["stacks"].values()
    assert "in handle\n    over.wait(20)" in text
    (row,) = report.sections["workers"]
    assert row["jobs"][0]["job"].endswith("Waits")


def _runs(queues: QueueManager) -> bool:
    return any(each.jobs for each in Board(queues).workers())


def test_jobs_in_processes_of_their_own_are_shown_first(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "EVERY", 0.0)
    store = queues.connection().store
    answers = stacks.StackAnswers(
        store,
        "w",
        lambda: store.get(stacks.ASKED)[0],
        lambda: {"app.Job 1 in its process": "/srv/app.py:3 f\n  /srv/app.py:9 g"},
    )
    found: dict[str, str] = {}
    asking = threading.Thread(target=lambda: found.update(stacks.ask(store, ["w"], 20)))
    asking.start()
    while asking.is_alive():
        answers.look()
        time.sleep(0.02)
    begin = "app.Job 1 in its process:\n  /srv/app.py:3 f\n  /srv/app.py:9 g\n\n"
    assert found["w"].startswith(begin)
    assert "test_jobs_in_processes_of_their_own" in found["w"]


def test_a_worker_that_does_not_answer_is_named(queues: QueueManager) -> None:
    began = time.monotonic()
    assert stacks.ask(queues.connection().store, ["gone"], patience=0.3) == {}
    assert time.monotonic() - began < 10


# -- what is down ---------------------------------------------------------------------------------


def test_it_comes_if_nothing_answers(fresh: Path) -> None:
    down = {"driver": "redis", "url": "redis://127.0.0.1:1/0"}
    queues = QueueManager({"root": fresh, "default": "down", "connections": {"down": down}})
    found, page, _ = read(archive.packed(doctor.report(queues)))
    assert "does not answer" in found["unread"]["connection down"]
    assert found["sections"]["check"][0]["error"]
    assert ">Not read</h2>" in page


def test_what_takes_too_long_is_named(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()
    quick, slow = (lambda _: "read"), (lambda _: stuck.wait(20))
    monkeypatch.setattr(doctor, "_SECTIONS", {"check": quick, "queues": slow})
    report = doctor.report(queues, patience=0.5)
    stuck.set()
    assert report.unread["queues"] == "not read within 0.5 s"
    assert report.sections["check"] == "read"


def test_a_section_that_breaks_spoils_no_other(
    queues: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: object) -> None:
        raise BackendUnavailable("redis://u:hidden@h does not answer")

    monkeypatch.setitem(doctor._SECTIONS, "queues", breaks)
    monkeypatch.setitem(doctor._SECTIONS, "schedules", lambda _: dict[str, str]()["x"])
    report = doctor.report(queues)
    assert report.unread["queues"] == "redis://***@h does not answer"
    assert report.unread["schedules"] == "KeyError: 'x'"
    assert "deploys of a day" in report.sections


# -- the page -------------------------------------------------------------------------------------


def test_the_page_escapes_what_it_shows() -> None:
    made = doctor.DoctorReport(
        made_at="2026-11-27 03:00:00",
        sections={HOSTILE: {HOSTILE: HOSTILE}, "rows": [{HOSTILE: [HOSTILE]}, {"n": None}]},
        unread={"x": HOSTILE},
    )
    page = archive.page(made)
    assert "<script" not in page
    assert not {"\x00", "\x1b", "\u202e"}.intersection(page)
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("access", "code"), [("act", 200), (("doctor",), 200), ("read", 403), (("retry",), 403)]
)
def test_the_dashboard_gives_it_to_those_who_may(
    queues: QueueManager, access: Access, code: int
) -> None:
    client = TestClient(app(queues, lambda _: access), base_url="http://localhost")
    answer = client.post("/api/v1/doctor", headers={"Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == code
    if code == 200:
        read(answer.content)
    assert ("Report for a bug" in client.get("/workers").text) is (code == 200)
    foreign = client.post("/api/v1/doctor", headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
