"""Why a worker stops, and the exit code that says so."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.support.idleness import WAKES, wakes
from tests.support.process import Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.mark.on_redis_in_ci
def test_restart_ends_an_idle_worker(project: Project) -> None:
    worker = project.idle()
    told = project.qframe("restart")
    assert (told.code, told.err) == (0, "")
    assert worker.wait() == 0
    assert "stopped (restart)" in worker.out


@pytest.mark.every_backend
def test_restart_ends_a_busy_worker_after_its_job(project: Project) -> None:
    project.push("Sleep", {"seconds": 2})
    project.push("Note")
    worker = project.work()
    project.wait_for_note("start")
    project.manager.connection().store.set("restart", "a new token")
    assert worker.wait() == 0
    assert "stopped (restart): 1 done" in worker.out
    assert len(project.notes("end")) == 1
    assert (project.sizes().ready, project.sizes().reserved) == (1, 0)


@pytest.mark.slow
def test_an_old_restart_does_not_end_a_new_worker(project: Project) -> None:
    assert project.qframe("restart").code == 0
    project.push("Sleep", {"seconds": 1.5})
    assert "1 done" in project.drain().out


def test_the_memory_limit_ends_a_worker_between_two_jobs(project: Project) -> None:
    project.push("Grow", {"megabytes": 150})
    project.push("Sleep", {"seconds": 0.2})
    project.push("Note")
    worker = project.work("--memory", 120)
    assert worker.wait() == 12
    assert "stopped (memory)" in worker.out
    assert len(project.notes("grown")) == 1
    assert project.sizes().reserved == 0
    assert project.sizes().ready + len(project.notes("note") + project.notes("end")) == 2


@pytest.mark.parametrize("kind", [(), ("--concurrency", 4), ("--isolate", "--concurrency", 4)])
def test_a_worker_that_is_too_large_from_the_start_runs_a_job_before_it_ends(
    project: Project, kind: tuple[object, ...]
) -> None:
    for _ in range(40):
        project.push("Note")
    worker = project.work("--memory", 10, *kind)  # an interpreter alone has more
    assert worker.wait() == 12
    done = len(project.notes("note"))
    assert done >= 1  # or a pool would restart it for ever
    assert f"stopped (memory): {done} done" in worker.out
    assert (project.sizes().ready, project.sizes().reserved) == (40 - done, 0)


def test_max_jobs(project: Project) -> None:
    for _ in range(20):
        project.push("Note")
    worker = project.work("--max-jobs", 7)
    assert worker.wait() == 0
    assert "stopped (max jobs): 7 done" in worker.out
    assert len(project.notes("note")) == 7
    assert (project.sizes().ready, project.sizes().reserved) == (13, 0)


@pytest.mark.on_redis_in_ci
def test_max_time_ends_an_idle_worker(project: Project) -> None:
    worker = project.idle("--max-time", 1.5)
    assert worker.wait() == 0
    assert "stopped (max time)" in worker.out
    assert 1.4 < time.monotonic() - worker.began < 15


@pytest.mark.slow
def test_max_time_lets_the_job_finish(project: Project) -> None:
    project.push("Sleep", {"seconds": 1.5})
    project.push("Note")
    worker = project.work("--max-time", 0.5)
    assert worker.wait() == 0
    assert "stopped (max time)" in worker.out
    assert len(project.notes("end")) == 1
    assert (project.sizes().ready, project.sizes().reserved) == (1, 0)


def test_once_without_a_job_waits_at_most_sleep(project: Project) -> None:
    worker = project.work("--once", "--sleep", 0.7)
    assert worker.wait() == 0
    assert 0.6 < time.monotonic() - worker.began < 15
    assert "stopped (once): no jobs" in worker.out
    assert worker.err == ""


@pytest.mark.on_redis_in_ci
def test_once_takes_a_job_that_comes_while_it_waits(project: Project) -> None:
    worker = project.idle("--once", "--sleep", 60)
    project.push("Note")
    assert worker.wait() == 0
    assert len(project.notes("note")) == 1


def test_stop_when_empty_leaves_delayed_and_leased_jobs(project: Project) -> None:
    project.push("Note", {"word": "later"}, delay=60)
    project.push("Sleep", {"seconds": 60})
    other = project.work()
    project.wait_for_note("start")
    project.push("Note", {"word": "ready"})
    worker = project.work("--stop-when-empty")
    assert worker.wait() == 0
    assert "stopped (empty): 1 done" in worker.out
    sizes = project.sizes()
    assert (sizes.ready, sizes.delayed, sizes.reserved) == (0, 1, 1)
    assert [line[1] for line in project.notes("note")] == ["ready"]
    other.end()


@pytest.mark.slow
def test_stop_when_empty_works_all_its_queues(project: Project) -> None:
    for queue in ("low", "high", "default", "low", "high"):
        project.push("Note", {"word": queue}, queue=queue)
    project.drain("--queue", "high,low")
    assert [line[1] for line in project.notes("note")] == ["high", "high", "low", "low"]
    assert project.sizes("default").ready == 1


def test_rest_is_a_pause_between_jobs_that_a_stop_ends(project: Project) -> None:
    for _ in range(3):
        project.push("Note")
    worker = project.work("--rest", 0.4)
    project.wait_for_note("note", count=2)
    first, second = (float(line[4]) for line in project.notes("note")[:2])
    assert second - first >= 0.39
    assert worker.stop() == 0
    worker = project.work("--rest", 60)
    project.wait_for_note("note", count=3)
    told = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - told < 15
    assert project.empty()


def test_a_thread_that_a_job_left_behind_does_not_keep_the_worker(project: Project) -> None:
    project.push("LeavesThread")
    worker = project.work("--stop-when-empty", "--grace", 1)
    assert worker.wait() == 0
    assert "did not end: leaving without it" in worker.err


def test_a_reader_that_goes_away_loses_no_job(project: Project) -> None:
    import os
    import subprocess
    import sys

    for number in range(50):
        project.push("Note", {"word": str(number)})
    reader, writer = os.pipe()
    os.close(reader)
    code = "from qframe.console.app import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "work", "--stop-when-empty"],
        cwd=project.root,
        env={**os.environ, "LEDGER": str(project.ledger)},
        stdout=writer,
        stderr=subprocess.PIPE,
    ) as popen:
        os.close(writer)
        try:
            _, err = popen.communicate(timeout=60)
        finally:
            popen.kill()
    assert popen.returncode == 0, err
    assert len(project.notes("note")) == 50
    assert project.empty()


@pytest.mark.on_redis_in_ci
def test_an_idle_worker_costs_next_to_nothing(project: Project) -> None:
    worker = project.idle()
    time.sleep(0.3)
    assert wakes(worker.pid, 2) < WAKES
    project.push("Note")
    woken = time.time()
    line = project.wait_for_note("note")
    assert float(line[4]) - woken < 10
    told = time.monotonic()
    worker.stop()
    assert time.monotonic() - told < 10


@pytest.mark.on_redis_in_ci
def test_a_delayed_job_starts_when_it_is_due(project: Project) -> None:
    worker = project.idle()
    due = time.time() + 0.8
    project.push("Note", delay=0.8)
    line = project.wait_for_note("note")
    assert -0.01 < float(line[4]) - due < 10
    worker.stop()


def test_json_lines(project: Project) -> None:
    done = project.push("Note")
    failed = project.push("Flaky")
    worker = project.work("--json", "--stop-when-empty")
    assert worker.wait() == 0
    rows = worker.rows
    assert [row["status"] for row in rows] == [
        "starting", "running", "done", "running", "fail", "stopped",
    ]  # fmt: skip
    assert rows[0]["pid"] == worker.pid
    assert [row["uuid"] for row in rows if "uuid" in row] == [done, done, failed, failed]
    assert rows[-1]["reason"] == "empty"
    assert (rows[-1]["done"], rows[-1]["failed"]) == (1, 1)


def test_quiet_prints_failures_only(project: Project) -> None:
    project.push("Note")
    project.push("Flaky")
    finished = project.drain("--quiet")
    (line,) = finished.out.splitlines()
    assert "FAIL" in line
    assert "ValueError: not the 1. time" in line


def test_a_job_that_wakes_the_worker_is_not_waited_for(project: Project) -> None:
    """Dispatch to start on an idle worker, many times: far below the minute between two looks."""
    project.looks_seldom()
    worker = project.idle()
    waited = []
    for number in range(15):
        sent = time.time()
        project.push("Note", {"word": str(number)})
        line = project.wait_for_note("note", number)
        waited.append(float(line[4]) - sent)
        wait_for(project.empty, "the job's end")
    worker.stop()
    assert statistics.median(waited) < 10
    assert max(waited) < 30
