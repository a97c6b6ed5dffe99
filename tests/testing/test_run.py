from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import InvalidJob, QframeError, QueueManager, events, foreign, manager
from qframe.testing import Ran, fake, run
from tests.testing.jobs import (
    Counted,
    Hidden,
    Limited,
    OneAtOnce,
    OnSync,
    Parent,
    SendWelcome,
    Settling,
    add,
    add_slowly,
    use,
)


@pytest.fixture(autouse=True)
def nothing_is_stored(fresh: Path) -> Iterator[None]:
    Settling.seen.clear()
    yield
    assert list(fresh.iterdir()) == []


def words(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


class TestOutcomes:
    def test_done(self) -> None:
        ran = run(SendWelcome(user_id=7))
        ran.assert_done()
        ran.assert_not_released()
        ran.assert_not_failed()
        assert (ran.result, ran.error, ran.outcome, ran.delay) == ("hello, 7", None, "done", None)
        assert words(ran.assert_released) == (
            "expected SendWelcome(user_id=7, text='hello') to be released, but it was done "
            "(attempt 1)"
        )

    def test_functions_also_async_ones_also_inside_a_loop(self) -> None:
        assert run(add.job(1)).result == 3
        assert run(add_slowly.job(1)).result == 2

        async def inside() -> Ran:
            return run(add_slowly.job(2))

        assert asyncio.run(inside()).result == 3

    def test_released(self) -> None:
        ran = run(Settling(how="release"))
        ran.assert_released()
        ran.assert_released(10)
        ran.assert_not_failed()
        assert words(ran.assert_released, 5) == (
            "expected Settling(how='release') to be released after 5 s, but it was released after "
            "10 s (attempt 1)"
        )
        assert "not to be released, but it was released after 10 s" in words(
            ran.assert_not_released
        )
        run(Settling(how="release at once")).assert_released(0)
        assert "to be done, but it was released at once" in words(
            run(Settling(how="release at once")).assert_done
        )

    def test_deleted(self) -> None:
        ran = run(Settling(how="delete"))
        ran.assert_deleted()
        ran.assert_done()
        assert "but it deleted itself" in words(ran.assert_skipped)
        assert "to delete itself, but it was done" in words(
            run(Settling(how="nothing")).assert_deleted
        )

    def test_failed_by_hand(self) -> None:
        ran = run(Settling(how="fail"))
        ran.assert_failed()
        ran.assert_failed_with(KeyError)
        ran.assert_failed_with((ValueError, KeyError), match="by h.nd")
        assert isinstance(Settling.seen[-1], KeyError)

    def test_failed_by_raising(self) -> None:
        ran = run(Settling(how="raise"))
        ran.assert_failed_with(ValueError, match="it broke")
        with pytest.raises(AssertionError) as caught:
            ran.assert_failed_with(KeyError, match="x")
        assert str(caught.value) == (
            "expected Settling(how='raise') to fail with KeyError matching 'x', but it failed with "
            "ValueError: it broke (attempt 1)"
        )
        assert caught.value.__cause__ is ran.error  # so pytest shows where the job raised it
        assert "not to fail, but" in words(ran.assert_not_failed)
        assert "to be done, but" in words(ran.assert_done)

    def test_retried(self) -> None:
        ran = run(SendWelcome(user_id=0))
        ran.assert_retried()
        ran.assert_retried(1)
        ran.assert_not_failed()
        ran.assert_not_released()
        assert words(ran.assert_failed_with, ValueError) == (
            "expected SendWelcome(user_id=0, text='hello') to fail with ValueError, but it raised "
            "ValueError: nobody has number 0 and is tried again after 1 s (attempt 1)"
        )
        run(SendWelcome(user_id=0), attempts=2).assert_retried(5)
        run(SendWelcome(user_id=0), attempts=3).assert_failed_with(ValueError)
        run(SendWelcome(user_id=0), attempts=3, releases=1).assert_retried(5)

    def test_too_many_exceptions(self) -> None:
        run(Counted()).assert_retried()
        run(Counted(), attempts=2).assert_failed()
        run(Counted(), attempts=2, releases=1).assert_retried()

    def test_skipped(self) -> None:
        ran = run(Settling(how="skip"))
        ran.assert_skipped()
        assert ran.reason == "not today"
        assert "but it was skipped: not today" in words(ran.assert_done)

    def test_an_interrupt_of_the_test_is_passed_on(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            run(Settling(how="stop the test"))

    def test_what_it_looks_like(self) -> None:
        assert repr(run(Settling(how="delete"))) == (
            "<ran Settling(how='delete'): it deleted itself>"
        )


class TestInteractions:
    def test_what_the_job_sees(self) -> None:
        use(other={"driver": "null", "queue": "o"})
        run(Settling(how="x"), attempts=4)
        assert Settling.seen == [(4, "default", "database"), "succeeded"]

    def test_it_runs_what_arrives(self) -> None:
        job = SendWelcome(user_id=1)
        ran = run(job)
        assert ran.job == job
        assert ran.job is not job

    def test_progress(self) -> None:
        assert run(Settling(how="progress")).progress == [(0.25, "a quarter"), (1, "")]

    def test_listeners_hear_what_a_worker_tells(self) -> None:
        heard: list[str] = []
        events.listen(events.JobEvent)(lambda event: heard.append(type(event).__name__))
        run(SendWelcome(user_id=0))
        assert heard == [
            "JobProcessing",
            "JobExceptionOccurred",
            "JobReleasedAfterException",
            "JobAttempted",
        ]

    def test_what_it_dispatches_can_be_faked(self) -> None:
        with fake() as queued:
            run(Parent()).assert_done()
        assert [job.user_id for job in queued.jobs(SendWelcome)] == [1, 2]

    def test_encrypted_unique_and_sync_jobs(self) -> None:
        manager.use(QueueManager({"encryption_keys": ["k" * 43 + "="]}))
        assert run(Hidden(card="c")).result == "c"
        run(OneAtOnce(account=1)).assert_done()
        run(OneAtOnce(account=1)).assert_done()
        assert run(OnSync(number=3)).result == 3

    def test_the_manager_is_put_back(self) -> None:
        before = manager.default()
        run(Settling(how="raise"))
        assert manager.default() is before

    def test_what_is_no_job_of_this_program_is_refused(self) -> None:
        with pytest.raises(InvalidJob, match="run takes a job, not"):
            run(foreign("App\\Job"))  # type: ignore[arg-type] # the point
        with pytest.raises(ValueError, match="attempts is 1 or more"):
            run(add.job(1), attempts=0)
        with pytest.raises(ValueError, match="releases fewer"):
            run(add.job(1), attempts=2, releases=2)


class TestMiddleware:
    def test_it_is_gone_through_with_limits_of_the_run_s_own(self) -> None:
        run(Limited()).assert_done()
        run(Limited()).assert_done()

    def test_inside_a_fake_limits_are_kept(self) -> None:
        with fake():
            run(Limited()).assert_done()
            run(Limited()).assert_released()
            run(Limited(), with_middleware=False).assert_done()

    def test_the_configured_one_too(self) -> None:
        manager.use(QueueManager({"middleware": ["tests.testing.test_run:refuse"]}))
        ran = run(Settling(how="x"))
        ran.assert_failed_with(QframeError, match="refused")
        run(Settling(how="x"), with_middleware=False).assert_done()


def refuse(job: Settling, call_next: Any) -> None:
    raise QframeError("refused")
