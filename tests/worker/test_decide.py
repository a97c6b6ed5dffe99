"""What becomes of a job: decided from its error, what is known of it and its limits, by no I/O."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qframe import DontHandle, Queueable, RetryLater
from qframe.contracts.history import History
from qframe.contracts.status import State
from qframe.exceptions import (
    CannotDecrypt,
    JobCancelled,
    JobGivenBack,
    JobInterrupted,
    JobTimedOut,
    MaxAttemptsExceeded,
    UnknownJob,
)
from qframe.features.base import End
from qframe.worker import WorkerOptions
from qframe.worker.limits import JobFacts, Limits, exceeded
from qframe.worker.options import LONGEST
from qframe.worker.outcome import (
    Exhausted,
    Expired,
    JobOutcome,
    Unrunnable,
    Verdict,
    decide,
    done,
    is_early,
    refuse,
)


class Plain(Queueable):
    def handle(self) -> None: ...


class Set(Queueable):
    tries = 4
    timeout = 7
    max_exceptions = 2
    backoff = (1, 5)
    fail_on_timeout = True

    def handle(self) -> None: ...


class Zero(Queueable):
    tries = 0
    timeout = 0
    backoff = 0

    def handle(self) -> None: ...


class OfTheAttempt(Queueable):
    def backoff(self, attempt: int, error: BaseException) -> list[float]:
        return [attempt * 10.0, 99.0]

    def handle(self) -> None: ...


OPTIONS = WorkerOptions(tries=3, timeout=60, backoff=(2, 4))
BOOM = ValueError("boom")


def limits(job_class: type[Queueable] | None = None, **message: Any) -> Limits:
    return Limits(job_class, message, OPTIONS)


def ran(*ends: str) -> JobFacts:
    """Give a job whose attempts ended so; "" is one that runs, or whose end nobody saw."""
    history = History()
    for number, end in enumerate(ends, 1):
        history = history.started(number, "host", 11, 1_700_000_000)
        history = history.ended(end, "what it said") if end else history
    return JobFacts("a job", len(ends), history)


# -- after an attempt -----------------------------------------------------------------------------


def test_a_timeout_is_no_longer_than_a_timer_can_be() -> None:
    assert limits(timeout=1e11).timeout == LONGEST


def test_one_that_raised_nothing_is_done() -> None:
    assert done([1]) == Verdict(JobOutcome.DONE, End(State.COMPLETE, result=[1]))
    assert done(None) == Verdict(JobOutcome.DONE, End(State.COMPLETE))


def test_one_that_raised_is_tried_again_by_its_tries_after_its_backoff() -> None:
    for number, delay in ((1, 2), (2, 4)):
        job = ran(*["error"] * (number - 1), "")
        assert decide(BOOM, job, limits()) == Verdict(
            JobOutcome.RETRIED, End(State.RELEASED, delay, error=BOOM, how="error")
        )
    assert decide(BOOM, ran("error", "error", ""), limits()) == Verdict(
        JobOutcome.FAILED, End(State.FAILED, error=BOOM)
    )


@pytest.mark.parametrize(
    ("error", "how"),
    [(BOOM, "error"), (JobTimedOut("t"), "timed out"), (JobInterrupted("i"), "interrupted")],
)
def test_the_history_says_how_it_ended(error: BaseException, how: str) -> None:
    assert decide(error, ran(""), limits()).end.how == how


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            JobGivenBack("told twice"),
            Verdict(JobOutcome.GIVEN_BACK, End(State.WAITING, remark="told twice")),
        ),
        (
            JobCancelled("cancelled"),
            Verdict(JobOutcome.CANCELLED, End(State.CANCELLED, remark="cancelled")),
        ),
        (DontHandle("not now"), Verdict(JobOutcome.SKIPPED, End(State.SKIPPED, remark="not now"))),
        (DontHandle(), Verdict(JobOutcome.SKIPPED, End(State.SKIPPED, remark="DontHandle"))),
        (Expired("too old"), Verdict(JobOutcome.SKIPPED, End(State.SKIPPED, remark="too old"))),
    ],
)
def test_what_is_no_failure_uses_up_no_try(error: BaseException, expected: Verdict) -> None:
    assert is_early(error)
    assert decide(error, ran("error", "error", ""), limits()) == expected


def unrunnable(cause: Exception) -> Unrunnable:
    error = Unrunnable()
    error.__cause__ = cause
    return error


def test_an_unknown_job_is_given_back_a_few_times_uncounted() -> None:
    cause, job = UnknownJob("no job x"), ran("")
    verdict = decide(unrunnable(cause), job, limits(), unknown_delays=[5, 9])
    end = End(State.WAITING, 5, remark="no job x", refused=True)
    assert verdict == Verdict(JobOutcome.GIVEN_BACK, end)
    once = job._replace(history=job.history.refused())
    assert decide(unrunnable(cause), once, limits(), unknown_delays=[5, 9]).end.delay == 9
    twice = once._replace(history=once.history.refused())
    assert decide(unrunnable(cause), twice, limits(), unknown_delays=[5, 9]) == Verdict(
        JobOutcome.FAILED, End(State.FAILED, error=cause, ran=False)
    )


def test_one_that_cannot_be_decrypted_is_failed_at_once() -> None:
    cause = CannotDecrypt("no key")
    verdict = decide(unrunnable(cause), ran(""), limits(), unknown_delays=[5])
    assert verdict == Verdict(JobOutcome.FAILED, End(State.FAILED, error=cause, ran=False))


def test_a_start_too_many_is_told_without_itself() -> None:
    outcome, end = decide(Exhausted(), ran("error", ""), limits(maxTries=1))
    assert (outcome, end.ran) == (JobOutcome.FAILED, False)
    assert "may be started once and was started once: attempt 1" in str(end.error)


def test_the_backoff_is_the_classs_the_payloads_the_workers() -> None:
    def of(job: Queueable | None, **message: Any) -> list[float]:
        ask = (lambda *_: None) if job is None else job.backoff_after
        found = Limits(None if job is None else type(job), {"maxTries": 99, **message}, OPTIONS)
        histories = [ran(*["timed out"] * n) for n in (1, 2, 3)]
        return [decide(BOOM, each, found, backoff=ask).end.delay for each in histories]

    assert of(Set(), backoff="60") == [1, 5, 5]
    assert of(Plain(), backoff="7,8") == [7, 8, 8]
    assert of(Plain(), backoff=9) == [9, 9, 9]
    assert of(Plain(), backoff="soon") == [2, 4, 4]
    assert of(Plain(), backoff="-3") == [0, 0, 0]
    assert of(None) == [2, 4, 4]
    assert of(OfTheAttempt()) == [10, 99, 99]


class Later(RetryLater):
    """One of an application's own."""


@pytest.mark.parametrize("kind", [RetryLater, Later])
def test_the_job_says_after_how_many_seconds_it_is_tried_again(kind: type[RetryLater]) -> None:
    found = Limits(Set, {"maxTries": 99}, OPTIONS)
    for seconds in (0, 0.5, 3600):
        error = kind(seconds)
        verdict = decide(error, ran(""), found, backoff=Set().backoff_after)
        end = End(State.RELEASED, seconds, error=error, how="error")
        assert verdict == Verdict(JobOutcome.RETRIED, end)


def test_a_job_that_asks_for_another_try_has_no_more_than_others() -> None:
    error = RetryLater(5)
    assert decide(error, ran("error", ""), limits(maxTries=2)).outcome is JobOutcome.FAILED
    assert decide(error, ran("released", ""), limits(maxTries=2)).outcome is JobOutcome.RETRIED
    twice = limits(maxTries=99, maxExceptions=2)
    assert decide(error, ran("error", ""), twice).outcome is JobOutcome.FAILED
    asked = decide(RetryLater(0), ran("error", ""), limits(maxTries=0, backoff="0"))
    assert asked.end.delay > 0, "not a thousand times a second"


def test_the_backoff_counts_failures_not_releases() -> None:
    assert decide(BOOM, ran("released", ""), limits()).end.delay == 2


# -- before an attempt ----------------------------------------------------------------------------


def test_a_job_with_tries_left_is_started() -> None:
    assert refuse(ran(), limits()) is None
    assert refuse(ran("error", "error"), limits()) is None
    assert refuse(ran("error", "error", "released"), limits()) is None


def test_one_without_is_failed_with_what_became_of_each() -> None:
    verdict = refuse(ran("error", "", "error"), limits())
    assert verdict is not None
    assert (verdict.outcome, verdict.end.state) == (JobOutcome.FAILED, State.FAILED)
    assert isinstance(verdict.end.error, MaxAttemptsExceeded)


def test_one_whose_only_timeout_was_seen_by_nobody_here_is_failed() -> None:
    verdict = refuse(ran("timed out"), limits(failOnTimeout=True))
    assert verdict is not None
    assert isinstance(verdict.end.error, JobTimedOut)
    assert "a job fails at its first timeout" in str(verdict.end.error)
    assert refuse(ran("error"), limits(failOnTimeout=True)) is None


def test_one_that_has_expired_is_skipped_before_its_first_start_only() -> None:
    past = limits(expiresAt=time.time() - 1)
    assert refuse(ran(), past) == Verdict(
        JobOutcome.SKIPPED, End(State.SKIPPED, remark="it had expired")
    )
    assert refuse(ran("error"), past) is None
    assert refuse(ran(), limits(expiresAt=time.time() + 9)) is None


# -- limits ---------------------------------------------------------------------------------------


def test_the_class_wins_then_the_payload_then_the_worker() -> None:
    sent = {"maxTries": 9, "timeout": 30, "maxExceptions": 5, "failOnTimeout": True}
    of_class, of_payload, of_worker = limits(Set, **sent), limits(Plain, **sent), limits(Plain)
    assert (of_class.tries, of_class.timeout, of_class.max_exceptions) == (4, 7, 2)
    assert (of_payload.tries, of_payload.timeout, of_payload.max_exceptions) == (9, 30, 5)
    assert (of_worker.tries, of_worker.timeout, of_worker.max_exceptions) == (3, 60, 0)
    assert of_class.fails_on_timeout
    assert not of_payload.fails_on_timeout, "the class as deployed says no"
    assert limits(None, **sent).fails_on_timeout


def test_zero_of_a_class_is_no_limit_not_nothing() -> None:
    zero = limits(Zero, maxTries=9, timeout=30)
    assert (zero.tries, zero.timeout) == (0, 0)
    assert not zero.exhausted(10**6, History())


@pytest.mark.parametrize("value", [-1, "5", True, None, [], {}])
def test_nonsense_in_a_payload_is_as_if_it_were_not_there(value: object) -> None:
    assert limits(Plain, maxTries=value).tries == 3
    assert limits(Plain, timeout=value).timeout == 60


def test_retry_until_replaces_tries() -> None:
    assert not limits(maxTries=1, retryUntil=time.time() + 60).exhausted(500, History())
    assert limits(maxTries=0, retryUntil=time.time() - 1).exhausted(0, History())


def test_max_exceptions_ends_before_the_tries_do() -> None:
    assert limits(maxTries=9, maxExceptions=2).end_with(BOOM, ran("error", ""))
    assert not limits(maxTries=9, maxExceptions=3).end_with(BOOM, ran("error", ""))
    assert not limits(maxTries=9, maxExceptions=2).end_with(BOOM, ran("", ""))


def test_fail_on_timeout_is_about_timeouts_only() -> None:
    assert limits(Set).end_with(JobTimedOut("t"), ran(""))
    assert not limits(Set).end_with(BOOM, ran(""))


def test_the_reason_tells_every_attempt() -> None:
    history = (
        History()
        .started(1, "alpha", 11, 1_700_000_000)
        .ended("error", "ValueError: one")
        .started(2, "beta", 22, 1_700_000_100)
    )
    text = str(exceeded(JobFacts("a job", 3, history), limits(maxTries=3)))
    assert "a job may be started 3 times and was started 3 times" in text
    assert (
        "attempt 1 on alpha, pid 11, started 2023-11-14 22:13:20 UTC, error (ValueError: one)"
        in text
    )
    assert "attempt 2 on beta, pid 22" in text
    assert "never ended" in text
    assert "attempt 3: nothing on record" in text
    assert "\n" not in text


def test_retries_without_number_and_backoff_have_a_pause_that_grows() -> None:
    free = WorkerOptions(tries=0, backoff=(0,))
    bounded = WorkerOptions(tries=100, backoff=(0,))

    def delays(options: WorkerOptions, **message: Any) -> list[float]:
        found = Limits(None, message, options)
        return [decide(BOOM, ran(*["error"] * n), found).end.delay for n in (1, 2, 3, 12, 60)]

    grows = [0.1, 0.2, 0.4, 10, 10]
    assert delays(free) == grows
    assert delays(bounded, retryUntil=time.time() + 86400) == grows
    assert delays(bounded) == [0] * 5  # as in Laravel
    assert delays(free, backoff=3) == [3] * 5
    assert delays(free, maxExceptions=1000) == [0] * 5
