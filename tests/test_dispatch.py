from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import gc
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from qframe import (
    BackendUnavailable,
    ConfigurationError,
    InvalidJob,
    InvalidQueueName,
    PayloadTooLarge,
    PendingDispatch,
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    abulk,
    batch,
    bulk,
    chain,
    dispatch,
    dispatch_if,
    dispatch_sync,
    dispatch_unless,
    events,
    manager,
)
from qframe.connection import Connection
from qframe.contracts import Sizes
from qframe.dispatch import draft, pusher
from qframe.dispatch.draft import flush
from qframe.drivers import guard
from qframe.hooks import of_process
from qframe.jobs import references
from qframe.jobs.definition import JobDefinition
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import Finished, Project


class Job(Queueable):
    number: Any = 0

    def handle(self) -> Any:
        return self.number


class Placed(Queueable):
    queue = "placed"
    delay = 60

    def handle(self) -> None:
        pass


class Now(Queueable):
    connection = "sync"

    def handle(self) -> None:
        pass


class Other(Queueable):
    connection = "other"
    value: Any = None

    def handle(self) -> None:
        pass


class Large(Other):
    unique = True


class Hyphened(Other):
    queue = "-"


class Nowhere(Queueable):
    connection = "nowhere"

    def handle(self) -> None:
        pass


@pytest.fixture
def queue(fresh: Path) -> Connection:
    """Give the default connection; `other` is a second database."""
    settings = {
        "root": str(fresh),
        "connections": {"other": {"driver": "database", "url": "sqlite:///other.sqlite3"}},
    }
    manager.use(QueueManager(settings))
    return manager.default().connection()


def numbers(queue: Connection, name: str = "default") -> list[Any]:
    """Take the ready jobs of a queue and give their numbers, in order."""
    queue.backend.timing.hold = 600  # none comes back while the others are taken
    return [job.payload["data"].get("number") for job in queue.reserve([name], 1000)]


@contextlib.contextmanager
def refusing(queue: Connection, times: int = 10**6) -> Iterator[list[float]]:
    """Let a connection not answer the first `times` pushes; gives when they were tried."""
    tried: list[float] = []
    apply = queue.backend.apply

    def refuse(*args: Any, **kwargs: Any) -> Any:
        tried.append(time.monotonic())
        if len(tried) <= times:
            raise BackendUnavailable("the backend is away")
        return apply(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.backend, "apply", refuse)
        yield tried


# -- sending ------------------------------------------------------------------------------------


def test_send_gives_the_id_and_a_second_time_the_same(queue: Connection) -> None:
    pending = dispatch(Job())
    identity = pending.send()
    assert identity == pending.send() == pending.id
    (job,) = queue.reserve(["default"], 10)
    assert (job.uuid, job.payload["id"]) == (identity, identity)
    assert queue.size() == 1


def test_the_id_alone_sends(queue: Connection) -> None:
    assert len(dispatch(Job()).id) == 36
    assert queue.size() == 1


def test_a_sent_dispatch_is_not_sent_again_when_it_is_dropped(queue: Connection) -> None:
    pending = dispatch(Job())
    pending.send()
    del pending
    gc.collect()
    assert queue.size() == 1


def test_it_shows_what_it_is(queue: Connection) -> None:
    pending = dispatch(Job())
    assert repr(pending) == "<PendingDispatch tests.test_dispatch.Job pending>"
    pending.send()
    assert repr(pending) == "<PendingDispatch tests.test_dispatch.Job sent>"


def test_fluent_calls_may_come_in_any_order(queue: Connection) -> None:
    dispatch(Job()).delay(30).on_queue("high").on_connection("other").send()
    other = manager.default().connection("other")
    assert other.sizes("high") == Sizes(delayed=1)
    assert queue.size("high") == 0


def test_the_options_of_the_class_are_where_it_goes_unless_said_otherwise(
    queue: Connection,
) -> None:
    dispatch(Placed()).send()
    dispatch(Placed()).on_queue("else").delay(0).send()
    dispatch(Other()).send()
    assert queue.sizes("placed") == Sizes(delayed=1)
    assert queue.sizes("else") == Sizes(ready=1)
    assert manager.default().connection("other").size() == 1


@pytest.mark.parametrize(
    "delay", [60, 0.5, timedelta(minutes=5), datetime.now(UTC) + timedelta(hours=1)]
)
def test_a_delay_is_seconds_a_timedelta_or_an_aware_datetime(queue: Connection, delay: Any) -> None:
    dispatch(Job()).delay(delay).send()
    assert queue.sizes() == Sizes(delayed=1)


@pytest.mark.parametrize(
    "delay", [0, timedelta(0), datetime(2001, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]
)
def test_no_delay_and_the_past_mean_now(queue: Connection, delay: Any) -> None:
    dispatch(Job()).delay(delay).send()
    assert queue.sizes() == Sizes(ready=1)


@pytest.mark.parametrize(
    "delay",
    [-1, timedelta(seconds=-1), datetime(2030, 1, 1), True, float("inf"), float("nan"), "10", None],  # noqa: DTZ001
)
def test_a_wrong_delay_is_refused_and_nothing_is_pushed(queue: Connection, delay: Any) -> None:
    with pytest.raises(InvalidJob, match="delay"):
        dispatch(Job()).delay(delay)
    gc.collect()
    assert queue.sizes() == Sizes()


@pytest.mark.parametrize("name", ["a b", "a\n", "", "q" * 300, None])
def test_a_wrong_queue_name_is_refused_and_nothing_is_pushed(queue: Connection, name: Any) -> None:
    with pytest.raises(InvalidQueueName) as raised:
        dispatch(Job()).on_queue(name)
    assert str(raised.value).isprintable()
    gc.collect()
    assert queue.queues() == []


@pytest.mark.parametrize("name", [3, b"sync", ["sync"]])
def test_the_name_of_a_connection_is_text(queue: Connection, name: Any) -> None:
    for use in (dispatch(Job()), chain([Job()]), batch([Job()])):
        with pytest.raises(ConfigurationError, match="the name of a connection is text, not "):
            use.on_connection(name)
    assert queue.queues() == []


def test_an_unknown_connection_is_refused_naming_the_nearest(queue: Connection) -> None:
    with pytest.raises(ConfigurationError, match=r"'databse' \(did you mean 'database'\?\)"):
        dispatch(Job()).on_connection("databse")
    with pytest.raises(ConfigurationError, match="unknown connection 'nowhere'"):
        dispatch(Nowhere())
    gc.collect()
    assert queue.queues() == []


def test_a_chain_that_raised_in_its_middle_pushes_nothing_although_it_is_kept(
    queue: Connection,
) -> None:
    pending = dispatch(Job()).on_queue("first")
    with pytest.raises(InvalidJob):
        pending.delay(-1)
    del pending
    gc.collect()
    assert queue.queues() == []


def test_a_send_that_raised_pushes_nothing_behind_the_callers_back(queue: Connection) -> None:
    pending = dispatch(Job())
    with refusing(queue) as tried, pytest.raises(BackendUnavailable):
        pending.send()
    del pending
    gc.collect()
    assert len(tried) == 1
    assert queue.size() == 0


def test_a_send_that_raised_can_be_repeated(queue: Connection) -> None:
    pending = dispatch(Job())
    with refusing(queue, times=1):
        with pytest.raises(BackendUnavailable):
            pending.send()
        assert pending.send() == pending.id
    assert queue.size() == 1


@pytest.mark.parametrize("wrong", [Job, "app.jobs.Job", None, dispatch, {"job": 1}])
def test_dispatch_takes_a_job(queue: Connection, wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="dispatch takes a job, not") as raised:
        dispatch(wrong)
    if wrong is Job:
        assert "give Job(...)" in str(raised.value)


class Strange:
    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


@pytest.mark.parametrize("make", [Mock, Strange, type("line\nbreak", (), {}), lambda: Job, int])
def test_whatever_is_no_job_is_refused_in_one_line(
    queue: Connection, make: Callable[[], Any]
) -> None:
    wrong = make()
    calls: list[Any] = [dispatch, dispatch_sync, lambda given: bulk([given])]
    for call in calls:
        with pytest.raises(InvalidJob, match="dispatch takes a job, not") as raised:
            call(wrong)
        assert str(raised.value).isprintable()
    assert queue.size() == 0


@pytest.mark.parametrize("wrong", [Job, None, 7, Job.dispatch])
def test_what_is_no_list_of_jobs_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="bulk takes a list of jobs, not"):
        bulk(wrong)
    with pytest.raises(InvalidJob, match="bulk takes a list of jobs, not"):
        asyncio.run(abulk(wrong))


@pytest.mark.parametrize("flows", [False, True], ids=["alone", "where flows are used"])
def test_a_field_may_have_the_name_of_a_parameter(
    queue: Connection, monkeypatch: pytest.MonkeyPatch, *, flows: bool
) -> None:
    if flows:  # which make fields references, from then on
        monkeypatch.setattr(JobDefinition, "__new__", references._made, raising=False)
    names = {"cls": int, "self": int, "args": int, "fields": int, "job_class": int}
    body = {"__annotations__": names, "handle": lambda job: job.cls, "job_name": "names"}
    job_class: Any = type("Names", (Queueable,), body)
    given = dict.fromkeys(names, 7)
    job_class.dispatch(**given).send()
    assert queue.size() == 1
    assert job_class.dispatch_if(True, **given) is not None
    assert job_class.dispatch_sync(**given) == 7


@pytest.mark.parametrize("wrong", ["tomorrow", math.nan, -1, datetime(2030, 1, 1)])  # noqa: DTZ001 (it is about those)
def test_a_method_that_gives_no_deadline_is_named(queue: Connection, wrong: Any) -> None:
    body = {"handle": lambda _: None, "job_name": "until", "retry_until": lambda _: wrong}
    with pytest.raises(InvalidJob, match=r"^Until\.retry_until (must|is)"):
        dispatch(type("Until", (Queueable,), body)())
    assert queue.size() == 0


def test_a_veto_of_a_listener_stops_no_push(queue: Connection) -> None:
    events.listen(events.JobQueueing)(lambda _event: False)
    dispatch(Job()).send()
    assert queue.size() == 1


# -- on an event loop ---------------------------------------------------------------------------


def test_await_gives_the_id_and_does_not_block_the_loop(queue: Connection) -> None:
    apply = queue.backend.apply
    threads: list[int] = []

    def slow(*args: Any) -> Any:
        threads.append(threading.get_ident())
        time.sleep(0.3)
        return apply(*args)

    async def main() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        identity = await dispatch(Job()).on_queue("awaited")
        ticking.cancel()
        return identity, ticks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.backend, "apply", slow)
        identity, ticks = asyncio.run(main())
    assert len(identity) == 36
    assert ticks >= 5
    assert threads != [threading.get_ident()]
    assert queue.size("awaited") == 1


def test_await_raises_what_goes_wrong_and_pushes_nothing_later(queue: Connection) -> None:
    async def main() -> None:
        await dispatch(Job())

    with refusing(queue) as tried, pytest.raises(BackendUnavailable):
        asyncio.run(main())
    gc.collect()
    assert len(tried) == 1


def test_dropped_on_a_running_loop_it_is_sent_from_a_thread(queue: Connection) -> None:
    senders: list[str] = []
    events.listen(events.JobQueued)(lambda _e: senders.append(threading.current_thread().name))

    async def main() -> None:
        dispatch(Job())
        while not senders:  # noqa: ASYNC110 (a thread does it)
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert senders == ["qframe-pusher"]
    assert queue.size() == 1


# -- dropped ------------------------------------------------------------------------------------


def test_dropped_it_is_pushed_at_the_end_of_the_scope(queue: Connection) -> None:
    def scope() -> None:
        pending = dispatch(Job(number=1)).on_queue("dropped")
        assert queue.size("dropped") == 0
        assert "pending" in repr(pending)

    scope()
    assert numbers(queue, "dropped") == [1]
    dispatch(Job(number=2))
    assert numbers(queue) == [2]


def test_an_exception_in_a_function_does_not_lose_its_pending_dispatches(
    queue: Connection,
) -> None:
    def function() -> None:
        pending = [dispatch(Job(number=1)), dispatch(Job(number=2)).on_queue("other")]
        assert queue.queues() == []
        raise ValueError(f"in the middle, with {len(pending)}")

    with contextlib.suppress(ValueError):
        function()
    gc.collect()
    assert numbers(queue) == [1]
    assert numbers(queue, "other") == [2]


def test_dropped_in_a_cycle_it_is_pushed_when_that_is_collected(queue: Connection) -> None:
    cycle: list[Any] = [dispatch(Job(number=1))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert numbers(queue) == [1]


def test_dropped_inside_a_driver_call_it_is_sent_over_another_connection(queue: Connection) -> None:
    senders: list[str] = []
    events.listen(events.JobQueued)(lambda _e: senders.append(threading.current_thread().name))
    with guard.guarded:
        with guard.guarded:
            dispatch(Job(number=1))
        pending = dispatch(Job(number=2))
        del pending
        gc.collect()
    assert numbers(queue) == [1, 2]
    assert senders == ["qframe-pusher"] * 2


def test_what_is_dropped_while_a_dropped_one_is_sent_is_sent_too(queue: Connection) -> None:
    @events.listen(events.JobQueued)
    def follow(event: events.JobQueued) -> None:
        if event.job.number < 3:
            dispatch(Job(number=event.job.number + 1))

    dispatch(Job(number=1))
    assert numbers(queue) == [1, 2, 3]


def test_dropped_on_another_thread_it_does_not_wait_for_this_one(queue: Connection) -> None:
    def drop() -> None:
        dispatch(Job(number=1))

    with guard.guarded:
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        flush()
        assert numbers(queue) == [1]


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    caught: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: caught.append(args.exc_value))
    return caught


def test_a_dropped_push_that_fails_is_tried_again(
    queue: Connection, unraisable: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with refusing(queue, times=2) as tried:
        dispatch(Job(number=1))
        flush()
    assert len(tried) == 3
    assert tried[1] - tried[0] >= 0.09
    assert tried[2] - tried[1] >= 0.19
    assert numbers(queue) == [1]
    assert unraisable == []
    assert caplog.records == []


@pytest.mark.parametrize("retries", [0, 2])
def test_a_drop_that_cannot_be_pushed_is_reported_three_ways(
    fresh: Path, retries: int, unraisable: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    connections = {"database": {"push_retries": retries}}
    manager.use(QueueManager({"root": str(fresh), "connections": connections}))
    queue = manager.default().connection()
    heard: list[events.JobDispatchFailed] = []
    events.listen(events.JobDispatchFailed)(heard.append)
    with refusing(queue) as tried:
        dispatch(Job(number=7)).on_queue("high").delay(5)
        flush()
    assert len(tried) == retries + 1
    (event,) = heard
    assert (event.connection, event.queue, event.delay) == ("database", "high", 5.0)
    assert event.payload["data"] == {"number": 7}
    assert event.payload["job"] == "tests.test_dispatch.Job"
    assert event.job == Job(number=7)
    assert isinstance(event.error, BackendUnavailable)
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    for part in ("tests.test_dispatch.Job", event.payload["uuid"], "database:high", "is away"):
        assert part in record.getMessage()
    assert unraisable == [event.error]
    assert queue.size("high") == 0


def test_what_is_no_outage_is_reported_at_once(
    queue: Connection, unraisable: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    @events.listen(events.JobQueueing)
    def spoil(event: events.JobQueueing) -> None:
        event.payload["bad"] = object()

    dispatch(Job())
    flush()
    (error,) = unraisable
    assert isinstance(error, InvalidJob)
    assert len(caplog.records) == 1


def test_the_interpreters_own_hook_prints_the_report(queue: Connection, capsys: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, refusing(queue):
        patch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
        patch.setattr(queue.settings, "push_retries", 0)
        dispatch(Job())
        flush()
    printed = capsys.readouterr().err
    assert "BackendUnavailable: the backend is away" in printed
    assert "Exception ignored in" in printed


# -- the pusher ---------------------------------------------------------------------------------


def keep_frames(*told: object) -> None:
    """Keep the frames of all calls under way until the garbage collector runs."""
    del told  # what a call returns, too
    itself: list[object] = [sys._getframe()]
    itself.append(itself)


@pytest.mark.parametrize(
    "drop",
    [
        dispatch,
        lambda job: dispatch(job).on_connection("database"),
        lambda job: dispatch(job).on_queue("default"),
        lambda job: dispatch(job).delay(0),
        lambda job: dispatch(job).track(),
        lambda job: dispatch(job).priority(1),
        lambda job: dispatch(job).before_commit(),
        lambda job: Job.dispatch(number=job.number),
    ],
    ids=[
        "dispatch",
        "on_connection",
        "on_queue",
        "delay",
        "track",
        "priority",
        "before_commit",
        "class",
    ],
)
def test_a_dispatch_goes_out_of_scope_though_garbage_keeps_the_frames_of_its_calls(
    queue: Connection, drop: Callable[[Job], PendingDispatch]
) -> None:
    gc.disable()
    profile = sys.getprofile()
    try:
        for number in range(3):
            sys.setprofile(keep_frames)  # called inside each call, as a finalizer may be
            drop(Job(number=number))
            sys.setprofile(profile)
        flush()
        assert numbers(queue) == [0, 1, 2]
    finally:
        sys.setprofile(profile)
        gc.enable()
        gc.collect()


def test_2000_dropped_on_a_running_loop_go_in_order_over_one_connection(
    queue: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = queue.push_envelope
    senders: list[int] = []

    def record(*args: Any) -> str:
        senders.append(threading.get_ident())
        return push(*args)

    monkeypatch.setattr(queue, "push_envelope", record)
    threads: list[int] = []

    async def main() -> None:
        for number in range(2000):
            dispatch(Job(number=number))
            if number % 100 == 0:
                await asyncio.sleep(0)
                threads.append(threading.active_count())

    flush()
    before = threading.active_count()
    began = time.monotonic()
    asyncio.run(main())
    flush()
    took = time.monotonic() - began
    assert len(set(senders)) == 1
    assert senders[0] != threading.get_ident()
    assert max(threads) <= before + 1
    made = []
    while some := numbers(queue):
        made += some
    assert made == [*range(2000)]
    assert took < 30, took


def test_a_running_loop_never_waits_for_the_pusher(queue: Connection) -> None:
    push = queue.push_envelope
    longest = 0.0
    may_push = threading.Event()

    def slow(*args: Any) -> str:
        if threading.current_thread().name == "qframe-pusher":
            assert may_push.wait(60)
        return push(*args)

    async def main() -> None:
        nonlocal longest
        for number in range(2):
            began = time.monotonic()
            dispatch(Job(number=number))
            queue.size("other")
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0)
        may_push.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "push_envelope", slow)
        asyncio.run(main())
        assert numbers(queue) == [*range(2)], "off the loop it does"
    assert longest < 30, "the loop has waited for the pusher"


def test_what_follows_a_dropped_one_on_its_thread_comes_after_it(queue: Connection) -> None:
    push = queue.push_envelope

    def slow(*args: Any) -> str:
        if threading.current_thread().name == "qframe-pusher":
            time.sleep(0.05)
        return push(*args)

    async def main() -> None:
        dispatch(Job(number=6))
        await dispatch(Job(number=7))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "push_envelope", slow)
        dispatch(Job(number=1))
        dispatch(Job(number=2)).send()
        dispatch(Job(number=3))
        queue.push(Job(number=4))
        dispatch(Job(number=5))
        bulk([Job(number=5.5)])
        asyncio.run(main())
    assert numbers(queue) == [1, 2, 3, 4, 5, 5.5, 6, 7]


def test_what_is_dropped_on_the_memory_connection_is_there_at_the_next_call(fresh: Path) -> None:
    manager.use(QueueManager({"root": str(fresh), "default": "memory"}))
    queue = manager.default().connection()
    for number in range(1, 200):
        dispatch(Job())
        assert queue.size() == number


class Spreads(Queueable):
    """Dispatches and drops in a thread of its own."""

    def handle(self) -> None:
        def drop() -> None:
            dispatch(Job(number=1)).on_queue("made")

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()


def test_a_job_is_settled_after_what_its_threads_have_dropped(fresh: Path) -> None:
    manager.use(QueueManager({"root": str(fresh), "jobs": [__name__]}))
    queue = manager.default().connection()
    happened: list[str] = []
    push = queue.push_envelope

    def slow(*args: Any) -> str:
        if threading.current_thread().name == "qframe-pusher":
            time.sleep(0.1)
            happened.append("pushed")
        return push(*args)

    events.listen(events.JobProcessed)(lambda _event: happened.append("processed"))
    queue.push(Spreads())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "push_envelope", slow)
        Worker(manager.default(), WorkerOptions(stop_when_empty=True, memory=0)).run()
    assert happened == ["pushed", "processed"]
    assert numbers(queue, "made") == [1]


def test_who_drops_more_than_can_be_pushed_waits(queue: Connection) -> None:
    push = queue.push_envelope
    waiting: list[int] = []

    def slow(*args: Any) -> str:
        time.sleep(0.002)
        waiting.append(pusher.own.tasks.qsize())
        return push(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "push_envelope", slow)
        for number in range(300):
            dispatch(Job(number=number))
        assert numbers(queue) == [*range(300)]
    assert 50 < max(waiting) <= pusher._MOST + 1


def test_a_listener_sees_the_context_in_which_it_was_dispatched(queue: Connection) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="")

    @events.listen(events.JobQueueing)
    def add(event: events.JobQueueing) -> None:
        event.payload["tenant"] = tenant.get()

    for name in ("a", "b"):
        tenant.set(name)
        dispatch(Job())
    assert [job.payload["tenant"] for job in queue.reserve(["default"], 9)] == ["a", "b"]


def test_a_push_that_does_not_end_is_not_waited_for_for_ever(
    queue: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    push = queue.push_envelope

    def stuck(*args: Any) -> str:
        if threading.current_thread().name == "qframe-pusher":
            go_on.wait(20)
        return push(*args)

    monkeypatch.setattr(pusher, "_STUCK", 0.1)
    monkeypatch.setattr(queue, "push_envelope", stuck)
    dispatch(Job(number=1))
    try:
        dispatch(Job(number=2)).send()
        assert numbers(queue) == [2]
        assert "has not been pushed in 0.1 s" in caplog.text
    finally:
        go_on.set()
    monkeypatch.setattr(pusher, "_STUCK", 60)
    flush()
    assert numbers(queue) == [1]


def test_without_a_thread_to_be_had_it_is_pushed_by_who_waits(
    queue: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pusher, "own", pusher._Pusher())
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    dispatch(Job(number=1))
    dispatch(Job(number=2))
    assert numbers(queue) == [1, 2]


def test_a_report_that_fails_ends_nothing(
    queue: Connection, unraisable: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise SystemExit(3)

    with monkeypatch.context() as patch, refusing(queue):
        patch.setattr(queue.settings, "push_retries", 0)
        patch.setattr(draft, "_report", fail)
        dispatch(Job(number=1))
        flush()
    dispatch(Job(number=2))
    assert numbers(queue) == [2]


def test_a_dropped_job_of_a_sync_connection_runs_in_the_thread_that_dispatched_it(
    queue: Connection,
) -> None:
    ran: list[str] = []
    events.listen(events.JobProcessed)(lambda _e: ran.append(threading.current_thread().name))
    dispatch(Now())
    assert ran == [threading.current_thread().name]


# -- many, at once, perhaps ---------------------------------------------------------------------


def test_bulk_gives_the_ids_in_order_over_connections_and_queues(queue: Connection) -> None:
    jobs = [Job(number=1), Other(), Placed(), Job(number=2), Other(), Job(number=3)]
    ids = bulk(jobs)
    assert len({*ids}) == 6
    other = manager.default().connection("other")
    assert [job.uuid for job in queue.reserve(["default"], 9)] == [ids[0], ids[3], ids[5]]
    assert [job.uuid for job in other.reserve(["default"], 9)] == [ids[1], ids[4]]
    assert queue.sizes("placed") == Sizes(delayed=1)


def test_bulk_takes_a_queue_for_all_and_nothing_at_all(queue: Connection) -> None:
    assert bulk([]) == []
    bulk((Job(number=n) for n in range(3)), "many")
    assert numbers(queue, "many") == [0, 1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        Other(value={1, 2}),
        Other(value="x" * 2_000_000),
        Other(value="\ud800"),
        Nowhere(),
        Job,
        None,
    ],
)
def test_one_bad_job_in_bulk_pushes_none(queue: Connection, bad: Any) -> None:
    for jobs in ([Job(), bad], [bad, Job()], [Job(), Job(number={1}), Job()]):
        with pytest.raises((InvalidJob, ConfigurationError)):
            bulk(jobs)
    with pytest.raises(InvalidQueueName):
        bulk([Job(), Other()], "a b")
    assert queue.queues() == []
    assert manager.default().connection("other").queues() == []


@pytest.mark.parametrize("bad", [Job(number={1}), Job(number="x" * 2_000_000), Other(), Job, None])
def test_one_bad_job_far_back_in_a_batch_pushes_none(queue: Connection, bad: Any) -> None:
    begins = batch([*(Job(number=n) for n in range(550)), bad, Job()])
    with pytest.raises(InvalidJob):
        begins.before(Job()).finally_(Job()).dispatch()
    assert queue.queues() == []


def test_a_batch_that_waits_for_a_commit_is_refused_where_it_is_dispatched(
    queue: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []
    opened = SimpleNamespace(within=lambda: None, on_commit=waiting.append)
    monkeypatch.setattr(of_process, "find_open", lambda _: opened)
    with pytest.raises(InvalidJob):
        batch([*(Job(number=n) for n in range(550)), Job(number={1})]).dispatch()
    assert waiting == []
    batch([Job(number=7)]).dispatch()
    assert queue.queues() == []
    waiting.pop()()
    assert numbers(queue) == [7]


def test_a_job_that_the_server_would_refuse_lets_bulk_push_none(
    fresh: Path, beanstalkd_server: BeanstalkdServer
) -> None:
    settings = {"driver": "beanstalkd", "port": beanstalkd_server.port}
    manager.use(QueueManager({"root": str(fresh), "connections": {"other": settings}}))
    with pytest.raises(PayloadTooLarge, match="takes 65,535"):
        bulk([Job(), Other(), Large(value="x" * 70_000)])
    with pytest.raises(InvalidQueueName, match="hyphen"):
        bulk([Job(), Other(), Hyphened()])
    for connection in (manager.default().connection(), manager.default().connection("other")):
        assert connection.sizes().total == 0


def test_dispatch_if_and_unless(queue: Connection) -> None:
    assert isinstance(dispatch_if(True, Job(number=1)), PendingDispatch)
    assert isinstance(dispatch_unless(0, Job(number=2)), PendingDispatch)
    assert dispatch_if([], Job(number=3)) is None
    assert dispatch_unless("x", Job(number=4)) is None
    assert Job.dispatch_if(False, number=5) is None
    assert Job.dispatch_unless(True, number=6) is None
    Job.dispatch_if(1, number=7)
    Job.dispatch_unless(None, number=8)
    Job.dispatch(number=9)
    assert numbers(queue) == [1, 2, 7, 8, 9]


class Raises(Queueable):
    def handle(self) -> None:
        raise ValueError("no use")


class Async(Queueable):
    async def handle(self) -> str:
        await asyncio.sleep(0)
        return "waited for"


def test_dispatch_sync_gives_what_handle_returned(queue: Connection) -> None:
    assert dispatch_sync(Job(number=[1, {"a": None}])) == [1, {"a": None}]
    assert Job.dispatch_sync(number=5) == 5
    assert dispatch_sync(Async()) == "waited for"
    assert queue.queues() == []


def test_dispatch_sync_raises_what_handle_raised(queue: Connection) -> None:
    with pytest.raises(ValueError, match="no use"):
        dispatch_sync(Raises())
    with pytest.raises(InvalidJob, match=r"Job\.number"):
        dispatch_sync(Job(number={1}))


def test_dispatch_sync_inside_a_running_loop(queue: Connection) -> None:
    async def main() -> list[Any]:
        return [dispatch_sync(Job(number=1)), dispatch_sync(Async())]

    assert asyncio.run(main()) == [1, "waited for"]


def test_dispatch_sync_ignores_where_and_when_the_class_says(queue: Connection) -> None:
    dispatch_sync(Placed())
    dispatch_sync(Other())
    assert queue.queues() == []


# -- whole programs -----------------------------------------------------------------------------

JOBS = """\
import os
import jobs
from qframe import Queueable, dispatch

class Mark(Queueable):
    word: str
    def handle(self):
        jobs.note("mark", self.word)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app") as made:
        made.write("marks.py", JOBS)
        yield made


def marks(project: Project) -> list[str]:
    project.drain()
    return [words[1] for words in project.notes("mark")]


def run(project: Project, body: str) -> Finished:
    finished = project.python(f"from marks import *\n{body}")
    assert finished.code == 0, finished
    return finished


def test_unsent_dispatches_are_pushed_at_the_exit_of_the_interpreter(project: Project) -> None:
    finished = run(
        project,
        "kept = [dispatch(Mark(word='global'))]\n"
        "def main():\n"
        "    global later\n"
        "    later = dispatch(Mark(word='later')).on_queue('default')\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
        "    raise SystemExit(0)\n",
    )
    assert finished.err == ""
    assert sorted(marks(project)) == ["global", "later"]


def test_an_uncaught_exception_loses_none(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "def main():\n"
        "    pending = dispatch(Mark(word='pending'))\n"
        "    1 / 0\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    assert finished.code == 1
    assert marks(project) == ["pending"]


def test_a_forked_child_never_sends_what_its_parent_made(project: Project) -> None:
    finished = run(
        project,
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    dropped, sent = dispatch(Mark(word='dropped')), dispatch(Mark(word='sent'))\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        del dropped\n"
        "        try:\n"
        "            sent.send()\n"
        "        except ValueError as error:\n"
        "            jobs.note('refused', error)\n"
        "        own = dispatch(Mark(word='child'))\n"
        "        sys.exit(0)\n"
        "    os.waitpid(pid, 0)\n",
    )
    assert finished.err == ""
    assert sorted(marks(project)) == ["child", "dropped", "sent"]
    assert len(project.notes("refused")) == 1


def test_only_who_drops_has_a_thread_for_it(project: Project) -> None:
    finished = run(
        project,
        "import threading\n"
        "from qframe import manager\n"
        "if __name__ == '__main__':\n"
        "    dispatch(Mark(word='sent')).send()\n"
        "    print([each.name for each in threading.enumerate()])\n"
        "    dispatch(Mark(word='dropped'))\n"
        "    manager.default().connection().size()\n"
        "    print([each.name for each in threading.enumerate()])\n",
    )
    before, after = finished.out.splitlines()
    assert "qframe-pusher" not in before
    assert "qframe-pusher" in after
    assert sorted(marks(project)) == ["dropped", "sent"]


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_process_of_multiprocessing_sends_what_it_dropped_last(
    project: Project, how: str
) -> None:
    project.write(
        "child.py",
        "from marks import *\n"
        "def work(word):\n"
        "    for number in range(20):\n"
        "        dispatch(Mark(word=f'{word}{number}'))\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing\n"
        "    dispatch(Mark(word='parent'))\n"
        f"    process = multiprocessing.get_context('{how}').Process(target=work, args=('a',))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    assert process.exitcode == 0\n",
    )
    finished = project.run([sys.executable, "child.py"]).finished()
    assert finished.code == 0, finished
    assert sorted(marks(project)) == sorted(["parent", *(f"a{number}" for number in range(20))])


def test_a_push_that_has_begun_is_waited_for_at_exit(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "import time\n"
        "from qframe import manager\n"
        "if __name__ == '__main__':\n"
        "    queue = manager.default().connection()\n"
        "    push = queue.push_envelope\n"
        "    queue.push_envelope = lambda *given: (time.sleep(0.5), push(*given))[1]\n"
        "    dispatch(Mark(word='late'))\n"
        "    time.sleep(0.2)\n"
    )
    assert finished.code == 0, finished
    assert marks(project) == ["late"]


def test_a_push_that_does_not_end_at_exit_is_reported_and_so_are_those_behind_it(
    project: Project,
) -> None:
    finished = project.python(
        "from marks import *\n"
        "import time\n"
        "from qframe import manager\n"
        "from qframe.dispatch import pusher\n"
        "if __name__ == '__main__':\n"
        "    pusher._STUCK = 0.2\n"
        "    queue = manager.default().connection()\n"
        "    queue.push_envelope = lambda *_: time.sleep(60)\n"
        "    dispatch(Mark(word='stuck'))\n"
        "    dispatch(Mark(word='behind'))\n"
    )
    assert finished.code == 0, finished
    assert "has not been pushed in 0.2 s" in finished.err
    assert "could not be pushed to database:default" in finished.err
    assert "does not end" in finished.err


def test_a_dispatch_that_cannot_be_pushed_at_exit_is_reported(project: Project) -> None:
    finished = project.python(
        "from marks import *\n"
        "from qframe import manager\n"
        "if __name__ == '__main__':\n"
        "    pending = dispatch(Mark(word='lost'))\n"
        "    os.mkdir('elsewhere')\n"
        "    queue = manager.default().connection()\n"
        "    queue.settings.push_retries = 0\n"
        "    queue.backend.apply = lambda *_: open('/nowhere/at/all')\n"
    )
    assert "marks.Mark" in finished.err
    assert "could not be pushed to database:default: FileNotFoundError" in finished.err
    assert "Exception ignored" in finished.err
    assert finished.code == 0


SCRIPT = """\
import jobs
from qframe import Queueable, dispatch, queueable

class Greet(Queueable):
    name: str
    def handle(self):
        jobs.note("mark", self.name)

@queueable
def greet(name: str):
    jobs.note("mark", name)

"""
GUARDED = (
    SCRIPT + "if __name__ == '__main__':\n    dispatch(Greet(name='a'))\n    greet.dispatch('b')\n"
)
UNGUARDED = f"""{SCRIPT}
if __name__ == "__main__":
    dispatch(Greet(name="a"))
    greet.dispatch("b")
"""
UNGUARDED = SCRIPT + "dispatch(Greet(name='a'))\n"


@pytest.mark.parametrize("command", [["script.py"], ["-m", "script"], ["./script.py"]])
def test_jobs_of_a_script_with_a_guard_work(project: Project, command: list[str]) -> None:
    project.write("script.py", GUARDED)
    assert project.run([sys.executable, *command]).finished() == Finished(0, "", "")
    assert marks(project) == ["a", "b"]


def test_jobs_of_a_script_in_a_folder_work(project: Project) -> None:
    project.write("tools/script.py", f"import sys; sys.path.append('.')\n{GUARDED}")
    assert project.run([sys.executable, "tools/script.py"]).finished().code == 0
    assert marks(project) == ["a", "b"]


def refusal(finished: Finished) -> str:
    assert finished.code == 1
    lines = [line for line in finished.err.splitlines() if line.startswith("qframe.")]
    assert len(lines) == 1, finished.err
    return lines[0]


def test_jobs_of_a_script_without_a_guard_are_refused_with_what_to_do(project: Project) -> None:
    project.write("script.py", UNGUARDED)
    said = refusal(project.run([sys.executable, "script.py"]).finished())
    assert "Greet is defined in the script script.py" in said
    assert '`if __name__ == "__main__":`' in said
    assert project.empty()


def test_jobs_of_a_script_outside_of_the_root_are_refused(project: Project, tmp_path: Path) -> None:
    script = tmp_path / "outside.py"
    script.write_text(f"import sys; sys.path.append('.')\n{GUARDED}")
    said = refusal(project.run([sys.executable, str(script)]).finished())
    assert "Greet is defined in outside.py, outside the project root" in said
    assert "put it into a module there" in said


def test_jobs_of_a_script_that_cannot_be_imported_are_refused(project: Project) -> None:
    project.write("my-script.py", GUARDED)
    said = refusal(project.run([sys.executable, "my-script.py"]).finished())
    assert "my-script.py, which cannot be imported by that name; put it into" in said


@pytest.mark.parametrize("command", [["-"], ["-c", GUARDED]])
def test_jobs_typed_in_are_refused(project: Project, command: list[str]) -> None:
    process = project.run(["/bin/sh", "-c", 'echo "$0" | "$@"', GUARDED, sys.executable, *command])
    assert "in an interactive session; put it into a module" in refusal(process.finished())


def test_a_worker_that_imports_a_module_does_not_dispatch_again_what_that_dispatches(
    project: Project,
) -> None:
    project.write(
        "again.py",
        "import jobs\n"
        "from qframe import Queueable, dispatch\n"
        "class Again(Queueable):\n"
        "    def handle(self): jobs.note('mark', 'again')\n"
        "dispatch(Again())\n",
    )
    assert project.run([sys.executable, "-c", "import again"]).finished().code == 0
    assert project.sizes() == Sizes(ready=1)
    project.drain("--quiet")
    assert project.notes("mark") == []
    (record,) = project.failed()
    assert "a job was dispatched while a worker imports the module" in record.exception


def test_what_is_dropped_while_the_interpreter_clears_its_modules_is_pushed(
    project: Project,
) -> None:
    project.write("early.py", "from marks import *\ndispatch(Mark(word='early')).send()\n")
    project.write(
        "late.py",
        "import early, sys\n"
        "class Late:\n"
        "    def __del__(self, dispatch=early.dispatch, Mark=early.Mark, sys=sys):\n"
        "        dispatch(Mark(word=f'late-{sys.is_finalizing()}'))\n"
        "late = Late()\n",
    )
    finished = project.run([sys.executable, "late.py"]).finished()
    assert finished.err == ""
    assert sorted(marks(project)) == ["early", "late-True"]


@pytest.mark.parametrize("objects", [1, 3])
def test_several_dispatches_while_the_interpreter_ends_are_pushed_at_once_and_in_order(
    project: Project, objects: int
) -> None:
    project.write("early.py", "from marks import *\ndispatch(Mark(word='early')).send()\n")
    project.write(
        "late.py",
        "import early\n"
        "class Late:\n"
        "    def __init__(self, name):\n"
        "        self.name = name\n"
        "    def __del__(self, dispatch=early.dispatch, Mark=early.Mark):\n"
        "        dispatch(Mark(word=f'{self.name}a'))\n"
        "        dispatch(Mark(word=f'{self.name}b'))\n"
        "        dispatch(Mark(word=f'{self.name}c')).send()\n"
        + "".join(f"late{each} = Late({each})\n" for each in range(objects)),
    )
    finished = project.run([sys.executable, "late.py"]).finished()  # it took a minute for each
    assert (finished.err, finished.code) == ("", 0)
    late = [f"{each}{name}" for each in range(objects) for name in "abc"]
    assert marks(project) == ["early", *late]


@pytest.mark.parametrize("driver", ["database", "redis"])
def test_a_first_dispatch_while_the_interpreter_ends_says_that_it_is_too_late(
    project: Project, driver: str
) -> None:
    project.write(
        "late.py",
        "import marks\n"
        "class Late:\n"
        "    def __del__(self, dispatch=marks.dispatch, Mark=marks.Mark):\n"
        "        dispatch(Mark(word='late'))\n"
        "late = Late()\n",
    )
    program = [sys.executable, "late.py"]
    finished = project.run(program, environment={"QFRAME_DEFAULT": driver}).finished()
    assert "BackendUnusable: not dispatched: the interpreter is ending" in finished.err
    assert "ImportError" not in finished.err


def test_a_first_push_while_the_interpreter_ends_starts_no_thread(project: Project) -> None:
    project.write(
        "late.py",
        "import marks\n"
        "from qframe import manager\n"
        "manager.default().connection().size()\n"
        "class Late:\n"
        "    def __del__(self, dispatch=marks.dispatch, Mark=marks.Mark):\n"
        "        dispatch(Mark(word='late'))\n"
        "late = Late()\n",
    )
    finished = project.run([sys.executable, "late.py"]).finished()  # it never ended
    assert finished.err == ""
    assert marks(project) == ["late"]
