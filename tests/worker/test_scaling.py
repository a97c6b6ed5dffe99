"""`qframe scale`: running workers and pools take up other numbers, and what runs goes on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from qframe.worker import roster
from qframe.worker.roster import Entry
from tests.support.pool import IDLE, pool, rows, wait_for_row, wait_for_workers
from tests.support.process import Finished, Process, Project, wait_for

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]


@pytest.fixture
def crowd(project: Project) -> Project:
    shutil.copy(Path(__file__).with_name("held_jobs.py"), project.root)
    project.write("uvloop.py", "raise ImportError")
    return project


def hold(project: Project, *words: object, kind: str = "Held") -> None:
    """Push jobs that run until they are let go."""
    for word in words:
        project.push(f"held_jobs.{kind}", {"word": str(word)})


def let_go(project: Project, *words: object) -> None:
    for word in words:
        project.write(f"let-{word}", "")


def wait_for_starts(project: Project, count: int) -> None:
    wait_for(lambda: len(project.notes("start")) >= count, f"{count} jobs to run")
    assert len(project.notes("start")) == count


def workers(project: Project) -> list[Entry]:
    return roster.listed(project.queue.store)


def wait_for_entry(project: Project, used: int, free: int) -> Entry:
    """Wait until the one worker has so many slots in use, and so many free."""

    def found() -> Entry | None:
        for entry in workers(project):
            if (len(entry.jobs), entry.concurrency - len(entry.jobs)) == (used, free):
                return entry
        return None

    entry = wait_for(found, f"{used} slots in use and {free} free")
    assert entry is not None
    return entry


def wait_for_pool(project: Project) -> None:
    """Wait until the pool can be told something: it is listed when its first worker works."""
    wait_for(lambda: roster.pools(project.queue.store), "the pool to be listed")


def scaled(project: Project, *arguments: object) -> Finished:
    said = project.qframe("scale", *arguments)
    assert (said.code, said.err) == (0, ""), said
    return said


def most_at_once(notes: list[list[str]]) -> int:
    """Give how many jobs ran at once at most, by their notes in order."""
    running = most = 0
    for kind, *_ in notes:
        running += {"start": 1, "end": -1}.get(kind, 0)
        most = max(most, running)
    return most


# -- one worker -----------------------------------------------------------------------------------


def test_more_slots_take_jobs_at_once_and_fewer_let_them_end(crowd: Project) -> None:
    hold(crowd, *range(9))
    worker = crowd.work("--concurrency", 2, "--name", "mail")
    wait_for_starts(crowd, 2)
    wait_for_entry(crowd, used=2, free=0)

    said = scaled(crowd, "mail", 5)
    assert said.out.endswith(f":{worker.pid} mail: jobs at once 5 (2 before)\n")
    wait_for_starts(crowd, 5)
    assert "scaled to 5 at once" in worker.out
    wait_for_entry(crowd, used=5, free=0)

    scaled(crowd, "m*", 2)
    assert len(crowd.notes("end")) == 0, "what runs goes on"
    let_go(crowd, 0, 1, 2)
    wait_for(lambda: len(crowd.notes("end")) == 3, "three jobs to end")
    entry = wait_for_entry(crowd, used=2, free=0)
    assert entry.counts["processed"] == 3
    wait_for_starts(crowd, 5)
    let_go(crowd, 3, 4)
    wait_for_starts(crowd, 7)
    let_go(crowd, 5, 6, 7, 8)
    wait_for(lambda: len(crowd.notes("end")) == 9, "all jobs")
    wait_for(crowd.empty, "nothing to be left")
    assert crowd.stop([worker]) == [0]
    order = crowd.notes()
    seventh = [place for place, line in enumerate(order) if line[0] == "start"][5]
    assert most_at_once(order[:seventh]) == 5
    assert most_at_once(order[seventh - 1 :]) <= 2
    assert {line[2] for line in crowd.notes("start")} == {"1"}


def test_jobs_in_threads_get_threads_of_the_new_slots(crowd: Project) -> None:
    hold(crowd, *range(6), kind="HeldInThread")
    worker = crowd.work("--concurrency", 2)
    wait_for_starts(crowd, 2)
    scaled(crowd, f"{wait_for_entry(crowd, used=2, free=0).host}:{worker.pid}", 6)
    wait_for_starts(crowd, 6)
    let_go(crowd, *range(6))
    wait_for(crowd.empty, "nothing to be left")
    assert crowd.stop([worker]) == [0]


def test_an_idle_worker_takes_it_up_and_keeps_it_while_paused(crowd: Project) -> None:
    worker = crowd.work("--concurrency", 2)
    wait_for_entry(crowd, used=0, free=2)
    worker.signal(signal.SIGUSR2)
    scaled(crowd, "default", 3)
    hold(crowd, *range(4))
    wait_for(lambda: "paused" in crowd.qframe("workers").out.splitlines()[1], "it to be paused")
    assert not crowd.notes("start")
    worker.signal(signal.SIGCONT)
    wait_for_starts(crowd, 3)
    let_go(crowd, *range(4))
    wait_for(crowd.empty, "nothing to be left")
    assert crowd.stop([worker]) == [0]


def test_a_worker_of_one_job_at_a_time_says_how_to_start_it(crowd: Project) -> None:
    alone = crowd.work("--name", "alone")
    many = crowd.work("--concurrency", 2, "--name", "many")
    wait_for(lambda: len(workers(crowd)) == 2, "the workers")
    said = crowd.qframe("scale", "*", 3)
    assert said.code == 1
    assert said.one_line().endswith(
        f":{alone.pid} alone runs one job at a time: start it with --concurrency 2 or more"
    )
    assert said.out.endswith(f":{many.pid} many: jobs at once 3 (2 before)\n")
    assert crowd.stop([alone, many]) == [0, 0]
    assert "scaled" not in alone.out


# -- pools ----------------------------------------------------------------------------------------


def test_a_workers_replacement_has_as_many_slots_and_the_jobs_of_all(crowd: Project) -> None:
    running = pool(crowd, "--concurrency", 2, "--tries", 2, "--name", "mail", workers=1)
    hold(crowd, *range(4))
    wait_for_starts(crowd, 2)
    wait_for_pool(crowd)
    scaled(crowd, "mail", 4)
    wait_for_starts(crowd, 4)
    (entry,) = workers(crowd)
    began = time.monotonic()
    os.kill(entry.pid, signal.SIGKILL)
    wait_for_starts(crowd, 8)
    assert time.monotonic() - began < 15, "no lease was waited for, also of those in new slots"
    assert sorted(line[2] for line in crowd.notes("start")) == ["1"] * 4 + ["2"] * 4
    wait_for_row(running, "recovered", 4)
    let_go(crowd, *range(4))
    wait_for(crowd.empty, "nothing to be left")
    said = crowd.qframe("scale", f"{entry.host}:{entry.pid}", 1)
    assert said.code == 2, "it is gone"
    (other,) = [each for each in workers(crowd) if not each.is_gone]
    said = crowd.qframe("scale", f"{other.host}:{other.pid}", 1)
    assert said.code == 2
    assert f"is of the pool {other.host}:{running.pid}" in said.one_line()
    assert running.stop() == 0


def test_a_pool_whose_workers_are_all_in_long_jobs_gets_more_and_fewer(crowd: Project) -> None:
    running = pool(crowd, "--min", 1, "--max", 3, toml=IDLE)
    wait_for_workers(crowd, running)
    hold(crowd, *range(3), kind="HeldInThread")
    wait_for_starts(crowd, 2)

    wait_for_pool(crowd)
    said = scaled(crowd, "default", "--workers", 3)
    assert said.out.endswith(f":{running.pid}: workers 3 (2 before)\n")
    assert said.out.startswith("pool ")
    wait_for_starts(crowd, 3)
    wait_for_row(running, "told", message="scaled to 3 workers")

    for wrong in (4, 0):
        said = crowd.qframe("scale", "default", "--workers", wrong)
        assert said.code == 2
    said = crowd.qframe("scale", "default", "--workers", 4)
    assert said.one_line().endswith(
        "keeps to --min 1 --max 3, and not 4 workers: nothing was changed"
    )

    let_go(crowd, 0)
    wait_for(lambda: len(crowd.notes("end")) == 1, "one job to end")
    wait_for(lambda: sum(bool(each.jobs) for each in workers(crowd)) == 2, "an idle worker")
    scaled(crowd, "default", "--workers", 1)
    first = wait_for_row(running, "exited", reason="interrupted")
    assert (first["delay"], first["jobs"]) == (None, 1)
    assert len(crowd.notes("end")) == 1, "the idle one ends first"
    let_go(crowd, 1, 2)
    wait_for_row(running, "exited", 2, reason="interrupted", delay=None)
    wait_for(crowd.empty, "nothing to be left")
    assert {line[2] for line in crowd.notes("start")} == {"1"}, "no job was broken off"

    (left,) = wait_for(lambda: [e for e in workers(crowd) if not e.is_gone], "the one left")
    os.kill(left.pid, signal.SIGKILL)
    wait_for_row(running, "started", 4)  # two, the third, and the replacement
    (again,) = wait_for(lambda: [e for e in workers(crowd) if not e.is_gone], "its entry")
    assert again.pid != left.pid
    assert running.stop() == 0
    assert not roster.pools(crowd.queue.store), "it has taken itself off the list"


def test_a_pool_that_stops_lets_a_job_end_whose_worker_was_too_many(crowd: Project) -> None:
    running = pool(crowd, toml=IDLE)
    wait_for_workers(crowd, running)
    wait_for_pool(crowd)
    hold(crowd, 0, 1, kind="HeldInThread")
    wait_for_starts(crowd, 2)
    scaled(crowd, "default", "--workers", 1)
    running.signal(signal.SIGTERM)
    time.sleep(0.3)
    let_go(crowd, 0, 1)
    assert running.wait() == 0
    assert len(crowd.notes("end")) == 2
    assert crowd.empty()


def test_a_pool_of_workers_of_one_job_takes_more_workers_but_no_slots(crowd: Project) -> None:
    running = pool(crowd, toml=IDLE, workers=1)
    wait_for_workers(crowd, running, 1)
    wait_for_pool(crowd)
    said = crowd.qframe("scale", "default", 2)
    assert said.code == 1
    assert "runs one job at a time" in said.one_line()
    scaled(crowd, "default", "--workers", 2)
    wait_for_workers(crowd, running)
    assert running.stop() == 0
    assert len(rows(running, "started")) == 2


@pytest.mark.slow
def test_a_worker_without_room_says_so_and_goes_on(crowd: Project) -> None:
    running = pool(crowd, "--concurrency", 2, workers=1)
    crowd.push("held_jobs.ClosesScoreboard")
    crowd.wait_for_note("closed")
    wait_for_pool(crowd)
    scaled(crowd, "default", 4)
    wait_for(lambda: "it stays at 2" in running.err, "its refusal")
    assert running.err.count("scaling to 4 jobs at once: ") == 1
    crowd.push("Note")
    crowd.wait_for_note("note")
    assert running.stop() == 0


# -- starting only --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["signals", "commands"])
def test_a_pause_leaves_what_runs_in_slots_alone_and_starts_nothing(
    crowd: Project, how: str
) -> None:
    hold(crowd, *range(3))
    hold(crowd, *range(3, 5), kind="HeldInThread")
    worker = crowd.work("--concurrency", 10)
    wait_for_starts(crowd, 5)
    pause(crowd, worker, how)
    wait_for(lambda: "paused" in worker.out, "the pause")
    hold(crowd, "later")
    let_go(crowd, 0, 3)
    wait_for(lambda: len(crowd.notes("end")) == 2, "two jobs to end")
    wait_for_entry(crowd, used=3, free=7)
    assert len(crowd.notes("start")) == 5
    wait_for(lambda: crowd.sizes().ready == 1, "one job, held by nobody")
    resume(crowd, worker, how)
    wait_for_starts(crowd, 6)
    let_go(crowd, 1, 2, 4, "later")
    wait_for(crowd.empty, "nothing to be left")
    assert crowd.stop([worker]) == [0]
    assert {line[2] for line in crowd.notes("start")} == {"1"}


def pause(project: Project, worker: Process, how: str) -> None:
    if how == "signals":
        worker.signal(signal.SIGUSR2)
    else:
        assert project.qframe("pause").code == 0


def resume(project: Project, worker: Process, how: str) -> None:
    if how == "signals":
        worker.signal(signal.SIGCONT)
    else:
        assert project.qframe("resume").code == 0
