"""FastAPI and Flask, served for real, with a real worker, and the dashboard under its prefix."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import requests
from tests.support.process import Process, wait_for
from tests.support.projects import DatabaseProject
from tests.support.server_process import free_port

ROOT = Path(__file__).parents[2]
ADMIN = {"Cookie": "admin=letmein"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DatabaseProject]:
    """Give a project on SQLite that both applications and their workers use."""
    jobs = 'jobs = ["examples.fastapi_app.jobs", "examples.flask_app.jobs"]'
    with DatabaseProject(tmp_path, jobs) as made:
        yield made


def serve(project: DatabaseProject, kind: str, *arguments: object) -> tuple[str, Process]:
    """Start an application and its worker, and give its address."""
    port = free_port()
    module, queue = f"examples.{kind}_app", "uploads" if kind == "fastapi" else "texts"
    environment = {"PYTHONPATH": str(ROOT), "ADMIN_KEY": "letmein", "SECRET_KEY": "of a test"}
    environment |= {"UPLOADS": str(project.root / "kept"), "TEXTS": str(project.root / "kept")}
    server = {
        "fastapi": ["-m", "uvicorn", f"{module}.app:app", "--port", str(port)],
        "flask": ["-m", "flask", "--app", f"{module}.app", "run", "--port", str(port)],
    }[kind]
    command = [sys.executable, *server, *map(str, arguments)]
    project.run(command, environment=environment)
    group = {"fastapi": ["qframe"], "flask": ["flask", "--app", f"{module}.app", "qframe"]}[kind]
    command = [sys.executable, "-m", *group, "work", "--queue", queue, "--sleep", "0.2"]
    worker = project.run(command, environment=environment)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return requests.get(f"{address}/queues/healthz").text == "ok\n"
        except httpx2.HTTPError:
            return False

    wait_for(answers, "the application")
    return address, worker


def test_fastapi_answers_and_a_worker_does_the_work(project: DatabaseProject) -> None:
    address, _ = serve(project, "fastapi")
    kind = {"Content-Type": "application/octet-stream"}
    said = requests.post(f"{address}/files", content=b"hello", headers=kind)
    assert said.status_code == 202, said.text
    url = f"{address}/files/{said.json()['file']}"
    wait_for(lambda: requests.get(url).status_code == 200, "the digest")
    assert requests.get(url).json()["sha256"].startswith("2cf24dba5fb0a30e26e8")
    assert "/queues" not in requests.get(f"{address}/openapi.json").text
    looks_right(address, "database:uploads")
    with requests.stream("GET", f"{address}/queues/live?page=/queues", headers=ADMIN) as stream:
        assert "database:uploads" in next(each for each in stream.iter_lines() if "data:" in each)


@pytest.mark.slow
def test_flask_answers_and_a_worker_does_the_work(project: DatabaseProject) -> None:
    address, _ = serve(project, "flask")
    said = requests.post(f"{address}/texts", content=b"to be or not to be")
    assert said.status_code == 202, said.text
    url = f"{address}/texts/{said.json()['text']}"
    wait_for(lambda: requests.get(url).status_code == 200, "the counts")
    assert requests.get(url).text == "2 to\n2 be\n1 or\n1 not\n"
    assert requests.post(f"{address}/sign-in", data={"key": "guessed"}).status_code == 403
    signed = requests.post(f"{address}/sign-in", data={"key": "letmein"})
    cookie = signed.headers["Set-Cookie"].partition(";")[0]
    looks_right(address, "database:texts", signed={"Cookie": cookie})


def looks_right(
    address: str, queue: str, prefix: str = "/queues", signed: dict[str, str] = ADMIN
) -> None:
    """Fail unless the page is closed to strangers, under its prefix, and acts."""
    page = f"{address}/queues"
    assert requests.get(f"{page}/").status_code == 403
    seen: set[str] = set()
    for path in ("/", "/queues", "/failed", "/workers"):
        said = requests.get(page + path, headers=signed)
        assert said.status_code == 200, said.text
        seen.update(re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', said.text))
    assert {each for each in seen if not each.startswith(f"{prefix}/")} == set()
    own = prefix.removesuffix("/queues")
    for link in seen:
        if "/static/" in link:
            assert (
                requests.get(
                    address + html.unescape(link).removeprefix(own), headers=signed
                ).status_code
                == 200
            )
    connection, _, name = queue.partition(":")
    form: dict[str, Any] = {"connection": connection, "queue": name, "back": "/queues"}
    refused = requests.post(f"{page}/actions/pause", data=form, headers=signed)
    assert refused.status_code == 403
    done = requests.post(
        f"{page}/actions/pause", data=form, headers={**signed, "Sec-Fetch-Site": "same-origin"}
    )
    assert done.headers["location"].startswith(f"{prefix}/queues?said=paused")
    states = requests.get(f"{page}/api/v1/queues", headers=signed).json()["queues"]
    assert [each["paused"] for each in states if each["queue"] == name] == [True]


@pytest.mark.slow
def test_behind_a_proxy_that_takes_a_prefix_away_links_have_it(project: DatabaseProject) -> None:
    address, _ = serve(project, "fastapi", "--root-path", "/shop")
    looks_right(address, "database:uploads", "/shop/queues")
