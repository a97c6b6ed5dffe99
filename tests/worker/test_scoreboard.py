"""What a worker says of itself in shared memory, and what its pool makes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qframe import Worker, WorkerOptions
from qframe.contracts.backend import Capability
from qframe.contracts.status import State
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.worker import process_tree
from qframe.worker.limits import DIED, TIMED_OUT
from qframe.worker.pool.child import VARIABLE, PoolMember
from qframe.worker.pool.rescuer import Fate, Orphan, Rescue, Rescuer
from qframe.worker.pool.scoreboard import SIZE, JobPhase, WorkerScore
from tests.support.process import Project, wait_for


@pytest.fixture
def score() -> Iterator[WorkerScore]:
    made = WorkerScore.create()
    yield made
    made.close()


def reserved(project: Project) -> ReservedJob:
    """Hold the one job there is."""
    (job,) = project.queue.reserve(["default"])
    return job


def started(project: Project, **envelope: Any) -> ReservedJob:
    """Push a job and start it."""
    project.push("Note", **envelope)
    job = reserved(project)
    (result,) = project.queue.backend.apply(job.start_plan())
    assert result.applied
    return job


class TestScoreboard:
    def test_another_process_reads_what_was_written(self, score: WorkerScore) -> None:
        (writer,), (job,) = WorkerScore(score.descriptor).jobs, score.jobs
        assert job.last_job().state is JobPhase.IDLE
        before = time.monotonic()
        writer.running(b"fence\0\xff", 5.0)
        last = job.last_job()
        assert (last.state, last.number, last.fence) == (JobPhase.RUNNING, 1, b"fence\0\xff")
        assert before + 5 <= last.deadline <= time.monotonic() + 5
        assert score.deadline() == last.deadline
        writer.settling()
        assert score.deadline() == 0, "what has ended is not late"
        assert job.last_job().fence
        writer.settled(deferred=True)
        assert job.last_job().state is JobPhase.DEFERRED
        writer.settled(deferred=False)
        assert job.last_job().state is JobPhase.IDLE
        writer.running(b"next", 0)
        assert (job.last_job().number, score.deadline()) == (2, 0)

    def test_jobs_that_run_at_once_have_a_part_each(self) -> None:
        score = WorkerScore.create(3)
        first, second, _ = WorkerScore(score.descriptor).jobs
        first.running(b"one", 9)
        second.running(b"two", 5)
        score.farewell("memory", {"done": 3})
        assert [job.fence for job in score.last_jobs()] == [b"one", b"two", b""]
        assert score.deadline() == second.last_job().deadline, "the earliest"
        score.close()

    def test_parts_that_are_appended_are_found_by_the_other_process(
        self, score: WorkerScore
    ) -> None:
        writer = WorkerScore(score.descriptor)
        writer.jobs[0].running(b"one", 0)
        writer.grow(3)
        writer.grow(2)
        assert len(writer.jobs) == 3
        writer.jobs[2].running(b"three", 5)
        assert score.running() == 2
        assert [job.fence for job in score.last_jobs()] == [b"one", b"", b"three"]
        writer.grow(4)
        writer.jobs[3].running(b"four", 3)
        assert score.deadline() == writer.jobs[3].last_job().deadline
        assert writer.jobs[0].last_job().fence == b"one", "what was there stays"

    def test_the_jobs_of_a_chunk_are_read_one_by_one(self, score: WorkerScore) -> None:
        (writer,), (job,) = WorkerScore(score.descriptor).jobs, score.jobs
        writer.running(b"before", 0)
        writer.settled(deferred=True)
        members = [(b"one\0", ()), (b"", [("limit", "7")]), (b"three" * 1000, ())]
        writer.running_together(members, 5.0)
        last = score.last_jobs()
        assert [(each.fence, list(each.slot_leases)) for each in last] == [
            (fence, list(held)) for fence, held in members
        ]
        assert {(each.together, each.number, each.place) for each in last} == {(3, 4, 0)}
        assert score.deadline() > 0
        assert score.running() == 1
        writer.settled_together(3)
        assert [(each.state, each.fence) for each in score.last_jobs()] == [(JobPhase.IDLE, b"")]
        assert job.tally()[:2] == (4, 3)
        writer.running(b"after", 0)
        (last_one,) = score.last_jobs()
        assert (last_one.fence, last_one.together) == (b"after", 1)

    def test_a_chunk_that_takes_too_much_room_has_no_fences(self, score: WorkerScore) -> None:
        (job,) = score.jobs
        job.running_together([(bytes(SIZE // 2), ())] * 3, 5.0)
        (last,) = score.last_jobs()
        assert (last.state, last.fence, last.together) == (JobPhase.RUNNING, b"", 3)

    def test_what_a_job_has_put_in_its_place_is_left_alone(
        self, score: WorkerScore, tmp_path: Path
    ) -> None:
        file = tmp_path / "theirs"
        file.write_bytes(b"theirs")
        before = os.dup(score.descriptor)
        with file.open("rb+") as theirs:
            os.dup2(theirs.fileno(), score.descriptor)
        with pytest.raises(OSError, match="has closed"):
            score.grow(2)
        assert file.read_bytes() == b"theirs"
        os.dup2(before, score.descriptor)
        os.close(before)

    def test_the_pool_says_how_many_slots_there_are_to_be(self, score: WorkerScore) -> None:
        assert WorkerScore(score.descriptor).slots == 0
        score.slots = 10_000
        score.paused = True
        score.farewell("memory", {})
        assert WorkerScore(score.descriptor).slots == 10_000

    def test_a_job_is_counted_once_however_often_its_limits_change(
        self, score: WorkerScore
    ) -> None:
        (job,) = score.jobs
        job.running(b"fence", 5.0)
        job.running(b"fence", 0)
        assert (job.last_job().number, job.last_job().deadline) == (1, 0.0)

    def test_a_job_too_large_is_not_named(self, score: WorkerScore) -> None:
        (job,) = score.jobs
        job.running(b"x" * SIZE, 5.0)
        assert job.last_job().fence == b""
        assert job.last_job().state is JobPhase.RUNNING

    def test_last_words(self, score: WorkerScore) -> None:
        assert score.last_words() == ("", {})
        score.ready()
        assert score.is_ready
        score.farewell("memory", {"done": 3})
        assert score.last_words() == ("memory", {"done": 3})

    def test_it_works_without_memory_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "memfd_create")
        other = WorkerScore.create()
        other.jobs[0].running(b"fence", 2.0)
        assert WorkerScore(other.descriptor).last_jobs()[0].number == 1
        other.close()

    def test_a_worker_says_what_it_runs_until_it_is_settled(
        self, project: Project, score: WorkerScore
    ) -> None:
        project.push("Note")
        worker = Worker(project.manager, WorkerOptions(stop_when_empty=True, memory=0))
        worker.member = PoolMember(score, os.getppid())
        worker.run()
        (last,) = score.last_jobs()
        assert (last.state, last.number) == (JobPhase.DEFERRED, 1)
        assert score.is_ready


class TestMember:
    def test_no_variable_no_member(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        assert PoolMember.joined() is None

    def test_where_the_system_signals_no_death_a_thread_waits_for_it(
        self, score: WorkerScore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process_tree, "prctl", None)
        told: list[int] = []
        before = signal.signal(signal.SIGHUP, lambda number, _: told.append(number))
        reader, writer = os.pipe()
        monkeypatch.setenv(VARIABLE, f"{score.descriptor}:{reader}:{os.getppid()}")
        member = PoolMember.joined()
        assert member is not None
        assert VARIABLE not in os.environ
        assert not told
        os.close(writer)
        wait_for(lambda: told, "the news")
        signal.signal(signal.SIGHUP, before)
        os.close(reader)


def rescue(
    project: Project, fence: bytes, *, done: bool = False, together: int = 1, **about: bool
) -> Rescue:
    """Settle what a worker left that died in this job, and give what became of it."""
    score = WorkerScore.create()
    (job,) = score.jobs
    job.running(fence, 0)
    if done:
        job.settled(deferred=True)
    told: list[Rescue] = []
    rescuer = Rescuer(lambda: project.queue, WorkerOptions(tries=2, backoff=(3,)), told.append)
    last = replace(job.last_job(), together=together)
    rescuer.rescue(Orphan(last, 1, "killed by SIGKILL", None, **about))
    rescuer.end()
    score.close()
    (rescued,) = told
    return rescued


def rescue_of(project: Project, job: ReservedJob, **about: Any) -> Rescue:
    """Do so with a job that its worker has not settled."""
    return rescue(project, job.reservation.fence, **about)


@pytest.mark.on_redis_in_ci
@pytest.mark.on_redis_too
class TestRescuer:
    def test_it_is_ready_again_at_the_head_with_its_attempt_counted(self, project: Project) -> None:
        job = started(project)
        project.push("Note")
        rescued = rescue_of(project, job)
        assert (rescued.fate, rescued.name, rescued.uuid) == (Fate.READY, "Note", job.uuid)
        first, _ = project.queue.reserve(["default"], 2)
        assert (first.uuid, first.attempts()) == (job.uuid, 1)
        attempt = first.history.attempts[-1]
        assert (attempt.ended, attempt.error, attempt.pid) == (
            DIED, "killed by SIGKILL", os.getpid()
        )  # fmt: skip
        assert first.history.exceptions == 0

    def test_what_was_done_is_deleted(self, project: Project) -> None:
        assert rescue_of(project, started(project), done=True).fate is Fate.DELETED
        assert project.empty()

    def test_what_the_pool_stopped_is_given_back_uncounted(self, project: Project) -> None:
        assert rescue_of(project, started(project), stopping=True).fate is Fate.GIVEN_BACK
        job = reserved(project)
        assert (job.attempts(), job.history.attempts) == (0, ())

    def test_what_timed_out_waits_for_its_backoff(self, project: Project) -> None:
        rescued = rescue_of(project, started(project), late=True)
        assert (rescued.fate, rescued.delay) == (Fate.RETRIED, 3)
        assert project.sizes().delayed == 1
        rescued = rescue_of(project, started(project, backoff="5"), late=True)
        assert rescued.delay == 5

    @pytest.mark.parametrize("limits", [{"maxTries": 5, "failOnTimeout": True}, {"maxTries": 1}])
    def test_what_timed_out_for_good_is_there_at_once_to_be_failed(
        self, project: Project, limits: dict[str, object]
    ) -> None:
        assert rescue_of(project, started(project, **limits), late=True).fate is Fate.READY
        assert reserved(project).history.attempts[-1].ended == TIMED_OUT

    def test_of_a_chunk_nobody_knows_which_job_has_timed_out(self, project: Project) -> None:
        job = started(project, maxTries=5, failOnTimeout=True)
        assert rescue_of(project, job, late=True, together=3).fate is Fate.READY
        assert reserved(project).history.attempts[-1].ended == DIED

    @pytest.mark.parametrize("state", [State.COMPLETE, State.RELEASED, State.WAITING])
    def test_what_was_settled_is_left_alone(self, project: Project, state: State) -> None:
        job = started(project)
        fence = job.reservation.fence
        job.settle(End(state))
        before = project.sizes()
        assert rescue(project, fence).fate is Fate.GONE
        assert project.sizes() == before

    def test_what_another_has_taken_is_left_alone(self, project: Project) -> None:
        job = started(project)
        fence = job.reservation.fence
        job.release()
        again = reserved(project)
        assert rescue(project, fence).fate is Fate.GONE
        project.queue.backend.apply(again.start_plan())
        assert rescue(project, fence).fate is Fate.GONE
        again.delete()
        assert project.empty()

    def test_where_none_can_be_adopted_the_lease_brings_it_back(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = started(project)
        queue = project.queue
        monkeypatch.setattr(queue, "capabilities", queue.capabilities & ~Capability.ADOPT)
        assert rescue_of(project, job).fate is Fate.LEFT
        assert project.sizes().reserved == 1
