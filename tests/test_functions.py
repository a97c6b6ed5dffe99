from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from qframe import InvalidJob, JobDefinitionError, Queueable, dispatch, dispatch_sync, queueable
from qframe.dispatch.function import QueueableFunction
from qframe.jobs import execution
from qframe.jobs.definition import index
from qframe.jobs.options import OPTIONS
from qframe.payload import envelope

pytestmark = pytest.mark.usefixtures("fresh")


@queueable(queue="math", tries=3)
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@queueable
def plain(a: Any) -> Any:
    return a


@queueable
def shapes(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> tuple[int, ...]:
    return a, b, c, d


@queueable
def collects(values: list[int] = []) -> list[int]:  # noqa: B006 (each job gets its own)
    return values


@queueable
async def later(a: int) -> int:
    return a + 1


def test_it_is_still_an_ordinary_call() -> None:
    assert add(1, 2) == 3
    assert add(1, b=5) == 6
    assert add("a", "b") == "ab", "nothing is validated"  # type: ignore[arg-type, comparison-overlap]
    assert inspect.iscoroutinefunction(later._function)


def test_it_keeps_its_name_and_documentation() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add.", __name__)  # type: ignore[attr-defined]
    assert inspect.signature(add) == inspect.signature(add._function)
    assert repr(add) == "<queueable tests.test_functions.add>"


def test_its_job_has_its_parameters_as_fields_and_the_keywords_as_options() -> None:
    message = envelope.create(add.job(1))
    assert message["job"] == "tests.test_functions.add"
    assert message["data"] == {"a": 1, "b": 2}
    assert message["maxTries"] == 3
    assert add.job_class.queue == "math"
    assert index["tests.test_functions.add"] is add.job_class


def test_dispatch_is_fluent() -> None:
    pending = add.dispatch(1, b=5).on_queue("other").delay(3)
    assert len(pending.send()) == 36


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda: shapes.job(1), (1, 2, 3, 4)),
        (lambda: shapes.job(9, 8, 7, d=6), (9, 8, 7, 6)),
        (lambda: shapes.job(9, c=7), (9, 2, 7, 4)),
        (lambda: later.job(1), 2),
        (lambda: plain.job({"a": [1]}), {"a": [1]}),
    ],
)
def test_the_job_calls_the_function_as_it_was_called(
    call: Callable[[], Queueable], result: object
) -> None:
    assert dispatch_sync(call()) == result


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: add.dispatch("x"), "add: a: .*integer"),  # type: ignore[arg-type]
        (add.dispatch, "add: missing a required argument: 'a'"),
        (lambda: add.dispatch(1, 2, 3), "add: too many positional"),  # type: ignore[call-arg]
        (lambda: add.dispatch(1, c=3), "add: got an unexpected keyword argument 'c'"),  # type: ignore[call-arg]
        (lambda: plain.dispatch({1, 2}), r"plain\.a"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidJob, match=said) as raised:
        call()
    assert str(raised.value).isprintable()


def test_a_mutable_default_is_not_shared() -> None:
    first = collects.job()
    getattr(first, "values").append(1)  # noqa: B009 (the class is made while running)
    assert dispatch_sync(collects.job()) == []


@pytest.mark.parametrize("option", ["tris", "retries", "queues", "handle", "dispatch", "self"])
def test_an_unknown_option_is_refused(option: str) -> None:
    with pytest.raises(JobDefinitionError, match=f"unknown option {option!r}"):
        queueable(**{option: 3})(lambda: None)  # type: ignore[call-overload]


def test_the_nearest_option_is_named() -> None:
    with pytest.raises(JobDefinitionError, match="did you mean 'tries'"):
        queueable(tris=3)(lambda: None)  # type: ignore[call-overload]


def test_a_wrongly_typed_option_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match=r"function\.tries must be a whole number"):

        @queueable(tries="3")  # type: ignore[call-overload, untyped-decorator]
        def function() -> None: ...


def test_every_option_of_a_class_can_be_given() -> None:
    every: Any = {
        "connection": "sync", "queue": "q", "delay": 1, "priority": 5, "tries": 2,
        "max_exceptions": 3, "backoff": (1, 2), "timeout": 4, "concurrency": 3,
        "fail_on_timeout": True, "retry_until": 60,
        "expires": datetime(2030, 1, 1, tzinfo=UTC), "track": True, "keep_log": 50,
        "unique": True, "unique_id": "one", "unique_for": 60, "unique_until": "started",
        "debounce": None, "once": 60, "chunk": None, "group": "all", "encrypted": True,
        "give_back": True, "missing": "skip", "version": 2,
        "job_name": "every", "display_name": "Every", "tags": ["a"], "middleware": [print],
    }  # fmt: skip
    assert [*every] == [*OPTIONS]
    function = queueable(**every)(add._function)
    for option, value in every.items():
        assert getattr(function.job_class, option) == value


@pytest.mark.parametrize("parameters", ["*args", "**kwargs", "a, *rest"])
def test_arguments_without_a_name_cannot_be_queued(parameters: str) -> None:
    function: Any = eval(f"lambda {parameters}: None")
    with pytest.raises(JobDefinitionError, match=r"cannot be queued; name each argument"):
        queueable(function)


@pytest.mark.parametrize("name", ["queue", "job", "delay", "tags", "handle"])
def test_a_parameter_cannot_be_named_like_a_member_of_jobs(name: str) -> None:
    with pytest.raises(JobDefinitionError, match=name):
        queueable(eval(f"lambda {name}: None"))


def test_a_function_inside_a_function_is_refused_at_dispatch() -> None:
    @queueable
    def local() -> None: ...

    with pytest.raises(InvalidJob, match="not at the top level"):
        local.dispatch()


def test_the_function_itself_is_no_job() -> None:
    assert isinstance(add, QueueableFunction)
    with pytest.raises(InvalidJob, match="dispatch takes a job, not QueueableFunction"):
        dispatch(add)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Queueable, "it is a class: a job class derives from Queueable"),
        (datetime, "it is a class"),
        ("high", "options are given by name"),
        (7, "options are given by name"),
        (classmethod(lambda cls: None), "cannot be called"),
        (functools.partialmethod(lambda self: None), "cannot be called"),
        (iter, "no signature found"),
    ],
)
def test_what_is_no_function_is_refused_in_one_line(given: Any, why: str) -> None:
    for made in (queueable, queueable(job_name="odd")):
        with pytest.raises(JobDefinitionError, match=rf"^@queueable takes a function, .*{why}"):
            made(given)


def test_an_async_function_is_for_the_event_loop() -> None:
    assert execution.is_for_loop(later.job_class)
    assert not execution.is_for_loop(add.job_class)
    assert execution.perform(later.job(2)) == 3
