"""Durable steps on the memory backend: kept values, sleeps, events, cursors, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from qframe import Queueable, QueueManager, Secret, dispatch, manager
from qframe.connection import Connection
from qframe.contracts.status import State
from qframe.contracts.step import Outcome, Result, Set, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import (
    BackendUnavailable,
    EventTimedOut,
    InvalidPayload,
    InvalidSignature,
    InvalidStep,
    JobGivenBack,
    JobSuspended,
    LeaseLost,
    ResultTooLarge,
)
from qframe.features.all import FEATURES
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.features.steps import (
    MAX_VALUE,
    event_key,
    forget_of,
    index_key,
    value_key,
    waits_key,
)
from qframe.payload.encryption import Keyring, new_key
from qframe.payload.signature import Signer
from qframe.testing import drain
from qframe.worker import outcome
from qframe.worker.limits import JobFacts, Limits
from qframe.worker.options import WorkerOptions
from tests.conftest import settings_of
from tests.features.harness import Bench

_OF_STEPS = {"steps", "waits", "event"}
U = "3f0c7a52-0000-7000-8000-000000000001"


class Line(BaseModel):
    amount: Decimal
    at: datetime


@pytest.fixture
def bench() -> Bench:
    made = Bench(FEATURES)
    made.push(U)
    return made


def again(bench: Bench, job: ReservedJob, state: State = State.RELEASED) -> ReservedJob:
    """End an attempt and begin the next."""
    job.settle(End(state, error=ValueError("boom"), how="error"))
    return bench.started()


def suspended(job: ReservedJob, raised: JobSuspended) -> End:
    """Settle a job as a worker does after this, and give the end."""
    limits = Limits(None, job.payload, WorkerOptions())
    verdict = outcome.decide(raised, JobFacts.of(job), limits)
    assert verdict.outcome is outcome.JobOutcome.GIVEN_BACK
    job.settle(verdict.end)
    return verdict.end


def kept(bench: Bench) -> list[str]:
    """Give the keys of all facts of jobs."""
    keys = [key for key, _ in bench.backend.scan("")]
    return [key for key in keys if key.startswith(("steps:", "event:", "waits:"))]


def send(bench: Bench, name: str, value: str) -> bool:
    from qframe.dispatch import calls, event

    class Place:
        context = bench.context
        backend = bench.backend

    return calls.run(event.send_on(Place(), U, name, value))  # type: ignore[arg-type] # all it uses


class Times:
    """A function that counts its calls."""

    def __init__(self, gives: Any = None) -> None:
        self.calls = 0
        self.gives = gives

    def __call__(self, *args: object, **kwargs: object) -> Any:
        self.calls += 1
        return [self.gives, *args, *kwargs.values()] if args or kwargs else self.gives


# -- steps ----------------------------------------------------------------------------------------


def test_a_step_is_called_once_and_later_attempts_get_its_value(bench: Bench) -> None:
    charge = Times({"id": 7})
    job = bench.started()
    assert job.step("charge", charge) == {"id": 7}
    job = again(bench, job)
    assert job.step("charge", charge) == {"id": 7}
    job = again(bench, job)
    assert job.step("charge", charge) == {"id": 7}
    assert charge.calls == 1
    job.delete()
    assert kept(bench) == []


def test_arguments_are_passed(bench: Bench) -> None:
    assert bench.started().step("x", Times(1), 2, three=3) == [1, 2, 3]


def money() -> Decimal:
    return Decimal("0.10")


def when() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)


def line() -> Line:
    return Line(amount=Decimal(3), at=when())


def many() -> dict[int, tuple[Line, ...]]:
    return {2**70: (line(),)}


def none() -> None:
    return None


async def later() -> timedelta:
    await asyncio.sleep(0)
    return timedelta(seconds=1.5)


@pytest.mark.parametrize("function", [money, when, line, many, none, partial(money), lambda: [1]])
def test_a_value_comes_back_as_its_type(bench: Bench, function: Any) -> None:
    job = bench.started()
    first = job.step("it", function)
    job = again(bench, job)
    second = job.step("it", function)
    assert first == second == function()
    assert type(first) is type(second)


def test_an_async_function_is_awaited_wherever_it_is_called(bench: Bench) -> None:
    async def both(job: ReservedJob) -> Sequence[timedelta]:
        return await asyncio.gather(job.step("a", later), job.step("b", later))

    job = bench.started()
    assert [*asyncio.run(both(job))] == [timedelta(seconds=1.5)] * 2
    job = again(bench, job)
    assert [*asyncio.run(both(job))] == [timedelta(seconds=1.5)] * 2
    with pytest.raises(InvalidStep, match="pass the async def"):
        job.step("c", lambda: later())  # type: ignore[unused-coroutine] # noqa: PLW0108 (that is the mistake)


def test_what_raises_keeps_nothing(bench: Bench) -> None:
    job = bench.started()
    with pytest.raises(ZeroDivisionError):
        job.step("bad", lambda: 1 // 0)
    job = again(bench, job)
    assert job.step("bad", lambda: 1) == 1


def unclear() -> Any:
    return Decimal(1)


def wrong() -> int:
    return "x"  # type: ignore[return-value]


def untold() -> Nowhere:  # type: ignore[name-defined] # noqa: F821 (that is the point)
    return 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unclear, "unclear: Decimal('1') cannot be kept"),
        (lambda: {1}, "cannot be kept"),
        (lambda: float("nan"), "cannot be kept"),
        (wrong, "wrong: 'x' cannot be kept"),
        (untold, "return annotation of untold"),
    ],
)
def test_what_would_not_come_back_is_refused_before_it_is_kept(
    bench: Bench, function: Any, words: str
) -> None:
    job = bench.started()
    with pytest.raises(InvalidStep) as refused:
        job.step("it", function)
    assert words in str(refused.value)
    assert value_key(U, "it") not in kept(bench)


def test_a_large_value_is_refused(bench: Bench) -> None:
    job = bench.started()
    with pytest.raises(ResultTooLarge, match="65,537 bytes"):
        job.step("it", lambda: "x" * (MAX_VALUE - 1))
    job.step("more", lambda: "x" * (MAX_VALUE - 2))


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", 7, None])
def test_a_name_is_a_short_line(bench: Bench, name: Any) -> None:
    with pytest.raises(InvalidStep, match="no name of a step"):
        bench.started().step(name, Times())


def test_a_name_is_used_once_in_an_attempt(bench: Bench) -> None:
    job = bench.started()
    job.step("a", Times())
    with pytest.raises(InvalidStep, match="has used the name 'a' before"):
        job.step("a", Times())
    with pytest.raises(InvalidStep, match="before"):
        job.sleep("a", 1)
    job = again(bench, job)
    with pytest.raises(InvalidStep, match="a is a step of this job: give another name"):
        job.sleep("a", 1)


def test_a_deploy_may_rename_and_reorder_steps(bench: Bench) -> None:
    job = bench.started()
    for name in ("a", "b", "gone"):
        job.step(name, Times(name))
    job = again(bench, job)
    functions = {name: Times("anew") for name in ("new", "b", "a")}
    assert [job.step(*each) for each in functions.items()] == ["anew", "b", "a"]
    assert [each.calls for each in functions.values()] == [1, 0, 0]
    assert value_key(U, "gone") in kept(bench)
    job.delete()
    assert kept(bench) == []


def test_a_late_worker_writes_nothing(bench: Bench) -> None:
    late = bench.started()
    late.step("a", Times(1))
    bench.backend.timing.skew += 61
    other = bench.started()
    for do in (
        lambda: late.step("b", Times("late")),
        lambda: late.sleep("c", 5),
        lambda: late.checkpoint("d", 5),
    ):
        late.state = ""
        with pytest.raises(LeaseLost):
            do()
    assert other.step("a", Times(2)) == 1
    assert other.step("b", Times("other")) == "other"
    assert kept(bench) == [index_key(U), value_key(U, "a"), value_key(U, "b")]


def test_of_two_jobs_with_one_uuid_the_first_value_stays(bench: Bench) -> None:
    first = bench.started()
    bench.push(U)
    second = bench.started()
    second.step("other", Times())  # it has read what is kept
    assert first.step("a", Times("first")) == "first"
    assert second.step("a", Times("second")) == "first"
    assert first.step("b", Times("b")) == "b"


def test_a_lost_answer_counts_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job, apply, lost = bench.started(), bench.backend.apply, list[int]()

    def losing(*steps: Step) -> list[Result]:
        results = apply(*steps)
        if not lost:
            lost.append(1)
            raise BackendUnavailable("its answer was lost")
        return results

    monkeypatch.setattr(MemoryBackend, "apply", lambda _, *steps: losing(*steps))
    charge = Times("x")
    assert job.step("a", charge) == "x"
    assert lost
    assert charge.calls == 1
    monkeypatch.undo()
    assert again(bench, job).step("a", charge) == "x"
    assert charge.calls == 1


def test_a_backend_that_is_away_for_a_moment_costs_no_second_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, apply, away = bench.started(), bench.backend.apply, [1, 1]

    def missing(*steps: Step) -> list[Result]:
        if away:
            away.pop()
            raise BackendUnavailable("away")
        return apply(*steps)

    monkeypatch.setattr(MemoryBackend, "apply", lambda _, *steps: missing(*steps))
    assert job.step("a", Times("x")) == "x"
    assert not away


def test_a_value_that_fits_no_more_is_said_to(bench: Bench) -> None:
    job = bench.started()
    job.step("a", money)
    job = again(bench, job)
    with pytest.raises(InvalidStep, match="what an earlier attempt kept of line does not fit"):
        job.step("a", line)


# -- sleeps ---------------------------------------------------------------------------------------


def test_a_sleep_ends_the_attempt_uncounted_and_is_passed_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Times("before")
    job = bench.started()
    job.step("a", before)
    with pytest.raises(JobSuspended) as raised:
        job.sleep("cool off", timedelta(days=3))
    end = suspended(job, raised.value)
    assert (end.state, end.remark) == (State.WAITING, "sleeps: cool off")
    assert bench.backend.sizes("q").delayed == 1
    assert not bench.backend.reserve(["q"])[0]
    bench.backend.timing.skew += 3 * 86400
    now = time.time() + 3 * 86400
    monkeypatch.setattr(time, "time", lambda: now)
    job = bench.started()
    assert job.attempts() == 1
    assert job.history.steps
    assert [each.number for each in job.history.attempts] == [1]
    job.step("a", before)
    job.sleep("cool off", timedelta(days=3))
    assert before.calls == 1
    job.delete()
    assert kept(bench) == []


def test_a_job_that_has_slept_has_begun_and_does_not_expire() -> None:
    bench = Bench(FEATURES)
    bench.push(U, expiresAt=time.time() - 1)
    job = bench.held()
    limits = Limits(None, job.payload, WorkerOptions())
    assert limits.expired(JobFacts.of(job))
    bench.backend.apply(job.start_plan())
    with pytest.raises(JobSuspended) as raised:
        job.sleep("a", 5)
    suspended(job, raised.value)
    bench.backend.timing.skew += 5
    job = bench.held()
    assert not job.attempts()
    assert not limits.expired(JobFacts.of(job))


def test_a_long_sleep_outlives_what_is_kept(bench: Bench) -> None:
    job = bench.started()
    job.step("a", Times("kept"))
    with pytest.raises(JobSuspended) as raised:
        job.sleep("year", timedelta(days=365))
    suspended(job, raised.value)
    bench.backend.timing.skew += 365 * 86400
    assert bench.started().step("a", Times("anew")) == "kept"


@pytest.mark.parametrize("end", ["sleeps", "is released"])
def test_what_is_kept_outlives_a_hundred_days_of_small_steps(bench: Bench, end: str) -> None:
    for day in range(100):
        job = bench.started()
        assert job.step("a", Times(day)) == 0, "done again"
        if end == "sleeps":
            with pytest.raises(JobSuspended) as raised:
                job.sleep(f"day {day}", timedelta(days=1))
            suspended(job, raised.value)
        else:
            job.step(f"day {day}", Times(day))
            job.settle(End(State.RELEASED, 86400, how="released"))
        bench.backend.timing.skew += 86400


def test_what_is_kept_outlives_a_long_delay_of_a_release(bench: Bench) -> None:
    job = bench.started()
    job.step("a", Times("kept"))
    job.settle(End(State.RELEASED, 100 * 86400, how="released"))
    bench.backend.timing.skew += 100 * 86400
    assert bench.started().step("a", Times("anew")) == "kept"


def test_a_past_moment_is_no_sleep(bench: Bench) -> None:
    job = bench.started()
    job.sleep("a", 0)
    with pytest.raises(ValueError, match="negative"):
        job.sleep("b", -1)


# -- events ---------------------------------------------------------------------------------------


def test_an_event_sent_before_is_found_and_taken_once(bench: Bench) -> None:
    assert send(bench, "paid", '{"by":"card"}')
    assert not send(bench, "paid", '"again"')
    assert not send(bench, "paid", '{"by":"card"}')
    job = bench.started()
    assert job.wait_for_event("paid", 60) == {"by": "card"}
    assert event_key(U, "paid") not in kept(bench)
    assert not send(bench, "paid", '"late"')
    job = again(bench, job)
    assert job.wait_for_event("paid", 60) == {"by": "card"}
    job.delete()
    assert kept(bench) == []


def test_an_event_wakes_the_job_that_waits_for_it(bench: Bench) -> None:
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 86_400)
    suspended(job, raised.value)
    assert not bench.backend.reserve(["q"])[0]
    send(bench, "other", "1")
    assert not bench.backend.reserve(["q"])[0]
    send(bench, "paid", "7")
    job = bench.started()
    assert (job.attempts(), job.wait_for_event("paid", 86_400)) == (1, 7)


def test_an_event_sent_while_the_attempt_ends_is_not_lost(bench: Bench) -> None:
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 86_400)
    send(bench, "paid", "7")  # the job is not released yet
    suspended(job, raised.value)
    assert bench.backend.sizes("q").ready == 1
    assert bench.started().wait_for_event("paid", 86_400) == 7


def test_an_event_sent_within_the_last_step_refuses_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 86_400)
    apply, refused = bench.backend.apply, list[Result]()

    def overtaken(*steps: Step) -> list[Result]:
        monkeypatch.undo()
        send(bench, "paid", "7")
        refused.extend(apply(*steps))
        return refused

    monkeypatch.setattr(MemoryBackend, "apply", lambda _, *steps: overtaken(*steps))
    suspended(job, raised.value)
    assert [each.outcome for each in refused] == [Outcome.REFUSED]
    assert bench.started().wait_for_event("paid", 86_400) == 7


def test_an_event_that_does_not_come_times_out_for_good(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 10)
    suspended(job, raised.value)
    bench.backend.timing.skew += 10
    now = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: now)
    job = bench.started()
    with pytest.raises(EventTimedOut, match="paid"):
        job.wait_for_event("paid", 10)
    assert not send(bench, "paid", "1")
    job = again(bench, job)
    with pytest.raises(EventTimedOut, match="paid"):
        job.wait_for_event("paid", 10)
    job.delete()
    assert kept(bench) == []


@pytest.fixture
def late(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> ReservedJob:
    """Give a job that has waited for an event in vain, and is about to say so."""
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.wait_for_event("paid", 10)
    suspended(job, raised.value)
    bench.backend.timing.skew += 10
    now = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: now)
    return bench.started()


def just_before(text: str, what: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen just before a step is applied that writes this text."""
    apply = MemoryBackend.apply

    def overtaken(backend: MemoryBackend, *steps: Step) -> list[Result]:
        written = [each.value for step in steps for each in step.operations if type(each) is Set]
        if any(text in each for each in written):
            with monkeypatch.context() as patched:
                patched.setattr(MemoryBackend, "apply", apply)
                what()
        return apply(backend, *steps)

    monkeypatch.setattr(MemoryBackend, "apply", overtaken)


def test_an_event_sent_while_the_wait_times_out_counts(
    bench: Bench, late: ReservedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[bool]()
    just_before("timed out", lambda: sent.append(send(bench, "paid", "7")), monkeypatch)
    assert late.wait_for_event("paid", 10) == 7
    assert sent == [True]


def test_an_event_is_said_to_count_only_if_the_wait_has_not_timed_out(
    bench: Bench, late: ReservedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times_out() -> None:
        with pytest.raises(EventTimedOut):
            late.wait_for_event("paid", 10)

    just_before('"event text"', times_out, monkeypatch)
    assert not send(bench, "paid", '"event text"')
    late.delete()
    assert kept(bench) == []


# -- cursors --------------------------------------------------------------------------------------


def test_a_cursor_is_kept_now_and_then_and_at_the_end(bench: Bench) -> None:
    job = bench.started()
    assert job.cursor("pages", 0) == 0
    for page in range(1, 50):
        job.checkpoint("pages", page)
    assert job.cursor("pages", 0) == 49
    job = again(bench, job)
    assert job.cursor("pages", 0) == 49
    job.checkpoint("pages", 50)
    job.delete()
    assert kept(bench) == []


def test_a_killed_worker_loses_a_second_of_a_cursor(bench: Bench) -> None:
    job = bench.started()
    job.checkpoint("pages", 1)
    job.checkpoint("pages", 2)
    bench.backend.timing.skew += 61
    assert bench.started().cursor("pages", 0) == 1


def test_a_cursor_has_the_type_of_its_default(bench: Bench) -> None:
    job = bench.started()
    job.cursor("day", when())
    job.checkpoint("day", when() + timedelta(days=1))
    job = again(bench, job)
    assert job.cursor("day", when()) == when() + timedelta(days=1)
    with pytest.raises(InvalidStep, match="cannot be kept"):
        job.checkpoint("untyped", when())
    assert job.cursor("none", None) is None


class Stops:
    quit = False


def test_when_the_worker_stops_a_checkpoint_is_kept_at_once(bench: Bench) -> None:
    job = bench.started()
    stops = job.stops = Stops()
    before = job.is_stopping
    assert not before
    job.checkpoint("pages", 1)
    stops.quit = True
    assert job.is_stopping
    job.checkpoint("pages", 2)
    job.gives_back = True
    with pytest.raises(JobGivenBack):
        job.checkpoint("pages", 3)
    bench.backend.timing.skew += 61
    assert bench.started().cursor("pages", 0) == 3


# -- the end --------------------------------------------------------------------------------------


def test_after_a_failure_everything_stays(bench: Bench) -> None:
    job = bench.started()
    job.step("a", Times(1))
    job.checkpoint("c", 1)
    job.checkpoint("c", 2)
    job.settle(End(State.FAILED, error=ValueError("x")))
    bench.backend.timing.skew += 300 * 86400
    record = bench.backend.find_failed(U)
    assert record is not None
    assert record.history.steps
    bench.push(U, steps=True)
    job = bench.started()
    assert job.step("a", Times(2)) == 1
    assert job.cursor("c", 0) == 2
    job.delete()
    assert kept(bench) == []


@pytest.mark.parametrize("state", [State.COMPLETE, State.SKIPPED, State.CANCELLED])
def test_a_later_attempt_that_uses_none_removes_them_too(bench: Bench, state: State) -> None:
    job = bench.started()
    job.step("a", Times(1))
    job = again(bench, job)
    job.settle(End(state))
    assert kept(bench) == []


def test_a_plain_job_has_nothing_of_this(bench: Bench) -> None:
    job = bench.started()
    assert job.features == ()
    job = again(bench, job)
    assert job.features == ()
    assert not job.history.steps


# -- what is hidden -------------------------------------------------------------------------------


def test_kept_values_are_signed_for_their_place() -> None:
    bench = Bench(FEATURES, signer=Signer([new_key()]))
    bench.push(U)
    job = bench.started()
    job.step("a", Times(1))
    job.step("b", Times(2))
    a, b = bench.backend.read(value_key(U, "a"), value_key(U, "b"))
    assert a is not None
    assert a.startswith('{"signature"')
    from qframe.contracts.step import Set

    bench.backend.apply(Step(None, Set(value_key(U, "a"), b or "")))
    job = again(bench, job)
    with pytest.raises(InvalidSignature):
        job.step("a", Times(1))


def test_values_of_an_encrypted_job_are_encrypted() -> None:
    bench = Bench(FEATURES)
    bench.context.keyring = Keyring([new_key()])
    data = bench.context.keyring.sealed("app.Demo", b'{"job":"app.Demo","data":{}}')
    bench.push(U, data=data)
    job = bench.started()
    job.step("a", lambda: "top secret")
    send(bench, "paid", '"very secret"')
    assert "secret" not in str(bench.backend.scan(""))
    job = again(bench, job)
    assert job.step("a", Times()) == "top secret"
    assert job.wait_for_event("paid", 5) == "very secret"


def token() -> Secret[str]:
    return Secret("hidden")


def test_a_secret_comes_back_as_one_and_is_marked(bench: Bench) -> None:
    job = bench.started()
    assert job.step("a", token).reveal() == "hidden"
    (index,) = bench.backend.read(index_key(U))
    assert index is not None
    assert ",true," in index
    job = again(bench, job)
    assert job.step("a", token) == Secret("hidden")


@pytest.mark.parametrize("flushed", [True, False])
def test_a_checkpoint_of_a_secret_is_marked(bench: Bench, flushed: bool) -> None:
    job = bench.started()
    job.cursor("page", Secret("none"))
    job.checkpoint("page", Secret("first"))
    if not flushed:
        job.checkpoint("page", Secret("second"))
    job = again(bench, job)
    (index,) = bench.backend.read(index_key(U))
    assert index is not None
    assert ",true," in index
    assert job.cursor("page", Secret("none")) == Secret("first" if flushed else "second")


@pytest.mark.parametrize("text", ["[1", "7", '{"a": 1}', '{"a": [1]}'])
@pytest.mark.parametrize("state", [State.COMPLETE, State.CANCELLED, State.FAILED, State.RELEASED])
def test_a_job_whose_steps_cannot_be_read_ends_all_the_same(
    bench: Bench, state: State, text: str
) -> None:
    job = bench.started()
    job.step("a", Times("kept"))
    again(bench, job).release()
    bench.backend.apply(Step(None, Set(index_key(U), text)))
    job = bench.started()
    with pytest.raises(InvalidPayload):
        job.step("b", Times())
    job.settle(End(state, error=ValueError("boom"), how="error"))
    if state is State.FAILED:
        (record,) = bench.backend.list_failed(1, None, None)
        forget_of(bench.context, record)
    assert (index_key(U) in kept(bench)) is (state is State.RELEASED)


def test_where_a_job_waits_is_removed_at_its_next_start(bench: Bench) -> None:
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.sleep("a", 5)
    suspended(job, raised.value)
    assert waits_key(U) in kept(bench)
    bench.backend.timing.skew += 5
    bench.started()
    assert waits_key(U) not in kept(bench)


# -- with other features --------------------------------------------------------------------------


def asleep(bench: Bench, seconds: float) -> ReservedJob:
    """Let the next job sleep."""
    job = bench.started()
    with pytest.raises(JobSuspended) as raised:
        job.sleep("nap", seconds)
    suspended(job, raised.value)
    return job


def test_a_unique_job_keeps_its_lock_while_it_sleeps() -> None:
    lock = {"key": "unique:app.Demo:1", "for": 60, "until": "handled"}
    bench = Bench(FEATURES)
    bench.push(U, unique=lock)
    asleep(bench, 600)
    bench.backend.timing.skew += 600
    assert bench.push("other", unique=lock) == U
    bench.started().delete()
    assert bench.push("other", unique=lock) == ""


@pytest.mark.parametrize("of", ["chain", "batch"])
def test_one_of_many_sleeps_no_longer_than_they_are_kept(of: str) -> None:
    bench = Bench(FEATURES)
    keys: Any = {of: {"id": "c", "number": 0}}
    bench.push(U, **keys)
    job = bench.started()
    with pytest.raises(InvalidStep, match="for 29 days at a time"):
        job.sleep("nap", timedelta(days=30))
    with pytest.raises(JobSuspended):
        job.sleep("shorter", timedelta(days=29))


class Sleeps(Queueable):
    queue: ClassVar[str | None] = "mail"

    def handle(self) -> None:
        self.step("a", lambda: 7)
        if self.attempts == 1:
            self.release(60)
        else:
            self.sleep("nap", 60)


@pytest.fixture(params=["memory", "database", "redis"])
def queue(request: pytest.FixtureRequest, fresh: Path) -> Connection:
    here = {**settings_of(request), "retry_after": 60}
    made = {"root": fresh, "default": "here", "connections": {"here": here}, "jobs": [__name__]}
    manager.use(QueueManager(made))
    return manager.default().connection()


def test_a_clear_removes_what_is_kept_of_jobs_that_sleep_or_are_tried_again(
    queue: Connection,
) -> None:
    for _ in range(2):
        dispatch(Sleeps()).send()
        drain(queues="mail")
        queue.backend.timing.skew += 61
    dispatch(Sleeps()).on_queue("other").send()
    drain(queues="other")
    assert queue.clear("mail") == 2
    left = {key.split(":")[0] for key, _ in queue.backend.scan("") if key[:5] in _OF_STEPS}
    assert left == {"steps"}, "of the other queue"
    assert queue.clear("other") == 1
    assert not [key for key, _ in queue.backend.scan("") if key[:5] in _OF_STEPS]


@pytest.mark.parametrize("state", [State.CANCELLED, State.SKIPPED])
def test_a_sleeping_job_that_is_taken_away_leaves_nothing(bench: Bench, state: State) -> None:
    asleep(bench, 600)
    (found,) = bench.backend.search("q", U.encode())
    reservation = bench.backend.take(found)
    assert reservation is not None
    ReservedJob(bench.context, reservation).settle(End(state))
    assert kept(bench) == []
