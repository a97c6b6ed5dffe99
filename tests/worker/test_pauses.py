"""Pauses by command, and a listener's veto."""

from __future__ import annotations

import time

import pytest

from tests.support.process import Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.mark.every_backend
def test_a_paused_queue_waits_and_the_others_go_on(project: Project) -> None:
    assert project.qframe("pause", "emails").out == f"paused emails of {project.queue.name}\n"
    worker = project.idle("--queue", "emails,default")
    project.push("Note", {"word": "mail"}, queue="emails")
    project.push("Note", {"word": "other"})
    project.wait_for_note("note", "other")
    time.sleep(1.2)
    assert len(project.notes("note")) == 1
    assert project.sizes("emails").ready == 1
    assert project.qframe("resume", "emails").code == 0
    project.wait_for_note("note", "mail")
    assert worker.stop() == 0


def test_a_running_worker_hears_pause_and_resume(project: Project) -> None:
    worker = project.idle()
    assert project.qframe("pause").out == f"paused every queue of {project.queue.name}\n"
    wait_for(lambda: f"{project.queue.name}: paused" in worker.out, "the pause")
    project.push("Note")
    time.sleep(1.2)
    assert project.notes("note") == []
    assert project.qframe("resume").code == 0
    project.wait_for_note("note")
    assert f"{project.queue.name}: resumed" in worker.out
    assert worker.stop() == 0
    assert worker.err == ""


def test_a_pause_lets_the_running_job_finish_and_takes_no_other(project: Project) -> None:
    project.push("Sleep", {"seconds": 1.5})
    project.push("Note")
    worker = project.work()
    project.wait_for_note("start")
    project.manager.connection().store.set(f"pause:{project.queue.name}", "1")
    project.wait_for_note("end")
    wait_for(lambda: "paused" in worker.out, "the pause")
    wait_for(lambda: project.sizes().total == project.sizes().ready == 1, "one job, held by nobody")
    assert project.notes("note") == []
    assert worker.stop() == 0


@pytest.mark.slow
def test_resume_without_a_name_ends_every_pause(project: Project) -> None:
    for name in ("a", "b", ""):
        assert project.qframe(*["pause", name][: 1 + bool(name)]).code == 0
    for name in ("a", "b"):
        project.push("Note", {"word": name}, queue=name)
    assert project.qframe("resume").code == 0
    project.drain("--queue", "a,b")
    assert len(project.notes("note")) == 2


@pytest.mark.slow
def test_a_pause_can_end_by_itself(project: Project) -> None:
    assert project.qframe("pause", "--for", "2").code == 0
    project.push("Note")
    worker = project.work("--once", "--sleep", "60")
    project.wait_for_note("note")
    assert worker.wait() == 0


@pytest.mark.slow
def test_force_works_although_all_is_paused(project: Project) -> None:
    assert project.qframe("pause").code == 0
    assert project.qframe("pause", "emails").code == 0
    project.push("Note", {"word": "forced"})
    project.push("Note", {"word": "mail"}, queue="emails")
    project.drain("--force", "--queue", "default,emails")
    assert [line[1] for line in project.notes("note")] == ["forced"]
    assert project.sizes("emails").ready == 1, "--force is about the pause of everything"


@pytest.mark.slow
def test_a_paused_worker_still_stops_by_time_and_restart(project: Project) -> None:
    assert project.qframe("pause").code == 0
    worker = project.work("--max-time", 1.5)
    assert worker.wait() == 0
    worker = project.work()
    wait_for(lambda: "paused" in worker.out, "the pause")
    assert project.qframe("restart").code == 0
    assert worker.wait() == 0
    assert "stopped (restart)" in worker.out


def test_a_listener_of_looping_can_veto(project: Project) -> None:
    project.configure('[listeners]\nLooping = ["jobs:veto"]\n')
    project.push("Note")
    worker = project.work()
    project.wait_for_note("looping", count=2)
    assert project.notes("note") == []
    project.write("may-work", "")
    project.wait_for_note("note")
    assert worker.stop() == 0
