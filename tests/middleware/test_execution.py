"""A job's run through its middleware: order, what they may do, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qframe import (
    DontHandle,
    JobDefinitionError,
    Queueable,
    QueueManager,
    dispatch_sync,
    events,
    manager,
    queueable,
)
from qframe.exceptions import ConfigurationError
from qframe.jobs import execution, project
from qframe.middleware import Middleware, Skip, store_of

Next = Callable[[Queueable], Any]

notes: list[object] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    notes.clear()
    yield
    notes.clear()


class Around:
    """Notes when it is entered and left."""

    def __init__(self, name: str = "global") -> None:
        self.name = name

    def __call__(self, job: Queueable, call_next: Next) -> Any:
        notes.append(f"+{self.name}")
        try:
            return call_next(job)
        finally:
            notes.append(f"-{self.name}")


class AsyncAround(Around):
    """Does so on an event loop."""

    async def __call__(self, job: Queueable, call_next: Next) -> Any:
        notes.append(f"+{self.name}")
        try:
            await asyncio.sleep(0)
            return await call_next(job)
        finally:
            notes.append(f"-{self.name}")


def stop(_job: Queueable, _call_next: Next) -> None:
    """Call on nobody."""


class Plain(Queueable):
    fails: bool = False

    def set_up(self) -> None:
        notes.append("set_up")

    def handle(self) -> int:
        notes.append("handle")
        if self.fails:
            raise ValueError("no")
        return 7

    def tear_down(self) -> None:
        notes.append("tear_down")


class Async(Queueable):
    async def handle(self) -> int:
        await asyncio.sleep(0)
        notes.append(threading.current_thread() is threading.main_thread())
        return 8


HOOKS = ["set_up", "handle", "tear_down"]


def with_middleware(base: type[Queueable], *middleware: Middleware, **fields: Any) -> Queueable:
    """Give a job of a class that has these."""
    made: type[Queueable] = type(f"{base.__name__}With", (base,), {"middleware": middleware})
    return made(**fields)


# -- order, results and errors ------------------------------------------------------------------


def test_the_first_is_outermost_and_all_are_around_the_hooks() -> None:
    job = with_middleware(Plain, Around("a"), Around("b"))
    assert execution.perform(job, [Around("global")]) == 7
    assert notes == ["+global", "+a", "+b", *HOOKS, "-b", "-a", "-global"]


def test_an_exception_passes_through() -> None:
    job = with_middleware(Plain, Around("a"), Around("b"), fails=True)
    with pytest.raises(ValueError, match="no"):
        execution.perform(job)
    assert notes == ["+a", "+b", *HOOKS, "-b", "-a"]


def test_what_it_gives_is_what_the_job_gave() -> None:
    def double(job: Queueable, call_next: Next) -> Any:
        return call_next(job) * 2

    assert execution.perform(with_middleware(Plain, double, Around())) == 14


def test_one_may_call_on_again() -> None:
    def twice(job: Queueable, call_next: Next) -> Any:
        try:
            return call_next(job)
        except ValueError:
            return call_next(job)

    with pytest.raises(ValueError, match="no"):
        execution.perform(with_middleware(Plain, twice, fails=True))
    assert notes == HOOKS * 2


def test_a_method_is_asked_at_each_run_with_the_job() -> None:
    class Asked(Plain):
        name: str

        def middleware(self) -> list[Middleware]:
            notes.append("asked")
            return [Around(self.name)]

    assert execution.perform(Asked(name="x")) == 7
    assert notes == ["asked", "+x", *HOOKS, "-x"]


def test_a_method_may_yield_or_give_nothing() -> None:
    class Yields(Plain):
        def middleware(self) -> Iterator[Middleware]:
            if self.fails:
                yield Around("x")

    class Nothing(Plain):
        def middleware(self) -> None:
            return None

    assert execution.perform(Yields()) == execution.perform(Nothing()) == 7
    assert notes == HOOKS * 2


def test_it_is_inherited_and_replaced() -> None:
    class Base(Plain):
        middleware = (Around("base"),)

    class Heir(Base):
        pass

    class Other(Base):
        middleware = (Around("other"),)

    class Bare(Base):
        middleware = ()  # type: ignore[assignment] # a tuple of another length

    for kind in (Heir, Other, Bare):
        execution.perform(kind())
    assert [note for note in notes if note not in HOOKS] == ["+base", "-base", "+other", "-other"]


def test_a_function_has_it_as_an_option() -> None:
    assert dispatch_sync(doubled.job(4)) == 8
    assert notes == ["+function", "-function"]
    assert doubled(4) == 8
    assert len(notes) == 2, "an ordinary call goes through none"


@queueable(middleware=[Around("function")])
def doubled(number: int) -> int:
    return number * 2


# -- one that does not call on ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middleware", "name"),
    [
        (stop, "stop"),
        (Skip.when(True), "Skip"),
        (functools.partial(stop), "partial"),
    ],
)
def test_not_called_on_is_skipped_and_says_by_whom(middleware: Middleware, name: str) -> None:
    job = with_middleware(Plain, Around("a"), middleware, Around("b"))
    with pytest.raises(DontHandle, match=f"the middleware {name} did not call on"):
        execution.perform(job)
    assert notes == ["+a", "-a"], "those around it see nothing of it"


def test_it_is_skipped_even_where_one_swallows_all_errors() -> None:
    def swallow(job: Queueable, call_next: Next) -> Any:
        try:
            call_next(job)
        except Exception:  # noqa: BLE001 (all of them)
            notes.append("swallowed")
        return 9

    with pytest.raises(DontHandle):
        execution.perform(with_middleware(Plain, swallow, stop))
    assert execution.perform(with_middleware(Plain, swallow, fails=True)) == 9
    assert notes == [*HOOKS, "swallowed"]


def yielding(job: Queueable, call_next: Next) -> Iterator[None]:
    yield
    call_next(job)


async def yielding_on_loop(job: Queueable, call_next: Next) -> AsyncIterator[None]:
    yield
    call_next(job)


class Yields:
    def __call__(self, job: Queueable, call_next: Next) -> Iterator[None]:
        yield
        call_next(job)


@pytest.mark.parametrize("middleware", [yielding, yielding_on_loop, Yields()])
def test_one_that_is_a_generator_is_refused_when_the_class_is_made(middleware: Any) -> None:
    body = {"handle": lambda _: None, "middleware": [middleware], "__module__": __name__}
    with pytest.raises(JobDefinitionError, match=r"^Yielding\.middleware: .*has `yield` in it"):
        type("Yielding", (Queueable,), body)


@pytest.mark.parametrize("generator", [yielding, yielding_on_loop])
def test_one_that_hides_that_it_is_a_generator_fails_the_job(generator: Any) -> None:
    hidden = functools.wraps(generator)(lambda *given: generator(*given))  # noqa: PLW0108 (as above)
    with pytest.raises(JobDefinitionError, match=r"^yielding.*: .*has `yield` in it"):
        execution.perform(with_middleware(Plain, Around("a"), hidden))


# -- async --------------------------------------------------------------------------------------


def test_async_ones_run_on_the_loop_of_the_job() -> None:
    job = with_middleware(Async, AsyncAround("a"), AsyncAround("b"))
    assert execution.perform(job) == 8
    assert notes == ["+a", "+b", True, "-b", "-a"]


def test_ordinary_ones_may_be_around_async_ones_and_async_jobs() -> None:
    assert execution.perform(with_middleware(Async, Around("a"), AsyncAround("b"))) == 8
    assert execution.perform(with_middleware(Async, Around("a"))) == 8
    assert notes == ["+a", "+b", True, "-b", "-a", "+a", True, "-a"]


def test_async_ones_may_be_around_ordinary_ones_and_ordinary_jobs() -> None:
    job = with_middleware(Plain, AsyncAround("a"), Around("b"))
    assert execution.perform(job) == 7
    assert notes == ["+a", "+b", *HOOKS, "-b", "-a"]
    with pytest.raises(ValueError, match="no"):
        execution.perform(with_middleware(Plain, AsyncAround("a"), fails=True))


def test_an_ordinary_one_between_async_ones_is_refused_and_named() -> None:
    with pytest.raises(JobDefinitionError, match="AsyncAround is around Around, which is"):
        execution.perform(with_middleware(Async, AsyncAround("a"), Around("b")))
    assert True not in notes


def test_an_async_one_that_does_not_call_on_has_it_skipped() -> None:
    async def halt(_job: Queueable, _call_next: Next) -> None:
        await asyncio.sleep(0)

    with pytest.raises(DontHandle, match=r"the middleware .*halt did not call on"):
        execution.perform(with_middleware(Async, Around("a"), halt))


def test_from_a_running_loop_it_goes_as_well() -> None:
    async def run() -> Any:
        return execution.perform(with_middleware(Async, Around("a"), AsyncAround("b")))

    assert asyncio.run(run()) == 8


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [Around("a"), "app:Around", [Skip], [None], ["x"], 3, None])
def test_what_is_no_list_of_middleware_is_refused_where_it_is_declared(wrong: object) -> None:
    with pytest.raises(JobDefinitionError, match=r"Wrong.middleware must be a list of middleware"):
        type("Wrong", (Plain,), {"middleware": wrong})


@pytest.mark.parametrize("wrong", [Around("a"), "x", [Skip], [None], 3])
def test_what_a_method_gives_is_refused_when_it_is_asked(wrong: object) -> None:
    job = type("Wrong", (Plain,), {"middleware": lambda _self: wrong})()
    with pytest.raises(JobDefinitionError, match=r"Wrong.middleware must be a list of middleware"):
        execution.perform(job)
    assert notes == []


def test_calling_on_with_something_else_than_the_job_is_refused() -> None:
    def forgets(_job: Queueable, call_next: Next) -> Any:
        return call_next(None)  # type: ignore[arg-type] # the mistake

    with pytest.raises(TypeError, match=r"forgets takes the job"):
        execution.perform(with_middleware(Plain, forgets))


def test_a_field_cannot_be_called_so() -> None:
    with pytest.raises(JobDefinitionError, match="middleware"):

        class Wrong(Queueable):
            middleware: ClassVar[int] = 3  # type: ignore[assignment] # the mistake

            def handle(self) -> None: ...


# -- from the configuration ---------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueueManager]:
    """Give what makes a manager with a configured middleware."""
    monkeypatch.setattr(project, "_root", None)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(*names: str) -> QueueManager:
        made = QueueManager({"root": tmp_path, "default": "sync", "middleware": list(names)})
        monkeypatch.setattr(manager, "_default", made)
        return made

    return make


def test_those_of_the_configuration_are_around_all(
    configured: Callable[..., QueueManager],
) -> None:
    here = __name__
    made = configured(f"{here}:Around", f"{here}:outer")
    assert dispatch_sync(with_middleware(Plain, Around("own"))) == 7
    assert notes == ["+global", "+outer", "+own", *HOOKS, "-own", "-outer", "-global"]
    made.connection("sync").push(Plain())
    assert notes[-7:] == ["+global", "+outer", *HOOKS, "-outer", "-global"]
    assert made.middleware() is made.middleware(), "made once"


outer = Around("outer")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:X", "'nowhere_at_all:X' cannot be loaded .module:name.: .*: No module"),
        (f"{__name__}:Missing", "cannot be loaded"),
        (f"{__name__}", "cannot be loaded"),
        (f"{__name__}:notes", "cannot be called with a job and call_next"),
        (f"{__name__}:yielding", "has `yield` in it"),
        (f"{__name__}:Needs", "cannot be made without arguments; name an instance"),
    ],
)
def test_a_wrong_one_of_the_configuration_is_named(
    configured: Callable[..., QueueManager], name: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"middleware: .*{words}"):
        configured(name).middleware()


class Needs:
    def __init__(self, something: int) -> None:
        raise NotImplementedError(something)


# -- on the sync connection ---------------------------------------------------------------------


def test_a_job_that_is_skipped_here_gives_nothing_and_is_told(
    configured: Callable[..., QueueManager],
) -> None:
    configured()
    told: list[events.JobSkipped] = []
    with events.kept():
        events.listen(events.JobSkipped)(told.append)
        assert dispatch_sync(with_middleware(Plain, Skip.when(True))) is None
    assert [event.reason for event in told] == ["the middleware Skip did not call on"]
    assert notes == []


def test_the_store_of_a_job_is_that_of_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "_root", None)
    made = QueueManager({"root": tmp_path})
    monkeypatch.setattr(manager, "_default", made)
    store_of(Plain()).set("a", "1")
    assert made.connection("database").store.get("a") == ["1"]

    def count(job: Queueable, call_next: Next) -> Any:
        store_of(job).set("b", "2")
        return call_next(job)

    dispatch_sync(with_middleware(Plain, count))
    assert made.connection("sync").store.get("b") == ["2"]
    made.close()
