"""Large payloads over a line that is hardly faster than they are: each is sent once, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process import wait_for
from tests.support.projects import RedisProject
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

SIZE = 300_000
LINE = 2_000_000
"""Bytes a second, for all workers together."""
SMALL = 400
"""So many come first, by which the workers learn to reserve ahead."""


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_large_jobs_do_not_go_round_between_workers(
    redis_server: RedisServer, tmp_path: Path, workers: int
) -> None:
    redis_server.command("FLUSHALL")
    count = 20
    with (
        Proxy("127.0.0.1", redis_server.port) as line,
        RedisProject(tmp_path / "app", url=redis_server.url) as project,
    ):
        for _ in range(SMALL):
            project.push("Note", {"word": "small"})
        for number in range(count):
            project.push("Note", {"word": str(number)}, filler="x" * SIZE)
        project.configure(url=redis_server.url_at(line.port))
        line.throttle(LINE)
        processes = [project.work("--json") for _ in range(workers)]
        project.wait_for_note("note", count=SMALL + count, seconds=60)
        wait_for(project.empty, "their end")
        assert line.received < 1.5 * count * SIZE, "no more than a few were sent again"
        assert [process.stop() for process in processes] == [0] * workers
        large = [words for words in project.notes("note") if words[1] != "small"]
        assert sorted(int(words[1]) for words in large) == list(range(count)), "each once"
        assert {words[2] for words in large} == {"1"}
        assert all("lost" not in process.err for process in processes)
