"""`qframe relay`, and what the other commands and workers have to do with the outbox."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.contracts.outbox import Outbox
from qframe.contracts.step import Push, Step
from qframe.outbox.text import encoded
from tests.support.process import Project, wait_for
from tests.support.redis_server import RedisServer

POISON = '{"version":1,"operations":[{"is":"Nothing"}]}'


@pytest.fixture
def project(tmp_path: Path, redis_running: RedisServer) -> Iterator[Project]:
    redis_running.command("FLUSHALL")
    with Project(tmp_path / "project") as made:
        toml = (
            'default = "redis"\n[connections.redis]\ndriver = "redis"\n'
            f'url = "{redis_running.url}"\n[connections.main]\ndriver = "database"\n'
            'url = "sqlite:///app.sqlite3"\n[outbox]\nconnection = "main"\n'
        )
        made.write("qframe.toml", toml)
        yield made


def outbox(project: Project) -> Outbox:
    found = project.manager.outbox()
    assert found is not None
    return found


def push(project: Project, *texts: str, connection: str = "redis") -> None:
    outbox(project).add(connection, texts or [encoded(Step(None, Push("default", b"{}")))])


def waiting(project: Project) -> int:
    return sum(lag.waiting for lag in outbox(project).lags())


def test_it_hands_on_and_says_so(project: Project) -> None:
    push(project)
    done = project.qframe("relay", "--stop-when-empty", "--json")
    assert done.code == 0
    first, last = map(json.loads, done.out.splitlines())
    assert (first["event"], last["event"], last["handed_on"]) == ("starting", "stopped", 1)
    assert project.manager.connection("redis").size() == 1


def test_a_signal_ends_it(project: Project) -> None:
    running = project.start("relay")
    wait_for(lambda: "relaying" in running.out, "the relay")
    push(project)
    wait_for(lambda: waiting(project) == 0, "the row to be handed on")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert running.out.splitlines()[-1].startswith("stopped: 1 handed on in ")


def test_a_worker_relays(project: Project) -> None:
    worker = project.start("work")
    push(project)
    wait_for(lambda: waiting(project) == 0, "the row to be handed on")
    assert worker.stop() == 0


def test_who_does_not_answer_is_named(project: Project) -> None:
    text = (project.root / "qframe.toml").read_text()
    away = '[connections.away]\ndriver = "redis"\nurl = "redis://127.0.0.1:9/0"\n'
    project.write("qframe.toml", text + away)
    push(project, connection="away")
    done = project.qframe("relay", "--stop-when-empty")
    assert done.code == 69
    assert "away gone: " in done.out
    assert waiting(project) == 1


def test_size_monitor_and_check_tell_of_it(project: Project) -> None:
    assert rows(project, "size") == []
    push(project, POISON)
    project.qframe("relay", "--stop-when-empty")
    push(project)
    (row,) = rows(project, "size")
    assert row["outbox"] == "main"
    assert (row["connection"], row["waiting"], row["set_aside"]) == ("redis", 1, 1)
    assert 0 <= row["oldest"] < 60
    assert "unknown here" in row["error"]
    assert [row["status"] for row in rows(project, "monitor", code=1)] == ["SET ASIDE"]
    assert "1 dispatches for the connection 'redis' were set aside" in project.qframe("check").out
    done = project.qframe("relay", "--stop-when-empty", "--retry")
    assert done.out.splitlines()[0] == "1 that were set aside wait again"


def test_monitor_tells_of_a_relay_that_is_behind(project: Project) -> None:
    push(project)
    assert [row["status"] for row in rows(project, "monitor")] == ["OK"]
    busy = rows(project, "monitor", "--max", "0", code=1)
    assert [row["status"] for row in busy] == ["BUSY"]


def test_without_an_outbox_it_is_one_line(project: Project) -> None:
    text = (project.root / "qframe.toml").read_text()
    project.write("qframe.toml", text.partition("[outbox]")[0])
    done = project.qframe("relay")
    assert done.code == 2
    assert "no outbox is configured" in done.one_line()


def rows(project: Project, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = project.qframe(*words, "--json")
    assert done.code == code, done.err
    return [row for row in json.loads(done.out) if "outbox" in row]


def test_a_worker_of_redis_makes_no_database(project: Project, redis_running: RedisServer) -> None:
    toml = (
        f'default = "redis"\n[connections.redis]\ndriver = "redis"\nurl = "{redis_running.url}"\n'
    )
    project.write("qframe.toml", toml)
    assert project.qframe("work", "--stop-when-empty").code == 0
    assert project.qframe("size").code == 0
    assert [*project.root.glob("*.sqlite3*")] == []
