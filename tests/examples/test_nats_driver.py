"""The example of a driver, installed as pip would: the conformance suite, real workers."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.errors import ConnectionClosedError

from qframe.drivers.memory.backend import MemoryBackend
from tests.support.nats_server import NatsServer
from tests.support.process import wait_for
from tests.support.projects import ServerProject

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "examples" / "nats_driver"
JOBS = """
from jobs import note
from qframe import Queueable


class Step(Queueable):
    word: str
    tries = 2

    def handle(self) -> None:
        note("note", self.word, self.attempts)


class Alone(Step):
    unique = True
"""
DISPATCHES = """
from own_jobs import Alone, Step
from qframe import batch, chain

chain([Step(word="1"), Step(word="2"), Step(word="3")]).dispatch()
batch([Step(word="a"), Step(word="b")]).then(Step(word="whole")).dispatch()
Step.dispatch(word="late").delay(1).send()
print([Alone.dispatch(word="alone").is_duplicate for _ in range(2)])
"""


class NatsProject(ServerProject):
    """A project whose jobs are in a NATS."""

    driver = "nats"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path, of this process and of others, as pip leaves one."""
    described = tomllib.loads((DRIVER / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site"
    info = folder / "qframe_nats-1.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: 1\n"
    )
    points = described["entry-points"]["qframe.drivers"].items()
    lines = "".join(f"{name} = {value}\n" for name, value in points)
    (info / "entry_points.txt").write_text(f"[qframe.drivers]\n{lines}")
    (folder / "qframe_nats").symlink_to(DRIVER / "qframe_nats")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(ROOT))))
    return folder


@pytest.fixture
def project(tmp_path: Path, site: Path, nats: NatsServer) -> Iterator[NatsProject]:
    with NatsProject(tmp_path / "app", url=nats.url, retry_after=4) as made:
        made.write("own_jobs.py", JOBS)
        yield made


@pytest.mark.parametrize("answers", [1, 2])
def test_what_came_before_a_connection_was_lost_is_not_hidden(
    site: Path, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """The request is made again; if that fails, too, what came before is what there is."""
    backends = importlib.import_module("qframe_nats.backend")
    settings = importlib.import_module("qframe_nats.settings").NatsSettings()
    backend = backends.NatsBackend("nats", settings, MemoryBackend)
    pulls = iter(["first", None, *(["second"] if answers == 2 else [])])

    async def pulled(*_: object) -> list[str]:
        message = next(pulls, None)
        if message is None:
            raise ConnectionClosedError
        return [message]

    async def connected(self: object) -> None:
        """Connect to nothing."""

    monkeypatch.setattr(backend, "_declare", lambda queues: None)
    monkeypatch.setattr(backend, "_pulled", pulled)
    monkeypatch.setattr(backend, "_job", lambda message, asked_at: message)
    loops = importlib.import_module("qframe_nats.connection").ConnectionLoop
    monkeypatch.setattr(loops, "_connected", connected)
    assert backend.receive(["high", "low"], 2) == ["first", "second"][:answers]
    backend._connection.close()


@pytest.mark.timeout(600)  # mostly it waits for leases to end
def test_it_passes_the_conformance_suite(site: Path, nats: NatsServer, tmp_path: Path) -> None:
    spread = ["-n", "3", "--dist", "worksteal"]
    suite = ["--pyargs", "qframe.testing.conformance", "--backend", "qframe_nats.bench:NatsBench"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *spread, *suite],
        cwd=tmp_path,
        env={**os.environ, "NATS_URL": nats.url, "HISTORIES": "5"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " since it has no SEARCH" in ended.stdout


def test_a_chain_a_batch_a_unique_job_and_a_delay(project: NatsProject) -> None:
    checked = project.qframe("check")
    assert (checked.code, checked.err) == (0, ""), checked.out
    assert "NATS 2." in checked.out
    assert "stream qframe is" not in checked.out
    worker = project.work()
    sent = project.program(DISPATCHES)
    assert (sent.code, sent.out) == (0, "[False, True]\n"), sent.err
    wait_for(lambda: len(project.done()) == 8, "all jobs")
    assert worker.stop() == 0
    assert sorted(project.done()) == ["1", "2", "3", "a", "alone", "b", "late", "whole"]
    assert [each for each in project.done() if each.isdigit()] == ["1", "2", "3"]
    assert project.done().index("whole") > max(map(project.done().index, ("a", "b")))
    assert project.empty()


def test_a_worker_and_a_server_that_are_killed_lose_nothing(
    project: NatsProject, nats: NatsServer
) -> None:
    project.push("Kill", {"times": 1}, maxTries=3)
    assert project.work().wait() == -signal.SIGKILL
    project.push("Held", maxTries=1)
    worker = project.work()
    project.wait_for_note("start", "held")
    nats.restart()
    project.push("Note", {"word": "after"})
    project.let_go("held")
    wait_for(lambda: project.done() and len(project.notes("end")) == 2, "all jobs")
    assert worker.stop() == 0
    assert sorted(line[:3] for line in project.notes("end")) == [
        ["end", "held", "1"],
        ["end", "kill", "2"],
    ]
    assert project.empty()
    assert project.failed() == []
