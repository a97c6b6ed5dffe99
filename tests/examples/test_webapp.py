"""The booking page: whole, as a reader would run it, and through Starlette's TestClient."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from examples.webapp.app import app
from qframe import QueueManager, Worker, WorkerOptions, manager
from qframe.contracts import Queue, Sizes

ROOT = Path(__file__).parents[2]
BOOKING = {"guest": "Zoë", "email": "zoe@example.org", "seats": "3", "evening": "2030-12-10"}


@pytest.mark.usefixtures("fresh")
def test_once_shows_the_answer_and_the_mail() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.webapp", "--once"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "web    | 202 Thank you, Ada: the confirmation is on its way." in ran.stdout
    assert "mail   | To: ada@example.org" in ran.stdout
    assert "mail   | Subject: Your table on 10 December 2030" in ran.stdout
    for line in (
        r"worker \| .* examples\.webapp\.jobs\.SendConfirmation .* DONE",
        r"the request took \d+ ms\nthe mail arrived after \d+ ms",
        r"worker \| stopped .*: 1 done in .*",
    ):
        assert re.search(f"^{line}$", ran.stdout, re.MULTILINE), ran.stdout


@pytest.fixture
def queue(fresh: Path) -> Queue:
    """The application's queue, in a folder of its own."""
    manager.use(QueueManager({"default": "database", "jobs": ["examples.webapp.jobs"]}))
    return manager.default().connection()


@pytest.fixture
def client(queue: Queue) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_a_booking_is_answered_while_its_mail_waits(client: TestClient, queue: Queue) -> None:
    answer = client.post("/tables", data=BOOKING)
    assert (answer.status_code, answer.text) == (
        202,
        "Thank you, Zoë: the confirmation is on its way.\n",
    )
    (job,) = queue.reserve(["mail"])
    assert job.payload["displayName"] == "examples.webapp.jobs.SendConfirmation"
    assert job.payload["data"] == {**BOOKING, "seats": 3}


@pytest.mark.parametrize(
    ("field", "value"), [("email", "zoe"), ("seats", "13"), ("evening", "soon"), ("guest", "")]
)
def test_a_wrong_booking_queues_nothing(
    client: TestClient, queue: Queue, field: str, value: str
) -> None:
    answer = client.post("/tables", data={**BOOKING, field: value})
    assert answer.status_code == 422
    assert answer.text.startswith(f"{field}: ")
    assert queue.queues() == []


def test_the_page_has_a_field_for_each_thing_asked(client: TestClient) -> None:
    asked = re.findall(r'<input name="(\w+)"', client.get("/").text)
    assert asked == list(BOOKING)


def test_the_mail_waits_for_a_mail_server_that_is_down(
    client: TestClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/tables", data=BOOKING)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen: connecting is refused
        monkeypatch.setenv("SMTP_PORT", str(unused.getsockname()[1]))
        options = WorkerOptions(queues=("mail",), stop_when_empty=True, memory=0)
        assert Worker(manager.default(), options).run() == 0
    assert queue.sizes("mail") == Sizes(delayed=1)
