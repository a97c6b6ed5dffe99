"""Real workers, of which one is killed or stopped: an alert reaches a server, and a program, once.

Told twice is only what somebody was telling when he was killed; it has the same id then.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qframe.alerts.checker import _STATE, _TURN
from qframe.alerts.life import AlertRecords
from qframe.worker import roster
from tests.alerts.conftest import SECRET, Hook
from tests.conftest import settings_of
from tests.support.process import Process, Project, wait_for
from tests.support.projects import DatabaseProject, RedisProject
from tests.support.redis_server import RedisServer


def alerts(hook: Hook, *rules: str, timeout: float = 10) -> str:
    """Give the part of the configuration."""
    return (
        f"[alerts]\nrules = {json.dumps(rules)}\nevery = 1\ncalm = 1\n"
        f'[alerts.webhook]\nurl = "{hook.url}"\nsecret = "{SECRET}"\ntimeout = {timeout}\n'
    )


Make = Callable[[str], Project]


_LONG = ("redis", "postgresql")


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in _LONG)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Give what makes a project on each kind of backend."""
    made: list[Project] = []

    def project(toml: str) -> Project:
        if request.param == "sqlite":
            found = Project(tmp_path / "app", toml)
        elif request.param == "redis":
            server: RedisServer = request.getfixturevalue("redis_running")
            server.command("FLUSHALL")
            found = RedisProject(tmp_path / "app", toml, url=server.url)
        else:
            found = DatabaseProject(tmp_path / "app", toml, url=settings_of(request)["url"])
        made.append(found.__enter__())
        return found

    yield project
    for each in made:
        each.__exit__()


def holder(project: Project) -> int:
    """Give the pid of who looks; 0 where nobody does."""
    (who,) = project.queue.store.get(_TURN)
    return int(who.split(":")[1]) if who else 0


def two(project: Project) -> tuple[Process, Process]:
    """Start two workers; gives the one that looks, and the other."""
    workers = {each.pid: each for each in (project.work("--queue", "other") for _ in range(2))}
    store = project.queue.store
    wait_for(lambda: {each.pid for each in roster.listed(store)} == {*workers}, "both workers")
    first = workers.pop(wait_for(lambda: holder(project), "who looks"))
    return first, workers.popitem()[1]


def untold(project: Project) -> int:
    """Count what is still to be told, or is not known to have been."""
    return len(AlertRecords.read(project.queue.store.get(_STATE)[0]).notifications)


def beat_of(project: Project, worker: Process) -> float:
    """Give when a worker was last heard of; 0 where its entry is gone."""
    entries = roster.listed(project.queue.store)
    return next((each.beat_at for each in entries if each.pid == worker.pid), 0.0)


def fill(project: Project) -> None:
    for _ in range(3):
        project.push("Note", queue="mail")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["as it is wrong", "when it was told"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_looks_goes_and_the_other_tells_once(
    make: Make, hook: Hook, number: signal.Signals, when: str
) -> None:
    project = make("")
    ledger = project.root / "pages"
    run = ["sh", "-c", f"cat >> {ledger}; echo >> {ledger}"]
    command = f"[alerts.command]\nrun = {json.dumps(run)}\n"
    project.configure(alerts(hook, "size > 2 on mail") + command)
    first, other = two(project)
    fill(project)
    if when == "when it was told":
        wait_for(lambda: hook.told and not untold(project), "the first telling, and its note")
    first.signal(number)
    wait_for(lambda: holder(project) == other.pid, "that the other looks", 30)
    wait_for(lambda: hook.told, "the first telling", 60)
    project.queue.clear("mail")
    wait_for(lambda: len(hook.told) == 2, "that it is over", 60)
    assert hook.told == ["raised", "resolved"]
    if number is signal.SIGSTOP:
        before = beat_of(project, first)
        first.signal(signal.SIGCONT)
        wait_for(lambda: beat_of(project, first) > before, "the one that was stopped", 30)
    fill(project)
    wait_for(lambda: len(hook.told) == 3, "that it is wrong again", 60)
    project.queue.clear("mail")
    wait_for(lambda: len(hook.told) == 4, "that it is over again", 60)
    assert hook.told == ["raised", "resolved"] * 2
    twice = len(hook.posts) - len(hook.told)
    assert twice <= (when == "as it is wrong"), "who is killed while he tells may have told"

    def by_program() -> list[str]:
        lines = ledger.read_text().splitlines()
        told = {each["id"]: each["event"] for each in map(json.loads, filter(None, lines))}
        return [*told.values()]

    wait_for(lambda: len(by_program()) == 4, "the program", 60)
    if number is signal.SIGSTOP and when == "as it is wrong":  # who is stopped may tell late
        assert sorted(by_program()) == sorted(["raised", "resolved"] * 2)
    else:
        assert by_program() == ["raised", "resolved"] * 2


@pytest.mark.slow
def test_who_looks_is_killed_and_the_dead_worker_told(make: Make, hook: Hook) -> None:
    project = make(alerts(hook, "dead worker", "no worker on other"))
    first, other = two(project)
    first.signal(signal.SIGKILL)
    wait_for(lambda: hook.told, "that it died", 40)
    assert f":{first.pid} of " in json.loads(hook.posts[0][2])["text"]
    assert other.alive()
    wait_for(lambda: len(hook.told) == 2, "that its entry is gone", 60)
    assert hook.told == ["raised", "resolved"]


@pytest.mark.slow
def test_a_worker_that_was_killed_is_found_when_its_entry_is_gone(make: Make) -> None:
    project = make("")
    ended, killed = project.work(), project.work("--isolate")
    store = project.queue.store
    wait_for(lambda: len(roster.listed(store)) == 2, "both workers")
    (key,) = [each.key for each in roster.listed(store) if each.pid == killed.pid]
    assert project.qframe("monitor", "dead worker").code == 0
    assert ended.stop() == 0
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert store.delete(key)
    found = project.qframe("monitor", "dead worker")
    assert found.code == 1
    assert f":{killed.pid} of {project.queue.name} has died" in found.out
    assert f":{ended.pid} of" not in found.out


@pytest.mark.slow
def test_a_webhook_that_hangs_delays_no_job_and_no_stop(tmp_path: Path, hook: Hook) -> None:
    hook.hangs = True
    with Project(tmp_path / "app", alerts(hook, "size > 2 on mail", timeout=60)) as project:
        worker = project.work()
        fill(project)
        wait_for(lambda: hook.posts, "the telling")
        began = time.monotonic()
        for number in range(50):
            project.push("Note", {"word": f"w{number}"})
        project.wait_for_note("note", count=50)
        assert time.monotonic() - began < 10, "jobs waited for the webhook"
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 15, "the stop waited for the webhook"
        assert "Traceback" not in worker.err
        assert len(hook.posts) == 1
