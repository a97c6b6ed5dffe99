"""Tasks: dispatched, run, retried and looked at; cases of Celery's own tests, adapted.

Which of Celery's cases are left out, and why: `EXCLUDED.md` in this folder.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from qframe import NotTracked, QueueManager, find_flow
from qframe.celery import Celery, Task, current_app, current_task, shared_task, signals
from qframe.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    NotRegistered,
    NotSupported,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeoutError,  # noqa: A004 (Celery's name)
)
from qframe.celery.jobs import CeleryJob
from qframe.celery.result import AsyncResult, rebuilt
from qframe.exceptions import InvalidJob, JobDefinitionError
from qframe.payload import envelope
from qframe.testing import Drained, drain, travel
from tests.celery import tasks
from tests.celery.tasks import OwnError, add, app, seen


@pytest.fixture(autouse=True)
def _queues(queues: QueueManager) -> None:
    """Run each test on a connection in memory."""


def pushed(task: Any, *args: Any, **options: Any) -> CeleryJob:
    """Give the job of a call, as it would be dispatched."""
    from qframe.celery.jobs import job_of

    return job_of(app, task.name, args, {}, options)


# -- on the wire ----------------------------------------------------------------------------------


def test_a_task_is_a_job_of_its_name_with_args_and_kwargs() -> None:
    payload = envelope.create(pushed(add, 2, 2))
    assert payload["job"] == payload["displayName"] == "tests.celery.tasks.add"
    assert payload["data"] == {"args": [2, 2], "kwargs": {}}
    assert (payload["maxTries"], payload["timeout"], payload["track"]) == (4, 0, 86400)


def test_a_call_that_was_moved_here_has_the_options_of_task_and_app() -> None:
    moved = add.job_class.from_request({"args": [1], "kwargs": {"y": 2}})
    payload = envelope.create(moved)
    assert payload["data"] == {"args": [1], "kwargs": {"y": 2}}
    assert (payload["maxTries"], payload["timeout"], payload["track"]) == (4, 0, 86400)


def test_options_of_a_call_are_those_of_its_job() -> None:
    eta = datetime(2030, 1, 1, tzinfo=UTC)
    job = pushed(add, 1, 1, queue="high", priority=0, eta=eta, expires=60, task_id="my-id")
    payload = envelope.create(job)
    assert (job.queue, job.priority, job.delay, payload["uuid"]) == ("high", 0, eta, "my-id")
    assert payload["expiresAt"] > payload["createdAt"]
    assert pushed(add, 1, 1, countdown=10).delay == 10
    assert pushed(add, 1, 1, ignore_result=True).track is False
    assert pushed(tasks.forgotten).track is False
    limited = pushed(tasks.limited)
    assert (limited.queue, limited.priority, limited.timeout) == ("slow", 3, 30)


def test_settings_of_the_app_are_those_of_its_jobs() -> None:
    app.conf.update(
        task_default_queue="usual",
        task_time_limit=40,
        result_expires=timedelta(hours=1),
        task_routes={"tests.celery.*.mul": "math", "elsewhere.*": {"queue": "far", "priority": 1}},
    )
    job = pushed(add, 1, 1)
    assert (job.queue, job.timeout, job.track) == ("usual", 40, timedelta(hours=1))
    assert pushed(tasks.mul, 1, 1).queue == "math"
    assert pushed(tasks.mul, 1, 1, queue="own").queue == "own"
    named = pushed(tasks.named)
    assert (named.queue, named.priority) == ("far", 1)
    app.conf.task_ignore_result = True
    assert pushed(add, 1, 1).track is False


def test_routes_may_be_functions() -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, **_: Any) -> Any:
        return {"queue": "ones"} if args and args[0] == 1 else None

    app.conf.task_routes = [route, ("*", {"queue": "others"})]
    assert (pushed(add, 1, 1).queue, pushed(add, 2, 2).queue) == ("ones", "others")


def test_times_numbers_and_ids_arrive_as_what_they_are() -> None:
    given: list[Any] = [
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        Decimal("1.10"),
        UUID(int=7),
        b"\x00\xff",
        (1, [datetime(2026, 1, 2)]),  # noqa: DTZ001 (as it may be given)
        {"__type__": "none of ours", "__value__": 1},
    ]
    tasks.note.delay(*given, at=given[0].time())
    assert drain(raises=True) == Drained(done=1)
    ((args, kwargs),) = seen
    assert list(args) == [*given[:4], [1, [datetime(2026, 1, 2)]], given[5]]  # noqa: DTZ001
    assert kwargs == {"at": given[0].time()}


def test_the_form_is_that_of_celerys_own_messages() -> None:
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    given = [at, at.date(), at.time(), Decimal("1.1"), UUID(int=1), b"text", b"\xff"]
    data = envelope.create(pushed(tasks.note, *given))["data"]
    assert [(each["__type__"], each["__value__"]) for each in data["args"]] == [
        ("datetime", "2026-01-02T03:00:00+00:00"),
        ("date", "2026-01-02"),
        ("time", "03:00:00"),
        ("decimal", "1.1"),
        ("uuid", {"hex": "00000000000000000000000000000001"}),
        ("bytes", "text"),
        ("base64", "/w=="),
    ]
    tasks.note.delay(*given)
    drain(raises=True)
    assert [*seen[0]] == given


def test_what_json_cannot_carry_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidJob, match="note"):
        tasks.note.delay({1, 2})
    with pytest.raises(InvalidJob):
        tasks.note.delay(float("nan"))
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidJob):
        tasks.note.delay(deep)


@pytest.mark.parametrize("countdown", [float("nan"), float("inf"), 1e300, "5", [1]])
def test_a_countdown_that_is_none_is_refused_at_the_call(countdown: Any) -> None:
    with pytest.raises(InvalidJob, match="delay must be seconds"):
        add.apply_async((1, 1), countdown=countdown)


def test_a_dict_that_looks_like_a_value_of_celerys_arrives() -> None:
    tasks.note.delay({"__type__": ["date"], "__value__": 1})
    assert drain(raises=True) == Drained(done=1)
    assert [*seen[0]] == [{"__type__": ["date"], "__value__": 1}]


# -- calling --------------------------------------------------------------------------------------


def test_a_task_is_delayed_and_its_result_is_got() -> None:
    result = add.delay(2, 2)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    assert drain() == Drained(done=1)
    assert result.get(timeout=1) == result.result == 4
    assert (result.state, result.successful(), result.failed()) == ("SUCCESS", True, False)
    assert (result.name, result.queue, result.retries) == (add.name, "default", 0)
    assert result.date_done is not None
    assert AsyncResult(result.id) == result == app.AsyncResult(result.id) == str(result)


def test_a_task_is_called_directly() -> None:
    assert add(2, y=3) == 5
    assert tasks.called() is True
    assert not current_task


@pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), ((1, 2, 3, 4), {}), ((1, 2), {"w": 3})])
def test_wrong_arguments_are_refused_at_the_call(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match=r"tests\.celery\.tasks\.add\(\)"):
        add.delay(*args, **kwargs)


def test_the_request_tells_of_the_call() -> None:
    result = tasks.request.apply_async((1,), {"a": 2}, task_id="mine")
    drain(raises=True)
    (request,) = seen
    assert result.get(timeout=1) == {"id": "mine", "retries": 0, "name": tasks.request.name}
    assert (request.id, request.args, request.kwargs) == ("mine", [1], {"a": 2})
    assert (request.is_eager, request.called_directly) == (False, False)
    assert request.delivery_info["routing_key"] == request.queue == "default"
    assert tasks.request.request.id is None  # outside of a call


def test_a_task_may_be_a_class_async_or_have_a_name() -> None:
    results = [tasks.counter.delay(1), tasks.on_a_loop.delay(1), tasks.named.delay()]
    assert drain(raises=True) == Drained(done=3)
    assert [each.get(timeout=1) for each in results] == [2, 2, "by its name"]
    assert tasks.on_a_loop.apply((1,)).get() == 2


def test_a_base_may_have_a_call_of_its_own() -> None:
    result = tasks.called.delay()
    drain(raises=True)
    assert (seen, result.get(timeout=1)) == (["context"], False)
    assert tasks.called.apply().get() is False


def test_a_task_is_sent_by_its_name() -> None:
    result = app.send_task("elsewhere.named")
    drain(raises=True)
    assert result.get(timeout=1) == "by its name"
    job = envelope.create(pushed(type("", (), {"name": "far.away"}), 1))
    assert (job["job"], job["data"]["args"]) == ("far.away", [1])


def test_an_expired_task_is_revoked() -> None:
    result = add.apply_async((1, 1), expires=-1)
    assert drain() == Drained(skipped=1)
    assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        result.get(timeout=1)


def test_a_countdown_delays() -> None:
    result = add.apply_async((1, 1), countdown=60)
    assert drain() == Drained()
    with travel(61):
        assert (drain(), result.get(timeout=1)) == (Drained(done=1), 2)


# -- results --------------------------------------------------------------------------------------


def test_a_failure_is_raised_where_the_result_is_got() -> None:
    result = tasks.fail.delay("as asked")
    assert drain().failed == 1  # at once, whatever tries are left
    assert (result.state, repr(result.result)) == ("FAILURE", "ValueError('as asked')")
    with pytest.raises(ValueError, match="as asked"):
        result.get(timeout=1)
    assert isinstance(result.get(timeout=1, propagate=False), ValueError)
    assert "in fail\n" in str(result.traceback)


def test_an_exception_of_the_tasks_module_is_raised_as_itself() -> None:
    result = tasks.fail_in_its_own_way.delay()
    drain()
    with pytest.raises(OwnError, match="one of ours"):
        result.get(timeout=1)


def test_what_ended_a_task_from_outside_does_not_end_its_caller() -> None:
    for kind in ("JobTimedOut", "KeyboardInterrupt"):
        error = rebuilt(kind, "too long")
        assert isinstance(error, Exception)
        assert (type(error).__name__, str(error)) == (kind, "too long")


def test_what_has_not_ended_times_out() -> None:
    result = add.delay(1, 1)
    with pytest.raises(TimeoutError, match="PENDING"):
        result.get(timeout=0)


def test_what_is_not_kept_is_not_waited_for() -> None:
    result = tasks.forgotten.delay()
    drain(raises=True)
    assert result.state == "PENDING"
    with pytest.raises(NotTracked):
        result.get()


def test_a_result_is_forgotten() -> None:
    result = add.delay(1, 1)
    drain(raises=True)
    assert result.get(timeout=1) == 2
    result.forget()
    assert result.state == "PENDING"


def test_a_task_is_revoked_before_it_runs() -> None:
    result = add.delay(1, 1)
    result.revoke()
    assert (result.state, drain()) == ("REVOKED", Drained())
    with pytest.raises(TaskRevokedError):
        result.get(timeout=1)


def test_a_task_does_not_wait_for_another() -> None:
    @app.task
    def waits() -> Any:
        return add.delay(1, 1).get(timeout=1)

    result = waits.delay()
    drain()
    with pytest.raises(RuntimeError, match="Never call"):
        result.get(timeout=1)


# -- retries --------------------------------------------------------------------------------------


def test_a_task_is_retried_until_it_succeeds() -> None:
    result = tasks.retried.delay(2)
    assert drain().done == 1
    assert (seen, result.get(timeout=1), result.retries) == ([0, 1, 2], 2, 2)


def test_after_the_last_retry_the_cause_is_raised() -> None:
    result = tasks.retried.delay(99)
    assert drain().failed == 1
    assert seen == [0, 1, 2, 3]  # max_retries is 3
    with pytest.raises(KeyError, match="not yet"):
        result.get(timeout=1)


@pytest.mark.parametrize(("most", "runs"), [(0, 1), (1, 2), (5, 6)])
def test_a_retry_may_have_a_limit_of_its_own(most: int, runs: int) -> None:
    task = tasks.retried.s(99)
    task["kwargs"] = {"max_retries": most}
    task.apply_async()
    assert drain().failed == 1
    assert len(seen) == runs


def test_without_a_cause_the_limit_is_raised() -> None:
    result = tasks.retried_without_reason.delay()
    assert drain().failed == 1
    with pytest.raises(MaxRetriesExceededError, match="Can't retry"):
        result.get(timeout=1)


def test_a_retry_waits_its_countdown() -> None:
    @app.task(bind=True)
    def later(self: Any) -> None:
        raise self.retry(countdown=30)

    result = later.delay()
    assert drain().retried == 1
    assert (result.state, drain()) == ("RETRY", Drained())
    with travel(31):
        assert drain().retried == 1


def test_a_retry_that_does_not_throw_comes_after_the_call() -> None:
    @app.task(bind=True)
    def twice(self: Any) -> str:
        if not self.request.retries:
            found = self.retry(countdown=0, throw=False)
            assert isinstance(found, Retry)
        seen.append(self.request.retries)
        return "done"

    result = twice.delay()
    drain()
    assert (seen, result.get(timeout=1)) == ([0, 1], "done")


def test_exceptions_are_retried_by_themselves() -> None:
    result = tasks.automatic.delay("key", 2)
    assert drain().done == 1
    assert (seen, result.get(timeout=1)) == ([0, 1, 2], 2)
    seen.clear()
    tasks.automatic.delay("value")
    assert (drain().failed, seen) == (1, [0])


def test_the_backoff_grows_up_to_its_limit() -> None:
    tasks.backing_off.delay()
    passed = 0.0
    for seconds in (3, 6, 10, 10, 10):
        with travel(passed):
            assert drain().retried == 1
        with travel(passed + seconds - 1):
            assert drain() == Drained()
        passed += seconds
    with travel(passed):
        assert drain().failed == 1


def test_jitter_is_between_nothing_and_the_delay() -> None:
    from qframe.celery.calls import backoff_of

    @app.task(autoretry_for=(KeyError,), retry_backoff=True)
    def jittery() -> None: ...

    found = {backoff_of(jittery, 3) for _ in range(200)}
    assert found <= set(range(9))
    assert len(found) > 3


def test_a_direct_call_raises_the_cause_in_place_of_a_retry() -> None:
    with pytest.raises(KeyError, match="not yet"):
        tasks.retried(1)
    with pytest.raises(Retry):
        tasks.retried_without_reason()


def test_ignored_and_rejected_ones_end_as_they_say() -> None:
    ignored, rejected = tasks.ignored.delay(), tasks.rejected.delay(requeue=False)
    requeued = tasks.rejected.delay(requeue=True)
    drained = drain()
    assert (drained.skipped, drained.failed, drained.released, drained.done) == (1, 1, 1, 1)
    assert (ignored.state, rejected.state) == ("IGNORED", "FAILURE")
    assert requeued.get(timeout=1) == "then yes"


def test_a_time_limit_fails_a_task_unless_it_is_retried_for_it() -> None:
    assert tasks.limited.job_class.fail_on_timeout is True

    @app.task(autoretry_for=(SoftTimeLimitExceeded,), soft_time_limit=5, default_retry_delay=7)
    def again() -> None: ...

    assert again.job_class.fail_on_timeout is False
    assert again.job_class(args=[], kwargs={}).backoff_after(1, SoftTimeLimitExceeded()) == [7]


def test_max_retries_is_how_often_a_dead_worker_is_forgiven() -> None:
    @app.task(max_retries=None)
    def endless() -> None: ...

    @app.task(max_retries=0)
    def once() -> None: ...

    @app.task(max_retries=-1)
    def never_again() -> None: ...

    made = (endless, once, never_again)
    assert [each.job_class.tries for each in made] == [0, 1, 1]


# -- generators, and what a decorator hides -------------------------------------------------------


def generator() -> Any:
    seen.append("ran")
    yield 1


async def async_generator() -> Any:
    yield 1


class OfGenerator(Task):
    name = "tests.of_generator"

    def run(self) -> Any:
        yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_no_task_since_calling_it_runs_nothing(function: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"generator is a generator: it has `yield` in it"):
        app.task(function)
    with pytest.raises(JobDefinitionError, match=r"generator is a generator"):
        app.task(bind=True, ignore_result=True)(function)
    with pytest.raises(JobDefinitionError, match=r"tests.of_generator is a generator"):
        app.register_task(OfGenerator())


def hidden(function: Any) -> Any:
    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return function(*given)

    return call


def hidden_on_loop(function: Any) -> Any:
    @functools.wraps(function)
    async def call(*given: Any) -> Any:
        return function(*given)

    return call


@pytest.mark.parametrize("wrapped", [hidden, hidden_on_loop, lambda f: hidden(hidden_on_loop(f))])
def test_a_generator_that_a_decorator_hides_fails(wrapped: Any) -> None:
    result = app.task(name="tests.hidden")(wrapped(generator)).delay()
    assert drain() == Drained(failed=1)
    assert seen == []
    with pytest.raises(Exception, match=r"tests.hidden is a generator"):
        result.get(timeout=1)


def test_an_async_task_that_a_decorator_hides_has_its_request_and_its_retries() -> None:
    @app.task(bind=True, name="tests.hidden_async", max_retries=2)
    @hidden
    async def fetch(self: Any) -> Any:
        seen.append(self.request.retries)
        await asyncio.sleep(0)
        raise self.retry(exc=KeyError("gone"), countdown=0)

    result = fetch.delay()
    assert drain() == Drained(retried=2, failed=1)
    with pytest.raises(KeyError):
        result.get(timeout=1)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("default_retry_delay", float("inf")),
        ("retry_backoff_max", float("nan")),
        ("retry_backoff", -1),
        ("default_retry_delay", "5"),
    ],
)
def test_seconds_of_a_task_are_numbers(option: str, value: Any) -> None:
    with pytest.raises(JobDefinitionError, match=option):
        app.task(name="tests.refused", **{option: value})(hidden(len))


# -- eager ----------------------------------------------------------------------------------------


def test_apply_runs_here_with_its_retries() -> None:
    result = tasks.retried.apply((2,))
    assert (seen, result.get(), result.state) == ([0, 1, 2], 2, "SUCCESS")
    failed = tasks.fail.apply()
    assert (failed.state, failed.failed()) == ("FAILURE", True)
    assert "it broke" in str(failed.traceback)
    with pytest.raises(ValueError, match="it broke"):
        failed.get()
    with pytest.raises(ValueError, match="it broke"):
        tasks.fail.apply(throw=True)
    assert tasks.request.apply((1,)).get()["retries"] == 0
    assert seen[-1].is_eager


def test_always_eager_runs_what_is_delayed() -> None:
    app.conf.task_always_eager = True
    assert add.delay(2, 2).get() == 4
    assert (add.s(2, 2) | add.s(3)).apply_async().get() == 7
    assert drain() == Drained()
    app.conf.task_eager_propagates = True
    with pytest.raises(ValueError, match="it broke"):
        tasks.fail.delay()


# -- hooks and signals ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["well", "fail", "retry"])
def test_the_hooks_of_a_base_are_called(how: str) -> None:
    tasks.hooked.delay(how)
    drain()
    begin = ("before_start", [how])
    success = [("on_success", how), ("after_return", "SUCCESS")]
    expected = {
        "well": [begin, *success],
        "fail": [begin, ("on_failure", "ValueError('hooked')", True), ("after_return", "FAILURE")],
        "retry": [
            begin, ("on_retry", "KeyError('again')"), ("after_return", "RETRY"), begin, *success,
        ],
    }  # fmt: skip
    assert seen == expected[how]
    seen.clear()
    tasks.hooked.apply((how,))
    assert seen == expected[how]


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """Give what signals told, in order."""
    found: list[Any] = []
    names = [name for name in dir(signals) if type(getattr(signals, name)) is signals.TaskSignal]

    def note(signal: Any, sender: Any, **given: Any) -> None:
        found.append((signal.name, getattr(sender, "name", sender), given.get("state")))

    for name in names:
        getattr(signals, name).connect(note)
    yield found
    for name in names:
        assert getattr(signals, name).disconnect(note)


def test_signals_tell_what_happens(heard: list[Any]) -> None:
    name = tasks.hooked.name
    around = [("before_task_publish", name, None), ("after_task_publish", name, None)]
    for how, end, state in (
        ("well", "task_success", "SUCCESS"),
        ("fail", "task_failure", "FAILURE"),
    ):
        heard.clear()
        tasks.hooked.delay(how)
        drain()
        told = [("task_prerun", name, None), ("task_postrun", name, state), (end, name, None)]
        assert heard == [*around, *told]


def test_a_signal_may_be_about_one_task() -> None:
    found: list[Any] = []

    @signals.task_success.connect(sender=add)
    def on_add(sender: Any, result: int, **_: Any) -> None:
        found.append(result)

    try:
        add.delay(1, 1)
        tasks.mul.delay(3, 3)
        drain(raises=True)
        assert found == [2]
    finally:
        signals.task_success.disconnect(on_add, sender=add)


# -- definitions ----------------------------------------------------------------------------------


def test_names_are_those_of_celery() -> None:
    assert add.name == "tests.celery.tasks.add"
    assert app.tasks[add.name] is add
    assert app.gen_task_name("f", "m") == "m.f"
    with pytest.raises(NotRegistered):
        app.tasks["nobody"]
    assert isinstance(add, Task)
    assert (repr(add), add.__name__) == ("<@task: tests.celery.tasks.add>", "add")


def test_a_shared_task_follows_the_current_app() -> None:
    @shared_task(bind=True)
    def shared(self: Any) -> Any:
        return self.app

    other = Celery("other")
    try:
        assert shared.app is other
        assert current_app == other
        assert add.app is app
    finally:
        app.set_default()


def test_errors_in_a_task_are_the_tasks_own() -> None:
    with pytest.raises(Ignore):
        tasks.ignored()
    assert find_flow("none") is None
    assert json.dumps(add.s(1, 2))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate_limit": "10/m"}, "option rate_limit of a task .*: use RateLimited"),
        ({"acks_late": False}, "acks_late=False .*: use True"),
        ({"serializer": "pickle"}, "pickle is refused"),
        ({"throws": (KeyError,)}, "option throws"),
        ({"max_retry": 3}, "option max_retry .*max_retries"),
    ],
)
def test_what_is_not_there_is_refused_at_the_definition(given: Any, told: str) -> None:
    with pytest.raises(NotSupported, match=told):

        @app.task(**given)
        def refused() -> None: ...

    name, value = next(iter(given.items()))
    if name == "max_retry":
        return
    with pytest.raises(NotSupported, match=name):
        type("Refused", (Task,), {name: value})


def test_what_is_not_there_is_refused_at_the_call() -> None:
    for option in ("exchange", "routing_key", "headers", "compression"):
        given: dict[str, Any] = {option: "x"}
        with pytest.raises(NotSupported, match=f"option {option} of a call"):
            add.apply_async((1, 1), **given)
    for name in ("replace", "send_event", "add_to_chord"):
        with pytest.raises(AttributeError, match=rf"qframe\.celery has no Task\.{name}: use "):
            getattr(add, name)
    with pytest.raises(AttributeError, match=r"AsyncResult\.children"):
        _ = AsyncResult("x").children
    with pytest.raises(AttributeError, match=r"Celery\.control"):
        _ = app.control


# -- resources ------------------------------------------------------------------------------------


def test_a_task_is_given_its_resources() -> None:
    result = tasks.with_pool.delay(7)
    assert drain(raises=True).done == 1
    assert result.get() == [0, 7, "a pool"]
    assert tasks.with_pool(7)[1:] == (7, "a pool")
    assert tasks.with_pool(7, pool="mine")[1:] == (7, "mine")
    with pytest.raises(TypeError, match="pool"):
        tasks.with_pool.delay(7, pool="mine")
