"""`qframe web` and `qframe metrics`: real processes, a real worker, and what is misused."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import settings_of
from tests.support import requests
from tests.support.process import Process, Project, wait_for
from tests.support.projects import DatabaseProject, RedisProject
from tests.web.conftest import bulk_page

JOBS = """
import time
from qframe import Queueable

class Slow(Queueable):
    def handle(self) -> None:
        for _ in range(600):
            time.sleep(0.1)

class Breaks(Queueable):
    number: int
    tries = 1
    def handle(self) -> None:
        raise ValueError(f"bad {self.number}")

class Quick(Queueable):
    def handle(self) -> None: ...
"""
FROM_HERE = {"Sec-Fetch-Site": "same-origin"}


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("redis", "postgresql")]


@pytest.fixture(params=["database", *_SLOW])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    kind = RedisProject if request.param == "redis" else DatabaseProject
    with kind(tmp_path, **settings_of(request)) as made:
        made.write("jobs.py", JOBS)
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path, driver="database") as made:
        made.write("jobs.py", JOBS)
        yield made


def address_of(process: Process) -> str:
    """Give where a page is served, once it is."""

    def said() -> str:
        found = re.search(r"on (http://\S+?)(?:/metrics|/)$", process.out.strip())
        return found[1] if found else ""

    address = wait_for(said, "its address")

    def answers() -> bool:
        try:
            return requests.get(f"{address}/healthz").text == "ok\n"
        except httpx2.HTTPError:
            return False

    wait_for(answers, "its first answer")
    return address


def test_it_shows_and_does_what_real_workers_see(project: Project) -> None:
    project.push("Slow")
    for number in range(3):
        project.push("Breaks", {"number": number})
    worker = project.work("--concurrency", 2)
    page = project.start("web", "--port", 0)
    address = address_of(page)

    def told(path: str) -> Any:
        return requests.get(f"{address}/api/v1/{path}").json()

    (found,) = wait_for(lambda: told("workers")["workers"], "the worker")
    assert (found["pid"], found["concurrency"]) == (worker.pid, 2)
    wait_for(lambda: told("overview")["failed"] == 3, "the failures")
    running = wait_for(lambda: told("workers")["workers"][0]["jobs"], "the job that runs")
    uuid = running[0]["uuid"]
    assert "Slow" in requests.get(f"{address}/jobs/{uuid}").text
    assert "bad *" in requests.get(f"{address}/failed").text
    (state,) = wait_for(
        lambda: [each for each in told("classes")["classes"] if each["failed"] == 3], "the counts"
    )
    assert state["run_p95"] < 60
    cause = told("causes")["causes"][0]["cause"]
    form = {"cause": cause, "back": "/failed"}
    done = requests.post(f"{address}/actions/retry", data=form, headers=FROM_HERE)
    bulk = bulk_page(done)
    wait_for(lambda: "Done" in requests.get(address + bulk).text, "the end of it")
    wait_for(lambda: [each["count"] for each in told("causes")["causes"]] == [3], "them again")
    ended = requests.post(f"{address}/actions/cancel", data={"uuids": uuid}, headers=FROM_HERE)
    assert ended.status_code == 303
    wait_for(lambda: not told("workers")["workers"][0]["jobs"], "the end of the job")
    assert page.stop() == 0


def test_one_worker_is_quieted_scaled_and_stopped(plain: Project) -> None:
    worker, other = plain.work("--concurrency", 2), plain.work()
    address = address_of(plain.start("web", "--port", 0))

    def state(of: Process) -> dict[str, Any]:
        there = requests.get(f"{address}/api/v1/workers").json()["workers"]
        return next((each for each in there if each["pid"] == of.pid), {})

    def act(name: str, **form: object) -> None:
        form["id"] = state(worker)["id"]
        said = requests.post(f"{address}/actions/{name}", data=form, headers=FROM_HERE)
        assert said.status_code == 303, said.text

    for each in (worker, other):
        wait_for(partial(state, each), "the worker")
    act("quiet")
    wait_for(lambda: state(worker)["state"] == "paused", "its pause")
    plain.push("Quick")
    wait_for(plain.empty, "the other one's work")
    assert state(other)["state"] != "paused"
    act("unquiet")
    wait_for(lambda: state(worker)["state"] != "paused", "the end of its pause")
    act("scale", number=5)
    wait_for(lambda: state(worker)["concurrency"] == 5, "its slots")
    unable = {"id": state(other)["id"], "number": 3}
    said = requests.post(f"{address}/actions/scale", data=unable, headers=FROM_HERE)
    assert said.status_code == 422
    act("stop-worker")
    assert worker.wait() == 0
    assert "stopped (told to stop)" in worker.out
    assert other.alive()
    wait_for(lambda: not state(worker), "its leave")


def test_an_open_page_is_told_what_changes(plain: Project) -> None:
    page = plain.start("web", "--port", 0)
    address = address_of(page)
    with requests.stream("GET", f"{address}/live?page=/queues") as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        first = json.loads(next(lines).removeprefix("data: "))
        assert "Rates are of the last five minutes" in first
        assert "database:mail" not in first
        plain.queue.push_raw("{}", "mail")
        assert any("database:mail" in line for line in lines)
    began = time.monotonic()
    with requests.stream("GET", f"{address}/live?page=/") as stream:
        next(stream.iter_lines())
        assert page.stop() == 0
    assert time.monotonic() - began < 15


def test_it_does_not_open_to_others_without_a_password(plain: Project) -> None:
    for command in ("web", "metrics"):
        said = plain.qframe(command, "--host", "0.0.0.0", "--port", 0)
        assert said.code == 2
        assert "--host 0.0.0.0 lets others in: set password or token" in said.one_line()


def test_with_a_password_it_asks_for_it(plain: Project) -> None:
    plain.configure('[web]\npassword = "a long password"', driver="database")
    for command, path in (("web", "/queues"), ("metrics", "/metrics")):
        page = plain.start(command, "--host", "0.0.0.0", "--port", 0)
        address = address_of(page).replace("0.0.0.0", "127.0.0.1")
        assert requests.get(address + path).status_code == 401
        assert requests.get(address + path, auth=("me", "a long password")).status_code == 200
        assert "a long password" not in page.out + page.err
        page.stop()


def test_read_only_lets_nobody_act(plain: Project) -> None:
    address = address_of(plain.start("web", "--port", 0, "--read-only"))
    assert "Pause" not in requests.get(f"{address}/queues").text
    form = {"connection": "database", "queue": "x"}
    said = requests.post(f"{address}/actions/pause", data=form, headers=FROM_HERE)
    assert said.status_code == 403


def test_metrics_has_one_page_alone(plain: Project) -> None:
    page = plain.start("metrics", "--port", 0)
    address = address_of(page)
    assert "qframe_backend_up" in requests.get(f"{address}/metrics").text
    assert requests.get(f"{address}/queues").status_code == 404
    assert page.stop() == 0


def test_another_program_dispatches_and_a_worker_runs_it(plain: Project) -> None:
    plain.configure('[web.dispatch]\njobs = ["jobs.Nothing"]', driver="database")
    said = plain.qframe("web", "--port", 0)
    assert (said.code, "web.dispatch.jobs: jobs.Nothing" in said.one_line()) == (2, True)
    allowed = '[web.dispatch]\njobs = ["jobs.Quick"]\ntokens = {shop = "a-long-token-of-a-shop"}'
    plain.configure(allowed, driver="database")
    page = plain.start("web", "--host", "0.0.0.0", "--port", 0)
    address = address_of(page).replace("0.0.0.0", "127.0.0.1")
    token = {"Authorization": "Bearer a-long-token-of-a-shop", "Idempotency-Key": "1"}
    for _ in range(2):
        answer = requests.post(f"{address}/api/v1/jobs", json={"job": "jobs.Quick"}, headers=token)
        assert answer.status_code == 201
    assert requests.get(f"{address}/", headers=token).status_code == 403
    page.stop()
    assert plain.qframe("work", "--stop-when-empty").out.count("DONE") == 1


def test_misuse_is_one_line(plain: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = plain.qframe("web", "--port", port)
        assert (said.code, "cannot listen on" in said.one_line()) == (2, True)
    for wrong in ("70000", "-1"):
        assert plain.qframe("web", f"--port={wrong}").code == 2
    said = plain.qframe("web", "--host", "no.such.host.localhost.")
    assert (said.code, "lets others in" in said.one_line()) == (2, True)
    plain.write("qframe.toml", '[web]\naccess = ["fly"]\n')
    said = plain.qframe("web")
    assert (said.code, "there is no action 'fly'" in said.one_line()) == (2, True)
    plain.write("qframe.toml", '[web]\npassword = "short"\n')
    said = plain.qframe("web")
    assert (said.code, "web.password" in said.one_line()) == (2, True)
    assert "short" not in said.one_line().replace("at least", "")
