"""The time for which one job keeps the event loop from its neighbours is not theirs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.marks import slow
from tests.support.process import Project, wait_for


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("at_once.py"), project.root)
    project.configure('jobs = ["at_once"]', retry_after=90)
    return project


@pytest.mark.parametrize("loop", ["asyncio", *slow("uvloop")])
def test_only_the_job_that_computes_is_late(crowd: Project, loop: str) -> None:
    if loop == "asyncio":
        crowd.write("uvloop.py", "raise ImportError")
    for number in range(5):
        crowd.push("at_once.Waits", {"word": str(number), "seconds": 0.5})
    crowd.push("at_once.Ticks", {"seconds": 1})  # needs its turn again and again
    crowd.push("at_once.Computes", {"seconds": 60})
    worker = crowd.work("--concurrency", 20, "--timeout", 3, "--tries", 1)
    wait_for(lambda: crowd.failed() and crowd.empty(), "the end of all")
    assert crowd.stop([worker]) == [0]
    assert "at_once.Computes" in str(crowd.failure())
    assert len(crowd.failed()) == 1
    assert len(crowd.notes("end")) == 5
    assert len(crowd.notes("kept")) == 1
    assert 1 <= worker.err.count("has blocked the event loop") <= 2
    assert "at_once.py" in worker.err
    assert "qframe/worker" not in worker.err
    assert "asyncio/" not in worker.err


def test_a_job_that_awaits_is_late_by_its_own_time(crowd: Project) -> None:
    crowd.push("at_once.Waits", {"word": "late", "seconds": 60})
    worker = crowd.work("--concurrency", 2, "--timeout", 1, "--tries", 1)
    wait_for(crowd.failed, "its end", 30)
    assert "JobTimedOut" in crowd.failure().exception
    assert crowd.stop([worker]) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        ("Keeps", 5),
        ("Keeps", 1),
        ("KeepsOnLoop", 5),
        ("KeepsOnLoop", 1),
    ],
)
def test_only_the_job_that_keeps_the_interpreter_is_late(
    crowd: Project, job: str, seconds: float
) -> None:
    crowd.push(f"at_once.{job}", {"seconds": seconds})
    for _ in range(3):
        crowd.push("at_once.NeedsTurns", {"turns": 10})
        crowd.push("at_once.NeedsTurnsOnLoop", {"turns": 10})
    worker = crowd.work("--concurrency", 20, "--timeout", 4, "--tries", 1)
    wait_for(lambda: crowd.failed() and crowd.empty(), "the end of all")
    assert crowd.stop([worker]) == [0]
    assert f"at_once.{job}" in str(crowd.failure())
    assert "JobTimedOut" in crowd.failure().exception
    assert len(crowd.notes("end")) == 7


@pytest.mark.slow
def test_one_that_keeps_the_interpreter_and_uses_no_processor_is_late_in_the_end(
    crowd: Project,
) -> None:
    crowd.push("at_once.Keeps", {"seconds": 2, "how": "sleeps"})
    worker = crowd.work("--concurrency", 2, "--timeout", 3, "--tries", 1)
    wait_for(lambda: crowd.failed() and crowd.empty(), "its end")
    assert crowd.stop([worker]) == [0]
    assert "JobTimedOut" in crowd.failure().exception


@pytest.mark.slow
def test_a_pool_does_not_end_the_worker_for_a_neighbour(crowd: Project) -> None:
    for number in range(3):
        crowd.push("at_once.Waits", {"word": str(number), "seconds": 1}, timeout=3)
    crowd.push("at_once.Computes", {"seconds": 60}, timeout=9)
    pool = crowd.work("--workers", 1, "--concurrency", 5, "--grace", 1, "--tries", 1)
    wait_for(lambda: crowd.failed() and crowd.empty(), "the end of all")
    assert pool.stop() == 0
    assert "at_once.Computes" in str(crowd.failure())
    assert len(crowd.notes("end")) == 3


def test_a_job_in_a_thread_is_late_by_its_own_time(crowd: Project) -> None:
    crowd.push("at_once.NeedsTurns", {"turns": 10_000})
    worker = crowd.work("--concurrency", 2, "--timeout", 1, "--tries", 1)
    wait_for(crowd.failed, "its end", 30)
    assert "JobTimedOut" in crowd.failure().exception
    assert crowd.stop([worker]) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("project", ["database", "redis"], indirect=True)
def test_the_end_of_a_process_that_is_kept_costs_a_try_only_who_had_begun(crowd: Project) -> None:
    crowd.configure('jobs = ["at_once"]', retry_after=30)
    lost = {crowd.push("at_once.Waits", {"word": "begun", "seconds": 90})}
    lost.add(crowd.push("at_once.Keeps", {"seconds": 90, "how": "sleeps"}))
    for _ in range(5):
        crowd.push("at_once.Waits", {"word": "later", "seconds": 0})
    options = ["--concurrency", 2, "--timeout", 5, "--grace", 1, "--tries", 1]
    worker = crowd.work(*options)
    assert worker.wait(120) == 1
    assert "Timeout" in worker.err  # of `faulthandler`
    assert not crowd.notes("end")
    worker = crowd.work(*options)
    wait_for(lambda: len(crowd.failed()) == 2 and crowd.empty(), "the end of all", 120)
    assert crowd.stop([worker]) == [0]
    assert {each.uuid for each in crowd.failed()} == lost
    assert [words[1] for words in crowd.notes("start")].count("later") == 5
    assert [words[1] for words in crowd.notes("end")] == ["later"] * 5
