"""Chunks by real workers: one call for many jobs, each with its own end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.process import Project, wait_for
from tests.worker import chunking

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_redis_in_ci,
    pytest.mark.on_beanstalkd_too,
]
_BY_ITSELF = pytest.mark.not_on_beanstalkd("its jobs are held one by one")


@pytest.fixture
def chunks(project: Project) -> Project:
    """Give a project with these jobs."""
    shutil.copy(Path(chunking.__file__), project.root / "chunking.py")
    project.configure('jobs = ["chunking"]')
    return project


def push(project: Project, code: str) -> list[str]:
    finished = project.program(f"from chunking import *\nfrom qframe import *\nprint({code})")
    assert finished.code == 0, finished.err
    return finished.out.split()


def rows(project: Project) -> list[tuple[int, int]]:
    """Give the rows that were inserted, with the attempt in which they were."""
    return sorted((int(words[1]), int(words[2])) for words in project.notes("row"))


def sizes(project: Project) -> list[int]:
    return [int(words[1]) for words in project.notes("call")]


@pytest.mark.every_backend
@pytest.mark.parametrize("job", ["Insert", pytest.param("InsertAsync", marks=pytest.mark.slow)])
def test_jobs_are_handled_together(chunks: Project, job: str) -> None:
    push(chunks, f"*bulk({job}(row=number) for number in range(25))")
    chunks.drain()
    assert rows(chunks) == [(number, 1) for number in range(25)]
    assert sizes(chunks) == [10, 10, 5]
    assert chunks.empty()


def test_a_poisoned_job_fails_alone(chunks: Project) -> None:
    push(chunks, "*bulk(Insert(row=-1 if number == 5 else number) for number in range(10))")
    finished = chunks.drain()
    assert rows(chunks) == [(number, 1) for number in range(10) if number != 5]
    assert sizes(chunks)[:2] == [10, 5]
    assert 1 in sizes(chunks)
    record = chunks.failure()
    assert "a negative row" in record.exception
    assert record.attempts == 2, "it was tried again, alone of all"
    assert finished.out.count("RETRY") == 1
    assert "each half is tried" in finished.err + finished.out
    assert chunks.empty()


def test_one_of_many_is_failed_or_released(chunks: Project) -> None:
    push(chunks, "*bulk(Chooses(row=number) for number in range(5))")
    chunks.drain()
    assert rows(chunks) == [(0, 1), (2, 2), (3, 1), (4, 1)] or rows(chunks)[1][0] == 2
    assert "ValueError: one" in chunks.failure().exception
    assert chunks.empty()


@_BY_ITSELF
def test_it_waits_for_more_and_a_plain_job_ends_the_wait(chunks: Project) -> None:
    push(chunks, "Insert.dispatch(row=99).send()")
    chunks.drain()
    worker = chunks.work()
    began = time.monotonic()
    push(chunks, "Insert.dispatch(row=0).send()")
    chunks.wait_for_note("row", 0)
    push(chunks, "*bulk([*(Insert(row=number) for number in range(1, 4)), Plain(), Insert(row=4)])")
    chunks.wait_for_note("row", 4)
    assert worker.stop() == 0
    assert time.monotonic() - began < 30
    assert [each for each in sizes(chunks) if each > 1], "some were handled together"
    assert len(chunks.notes("plain")) == 1
    assert rows(chunks)[:5] == [(number, 1) for number in range(5)]


@_BY_ITSELF
def test_a_chunk_in_which_a_job_hangs_is_halved_over_workers(chunks: Project) -> None:
    push(chunks, "*bulk(Hangs(row=number) for number in range(4))")
    ends = []
    for _ in range(8):
        worker = chunks.work("--stop-when-empty")
        ends.append(worker.wait(60))
        if chunks.failed() and chunks.empty():
            break
    assert chunks.empty(), ends
    assert sorted(int(words[1]) for words in chunks.notes("row")) == [0, 1, 2]
    assert "JobTimedOut" in chunks.failure().exception
    assert 1 in ends


def test_a_killed_worker_loses_none_of_a_chunk(chunks: Project) -> None:
    chunks.configure('jobs = ["chunking"]', retry_after=1.5)
    push(chunks, "*bulk(Slow(row=number) for number in range(5))")
    worker = chunks.work()
    chunks.wait_for_note("begun")
    time.sleep(2)  # past the lease: it was renewed
    assert len(chunks.notes("begun")) == 1
    worker.signal(signal.SIGKILL)
    worker.wait()
    other = chunks.work()
    wait_for(lambda: len(chunks.notes("row")) >= 5, "the rows", 60)
    assert other.stop() == 0
    assert {row for row, _ in rows(chunks)} == {*range(5)}
    assert {attempt for _, attempt in rows(chunks)} == {2}
    assert not chunks.failed()
    assert chunks.empty()


@_BY_ITSELF
def test_a_worker_that_stops_as_it_collects_gives_all_back(chunks: Project) -> None:
    text = (chunks.root / "chunking.py").read_text().replace("within=0.5", "within=30")
    (chunks.root / "chunking.py").write_text(text)
    push(chunks, "*bulk(Insert(row=number) for number in range(3))")
    worker = chunks.work()
    wait_for(lambda: chunks.sizes().ready == 0, "all to be held")
    assert worker.stop() == 0
    assert not chunks.notes("call")
    wait_for(lambda: chunks.sizes().ready == 3, "all to be back")


@pytest.mark.parametrize("options", [("--concurrency", 3), ("--isolate",)])
def test_where_nothing_gathers_them_each_is_handled_alone(
    chunks: Project, options: tuple[object, ...]
) -> None:
    push(chunks, "*bulk(Insert(row=number) for number in range(5))")
    chunks.drain(*options)
    assert rows(chunks) == [(number, 1) for number in range(5)]


def test_chains_batches_and_results(chunks: Project) -> None:
    push(chunks, "batch([[Insert(row=1), Insert(row=2)], Insert(row=3)]).then(Plain()).dispatch()")
    uuid = push(chunks, "Insert.dispatch(row=21).track(600).send()")[0]
    chunks.drain()
    assert [row for row, _ in rows(chunks)] == [1, 2, 3, 21]
    assert len(chunks.notes("plain")) == 1
    assert push(chunks, f"job_status({uuid!r}).result") == ["42"]


def ended(project: Project, *options: object) -> None:
    """Run workers, one after the other, until no job is left."""
    for _ in range(12):
        project.work("--stop-when-empty", *options).wait(60)
        if project.empty():
            return
        time.sleep(0.5)  # until the leases of a dead worker end
    raise AssertionError(project.sizes())


def test_a_job_that_kills_its_worker_uses_up_its_own_tries_alone(chunks: Project) -> None:
    chunks.configure('jobs = ["chunking"]', retry_after=1.5)
    push(chunks, "*bulk(Kills(row=number) for number in range(6))")
    ended(chunks)
    assert rows(chunks) == [(0, 2), (1, 2), (3, 2), (4, 2), (5, 2)]
    assert sizes(chunks)[0] == 6
    assert {*sizes(chunks)[1:]} == {1}
    record = chunks.failure()
    assert record.attempts == 3
    assert "MaxAttemptsExceeded" in record.exception


@_BY_ITSELF
@pytest.mark.parametrize("options", [(), pytest.param(("--workers", 1), marks=pytest.mark.slow)])
def test_a_chunk_that_is_ended_at_the_hard_timeout_fails_only_the_job_that_hangs(
    chunks: Project, options: tuple[object, ...]
) -> None:
    """A pool, too, cannot know which of the jobs hung."""
    chunks.configure('jobs = ["chunking"]', retry_after=1.5)
    push(chunks, "*bulk(Stuck(row=number) for number in range(4))")
    if options:
        worker = chunks.work(*options, "--grace", 1)
        wait_for(chunks.empty, "all to be over", 90)
        worker.stop()
    else:
        ended(chunks, "--grace", 1)
    assert rows(chunks) == [(1, 2), (2, 2), (3, 2)]
    assert chunks.failure().attempts >= 2


@_BY_ITSELF
def test_one_job_of_a_running_chunk_is_cancelled(chunks: Project) -> None:
    uuids = push(chunks, "*[Sleeps.dispatch(row=number).track(600).send() for number in range(4)]")
    worker = chunks.work()
    chunks.wait_for_note("call")
    told = chunks.qframe("cancel", uuids[1], "--running")
    assert (told.code, told.out) == (0, f"cancelled {uuids[1]}, which was running\n")
    assert worker.wait() == 1
    chunks.drain()
    assert rows(chunks) == [(0, 1), (2, 1), (3, 1)], "in their first attempt"
    assert sizes(chunks) == [4, 3], "not halved"
    states = push(chunks, f"*[job_status(each).state.value for each in {uuids}]")
    assert states == ["COMPLETE", "CANCELLED", "COMPLETE", "COMPLETE"]
    assert not chunks.failed()


@_BY_ITSELF
def test_a_worker_that_is_told_twice_to_stop_gives_a_chunk_back_whole(chunks: Project) -> None:
    push(chunks, "*bulk(Sleeps(row=number) for number in range(4))")
    worker = chunks.work()
    chunks.wait_for_note("call")
    worker.ask_twice_to_stop()
    worker.wait()
    chunks.drain()
    assert sizes(chunks) == [4, 4]
    assert rows(chunks) == [(number, 1) for number in range(4)]


# -- what their supervisor records ----------------------------------------------------------------


@_BY_ITSELF
@pytest.mark.parametrize(
    ("way", "how", "count"),
    [
        ("kill", "killed by SIGKILL in a chunk of 4 jobs, ", 4),
        pytest.param("hang", "timed out in a chunk of 4 jobs, ", 4, marks=pytest.mark.slow),
        ("memory", "ran out of memory (MemoryError) in a chunk of 4 jobs, ", 1),
        pytest.param("timeout", "timed out", 1, marks=pytest.mark.slow),
    ],
)
def test_a_chunk_is_recorded_as_a_job_is(chunks: Project, way: str, how: str, count: int) -> None:
    """Of a death each has the recording; otherwise the job that is to blame, once it is known."""
    push(chunks, f"*bulk(Dies(row=number, way={way!r}) for number in range(4))")
    worker = chunks.work("--workers", 1, "--grace", 1)
    wait_for(lambda: chunks.empty() and len(chunks.failed()) == count, "all to be over", 90)
    assert worker.stop() == 0
    for record in chunks.failed():
        found = record.history.recording
        assert found is not None
        assert found.attempt == 1
        assert found.summary.startswith(how), found.summary
        assert "handle_many at chunking.py:" in found.summary
        assert found.log[-1].endswith(f"jobs are to end by {way}")
        assert found.curve[-1].megabytes > 80
        assert any(each.calls[-1].endswith("Dies.handle_many") for each in found.stacks)


def test_a_pool_returns_a_chunk_before_its_leases_end(chunks: Project) -> None:
    chunks.configure('jobs = ["chunking"]', retry_after=600)
    push(chunks, "*bulk(Slow(row=number) for number in range(5))")
    worker = chunks.work("--workers", 1)
    chunks.wait_for_note("begun")
    os.kill(int(chunks.notes("begun")[0][2]), signal.SIGKILL)
    wait_for(lambda: len(rows(chunks)) == 5, "the rows")
    assert worker.stop() == 0
    assert rows(chunks) == [(number, 2) for number in range(5)]
    assert [int(words[1]) for words in chunks.notes("begun")] == [5, 1, 1, 1, 1, 1]
    assert worker.out.count(" of worker 1: ") == 5, "each was ready again, or back by itself"
    assert ", in 5 jobs" in worker.out
