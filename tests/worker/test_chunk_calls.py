"""The calls of a chunk, in this process: what becomes of each of its jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest
from pydantic import field_validator

from qframe import Chunk, JobGivenBack, Queueable, RetryLater, events
from qframe.contracts.history import first_start
from qframe.dispatch import pusher
from qframe.drivers.store import Store
from qframe.exceptions import (
    Interruption,
    JobCancelled,
    JobInterrupted,
    JobTimedOut,
)
from qframe.features.status import StatusFeature, cancel_key
from qframe.features.steps import StepsFeature
from qframe.worker import chunks
from qframe.worker.attempt import Attempt
from qframe.worker.pool.scoreboard import WorkerScore
from tests.worker.bench import Bench

CALLS: list[list[int]] = []
ACT: list[Callable[[Sequence[Any]], object]] = []
"""What `handle_many` does."""


class Many(Queueable):
    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10)
    tries: ClassVar[int | None] = 3

    @classmethod
    def handle_many(cls, jobs: Sequence[Many]) -> object:
        CALLS.append([job.row for job in jobs])
        return ACT[0](jobs)


TENANT: ContextVar[str] = ContextVar("tenant", default="none")


class Tenants(Queueable):
    row: int
    chunk: ClassVar[Chunk | None] = Chunk(10)
    tries: ClassVar[int | None] = 1

    @field_validator("row")
    @classmethod
    def of_row(cls, row: int) -> int:
        SEEN.append(("made", row, TENANT.get()))
        TENANT.set(f"validator {row}")
        return row

    @classmethod
    def handle_many(cls, jobs: Sequence[Tenants]) -> None:
        SEEN.append(("handled", len(jobs), TENANT.get()))
        TENANT.set("handler")
        if any(job.row == 2 for job in jobs):
            raise ValueError

    def succeeded(self) -> None:
        SEEN.append(("succeeded", self.row, TENANT.get()))
        TENANT.set(f"hook {self.row}")

    def failed(self, error: BaseException) -> None:
        SEEN.append(("failed", self.row, TENANT.get()))
        TENANT.set(f"hook {self.row}")


SEEN: list[tuple[str, int, str]] = []


@pytest.fixture
def bench() -> Bench:
    CALLS.clear()
    SEEN.clear()
    return Bench(Many, Tenants)


def handled(bench: Bench, act: Callable[[Sequence[Any]], object], count: int = 4) -> list[str]:
    """Run so many jobs as one chunk; gives their outcomes."""
    return [each.outcome.value for each in attempts(bench, act, count)]


def attempts(bench: Bench, act: Callable[[Sequence[Any]], object], count: int) -> list[Attempt]:
    ACT[:] = [act]
    for row in range(count):
        bench.push("Many", {"row": row}, uuid=f"job-{row}")
    return chunks.run(bench.runner, bench.runner.settler.reserve(["q"], count))


def interrupted(bench: Bench, error: Interruption) -> Callable[[Sequence[Any]], object]:
    """Give a handler that is interrupted as by a signal."""

    def act(jobs: Sequence[Any]) -> None:
        del jobs
        bench.signals.fired = error
        raise error

    return act


def limit(bench: Bench) -> str | None:
    return bench.backend.read("chunk:Many")[0]


def test_context_variables_of_a_job_stay_in_it(bench: Bench) -> None:
    for row in range(3):
        bench.push("Tenants", {"row": row})
    chunks.run(bench.runner, bench.runner.settler.reserve(["q"], 3))
    assert TENANT.get() == "none"
    found = {what: {each[2] for each in SEEN if each[0] == what} for what, _, _ in SEEN}
    own = {f"validator {row}" for row in range(3)}
    assert found["made"] == {"none"} | own  # again for each half
    assert found["handled"] == {"none"}
    assert found["succeeded"] | found["failed"] == own
    hooks = [each for each in SEEN if each[0] in {"succeeded", "failed"}]
    assert all(tenant == f"validator {row}" for _, row, tenant in hooks)


def test_a_chunk_given_back_is_neither_halved_nor_counted(bench: Bench) -> None:
    def act(_: object) -> None:
        raise JobGivenBack("the worker stops")

    assert handled(bench, act) == ["given back"] * 4
    assert CALLS == [[0, 1, 2, 3]]
    assert (limit(bench), bench.runner.ended_by) == (None, None)
    back = bench.runner.settler.reserve(["q"], 4)
    assert [each.payload["data"]["row"] for each in back] == [0, 1, 2, 3], "in their order"
    assert [each.attempts() for each in back] == [0] * 4


@pytest.mark.parametrize(
    ("error", "halved"),
    [
        (JobGivenBack("the worker was asked twice to stop"), None),
        (JobInterrupted("the worker got SIGUSR1"), "2"),
        (JobTimedOut("too long"), "2"),
    ],
)
def test_only_a_failure_halves_the_next_chunks(
    bench: Bench, error: Interruption, halved: str | None
) -> None:
    assert handled(bench, interrupted(bench, error)) == ["given back"] * 4
    assert CALLS == [[0, 1, 2, 3]]
    assert limit(bench) == halved
    assert bench.runner.ended_by is error


def test_a_lost_lease_that_ends_its_call_halves_nothing(bench: Bench) -> None:
    error = JobInterrupted("its lease was lost, with the connection that held it")
    error.uuid = "job-2"
    handled(bench, interrupted(bench, error))
    assert limit(bench) is None


def test_those_that_are_cancelled_end_and_the_others_are_given_back(bench: Bench) -> None:
    error = JobCancelled("cancelled while it ran")
    error.uuid = "job-2"
    Store(bench.backend).set(cancel_key("job-1"), "1", 60)  # asked meanwhile
    found = handled(bench, interrupted(bench, error))
    assert found == ["given back", "cancelled", "cancelled", "given back"]
    assert limit(bench) is None
    assert bench.runner.ended_by is error
    assert [each.attempts() for each in bench.runner.settler.reserve(["q"], 4)] == [0, 0]


class Succeeds(Many):
    def succeeded(self) -> None:
        ACT[1]([self])


def test_a_job_that_is_done_is_not_interrupted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.registry.jobs["Many"] = Succeeds
    stills: list[bool] = []

    def end(_: Interruption, still: Callable[[], bool]) -> None:
        stills.append(still())

    def cancel(_: object) -> None:
        bench.runner._cancel(next(iter(bench.runner.running)))

    monkeypatch.setattr(bench.signals, "end", end)
    ACT[:] = [cancel, cancel]
    for row in range(2):
        bench.push("Many", {"row": row}, uuid=f"job-{row}")
    chunks.run(bench.runner, bench.runner.settler.reserve(["q"], 2))
    assert stills == [True, False, False]


def test_a_job_that_has_failed_alone_keeps_its_end_if_the_rest_is_interrupted(
    bench: Bench,
) -> None:
    def act(jobs: Sequence[Any]) -> None:
        if jobs[0].row == 0:
            raise ValueError("row 0")
        if len(jobs) == 1:
            return  # row 1
        interrupted(bench, JobTimedOut("too long"))(jobs)

    assert handled(bench, act) == ["retried", "done", "given back", "given back"]
    assert CALLS == [[0, 1, 2, 3], [0, 1], [0], [1], [2, 3]]
    assert limit(bench) == "1"


def test_what_is_to_be_retried_later_is_not_tried_in_halves(bench: Bench) -> None:
    def act(_: object) -> None:
        raise RetryLater(30)

    assert handled(bench, act) == ["retried"] * 4
    assert CALLS == [[0, 1, 2, 3]]


def test_a_fork_that_comes_back_from_a_chunk_ends(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []

    def act(_: object) -> None:
        for raises in (False, True):
            pid = os.fork()
            if pid:
                codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            elif raises:
                raise ValueError
            else:
                return

    me = os.getpid()
    try:
        assert handled(bench, act) == ["done"] * 4
    finally:
        if os.getpid() != me:
            os._exit(1)  # and no second run of the tests
    assert codes == [70, 70]
    assert "came back from its job" in capfd.readouterr().err


def test_what_its_threads_dispatched_comes_before_its_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def act(_: object) -> None:
        def push() -> None:
            time.sleep(0.3)
            order.append("pushed")

        pusher.put(push)

    run = Attempt.has_succeeded

    def has_succeeded(attempt: Attempt) -> bool:
        order.append("done")
        return run(attempt)

    monkeypatch.setattr(Attempt, "has_succeeded", has_succeeded)
    assert handled(bench, act, 2) == ["done"] * 2
    assert order == ["pushed", "done", "done"]


@pytest.mark.parametrize("releases", [True, False])
def test_a_middleware_that_lets_one_not_pass_keeps_no_other_from_its_call(
    bench: Bench, releases: bool
) -> None:
    def keeps_back(job: Any, call_next: Any) -> object:
        if job.row < 2:
            if releases:
                job.release(10)
            return None
        return call_next(job)

    bench.runner.middleware = [keeps_back]
    ends = "released" if releases else "skipped"
    assert handled(bench, lambda _: None) == [ends, ends, "done", "done"]
    assert CALLS == [[2, 3]]


def test_a_middleware_that_lets_nobody_pass(bench: Bench) -> None:
    bench.runner.middleware = [lambda job, _: job.release(10)]
    assert handled(bench, lambda _: None, 1000) == ["released"] * 1000


class WithSetUp(Many):
    def set_up(self) -> None:
        if self.row == 0:
            raise ValueError


def test_a_set_up_that_fails_is_that_of_the_first_job(bench: Bench) -> None:
    bench.registry.jobs["Many"] = WithSetUp
    assert handled(bench, lambda _: None) == ["retried", "done", "done", "done"]
    assert CALLS == [[1, 2, 3]]


class Slow(Many):
    timeout: ClassVar[Any] = 10


def test_each_call_has_its_whole_timeout(bench: Bench) -> None:
    """The process is watched, and each lease is kept, until the last call is over."""
    bench.registry.jobs["Many"] = Slow
    watched: list[float] = []
    ends: list[list[float]] = []
    bench.runner.watch = watched.append

    def act(jobs: Sequence[Any]) -> None:
        ends.append([*bench.runner.leases._kept.values()])
        if len(jobs) > 1:
            raise ValueError

    assert handled(bench, act, 2) == ["done"] * 2
    assert watched[-3:] == [15, 15, 15], "timeout and grace"
    assert ends == [[float("inf")] * 2] * 3
    assert not bench.runner.leases._kept


def test_the_pool_knows_the_jobs_of_a_call_until_that_ends(bench: Bench) -> None:
    """Otherwise it would delete one that waits for its retry, if the worker dies just then."""
    bench.registry.jobs["Many"] = Slow
    board = WorkerScore.create()
    bench.runner.scores = board.jobs
    seen: list[tuple[int, bool, bool]] = []

    def note() -> None:
        score = board.jobs[0]
        fences = {job.fence for job in score.last_jobs() if job.fence}
        seen.append((len(fences), score.is_busy(), score.deadline() > 0))

    def act(jobs: Sequence[Any]) -> None:
        note()
        for job in jobs:
            if job.row == 0:
                job.fail(ValueError())

    def hear(_: events.JobEvent) -> None:
        note()

    events.listen(events.JobProcessed)(hear)
    try:
        assert handled(bench, act, 3) == ["failed", "done", "done"]
    finally:
        events.forget(hear)
    assert seen == [(3, True, True), (0, False, False), (0, False, False)]


def test_those_that_are_done_are_gone_before_others_are_called_again(bench: Bench) -> None:
    left: list[int] = []

    def act(jobs: Sequence[Any]) -> None:
        left.append(bench.left)
        if len(jobs) == 4:
            raise ValueError

    assert handled(bench, act) == ["done"] * 4
    assert left == [4, 4, 2]
    assert CALLS == [[0, 1, 2, 3], [0, 1], [2, 3]]


def test_a_backend_that_is_away_just_then_costs_nothing(bench: Bench) -> None:
    def act(jobs: Sequence[Any]) -> None:
        if len(jobs) == 4:
            raise ValueError
        bench.backend.down = 1

    assert handled(bench, act) == ["done"] * 4
    bench.backend.down = 0
    bench.runner.settler.flush()
    assert bench.left == 0


def test_a_worker_that_stops_tries_no_halves(bench: Bench) -> None:
    def act(_: object) -> None:
        bench.signals.quit = True
        raise ValueError

    try:
        assert handled(bench, act) == ["given back"] * 4
    finally:
        bench.signals.quit = False
    assert CALLS == [[0, 1, 2, 3]]


def test_ctrl_c_ends_it_at_once(bench: Bench) -> None:
    """Where no signals are handled, as in `drain`."""

    def act(_: object) -> None:
        raise KeyboardInterrupt

    assert handled(bench, act) == ["retried"] * 4
    assert CALLS == [[0, 1, 2, 3]]


def test_many_halves_are_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def act(_: object) -> None:
        raise ValueError

    assert handled(bench, act, 20) == ["retried"] * 20
    assert [each.levelname for each in caplog.records].count("WARNING") == 1


def test_one_whose_lease_was_lost_ends_by_itself(bench: Bench) -> None:
    def act(jobs: Sequence[Any]) -> None:
        bench.backend.lose(jobs[0].job)
        jobs[2].fail(ValueError())

    found = attempts(bench, act, 4)
    bench.runner.settler.flush()
    assert [each.outcome.value for each in found] == ["done", "done", "failed", "done"]
    assert [each.job.is_lost for each in found] == [True, False, False, False]
    assert bench.left == 1, "the other worker's"


def test_one_that_was_lost_and_raised_costs_no_other(bench: Bench) -> None:
    def act(jobs: Sequence[Any]) -> None:
        if len(jobs) == 4:
            bench.backend.lose(jobs[0].job)
        raise ValueError

    assert handled(bench, act) == ["lost", "retried", "retried", "retried"]


def test_each_call_gets_the_jobs_anew(bench: Bench) -> None:
    seen: list[int] = []

    def act(jobs: Sequence[Any]) -> None:
        for job in jobs:
            seen.append(job.row)
            job.row += 100
        if len(jobs) > 1:
            raise ValueError

    assert handled(bench, act, 2) == ["done", "done"]
    assert seen == [0, 1, 0, 1]


def test_steps_are_done_once_in_all_calls(bench: Bench) -> None:
    bench = Bench(Many, features=(StatusFeature(), StepsFeature()))
    done: list[int] = []

    def act(jobs: Sequence[Any]) -> None:
        for job in jobs:
            job.step("one", done.append, job.row)
        if jobs[0].row == 0:
            jobs[0].sleep("nap", 60)

    assert handled(bench, act) == ["given back", "done", "done", "done"]
    assert sorted(done) == [0, 1, 2, 3]


def test_the_pool_counts_each_job_of_a_chunk(bench: Bench) -> None:
    """A supervisor reckons with the seconds of one job, and with how many arrive."""
    bench.registry.jobs["Many"] = Slow
    score = WorkerScore.create().jobs[0]
    bench.runner.scores = (score,)
    deadlines: list[float] = []

    def act(jobs: Sequence[Any]) -> None:
        deadlines.append(score.deadline())
        time.sleep(0.1)
        if len(jobs) == 4:
            raise ValueError

    assert handled(bench, act) == ["done"] * 4
    tally = score.tally()
    assert (tally.begun, tally.ended) == (4, 4)
    assert tally.seconds >= 0.3, "of all three calls"
    first, second, third = deadlines
    assert third - second >= 0.1 <= second - first, "each has its whole timeout"


@pytest.mark.parametrize(
    ("notes", "attempts", "alone"),
    [
        (b"", 0, False),
        (b"", 1, True),
        (first_start(1, "here", 7, 1.0), 1, True),
        (first_start(1, "here", 7, 1.0).replace(b'""]', b'"x"]'), 1, True),
        (first_start(1, "here", 7, 1.0).replace(b'"",', b'"error",'), 1, False),
        (first_start(1, "here", 7, 1.0).replace(b'"",', b'"released",'), 1, False),
        (first_start(1, "here", 7, 1.0).replace(b'"",', b'"error",'), 2, True),
        (first_start(1, "here", 7, 1.0).replace(b'"",', b'"worker died",'), 1, True),
        (first_start(1, "here", 7, 1.0).replace(b'"",', b'"timed out",'), 1, True),
    ],
)
def test_which_jobs_are_handled_alone(
    bench: Bench, notes: bytes, attempts: int, alone: bool
) -> None:
    bench.push("Many", {"row": 1})
    job = bench.held()
    job.reservation.notes, job.reservation.attempts = notes, attempts
    assert chunks.may_have_ended_worker(job) is alone
