"""A failover whose first connection is cut off again and again, with workers in processes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import pytest

from qframe import Queueable
from qframe.exceptions import BackendUnavailable
from tests.support.process import Project, wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

TOML = """
default = "both"
[store]
driver = "database"
[failed]
driver = "database"
[connections.redis]
url = "{url}"
prefix = "faults:"
timeout = 2
[connections.file]
driver = "database"
url = "sqlite:///file.sqlite3"
[connections.both]
driver = "failover"
connections = ["redis", "file"]
retry_down_after = 0.2
retry_after = 30
"""
_SECONDS = 6.0


class Note(Queueable):
    """As the workers' own of this name."""

    job_name = "jobs.Note"
    word: str

    def handle(self) -> None: ...


def test_each_job_that_was_accepted_runs_once(tmp_path: Path, redis_running: RedisServer) -> None:
    with (
        Proxy("127.0.0.1", redis_running.port) as proxy,
        Project(tmp_path, TOML.format(url=redis_running.url_at(proxy.port))) as project,
    ):
        workers = [project.work("both") for _ in range(2)]
        both = project.manager.connection("both")
        modes = itertools.cycle([Mode.PASS, Mode.CUT, Mode.PASS, Mode.CUT_AFTER_REQUEST])
        accepted, refused, number = set[str](), set[str](), 0
        began = changed = time.monotonic()
        while time.monotonic() - began < _SECONDS:
            if time.monotonic() - changed > 0.3:
                mode = next(modes)
                proxy.switch(mode, only=b"EVAL" if mode is Mode.CUT_AFTER_REQUEST else None)
                changed = time.monotonic()
            word = f"job{number}"
            number += 1
            try:
                both.push(Note(word=word))
            except BackendUnavailable:
                refused.add(word)
            else:
                accepted.add(word)
            time.sleep(0.005)
        proxy.switch(Mode.PASS)
        wait_for(lambda: accepted <= {each[1] for each in project.notes("note")}, "all jobs", 90)
        wait_for(lambda: project.manager.connection("redis").size() == 0, "an empty Redis", 90)
        assert [worker.stop() for worker in workers] == [0, 0]
        ran = Counter(each[1] for each in project.notes("note"))
    assert len(accepted) > 100
    assert {word: count for word, count in ran.items() if count > 1} == {}
    assert set(ran) <= accepted | refused
