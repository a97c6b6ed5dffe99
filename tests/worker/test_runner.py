"""One reserved job, from before its start to its end: its outcome, its events, what is left."""

from __future__ import annotations

import json
import os
import time
from typing import Any, ClassVar

import pytest

from qframe import DontHandle, Queueable, events
from qframe.contracts.step import Push, Step
from qframe.exceptions import (
    BackendUnavailable,
    InvalidPayload,
    InvalidSignature,
    JobCancelled,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    MaxAttemptsExceeded,
)
from qframe.features import status
from qframe.metrics.series import OUTCOMES, UNKNOWN
from qframe.payload.signature import Signer
from qframe.worker import WorkerOptions
from qframe.worker.attempt import Attempt
from qframe.worker.needs import Report, Run
from qframe.worker.outcome import JobOutcome
from qframe.worker.runner import Runner
from tests.worker.bench import Bench, heard

NOTES: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    NOTES.clear()


class Note(Queueable):
    word: str = "ran"

    def handle(self) -> str:
        NOTES.append(f"{self.word} {self.attempts}")
        return self.word

    def failed(self, error: BaseException) -> None:
        NOTES.append(f"failed: {type(error).__name__}")


class Raises(Note):
    tries: ClassVar[int | None] = 2

    def handle(self) -> str:
        super().handle()
        raise ValueError("boom")


class Ends(Note):
    """Ends by what its word names."""

    def handle(self) -> str:
        kinds = (DontHandle, JobCancelled, JobGivenBack, JobInterrupted, JobTimedOut)
        raise {each.__name__: each for each in kinds}[self.word]("so it is")


class Settles(Note):
    """Does one thing with itself, and then perhaps raises."""

    then: str = ""

    def handle(self) -> str:
        if self.word == "fail":
            self.fail(KeyError("own"))
        else:
            getattr(self.job, self.word)()
        if self.then:
            raise ValueError(self.then)
        return ""


def counted(bench: Bench) -> dict[tuple[str, str, str], int]:
    """Give how often each outcome was counted, by class and queue."""
    return {
        ("" if name == UNKNOWN else name, queue, outcome): count
        for _, text in bench.runner.recorder.unwritten()
        for queue, name, fields in json.loads(text)
        for outcome, count in fields.items()
        if outcome in OUTCOMES
    }


def run(*jobs: type[Queueable], **keys: Any) -> tuple[Bench, str, list[str]]:
    """Run the first job; gives the bench, its outcome, and the events."""
    bench = Bench(*jobs)
    with heard() as names:
        outcome = bench.run(jobs[0].__name__, **keys)
    return bench, outcome, names


def test_a_job_that_is_done_is_deleted_with_what_comes_next() -> None:
    bench, outcome, names = run(Note)
    assert outcome == "done"
    assert names == ["JobProcessing", "JobProcessed", "JobAttempted"]
    assert NOTES == ["ran 1"]
    assert bench.left == 1
    assert bench.backend.said == ["reserve", "apply_async Start"]
    bench.run("Note")
    assert bench.backend.said == ["reserve Delete", "apply_async Start"]
    bench.runner.settler.flush()
    assert bench.left == 0
    assert counted(bench) == {("Note", "q", "done"): 2}


def test_what_was_done_is_deleted_before_the_failed_of_one_that_may_not_start() -> None:
    bench = Bench(Note)
    bench.push("Note")
    bench.push("Note", retryUntil=1)
    done, refused = bench.runner.settler.reserve(["q"], 2)
    assert bench.runner.run(done).outcome is JobOutcome.DONE
    bench.backend.said.clear()
    assert bench.runner.run(refused).outcome is JobOutcome.FAILED
    assert bench.backend.said == ["apply Delete", "apply Record Delete"]
    assert NOTES == ["ran 1", "failed: MaxAttemptsExceeded"]


def test_one_that_raises_is_tried_again_and_then_failed() -> None:
    bench, outcome, names = run(Raises)
    assert outcome == "retried"
    assert names[1:] == ["JobExceptionOccurred", "JobReleasedAfterException", "JobAttempted"]
    with heard() as names:
        assert bench.again() == "failed"
    assert names[1:] == ["JobExceptionOccurred", "JobFailed", "JobAttempted"]
    assert NOTES == ["ran 1", "ran 2", "failed: ValueError"]
    record = bench.connection.failed.find("raises")
    assert record is not None
    assert (record.attempts, [each.ended for each in record.history.attempts]) == (
        2,
        ["error", "error"],
    )
    assert bench.left == 0


@pytest.mark.parametrize(
    ("word", "expected", "event", "left"),
    [
        ("DontHandle", "skipped", "JobSkipped", 0),
        ("JobCancelled", "cancelled", "AttemptCancelled", 0),
        ("JobGivenBack", "given back", "AttemptGivenBack", 1),
    ],
)
def test_ends_that_are_no_failures(word: str, expected: str, event: str, left: int) -> None:
    bench, outcome, names = run(Ends, data={"word": word})
    assert outcome == expected
    assert names == ["JobProcessing", event, "JobAttempted"]
    assert bench.left == left
    if left:
        assert bench.held().attempts() == 0, "uncounted"


def test_a_timeout_is_told_of() -> None:
    _, outcome, names = run(Ends, data={"word": "JobTimedOut"})
    assert outcome == "failed"
    assert names[1:4] == ["JobExceptionOccurred", "AttemptTimedOut", "JobFailed"]


@pytest.mark.parametrize("then", ["", "late"])
@pytest.mark.parametrize(
    ("word", "expected", "event", "left"),
    [
        ("delete", "done", "JobProcessed", 0),
        ("bury", "done", "JobProcessed", 0),
        ("release", "released", "JobReleased", 1),
        ("fail", "failed", "JobFailed", 0),
    ],
)
def test_what_a_job_did_with_itself_stands(
    word: str, expected: str, event: str, left: int, then: str
) -> None:
    bench, outcome, names = run(Settles, data={"word": word, "then": then})
    assert outcome == expected
    occurred = ["JobExceptionOccurred"] if then else []
    assert names == ["JobProcessing", *occurred, event, "JobAttempted"]
    assert bench.left == left
    assert (["failed: KeyError"] if word == "fail" else []) == NOTES


def test_a_listener_of_the_exception_may_settle_the_job() -> None:
    def release(event: events.JobExceptionOccurred) -> None:
        event.job.release(5)

    events.listen(events.JobExceptionOccurred)(release)
    try:
        _, outcome, names = run(Raises)
    finally:
        events.forget(release)
    assert outcome == "released"
    assert names[-2:] == ["JobReleased", "JobAttempted"]


# -- jobs that are not run ------------------------------------------------------------------------


def test_a_job_out_of_tries_is_failed_unstarted_and_told() -> None:
    bench = Bench(Raises)
    bench.push("Raises")
    for _ in range(2):  # workers that died
        job = bench.held()
        bench.runner.settler.start(job)
        bench.backend.timing.skew += 1000
    with heard() as names:
        assert bench.again() == "failed"
    assert names == ["JobFailed"]
    assert NOTES == ["failed: MaxAttemptsExceeded"]
    record = bench.connection.failed.find("raises")
    assert record is not None
    assert record.attempts == 2
    assert MaxAttemptsExceeded.__name__ in record.exception
    assert "never ended" in record.exception


def test_one_that_has_expired_is_skipped() -> None:
    bench, outcome, names = run(Note, expiresAt=time.time() - 1)
    assert (outcome, names, NOTES, bench.left) == ("skipped", ["JobSkipped"], [], 0)


def test_a_job_that_is_unknown_here_is_given_back_and_then_failed() -> None:
    bench = Bench(unknown_delays=[7])
    with heard() as names:
        assert bench.run("Nobody") == "given back"
        assert bench.again() == "failed"
    assert names == [
        "JobProcessing", "AttemptGivenBack", "JobAttempted",
        "JobProcessing", "JobFailed", "JobAttempted",
    ]  # fmt: skip
    assert set(counted(bench)) == {("Nobody", "q", "given back"), ("Nobody", "q", "failed")}
    record = bench.connection.failed.find("nobody")
    assert record is not None
    assert record.attempts == 0


def test_arguments_that_do_not_fit_are_no_failure_of_this_attempt() -> None:
    bench, outcome, _ = run(Note, data={"word": 5})
    assert outcome == "failed"
    record = bench.connection.failed.find("note")
    assert record is not None
    assert record.attempts == 0


def test_a_class_that_is_imported_late_has_its_limits_at_once() -> None:
    bench = Bench(late=[Raises], options=WorkerOptions(tries=1))
    assert bench.run("Raises") == "retried"
    assert bench.again() == "failed"
    bench.push("Raises")
    for _ in range(2):
        bench.runner.settler.start(bench.held())
        bench.backend.timing.skew += 1000
    NOTES.clear()
    assert bench.again() == "failed"
    assert NOTES == ["failed: MaxAttemptsExceeded"]
    assert counted(bench) == {("Raises", "q", "retried"): 1, ("Raises", "q", "failed"): 2}


# -- payloads that are not acted on ---------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"no json", b"[]", b"\xff\x00", b'{"job": 5}', b"{}"])
def test_what_is_no_payload_is_failed_with_its_bytes(raw: bytes) -> None:
    bench = Bench(Note)
    bench.connection.push_raw(raw, "q")
    with heard() as names:
        attempt = bench.runner.run(bench.held())
    assert attempt.outcome is JobOutcome.FAILED
    assert isinstance(attempt.error, InvalidPayload)
    assert names == ["JobFailed"]
    (record,) = bench.connection.failed.all()
    assert record.payload == raw
    assert bench.left == 0


def test_a_forged_payload_touches_nothing_it_names() -> None:
    bench = Bench(Note, signer=Signer(["the key"], require=True))
    backend, store = bench.backend, bench.connection.store
    unique = {"key": "unique:x", "until": "handled", "for": 60}
    bench.push("Note", track=60, unique=unique)
    store.set("unique:x", "note")
    before = status.read(backend, "note")
    forged = {"uuid": "note", "job": "Note", "data": {}, "track": 60, "unique": unique}
    backend.apply(Step(None, Push("other", json.dumps(forged).encode())))
    (job,) = bench.runner.settler.reserve(["other"], 1)
    with heard() as names:
        attempt = bench.runner.run(job)
    assert (attempt.outcome, names, NOTES) == (JobOutcome.FAILED, ["JobFailed"], [])
    assert isinstance(attempt.error, InvalidSignature)
    assert status.read(backend, "note") == before
    assert store.get("unique:x") == ["note"]
    (record,) = bench.connection.failed.all()
    assert record.uuid != "note"
    assert counted(bench) == {("", "other", "failed"): 1}
    assert bench.run("Note", track=60) == "done", "one of our own is run"


# -- a backend that does not answer, and leases that were lost ------------------------------------


def test_settling_is_tried_again_while_the_backend_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for how in ("down", "cut"):
        bench = Bench(Raises)
        monkeypatch.setattr(bench.signals, "wait", lambda _: None)
        bench.push("Raises")
        job = bench.held()

        def listen(_: object, bench: Bench = bench, how: str = how) -> None:
            setattr(bench.backend, how, 3)

        events.listen(events.JobExceptionOccurred)(listen)
        try:
            assert bench.runner.run(job).outcome is JobOutcome.RETRIED
        finally:
            events.forget(listen)
        assert bench.left == 1
        assert counted(bench) == {("Raises", "q", "retried"): 1}


def test_a_start_that_cannot_be_told_is_the_loops_business() -> None:
    bench = Bench(Note)
    bench.push("Note")
    job = bench.held()
    bench.backend.down = 1
    with pytest.raises(BackendUnavailable):
        bench.runner.run(job)
    assert NOTES == []


def test_a_job_held_too_long_is_dropped() -> None:
    bench = Bench(Note)
    bench.push("Note")
    job = bench.held()
    bench.backend.lose(job)
    job.reservation.sure_until = 0
    with heard() as names:
        assert bench.runner.run(job).outcome is JobOutcome.LOST
    assert (names, NOTES, counted(bench)) == ([], [], {})


@pytest.mark.parametrize("name", ["Raises", "Note"])
def test_an_outcome_that_comes_too_late_is_told_once(name: str) -> None:
    bench = Bench(Note, Raises)

    def lose(event: events.JobProcessing) -> None:
        bench.backend.lose(event.job)  # type: ignore[arg-type]

    events.listen(events.JobProcessing)(lose)
    try:
        with heard() as names:
            bench.run(name)
            bench.runner.settler.flush()
    finally:
        events.forget(lose)
    assert names.count("JobLeaseLost") == 1
    lost = {key: count for key, count in counted(bench).items() if count}
    assert lost == {(name, "q", "lost"): 1}
    assert bench.left == 1


# -- an attempt elsewhere -------------------------------------------------------------------------


class _Elsewhere(Runner):
    report_of = Report()

    def perform(self, attempt: Attempt, _: Run) -> Report:
        del attempt
        return self.report_of


@pytest.mark.parametrize(
    ("report", "expected", "left"),
    [
        (Report(result=5), "done", 0),
        (Report(ValueError("boom")), "failed", 0),
        (Report(DontHandle("no")), "skipped", 0),
        (Report(JobGivenBack("told twice")), "given back", 1),
    ],
)
def test_what_another_process_reports_is_settled_here(
    report: Report, expected: str, left: int
) -> None:
    bench = Bench(Note)
    runner = _Elsewhere(bench.connection, bench.registry, WorkerOptions(), bench.signals)
    runner.report_of = report
    bench.push("Note", track=60)
    (job,) = runner.settler.reserve(["q"], 1)
    assert runner.run(job).outcome == expected
    runner.settler.flush()
    assert bench.left == left


def test_a_fork_that_comes_back_from_its_job_ends(capfd: pytest.CaptureFixture[str]) -> None:
    class Forks(Note):
        def handle(self) -> str:
            pid = os.fork()
            if pid:
                NOTES.append(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            return ""

    bench = Bench(Forks)
    assert bench.run("Forks") == "done"
    assert NOTES == ["70"]
    assert "came back from its job" in capfd.readouterr().err
