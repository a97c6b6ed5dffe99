"""Runs one attempt of a job in this process: its middleware around its hooks."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent import futures
from contextvars import ContextVar
from typing import Any, Protocol

from qframe import forks
from qframe.exceptions import DontHandle, Interruption, JobDefinitionError, SynchronousOnly
from qframe.hooks import Awaits, Hooks, of_process
from qframe.jobs.definition import JobDefinition
from qframe.jobs.hooks import GENERATORS, ran
from qframe.jobs.options import MIDDLEWARE_YIELDS, check_option

log = logging.getLogger("qframe")

_AROUND = ("set_up", "tear_down")
_HOOKS = ("handle", *_AROUND)


in_caller: ContextVar[bool] = ContextVar("qframe_in_caller", default=False)
"""Whether jobs run in the thread of the calling program, whose connections they then share."""


@contextlib.contextmanager
def run_in_caller(*, really: bool = True) -> Iterator[None]:
    """Mark jobs in the body as run in the caller's thread; a worker marks them as not."""
    token = in_caller.set(really)
    try:
        yield
    finally:
        in_caller.reset(token)


def perform(
    job: JobDefinition,
    outer: Sequence[Any] = (),
    hooks: Hooks = of_process,
    *,
    bare: bool = False,
    wrapped: bool = False,
) -> Any:  # noqa: ANN401 (what the job returns)
    """Call `set_up`, `handle` and always `tear_down`. Returns the result of `handle`.

    Raises their exceptions; one of `tear_down` is chained to an earlier one. Unless `bare`, the run
    goes through the middleware in `outer` and then the class's own, which may change the result;
    `DontHandle` is raised if one skips the job. `wrapped`: the hook `around` wraps it already.
    """
    kind = type(job)
    if not wrapped and (hooks.around is not None or kind.model_fields):
        return _wrapped(job, outer, hooks, bare=bare)
    if not bare and (outer or kind.middleware):
        return _Passage(job, (*outer, *own_middleware(job)), hooks).go()
    try:
        if kind.set_up is not JobDefinition.set_up:
            _called(job, "set_up", hooks)
        result = job.handle()
        if result is None:
            return result
        return ran(kind, "handle", finish(result, hooks))
    finally:
        if kind.tear_down is not JobDefinition.tear_down:
            _called(job, "tear_down", hooks)


def _called(job: JobDefinition, hook: str, hooks: Hooks, *args: object) -> Any:  # noqa: ANN401 (as above)
    """Call a hook to its end. Raises if it has only made a generator, which nobody runs."""
    return ran(type(job), hook, finish(getattr(job, hook)(*args), hooks))


async def _called_on_loop(job: JobDefinition, hook: str, *args: object) -> Any:  # noqa: ANN401 (as above)
    """As `_called`, on the event loop of this thread."""
    return ran(type(job), hook, await _awaited(getattr(job, hook)(*args)))


def _wrapped(job: JobDefinition, outer: Sequence[Any], hooks: Hooks, *, bare: bool) -> Any:  # noqa: ANN401 (as above)
    """Perform a job with what is around all its code: a framework's hook, and its rows."""

    def act() -> Any:  # noqa: ANN401 (as above)
        return perform(job, outer, hooks, bare=bare, wrapped=True)

    def awaits() -> Coroutine[Any, Any, Any]:
        return perform_on_loop(job, outer, hooks, bare=bare, wrapped=True)

    if not type(job).model_fields:
        return act() if hooks.around is None else hooks.around(act)
    whole = awaits if is_for_loop(type(job), () if bare else outer) else None
    stays = not inspect.iscoroutinefunction(type(job).handle)
    return _with_rows(job, hooks, act, whole, stays=stays)


def _with_rows(
    job: JobDefinition,
    hooks: Hooks,
    act: Callable[[], Any],
    awaits: Awaits | None,
    *,
    stays: bool,
    may_be_gone: bool = False,
) -> Any:  # noqa: ANN401 (as above)
    """Call `act`, or await what is the same, with the rows in the job in place of their keys."""
    from qframe.models import loading  # noqa: PLC0415 (only jobs with models need it)

    def call() -> Any:  # noqa: ANN401 (as above)
        return loading.call(
            loading.WantedRows(_in_call(job), may_be_gone=may_be_gone), hooks, act, awaits,
            lambda steps: finish(steps, hooks), stays=stays, on_loop=on_a_running_loop(),
        )  # fmt: skip

    return call() if hooks.around is None else hooks.around(call)


async def _wrapped_on_loop(
    job: JobDefinition, hooks: Hooks, awaits: Awaits, *, may_be_gone: bool = False
) -> Any:  # noqa: ANN401 (as above)
    """Await job code with what is around it: a framework's hook, and its rows."""
    if type(job).model_fields:
        from qframe.models import loading  # noqa: PLC0415 (only jobs with models need it)

        wanted = loading.WantedRows(_in_call(job), may_be_gone=may_be_gone)
        inner, awaits = awaits, lambda: loading.call_on_loop(wanted, hooks, inner)
    return await (awaits() if hooks.around_on_loop is None else hooks.around_on_loop(awaits))


def _in_call(job: JobDefinition) -> Sequence[Any]:
    """Return the jobs that a call is about: a chunk, or the job alone."""
    return (job,) if job._chunk is None else job._chunk.jobs  # noqa: SLF001 (its own)


def call_hook(job: JobDefinition, hook: str, *args: object, hooks: Hooks = of_process) -> None:
    """Call `succeeded` or `failed`; logs their exceptions."""
    if getattr(type(job), hook) is not getattr(JobDefinition, hook):
        with _logged(job, hook):
            if hooks.around is None and not type(job).model_fields:
                _called(job, hook, hooks, *args)
            else:
                _call_wrapped(job, hook, args, hooks)


def _call_wrapped(job: JobDefinition, hook: str, args: Sequence[object], hooks: Hooks) -> None:
    """Call a hook of a job with what is around all its code; a row that is gone stays its key."""

    def act() -> None:
        _called(job, hook, hooks, *args)

    def awaits() -> Coroutine[Any, Any, Any]:
        return _called_on_loop(job, hook, *args)

    if type(job).model_fields:
        is_async = inspect.iscoroutinefunction(getattr(type(job), hook))
        whole = awaits if is_async else None
        _with_rows(job, hooks, act, whole, stays=not is_async, may_be_gone=True)
    else:
        assert hooks.around is not None  # noqa: S101 (nothing else is around it)
        hooks.around(act)


@contextlib.contextmanager
def _logged(job: JobDefinition, hook: str) -> Iterator[None]:
    try:
        yield
    except Interruption:
        raise
    except BaseException:
        log.exception("%s.%s raised", type(job).__name__, hook)


def _has_own(kind: type[JobDefinition], hook: str) -> bool:
    return getattr(kind, hook) is not getattr(JobDefinition, hook)


# -- middleware -----------------------------------------------------------------------------------


class _Passage:
    """One run of a job through its middleware, outermost first."""

    def __init__(self, job: JobDefinition, middleware: Sequence[Any], hooks: Hooks) -> None:
        self._job = job
        self._middleware = middleware
        self._hooks = hooks
        self._deepest = 0
        """The index of the innermost middleware called so far; one more for the job itself."""

    def go(self) -> Any:  # noqa: ANN401 (the job's result)
        """Run, and return the result. Raises `DontHandle` if nothing ran or settled the job."""
        return self._checked(self._step(0))

    async def go_on_loop(self) -> Any:  # noqa: ANN401 (the job's result)
        """As `go`, on the event loop of this thread."""
        return self._checked(await self._step_on_loop(0))

    def _checked(self, result: Any) -> Any:  # noqa: ANN401 (the job's result)
        reserved = self._job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
        if self._deepest < len(self._middleware) and not (reserved and reserved.is_settled):
            name = _name_of(self._middleware[self._deepest])
            if isinstance(result, GENERATORS):  # of one that a decorator hides
                raise JobDefinitionError(f"{name}: {MIDDLEWARE_YIELDS}")
            raise DontHandle(f"the middleware {name} did not call on")
        return result

    def _step(self, place: int) -> Any:  # noqa: ANN401 (the job's result)
        """Call the middleware at this index, or the job behind the last one."""
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return perform(self._job, (), self._hooks, bare=True, wrapped=True)
        middleware = self._middleware[place]
        if _is_async(middleware):
            return finish(self._step_on_loop(place), self._hooks)
        return middleware(self._job, self._next(place, self._step))

    async def _step_on_loop(self, place: int) -> Any:  # noqa: ANN401 (the job's result)
        """As `_step`, on the event loop of a middleware."""
        self._deepest = max(self._deepest, place)
        if place == len(self._middleware):
            return await perform_on_loop(self._job, (), self._hooks, bare=True, wrapped=True)
        middleware = self._middleware[place]
        if _is_async(middleware):
            return await middleware(self._job, self._next(place, self._step_on_loop))
        if self._has_async_behind(place):
            outside = next(each for each in self._middleware if _is_async(each))
            raise JobDefinitionError(
                f"{type(self._job).__name__}: the async middleware {_name_of(outside)} is around "
                f"{_name_of(middleware)}, which is not async and itself around what is: put it "
                "inside of that, or write it without async"
            )
        return middleware(self._job, self._next(place, self._step))

    def _next(self, place: int, step: Callable[[int], Any]) -> Callable[[JobDefinition], Any]:
        def call_next(job: JobDefinition) -> Any:  # noqa: ANN401 (the job's result)
            if job is not self._job:
                name = _name_of(self._middleware[place])
                raise TypeError(
                    f"call_next of the middleware {name} takes the job it was called with"
                )
            return step(place + 1)

        return call_next

    def _has_async_behind(self, place: int) -> bool:
        hooks = [getattr(self._job, hook) for hook in _HOOKS]
        return any(map(_is_async, (*self._middleware[place + 1 :], *hooks)))


def own_middleware(job: JobDefinition) -> Sequence[Any]:
    """Return the current middleware of the job's class. Raises `JobDefinitionError`."""
    declared: Any = type(job).middleware
    if not callable(declared):
        return tuple(declared)
    given = declared(job)
    if given is None:
        return ()
    made = tuple(given) if isinstance(given, Iterable) else given
    check_option(type(job).__name__, "middleware", made)
    return tuple(made)


def _is_async(middleware: Any) -> bool:  # noqa: ANN401 (any callable)
    return any(map(inspect.iscoroutinefunction, (middleware, type(middleware).__call__)))


def _name_of(middleware: object) -> str:
    named = middleware if inspect.isroutine(middleware) else type(middleware)
    return getattr(named, "__qualname__", type(middleware).__name__)


# -- async hooks ----------------------------------------------------------------------------------


class _ThreadHooks(threading.local):
    """What runs the `async` hooks of this thread's jobs; None for a new loop each."""

    finisher: Finisher | None = None


class Finisher(Protocol):
    """Runs the coroutine of an `async def`."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (the job's result)
        """Wait for its result, or raise its exception."""


_thread = _ThreadHooks()


class _KeptLoop:
    """One event loop for all jobs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (the job's result)
        try:
            # The runner's default would be the context of the first job.
            return self._runner.run(coroutine, context=contextvars.copy_context())
        except Interruption:
            # The task is still suspended: closing the loop cancels it, so its `finally` blocks run.
            runner, self._runner = self._runner, asyncio.Runner()
            runner.close()
            raise

    def close(self) -> None:
        self._runner.close()


@contextlib.contextmanager
def kept_event_loop() -> Iterator[None]:
    """Run the `async` jobs of this thread on one event loop instead of a new one each."""
    kept = _KeptLoop()
    finish_by(kept)
    try:
        yield
    finally:
        finish_by(None)
        kept.close()


def run_on_kept_loop(steps: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (what it gives)
    """Run a coroutine on the event loop that `kept_event_loop` keeps for this thread's jobs."""
    assert _thread.finisher is not None  # noqa: S101 (it is kept)
    return _thread.finisher.run(steps)


def finish_by(finisher: Finisher | None) -> None:
    """Set what runs the coroutines of this thread's jobs; None for a new loop each."""
    _thread.finisher = finisher


forks.in_child(lambda: finish_by(None))  # the loop is the parent's, and runs there


def is_for_loop(job_class: type[JobDefinition], outer: Sequence[Any] = ()) -> bool:
    """Whether all code of a job is `async`, so that it needs no thread."""
    handle: Any = getattr(job_class, "handle", None)
    own: Any = job_class.middleware
    if callable(own) or not inspect.iscoroutinefunction(handle):
        return False
    around = (getattr(job_class, hook) for hook in _AROUND if _has_own(job_class, hook))
    return all(map(_is_async, (*outer, *own, *around)))


async def perform_on_loop(
    job: JobDefinition,
    outer: Sequence[Any] = (),
    hooks: Hooks = of_process,
    *,
    bare: bool = False,
    wrapped: bool = False,
) -> Any:  # noqa: ANN401 (what the job returns)
    """As `perform`, on the event loop of this thread, for an all-`async` job."""
    kind = type(job)
    if not wrapped and (hooks.around_on_loop is not None or kind.model_fields):
        return await _wrapped_on_loop(
            job, hooks, lambda: perform_on_loop(job, outer, hooks, bare=bare, wrapped=True)
        )
    if not bare and (outer or kind.middleware):
        return await _Passage(job, (*outer, *own_middleware(job)), hooks).go_on_loop()
    try:
        if kind.set_up is not JobDefinition.set_up:
            await _called_on_loop(job, "set_up")
        return await _called_on_loop(job, "handle")
    finally:
        if kind.tear_down is not JobDefinition.tear_down:
            await _called_on_loop(job, "tear_down")


async def call_hook_on_loop(
    job: JobDefinition, hook: str, *args: object, hooks: Hooks = of_process
) -> None:
    """As `call_hook`, on the event loop of this thread."""
    if getattr(type(job), hook) is not getattr(JobDefinition, hook):
        with _logged(job, hook):
            if hooks.around_on_loop is None and not type(job).model_fields:
                await _called_on_loop(job, hook, *args)
            else:
                await _wrapped_on_loop(
                    job, hooks, lambda: _called_on_loop(job, hook, *args), may_be_gone=True
                )


def finish(result: Any, hooks: Hooks = of_process) -> Any:  # noqa: ANN401 (the job's result)
    """Return a result; of an `async def`, wait for it."""
    if not inspect.isawaitable(result):
        return result
    if hooks.finish_in_caller is not None and in_caller.get():
        return hooks.finish_in_caller(lambda: _awaited(result))
    wrap = hooks.around_on_loop
    steps = _awaited(result) if wrap is None else wrap(lambda: _awaited(result))
    if on_a_running_loop():  # of the program that made a synchronous call
        thread = futures.ThreadPoolExecutor(1, "qframe-async-job")
        context = contextvars.copy_context()
        return thread.submit(context.run, asyncio.run, _without_forks(steps)).result()
    finisher = _thread.finisher
    return (asyncio if finisher is None else finisher).run(steps)


async def _without_forks(steps: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (the job's result)
    """Await steps in a thread; a child that they fork ends with them, as nobody waits there.

    It ends before it closes the loop, whose selector it shares with its parent.
    """
    pid, code = os.getpid(), 0
    try:
        result = await steps
    except BaseException as error:
        if os.getpid() == pid:
            raise
        given = error.code if isinstance(error, SystemExit) else 1
        code = given if isinstance(given, int) else int(given is not None)
        if code == 1:
            log.exception("a fork of this process raised in an async job")
    else:
        if os.getpid() == pid:
            return result
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 (as the end of its main thread would)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


async def _awaited(result: Any) -> Any:  # noqa: ANN401 (the job's result)
    return await result if inspect.isawaitable(result) else result


def refuse_on_loop(call: str, instead: str) -> None:
    """Raise `SynchronousOnly` if this thread runs an event loop, which the call would block."""
    if on_a_running_loop():
        raise SynchronousOnly(
            f"{call} blocks, and an event loop runs on this thread: await {instead}"
        )


def on_a_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
