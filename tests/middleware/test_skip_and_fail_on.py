"""Skip and FailOn, each by itself."""

from __future__ import annotations

from typing import Any

import pytest

from qframe import DontHandle, JobDefinitionError, JobTimedOut, Queueable
from qframe.middleware import FailOn, Skip


class Reserved:
    """A reserved job that notes with what it was failed."""

    is_settled = False

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def fail(self, error: BaseException | None = None) -> None:
        self.errors.append(error)


class Mail(Queueable):
    spam: bool = False

    def handle(self) -> None: ...


def run(_job: Queueable) -> str:
    return "ran"


@pytest.mark.parametrize("condition", [True, 1, lambda job: job.spam, lambda _job: "yes"])
def test_skip_when_and_unless(condition: Any) -> None:
    job = Mail(spam=True)
    assert Skip.when(condition)(job, run) is None
    assert Skip.unless(condition)(job, run) == "ran"


@pytest.mark.parametrize("condition", [False, None, lambda job: job.spam, lambda _job: []])
def test_run_when_and_unless(condition: Any) -> None:
    job = Mail()
    assert Skip.when(condition)(job, run) == "ran"
    assert Skip.unless(condition)(job, run) is None


def test_an_error_of_the_condition_is_the_attempts() -> None:
    with pytest.raises(ZeroDivisionError):
        Skip.when(lambda _job: 1 / 0)(Mail(), run)


# -- FailOn -------------------------------------------------------------------------------------


def raised(middleware: FailOn, error: BaseException) -> list[BaseException | None]:
    """Give with what the job was failed; the error has to come through."""
    job, reserved = Mail(), Reserved()
    object.__setattr__(job, "_reserved", reserved)

    def fail(_job: Queueable) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        middleware(job, fail)
    assert caught.value is error
    return reserved.errors


def test_an_error_of_one_of_the_kinds_fails_the_job() -> None:
    error = KeyError("x")
    assert raised(FailOn(ValueError, LookupError), error) == [error]
    assert raised(FailOn(ValueError, OSError), error) == []


def test_an_error_a_predicate_names_fails_the_job() -> None:
    def is_403(error: Exception) -> bool:
        return "403" in str(error)

    error = RuntimeError("HTTP 403")
    assert raised(FailOn(is_403), error) == [error]
    assert raised(FailOn(ValueError, is_403), error) == [error]
    assert raised(FailOn(is_403), RuntimeError("HTTP 500")) == []


@pytest.mark.parametrize("error", [DontHandle("no"), JobTimedOut("late"), KeyboardInterrupt()])
def test_what_is_no_failure_of_the_jobs_own_passes(error: BaseException) -> None:
    assert raised(FailOn(Exception, lambda _error: True), error) == []


def test_a_job_that_has_settled_itself_is_left_so() -> None:
    job, reserved = Mail(), Reserved()
    reserved.is_settled = True
    object.__setattr__(job, "_reserved", reserved)

    def fail(_job: Queueable) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        FailOn(ValueError)(job, fail)
    assert reserved.errors == []


def test_outside_a_worker_the_error_just_passes() -> None:
    def fail(_job: Queueable) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        FailOn(ValueError)(Mail(), fail)
    assert FailOn(ValueError)(Mail(), run) == "ran"


@pytest.mark.parametrize("wrong", [(), (3,), (KeyboardInterrupt,), (int,), (ValueError("x"),)])
def test_what_is_no_kind_of_error_is_refused(wrong: Any) -> None:
    with pytest.raises(JobDefinitionError, match="FailOn takes kinds of errors"):
        FailOn(*wrong)
