"""Exponential backoff, and RetryLater: the seconds until a job is tried again."""

from __future__ import annotations

import pickle
import re
import runpy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qframe import Exponential, JobDefinitionError, Queueable, RetryLater, queueable
from qframe.payload import envelope, tracebacks
from qframe.testing import run
from tests.support.pages import docs_page


class Growing(Queueable):
    tries = 9
    backoff = Exponential(1, most=600)

    def handle(self) -> None:
        raise ConnectionError("down")


class Limited(Queueable):
    seconds: float = 60
    tries = 2
    backoff = 5

    def handle(self) -> None:
        try:
            raise ConnectionError("429 Too Many Requests")
        except ConnectionError as error:
            raise RetryLater(self.seconds) from error


# -- the delays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Exponential(1), [1, 2, 4, 8, 16]),
        (Exponential(5, 60), [5, 10, 20, 40, 60]),
        (Exponential(0.5, factor=3), [0.5, 1.5, 4.5, 13.5, 40.5]),
        (Exponential(7, most=7), [7] * 5),
        (Exponential(timedelta(minutes=1), timedelta(minutes=3)), [60, 120, 180, 180, 180]),
    ],
)
def test_the_delay_grows_with_each_failure(backoff: Exponential, delays: list[float]) -> None:
    assert [backoff.least_after(failures) for failures in (1, 2, 3, 4, 5)] == delays


def test_jitter_is_added_and_never_shortens_a_delay() -> None:
    backoff = Exponential(10, most=40)
    for failures, least in ((1, 10), (2, 20), (3, 40), (9, 40)):
        delays = [backoff.delay_after(failures) for _ in range(300)]
        assert least <= min(delays) < least * 1.1
        assert least * 1.4 < max(delays) <= least * 1.5
    assert {Exponential(10, jitter=0).delay_after(2) for _ in range(9)} == {20}
    assert max(Exponential(1, jitter=3).delay_after(1) for _ in range(300)) > 3


def test_no_number_of_failures_is_too_many() -> None:
    century = 100 * 365 * 86400
    assert Exponential(1).delay_after(10**6) == century
    assert Exponential(1, factor=1000).delay_after(999) == century
    assert Exponential(1, most=600, jitter=0).delay_after(10**6) == 600


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"first": 0}, "first must be more than 0 seconds"),
        ({"first": -1}, "first must be seconds, from 0 to 100 years, or a timedelta, not -1"),
        ({"first": "1"}, "first must be seconds"),
        ({"first": True}, "first must be seconds"),
        ({"first": datetime.now(UTC)}, "first must be seconds"),
        ({"first": 10, "most": 5}, "most must be at least first, 10 s, not 5"),
        ({"first": 1, "most": float("inf")}, "most must be seconds"),
        ({"first": 1, "factor": 0.5}, "factor must be a number from 1 to 1,000, not 0.5"),
        ({"first": 1, "factor": float("nan")}, "factor must be a number"),
        ({"first": 1, "jitter": -0.1}, "jitter must be a number from 0 to 1,000, not -0.1"),
        ({"first": 1, "jitter": True}, "jitter must be a number"),
    ],
)
def test_what_is_no_backoff_is_refused_in_one_line(arguments: Any, told: str) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        Exponential(**arguments)
    assert str(caught.value).startswith(f"Exponential: {told}")
    assert "\n" not in str(caught.value)


# -- on jobs --------------------------------------------------------------------------------------


def test_a_job_is_tried_again_after_it() -> None:
    for attempt, least in ((1, 1), (4, 8), (8, 128)):
        ran = run(Growing(), attempts=attempt)
        ran.assert_retried()
        assert ran.delay is not None
        assert least <= ran.delay <= least * 1.5


def test_a_function_takes_it_and_a_method_may_return_it() -> None:
    @queueable(job_name="f", backoff=Exponential(3, jitter=0))
    def f() -> None: ...

    class Asked(Queueable):
        job_name = "asked"

        def backoff(self, attempt: int, error: BaseException) -> float | Exponential:
            return 60 if isinstance(error, ConnectionError) else Exponential(2, jitter=0)

        def handle(self) -> None: ...

    assert f.job_class().backoff_after(2, ValueError()) == [6]
    assert Asked().backoff_after(3, ConnectionError()) == [60]
    assert Asked().backoff_after(3, ValueError()) == [8]


@pytest.mark.parametrize(
    ("backoff", "wire"),
    [
        (Exponential(1, most=600), "1,2,4,8,16,32,64,128,256,512,600"),
        (Exponential(1), "1,2,4,8,16,32,64,128,256,512,1024,2048"),
        (Exponential(5, most=5), "5"),
        (Exponential(0.3, factor=1.1, most=0.4), "0.3,0.33,0.363,0.399,0.4"),
        (Exponential(86400 * 365, factor=1000), "31536000,3153600000"),
    ],
)
def test_its_first_delays_are_in_the_payload_without_jitter(
    backoff: Exponential, wire: str
) -> None:
    job_class = type("Wired", (Growing,), {"backoff": backoff, "__module__": __name__})
    message = envelope.create(job_class())
    assert message["backoff"] == wire
    assert envelope.backoffs(message) == [float(each) for each in wire.split(",")]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    first, second = re.findall(
        r"```python\n(.*?)```", docs_page("backoff.md").read_text(), re.DOTALL
    )
    file = tmp_path / "pulling.py"
    file.write_text(first + second)
    classes = runpy.run_path(str(file), run_name="pulling")
    assert classes["Pull"].backoff == Exponential(1, most=600)
    run(classes["FetchPage"](path="/rates")).assert_retried(delay=30)


# -- RetryLater -----------------------------------------------------------------------------------


def test_a_job_asks_to_be_tried_again_later() -> None:
    run(Limited()).assert_retried(delay=60)
    run(Limited(seconds=0.5)).assert_retried(delay=0.5)


def test_without_tries_left_it_fails_and_the_record_shows_the_cause() -> None:
    ran = run(Limited(), attempts=2)
    ran.assert_failed_with(RetryLater, match="to be tried again in 60 s")
    assert isinstance(ran.error, RetryLater)
    assert "ConnectionError: 429 Too Many Requests" in tracebacks.full(ran.error)


def test_it_keeps_its_seconds_and_message() -> None:
    error = RetryLater(timedelta(minutes=2), "the service is busy")
    assert (error.retry_after, str(error)) == (120, "the service is busy")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.retry_after, str(again)) == (RetryLater, 120, str(error))


@pytest.mark.parametrize("seconds", ["60", None, True, -1, float("nan"), float("inf"), 1e12])
def test_what_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="RetryLater takes seconds"):
        RetryLater(seconds)
