"""Many jobs at once: what the end of one asks of the backend, and what is left of a broken loop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from qframe.worker.options import StopReason
from tests.support.process import Project, wait_for
from tests.support.projects import RedisProject
from tests.support.redis_server import RedisServer

_PAUSE = 1.5


@pytest.fixture
def crowd(project: Project) -> Project:
    lay_out(project)
    return project


def lay_out(project: Project) -> None:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    project.configure('jobs = ["at_once"]\n', retry_after=60)


def dispatch(project: Project, code: str) -> None:
    said = f"from at_once import *\nfrom qframe import chain, dispatch\n{code}"
    ran = project.program(said)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("project", ["redis"], indirect=True)
def test_the_end_of_a_link_keeps_no_neighbour_from_the_loop(
    crowd: Project, redis_server: RedisServer
) -> None:
    pauses = f"PausesTheServer(url={redis_server.url!r}, seconds={_PAUSE})"
    dispatch(
        crowd,
        f"dispatch(Ticks(seconds={2 * _PAUSE}))\nchain([{pauses}, Waits(word='b')]).dispatch()",
    )
    crowd.drain("--concurrency", 10)
    assert crowd.notes("start")[0][1] == "b"
    assert len(crowd.notes("paused")) == 1
    assert float(crowd.notes("kept")[0][1]) < _PAUSE / 2


@pytest.mark.parametrize("where", ["", "InThread"])
def test_a_link_that_ends_while_the_backend_is_away_is_ended_when_it_is_back(
    tmp_path: Path, where: str
) -> None:
    with (
        RedisServer(tmp_path / "redis", fsync="always") as server,
        RedisProject(tmp_path / "app", url=server.url) as project,
    ):
        lay_out(project)
        kills = f"KillsTheServer{where}(pid={server.info()['process_id']})"
        dispatch(project, f"chain([{kills}, Waits(word='b')]).dispatch()")
        worker = project.work("--concurrency", 10)
        project.wait_for_note("killed")
        server.restart(kill=True)
        project.wait_for_note("end", "b")
        wait_for(project.empty, "nothing to be left")
        assert worker.stop() == 0
        assert [line[1] for line in project.notes("killed")] == ["1"]
        assert "Traceback" not in worker.err


@pytest.mark.parametrize("options", [(), ("--concurrency", 10)], ids=["alone", "slots"])
@pytest.mark.parametrize("job", ["ClosesAll", "ClosesAllInThread"])
def test_a_worker_whose_files_a_job_closes_ends_at_once(
    crowd: Project, job: str, options: tuple[object, ...]
) -> None:
    crowd.write("uvloop.py", "raise ImportError\n")  # it ends the process by itself
    crowd.push(f"at_once.{job}", maxTries=2)
    worker = crowd.work(*options)
    crowd.wait_for_note("closes")
    assert worker.wait() == StopReason.LOST_BACKEND.exit_code
    (line,) = worker.err.splitlines()
    assert "closed files of its worker's process" in line
    assert crowd.sizes().total == 1, "its lease brings it back"
