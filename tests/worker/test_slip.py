"""What a worker says of itself in shared memory, and what its pool makes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from qframe import Queueable
from qframe.contracts import Job
from qframe.worker import Worker, WorkerOptions, kinship
from qframe.worker.aftermath import Aftermath, Fate, Left, Settled
from qframe.worker.member import VARIABLE, Member
from qframe.worker.retry import DIED
from qframe.worker.slip import SIZE, Slip, State
from tests.support.process import Project, wait_for


class Timed(Queueable):
    tries = 3
    backoff = (7, 9)
    fail_on_timeout = True

    def handle(self) -> None:
        """Do nothing."""


class Plain(Queueable):
    def handle(self) -> None:
        """Do nothing."""


@pytest.fixture
def slip() -> Iterator[Slip]:
    made = Slip.create()
    yield made
    made.close()


def started(project: Project, tries: int | None = None, backoff: str | None = None) -> Job:
    project.push("Note", maxTries=tries, backoff=backoff)
    (job,) = project.queue.reserve(["default"])
    assert project.queue.start(job)
    return job


class TestSlip:
    def test_another_process_reads_what_was_written(self, project: Project, slip: Slip) -> None:
        job = started(project)
        writer = Slip(slip.descriptor)
        assert slip.entry().state is State.IDLE
        before = time.monotonic()
        writer.running(job, Timed, 2.0, 5.0)
        entry = slip.entry()
        assert entry.state is State.RUNNING
        assert entry.ticket == job.ticket()
        assert entry.policy == {"failOnTimeout": True, "maxTries": 3, "backoff": "7,9"}
        assert before + 5 <= entry.deadline <= time.monotonic() + 5
        assert slip.deadline() == (1, entry.deadline)
        writer.settling()
        assert slip.deadline() == (0, 0.0), "what has ended is not late"
        writer.settled(done=True)
        assert slip.entry().state is State.DONE
        writer.settled(done=False)
        assert slip.entry().state is State.IDLE

    def test_a_job_is_counted_once_however_often_its_limits_change(
        self, project: Project, slip: Slip
    ) -> None:
        job = started(project)
        slip.running(job, None, 2.0, 5.0)
        slip.running(job, Plain, 0, 0)
        entry = slip.entry()
        assert (entry.number, entry.deadline) == (1, 0.0)
        assert entry.policy == {"failOnTimeout": False}

    def test_a_job_too_large_is_not_named(self, project: Project, slip: Slip) -> None:
        job = started(project)
        job.ticket = lambda: b"x" * SIZE  # type: ignore[method-assign]
        slip.running(job, None, 2.0, 5.0)
        assert slip.entry().ticket == b""
        assert slip.entry().state is State.RUNNING

    def test_last_words(self, slip: Slip) -> None:
        assert slip.last_words() == ("", {})
        slip.ready()
        assert slip.is_ready
        slip.farewell("memory", {"done": 3})
        assert slip.last_words() == ("memory", {"done": 3})
        assert slip.was_ready
        assert not slip.is_ready

    def test_it_works_without_memory_files(
        self, slip: Slip, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "memfd_create")
        other = Slip.create()
        other.running(started(project), None, 1.0, 2.0)
        assert Slip(other.descriptor).entry().number == 1
        other.close()

    def test_a_worker_without_a_pool_writes_nothing(self, project: Project) -> None:
        worker = Worker(project.manager, WorkerOptions(stop_when_empty=True))
        worker.run()
        assert worker.runner.slip is None


class TestMember:
    def test_no_variable_no_member(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        assert Member.joined() is None

    def test_where_the_system_signals_no_death_a_thread_waits_for_it(
        self, slip: Slip, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kinship, "CAN_SIGNAL_DEATH", False)
        reader, writer = os.pipe()
        monkeypatch.setenv(VARIABLE, f"{slip.descriptor}:{reader}:{os.getppid()}")
        member = Member.joined()
        assert member is not None
        assert VARIABLE not in os.environ
        told: list[bool] = []
        member.follow(lambda: told.append(True))
        assert not told
        os.close(writer)
        wait_for(lambda: told, "the news")
        os.close(reader)


def left(project: Project, job: Job, state: State = State.RUNNING, **about: bool) -> Settled:
    """Settle what a worker left that died in this job, and give what became of it."""
    slip = Slip.create()
    slip.running(job, Timed if about.pop("policy", False) else Plain, 0, 0)
    if state is State.DONE:
        slip.settled(done=True)
    told: list[Settled] = []
    aftermath = Aftermath(lambda: project.queue, WorkerOptions(tries=2, backoff=(3,)), told.append)
    aftermath.settle(Left(slip.entry(), 1, "killed by SIGKILL", **about))
    aftermath.end()
    slip.close()
    (settled,) = told
    return settled


@pytest.mark.on_redis_too
class TestAftermath:
    def test_it_is_ready_again_at_the_head_with_its_attempt_counted(self, project: Project) -> None:
        job = started(project)
        project.push("Note")
        settled = left(project, job)
        assert (settled.fate, settled.name, settled.uuid) == (Fate.READY, "Note", job.uuid)
        first, _ = project.queue.reserve(["default"], 2)
        assert (first.uuid, first.attempts()) == (job.uuid, 1)
        attempt = first.history.attempts[-1]
        assert (attempt.ended, attempt.error, attempt.pid) == (
            DIED, "killed by SIGKILL", os.getpid()
        )  # fmt: skip
        assert first.history.exceptions == 0

    def test_what_was_done_is_deleted(self, project: Project) -> None:
        assert left(project, started(project), State.DONE).fate is Fate.DELETED
        assert project.empty()

    def test_what_the_pool_stopped_is_given_back_uncounted(self, project: Project) -> None:
        assert left(project, started(project), stopping=True).fate is Fate.GIVEN_BACK
        (job,) = project.queue.reserve(["default"])
        assert (job.attempts(), job.history.attempts) == (0, ())

    def test_what_timed_out_waits_for_its_backoff(self, project: Project) -> None:
        settled = left(project, started(project), late=True)
        assert (settled.fate, settled.delay) == (Fate.RETRIED, 3)
        assert project.sizes().delayed == 1
        settled = left(project, started(project, backoff="5"), late=True)
        assert settled.delay == 5

    def test_what_timed_out_for_good_is_there_at_once_to_be_failed(self, project: Project) -> None:
        for policy, tries in ((True, 5), (False, 1)):
            job = started(project, tries)
            settled = left(project, job, late=True, policy=policy)
            assert settled.fate is Fate.READY
            project.queue.reserve(["default"])[0].delete()

    @pytest.mark.parametrize(
        "settle", [Job.delete, Job.release, Job.give_back], ids=["delete", "release", "give back"]
    )
    def test_what_was_settled_is_left_alone(
        self, project: Project, settle: Callable[[Job], None]
    ) -> None:
        job = started(project)
        ticket = job.ticket()
        getattr(job, settle.__name__)()
        before = project.sizes()
        job.ticket = lambda: ticket  # type: ignore[method-assign]
        assert left(project, job).fate is Fate.GONE
        assert project.sizes() == before

    def test_what_another_has_taken_is_left_alone(self, project: Project) -> None:
        job = started(project)
        ticket = job.ticket()
        job.release()
        (again,) = project.queue.reserve(["default"])
        job.ticket = lambda: ticket  # type: ignore[method-assign]
        assert left(project, job).fate is Fate.GONE
        assert project.queue.start(again)
        assert left(project, job).fate is Fate.GONE
        again.delete()
        assert project.empty()
