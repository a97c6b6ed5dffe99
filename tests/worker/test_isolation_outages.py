"""Isolated jobs, many at once, while their backend does not answer."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Process, Project, wait_for
from tests.support.projects import RedisProject
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer
from tests.worker.test_isolation import JOBS


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", redis_server.port) as between:
        yield between


@pytest.fixture
def project(tmp_path: Path, redis_server: RedisServer) -> Iterator[Project]:
    redis_server.command("FLUSHALL")
    with RedisProject(tmp_path / "app", url=redis_server.url, retry_after=30) as made:
        shutil.copy(JOBS, made.root / "iso.py")
        yield made


def work(project: Project, redis_server: RedisServer, line: Proxy, *options: object) -> Process:
    """Start a worker that is behind the line."""
    url = redis_server.url_at(line.port)
    project.configure('jobs = ["jobs", "iso"]\n', url=url, timeout=2)
    worker = project.work("--isolate", "--preload", "--concurrency", 5, *options)
    wait_for(lambda: "qframe" in worker.out, "the worker")
    return worker


def sleep(project: Project, seconds: float, word: str = "sleep", **envelope: Any) -> None:
    project.push("Sleep", {"seconds": seconds, "word": word}, **envelope)


def test_what_ends_while_the_backend_is_gone_is_settled_when_it_is_back(
    project: Project, redis_server: RedisServer, line: Proxy
) -> None:
    for word in ("ends", "goes-on", "goes-on"):
        project.push("Held", {"word": word}, maxTries=1)
    sleep(project, 60, "is late", timeout=6, maxTries=1)
    project.push("iso.Deaf", timeout=5, maxTries=1)
    worker = work(project, redis_server, line, "--grace", 0.5)
    project.wait_for_note("start", count=5)
    line.switch(Mode.CUT)
    wait_for(lambda: "gone" in worker.out, "the loss to be noticed")
    project.let_go("ends")
    project.wait_for_note("end", "ends")
    project.wait_for_note("finally", "is", "late")
    time.sleep(1)
    assert "FAIL" not in worker.out
    line.switch(Mode.PASS)
    wait_for(lambda: "back after" in worker.out, "the backend to be back")
    project.let_go("goes-on")
    project.configure('jobs = ["jobs", "iso"]\n', url=redis_server.url)
    wait_for(lambda: worker.out.count("DONE") == 3, "three to be done")
    wait_for(project.empty, "nothing to be left")
    assert len(project.notes("start")) == 5
    errors = [record.exception for record in project.failed()]
    assert len(errors) == 2
    assert all("JobTimedOut" in error for error in errors)
    assert sum("did not end in 0.5 s more" in error for error in errors) == 1
    assert "LOST" not in worker.out
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_stop_waits_for_what_runs_however_long_the_backend_is_gone(
    project: Project, redis_server: RedisServer, line: Proxy
) -> None:
    project.configure('jobs = ["jobs", "iso"]\n')
    sleep(project, 1, maxTries=1)
    sleep(project, 9, maxTries=1)
    url = redis_server.url_at(line.port)
    project.configure('jobs = ["jobs", "iso"]\n', url=url, timeout=2, retry_after=3)
    worker = project.work("--isolate", "--preload", "--concurrency", 5)
    project.wait_for_note("start", count=2)
    line.switch(Mode.CUT)
    worker.signal(signal.SIGTERM)
    project.wait_for_note("end", count=2)
    began = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - began < 10, "their leases are over"
    assert "reserved jobs become available when their leases end" in worker.err
    line.switch(Mode.PASS)


def test_a_backend_that_says_nothing_holds_up_neither_timeouts_nor_signals(
    project: Project, redis_server: RedisServer, line: Proxy
) -> None:
    for _ in range(4):
        sleep(project, 60, maxTries=1)
    project.push("iso.Deaf", timeout=2.5, maxTries=1)
    worker = work(project, redis_server, line, "--grace", 0.5)
    project.wait_for_note("start", count=5)
    (deaf,) = (int(line[3]) for line in project.notes("start") if line[1] == "deaf")
    line.switch(Mode.BLACKHOLE)
    wait_for(lambda: not Path(f"/proc/{deaf}").exists(), "the end of the late one", 40)
    time.sleep(1)  # nothing can be read of what the worker makes of it
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    wait_for(lambda: len(project.notes("finally")) == 4, "the others", 40)
    line.switch(Mode.PASS)
    assert worker.wait() == 0
    project.configure('jobs = ["jobs", "iso"]\n', url=redis_server.url)
    assert re.search("JobTimedOut", project.failure().exception)
    assert worker.out.count("GIVEN BACK") == 4
    assert project.sizes().ready == 4
