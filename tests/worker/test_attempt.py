"""The life of one job as a value: what it needs, and what becomes of it. No process, no thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from qframe import Queueable
from qframe.contracts.backend import Standing
from qframe.contracts.recording import Recording
from qframe.contracts.status import State
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import (
    BackendUnavailable,
    DontHandle,
    JobCancelled,
    JobGivenBack,
    JobTimedOut,
    LeaseLost,
)
from qframe.features.base import End
from qframe.features.status import cancel_key
from qframe.worker import outcome as outcomes
from qframe.worker.attempt import Attempt
from qframe.worker.needs import (
    NOTHING,
    Begin,
    Left,
    Life,
    Need,
    Report,
    Run,
    Settle,
    lived,
    lived_in_steps,
)
from qframe.worker.options import WorkerOptions
from qframe.worker.outcome import JobOutcome
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.slots.runner import LocalSlot, SlotRunner
from qframe.worker.slots.signals import SlotSignals
from tests.worker.bench import Bench, heard

Answer = Callable[[Attempt, Any], Any]


class Job(Queueable):
    tries: ClassVar[int | None] = 2

    def handle(self) -> None:
        """Is never called: its end is reported."""


def in_line(attempt: Attempt, answers: dict[type, Answer]) -> JobOutcome:
    return lived(attempt, attempt.life(), answers)


def in_steps(attempt: Attempt, answers: dict[type, Answer]) -> JobOutcome:
    """Answer each need after some steps, as who has other jobs meanwhile does."""

    def slowly(answer: Answer) -> Answer:
        def answered(attempt: Attempt, need: Need) -> Generator[float, None, Any]:
            yield 0.0
            return answer(attempt, need)

        return answered

    slow = {kind: slowly(answer) for kind, answer in answers.items()}
    steps = lived_in_steps(attempt, attempt.life(), slow, None)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            outcome: JobOutcome = ended.value
            return outcome


class Hand:
    """Answers what a life needs, and writes down what that was."""

    def __init__(self, live: Callable[[Attempt, dict[type, Answer]], JobOutcome]) -> None:
        self.live = live
        self.bench = Bench(Job)
        self.needs: list[str] = []
        self.pauses: list[float] = []
        self.told: list[JobOutcome] = []
        self.answers: dict[type, Answer] = {}
        for kind, answer in self.bench.runner.answers.items():
            self.answer(kind, answer)

    def answer(self, kind: type, answer: Answer) -> None:
        def noted(attempt: Attempt, need: Any) -> Any:
            self.needs.append(kind.__name__)
            if kind.__name__ == "Wait":
                self.pauses.append(need.seconds)
                return None
            if kind.__name__ == "CallFailed":
                self.told.append(need.verdict.outcome)
            return answer(attempt, need)

        self.answers[kind] = noted

    def attempt(self, **keys: Any) -> Attempt:
        self.bench.push("Job", **keys)
        return Attempt(self.bench.runner, self.bench.held())

    def run(self, report: Report | Answer = NOTHING, **keys: Any) -> Attempt:
        """Bring an attempt to its end whose handler ends so."""
        attempt = self.attempt(**keys)
        given = (lambda *_: report) if isinstance(report, Report) else report
        self.answer(Run, given)
        attempt.outcome = self.live(attempt, self.answers)
        self.bench.runner.settler.flush()
        return attempt


@pytest.fixture(params=[in_line, in_steps])
def hand(request: pytest.FixtureRequest) -> Hand:
    return Hand(request.param)


def test_a_plain_job_needs_three_things(hand: Hand) -> None:
    with heard() as names:
        attempt = hand.run()
    assert attempt.outcome is JobOutcome.DONE
    assert hand.needs == ["Begin", "Run", "Settle"]
    assert names == ["JobProcessing", "JobProcessed", "JobAttempted"]
    assert hand.bench.left == 0


@pytest.mark.parametrize(
    ("report", "outcome", "needs"),
    [
        (Report(result=5), "done", ["Settle"]),
        (Report(ValueError("boom")), "retried", ["Decide", "Settle"]),
        (Report(DontHandle("no")), "skipped", ["Decide", "Settle"]),
        (Report(JobGivenBack("told twice")), "given back", ["Decide", "Settle"]),
        (Report(JobCancelled("so it is")), "cancelled", ["Decide", "Settle"]),
        (Report(verdict=outcomes.failed(ValueError("x"))), "failed", ["Settle", "CallFailed"]),
        (Report(ValueError("x"), verdict=outcomes.skipped("so")), "skipped", ["Settle"]),
        (Report(waits=True), "done", ["Settle", "CallFailed"]),
        (Report(intent=End(State.RELEASED, 5)), "released", ["Settle"]),
        (Report(ValueError("x"), intent=End(State.COMPLETE)), "done", ["Settle"]),
    ],
)
def test_what_is_reported_decides(
    hand: Hand, report: Report, outcome: str, needs: list[str]
) -> None:
    assert hand.run(report).outcome == outcome
    assert hand.needs == ["Begin", "Run", *needs]


def test_the_last_try_fails_and_is_told(hand: Hand) -> None:
    hand.run(Report(ValueError("first")))
    hand.bench.backend.timing.skew += 1000
    hand.needs.clear()
    attempt = Attempt(hand.bench.runner, hand.bench.held())
    assert hand.live(attempt, hand.answers) is JobOutcome.FAILED
    assert hand.needs == ["Begin", "Run", "Decide", "Settle", "CallFailed"]
    assert hand.told == [JobOutcome.FAILED]
    assert isinstance(attempt.error, ValueError)


def test_one_that_is_not_run_is_not_started(hand: Hand) -> None:
    assert hand.run(retryUntil=1).outcome is JobOutcome.FAILED
    assert hand.needs == ["Settle", "CallFailed"]
    hand.needs.clear()
    assert hand.run(expiresAt=1).outcome is JobOutcome.SKIPPED
    assert hand.needs == ["Settle"]


def test_one_that_cannot_be_started_is_let_be(hand: Hand) -> None:
    hand.answer(Begin, lambda *_: False)
    with heard() as names:
        assert hand.run().outcome is JobOutcome.LOST
    assert (hand.needs, names) == (["Begin"], [])


@pytest.mark.parametrize("word", ["delete", "release", "bury", "fail"])
def test_what_has_settled_itself_is_not_settled(hand: Hand, word: str) -> None:
    def handler(attempt: Attempt, _: Run) -> Report:
        getattr(attempt.job, word)()
        return NOTHING

    outcome = hand.run(handler).outcome
    expected = {"release": JobOutcome.RELEASED, "fail": JobOutcome.FAILED}
    assert outcome is expected.get(word, JobOutcome.DONE)
    assert "Settle" not in hand.needs


# -- ends that cannot be applied ------------------------------------------------------------------


def fail(hand: Hand, error: Exception, times: int) -> None:
    """Have the next ends fail."""
    settle, left = hand.bench.runner.settle, [error] * times

    def failing(attempt: Attempt, need: Settle) -> None:
        if left:
            raise left.pop()
        settle(attempt, need)

    hand.answer(Settle, failing)


def test_an_end_is_tried_again_ever_more_seldom(hand: Hand) -> None:
    fail(hand, BackendUnavailable("away"), 7)
    assert hand.run().outcome is JobOutcome.DONE
    assert hand.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert hand.bench.left == 0


def test_it_is_given_up_when_the_lease_is_over(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("qframe.worker.attempt.time.monotonic", lambda: now[0])
    fail(hand, BackendUnavailable("away"), 1000)
    pause = next(kind for kind in hand.answers if kind.__name__ == "Wait")
    hand.answers[pause] = lambda _, need: now.append(now.pop() + need.seconds)
    with pytest.raises(BackendUnavailable):
        hand.run()
    assert 1055 < now[0] <= 1000 + hand.bench.connection.retry_after
    assert hand.bench.runner.running == {}


@pytest.mark.parametrize(("error", "events"), [(LeaseLost, ["JobLeaseLost"]), (KeyError, [])])
def test_what_cannot_be_settled_is_lost(
    hand: Hand, error: type[Exception], events: list[str]
) -> None:
    fail(hand, error("so it is"), 1)
    with heard() as names:
        assert hand.run(Report(ValueError("boom"))).outcome is JobOutcome.LOST
    assert names == ["JobProcessing", "JobExceptionOccurred", *events, "JobAttempted"]


def test_an_intent_that_comes_too_late_is_lost_once(hand: Hand) -> None:
    fail(hand, LeaseLost("gone"), 1)
    with heard() as names:
        assert hand.run(Report(intent=End(State.RELEASED))).outcome is JobOutcome.LOST
    assert names.count("JobLeaseLost") == 1
    assert hand.needs == ["Begin", "Run", "Settle"]


# -- what all executors have ----------------------------------------------------------------------


def test_a_cancel_that_was_heard_is_taken_back(hand: Hand) -> None:
    def handler(attempt: Attempt, _: Run) -> Report:
        hand.bench.connection.store.set(cancel_key(attempt.job.uuid), "1")
        attempt.shared.cancellation.look(attempt.job)
        return Report(JobCancelled("cancelled while it ran"))

    attempt = hand.run(handler)
    assert attempt.outcome is JobOutcome.CANCELLED
    hand.bench.runner.cancellation.tidy()
    assert hand.bench.backend.read(cancel_key(attempt.job.uuid)) == [None]


def test_a_timeout_is_counted_wherever_it_was(hand: Hand) -> None:
    attempt = hand.run(Report(JobTimedOut("late")))
    hand.bench.runner.count(attempt)
    (written,) = hand.bench.runner.recorder.unwritten()
    assert '"timed out":1' in written[1]


def test_one_that_began_too_early_for_its_transaction_is_given_back(hand: Hand) -> None:
    def handler(attempt: Attempt, _: Run) -> Report:
        attempt.job.began_too_early = True
        return hand.bench.runner.reported(attempt, ValueError("undone"))

    assert hand.run(handler).outcome is JobOutcome.GIVEN_BACK


def test_what_became_of_a_transaction_is_learned_before_the_end(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(attempt: Attempt, _: Run) -> Report:
        attempt.job.completing()
        monkeypatch.setattr(hand.bench.backend, "standing", lambda _: Standing.GONE)
        return Report(ValueError("boom"))

    assert hand.run(handler).outcome is JobOutcome.DONE
    assert hand.needs == ["Begin", "Run", "Learn"]


def test_the_pool_reads_that_it_is_over_whatever_was_raised(hand: Hand) -> None:
    score = WorkerScore.create()
    hand.bench.runner.scores = score.jobs
    fail(hand, BackendUnavailable("away"), 1)
    attempt = hand.attempt()

    def breaks(*_: object) -> None:
        raise SystemExit

    hand.answer(Run, lambda *_: NOTHING)
    hand.answer(Settle, breaks)
    with pytest.raises(SystemExit):
        hand.live(attempt, hand.answers)
    assert score.jobs[0].last_job().state == 0
    assert hand.bench.runner.running == {}
    score.close()


def test_what_a_worker_recorded_goes_with_the_job_into_its_failed_record() -> None:
    bench = Bench(Job)
    score, kept = WorkerScore.create(), Recording(1, "timed out, in f at x.py:7")
    noted: list[object] = []

    def recorded(*about: object) -> Recording | None:
        noted.append(about)
        return kept

    bench.runner.scores = score.jobs
    bench.runner.job_recorder = SimpleNamespace(keeps_log=True, recorded=recorded)
    bench.push("Job")
    attempt = Attempt(bench.runner, bench.held())
    late = JobTimedOut("late")

    def handler(attempt: Attempt, _: Run) -> Report:
        attempt.made()
        assert attempt.job.records == score.jobs[0].ring.note
        return Report(late)

    in_line(attempt, {**bench.runner.answers, Run: handler})
    assert noted == [(score.jobs[0], late, 1)]
    bench.backend.timing.skew += 1000
    bench.runner.job_recorder.recorded = lambda *_: None  # of any other error
    again = Attempt(bench.runner, bench.held())
    assert again.job.history.recording == kept
    in_line(again, {**bench.runner.answers, Run: lambda *_: Report(ValueError("no"))})
    (failed,) = bench.connection.failed.all()
    assert failed.history.recording == kept
    score.close()


# -- a life that is not gone through at once ------------------------------------------------------


def started() -> tuple[Bench, Attempt, Life[JobOutcome]]:
    """Give an attempt whose handler runs."""
    bench = Bench(Job)
    bench.push("Job")
    attempt = Attempt(bench.runner, bench.held())
    life = attempt.life()
    assert isinstance(next(life), Begin)
    assert isinstance(life.send(bench.runner.start(attempt, Begin())), Run)
    return bench, attempt, life


def test_it_runs_from_its_start_to_its_end() -> None:
    bench, attempt, life = started()
    assert bench.runner.running == {attempt.job: attempt}
    assert isinstance(life.send(NOTHING), Settle)
    assert bench.runner.running == {attempt.job: attempt}
    life.close()
    assert bench.runner.running == {}


def test_who_was_left_does_no_more_and_another_goes_on() -> None:
    bench, attempt, life = started()

    def leaves(*_: object) -> Report:
        raise Left

    with pytest.raises(Left):
        lived(attempt, life, {Run: leaves}, Run())
    assert not attempt.job.is_settled
    answers = {**bench.runner.answers, Run: lambda *_: Report(JobTimedOut("late"))}
    with heard() as names:
        assert lived(attempt, life, answers, Run()) is JobOutcome.RETRIED
    assert names[-2:] == ["JobReleasedAfterException", "JobAttempted"]


def test_an_error_of_an_answer_is_raised_where_it_was_asked_for() -> None:
    seen: list[BaseException] = []

    def life() -> Life[str]:
        try:
            yield Run()
        except KeyError as error:
            seen.append(error)
            yield Settle(End(State.COMPLETE))
        return "over"

    def breaks(*_: object) -> None:
        raise KeyError

    answers: dict[type, Answer] = {Run: breaks, Settle: lambda *_: None}
    assert lived(None, life(), answers) == "over"
    assert len(seen) == 1


# -- a handler that does not end ------------------------------------------------------------------

SLOTS: list[LocalSlot] = []


class Stuck(Queueable):
    """Has its life go on without it, as the overseer does, and then ends after all."""

    tries: ClassVar[int | None] = 2
    ends: bool = False

    def handle(self) -> None:
        if not self.ends:
            assert SLOTS[0].leave()
            assert not SLOTS[0].leave(), "once"
            SLOTS[0].end_by(JobTimedOut("late"))
            raise ValueError("nobody hears of this")


@contextmanager
def slot_of(bench: Bench) -> Iterator[LocalSlot]:
    """Give a slot for the next job, in which it is started."""
    with SlotSignals(handled=False) as signals:
        options = WorkerOptions(concurrency=2)
        beats = Heartbeat(threaded=False)
        runner = SlotRunner(bench.connection, bench.registry, options, signals, heartbeat=beats)
        runner.answers = {**runner.answers, Settle: bench.runner.settle}
        slot = LocalSlot(runner, bench.held())
        assert slot.is_startable()
        runner.settler.start_all([slot.job])
        runner.enter_started([slot])
        SLOTS[:] = [slot]
        yield slot
        runner.jobs_loop.loop.close()


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_in_a_thread_has_one_end(ends: bool) -> None:
    bench = Bench(Stuck)
    bench.push("Stuck", {"ends": ends})
    with slot_of(bench) as slot, heard() as names:
        runner = slot.runner
        slot.run_in_thread()
        assert slot.attempt.outcome is (JobOutcome.DONE if ends else JobOutcome.RETRIED)
        assert names.count("JobAttempted") == 1
        assert [*runner.ended] == [slot]
        assert slot.is_left is not ends
        assert not slot.leave(), "it has come to its end"
        runner.leave(slot)
        assert runner.busy == (0 if ends else 1)
        assert runner.going == ([] if ends else [slot])


def test_a_job_whose_task_never_began_is_given_back() -> None:
    bench = Bench(Stuck)
    bench.push("Stuck")
    with slot_of(bench) as slot, heard() as names:
        slot.end_by(JobGivenBack("its task was cancelled"))
        assert slot.attempt.outcome is JobOutcome.GIVEN_BACK
    assert names == ["JobProcessing", "AttemptGivenBack", "JobAttempted"]
    assert bench.held().attempts() == 0
