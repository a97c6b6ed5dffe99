"""Hooks that could not be called, or would not be run, are refused when the class is made."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from qframe import JobDefinitionError, Queueable, dispatch_sync, queueable
from qframe.hooks import Hooks
from qframe.jobs import execution

pytestmark = pytest.mark.usefixtures("fresh")

HOOKS = ["handle", "set_up", "tear_down", "succeeded", "failed"]


def _made(hook: str, function: Any) -> type[Queueable]:
    body = {"handle": lambda _: None, hook: function, "__module__": __name__}
    return type("Report", (Queueable,), body)


def _yields(self: Any, *_: Any) -> Iterator[int]:
    yield 1


async def _yields_on_loop(self: Any, *_: Any) -> AsyncIterator[int]:
    yield 1


def _copy(function: Any) -> Any:
    return types.FunctionType(function.__code__, {})


class Yields:
    def __call__(self, *_: Any) -> Iterator[int]:
        yield 1


class YieldsOnLoop:
    async def __call__(self, *_: Any) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "function",
    [
        _yields, _yields_on_loop, staticmethod(_yields), functools.partial(_yields, None),
        functools.partialmethod(_yields), Yields(), YieldsOnLoop(),
    ],
)  # fmt: skip
def test_a_hook_that_is_a_generator_is_refused(hook: str, function: Any) -> None:
    with pytest.raises(JobDefinitionError, match=rf"^Report\.{hook} is a generator: .*`yield`"):
        _made(hook, function)


def test_a_generator_that_is_inherited_is_refused() -> None:
    class Mixin:
        def handle(self) -> Iterator[int]:
            yield 1

    with pytest.raises(JobDefinitionError, match=r"^Inherits\.handle is a generator"):

        class Inherits(Mixin, Queueable):
            pass


def test_a_function_that_is_a_generator_is_refused() -> None:
    def pages(of: int) -> Iterator[int]:
        yield of

    async def pages_on_loop(of: int) -> AsyncIterator[int]:
        yield of

    for function in (
        pages, pages_on_loop, functools.partial(pages, 1), Yields(), staticmethod(pages),
    ):  # fmt: skip
        with pytest.raises(JobDefinitionError, match="is a generator"):
            queueable(job_name="pages.of")(function)
        with pytest.raises(JobDefinitionError, match="is a generator"):
            queueable(queue="pages", job_name="pages.of")(function)
    with pytest.raises(JobDefinitionError, match="is a generator"):
        queueable(pages)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function without a trace of it, under whose name a class then has the result."""
    function.__code__ = function.__code__.replace(co_name="handle")
    return lambda self: function(self)  # noqa: PLW0108 (it stands for a decorator)


@pytest.mark.parametrize("function", [_copy(_yields), _copy(_yields_on_loop)])
def test_a_generator_whose_decorator_does_not_name_it_fails(function: Any) -> None:
    job = _made("handle", _renamed(function))()
    with pytest.raises(JobDefinitionError, match=r"^Report\.handle is a generator"):
        dispatch_sync(job)


@pytest.mark.parametrize(
    "function",
    [contextlib.contextmanager(_yields), contextlib.asynccontextmanager(_yields_on_loop)],
)
@pytest.mark.parametrize("hook", ["handle", "set_up", "tear_down"])
def test_a_context_manager_that_nobody_enters_fails(hook: str, function: Any) -> None:
    with pytest.raises(JobDefinitionError, match=rf"^Report\.{hook} is a generator"):
        dispatch_sync(_made(hook, function)())


def _wrapped_on_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


hidden = pytest.mark.parametrize("function", [_yields, _yields_on_loop])
wrappers = pytest.mark.parametrize("wrapped", [_wrapped, _wrapped_on_loop])


@hidden
@wrappers
@pytest.mark.parametrize("hook", ["handle", "set_up", "tear_down"])
def test_a_decorated_generator_fails_where_its_job_would_have_been_done(
    hook: str, wrapped: Any, function: Any
) -> None:
    job_class = _made(hook, wrapped(function))
    with pytest.raises(JobDefinitionError, match=rf"^Report\.{hook} is a generator"):
        dispatch_sync(job_class())
    with pytest.raises(JobDefinitionError, match=rf"^Report\.{hook} is a generator"):
        asyncio.run(execution.perform_on_loop(job_class()))


@hidden
@wrappers
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(("hook", "given"), [("succeeded", ()), ("failed", (ValueError(),))])
def test_a_decorated_generator_that_would_be_told_of_the_outcome_is_logged(
    hook: str, given: tuple[Any, ...], around: bool, wrapped: Any, function: Any, caplog: Any
) -> None:
    job = _made(hook, wrapped(function))()
    hooks = Hooks()
    if around:
        hooks.around, hooks.around_on_loop = lambda act: act(), lambda awaits: awaits()
    execution.call_hook(job, hook, *given, hooks=hooks)
    asyncio.run(execution.call_hook_on_loop(job, hook, *given, hooks=hooks))
    assert [each.message for each in caplog.records] == [f"Report.{hook} raised"] * 2
    assert caplog.text.count(f"JobDefinitionError: Report.{hook} is a generator") == 2


def test_a_decorator_may_go_through_a_generator() -> None:
    seen = list[int]()

    def through(function: Callable[..., Iterator[int]]) -> Callable[..., None]:
        return functools.wraps(function)(lambda self: seen.extend(function(self)))

    dispatch_sync(_made("handle", through(_yields))())
    assert seen == [1]


def test_what_a_handle_gives_may_be_a_generator_of_another_function() -> None:
    dispatch_sync(_made("handle", lambda _: (each for each in range(3)))())


WRONG: list[tuple[str, Any, str]] = [
    ("handle", lambda self, order: None, r"\(self, order\): it is called without arguments"),
    ("handle", lambda: None, r"\(\): it is called without arguments"),
    ("handle", lambda self, *, order: None, "missing a required (keyword-only )?argument: 'order'"),
    ("handle", staticmethod(lambda order: None), r"\(order\)"),
    ("handle", classmethod(lambda cls, order: None), r"\(order\)"),
    ("set_up", lambda self, order: None, "without arguments"),
    ("tear_down", lambda self, order: None, "without arguments"),
    ("succeeded", lambda self, result: None, "without arguments"),
    ("failed", lambda self: None, r"\(self\): it is called with error"),
    ("handle", functools.partialmethod(lambda self, a, b: None, 1), r"\(self, b\): it is called w"),
    ("handle", functools.partial(lambda order, more: None), r"\(order, more\)"),
    ("failed", lambda self, error, job: None, "missing a required argument: 'job'"),
]


@pytest.mark.parametrize(("hook", "function", "why"), WRONG)
def test_a_hook_that_takes_what_nobody_gives_is_refused(hook: str, function: Any, why: str) -> None:
    with pytest.raises(JobDefinitionError, match=rf"^Report\.{hook}.*{why}"):
        _made(hook, function)


@pytest.mark.parametrize(
    ("hook", "function"),
    [
        ("handle", lambda self, order=1, *rest, more=2, **others: None),
        ("handle", staticmethod(lambda: None)),
        ("handle", classmethod(lambda cls: None)),
        ("handle", functools.partial(lambda self: None, None)),
        ("handle", functools.partialmethod(lambda self, a: None, 1)),
        ("handle", _wrapped(lambda self, database: None)),  # which the decorator may give it
        ("handle", print),
        ("failed", lambda self, *args: None),
        ("failed", lambda this, why, /: None),
        ("failed", staticmethod(lambda why: None)),
    ],
)
def test_a_hook_that_can_be_called_is_taken(hook: str, function: Any) -> None:
    _made(hook, function)
