"""One attempt of one job in this process: its hooks in order, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qframe.exceptions import DontHandle, Interruption
from qframe.jobs.definition import JobDefinition
from qframe.middleware.pipeline import Passage

log = logging.getLogger("qframe")


def perform(job: JobDefinition, outer: Sequence[Any] = ()) -> Any:  # noqa: ANN401 (what the job returns)
    """Call `set_up`, `handle` and, whatever came of them, `tear_down`; give what `handle` gave.

    Raises what they raise; an error of `tear_down` is chained to the one before it. All of it goes
    through the middleware in `outer`, then the class's own, and gives what they give; `DontHandle`
    is raised where one has the job skipped.
    """
    if outer or type(job).middleware:
        return Passage(job, outer, _hooks, _hooks_on_loop, _finish).go()
    return _hooks(job)


def perform_bare(job: JobDefinition, outer: Sequence[Any] = ()) -> Any:  # noqa: ANN401 (what the job returns)
    """Run the job without any middleware, for a test of the job alone."""
    del outer
    return _hooks(job)


def _hooks(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job returns)
    """Perform a job that has come through its middleware."""
    try:
        if type(job).set_up is not JobDefinition.set_up:
            _finish(job.set_up())
        result = job.handle()
        if result is not None and inspect.isawaitable(result):
            result = _finish(result)
    finally:
        if type(job).tear_down is not JobDefinition.tear_down:
            _finish(job.tear_down())
    return result


async def _hooks_on_loop(job: JobDefinition) -> Any:  # noqa: ANN401 (what the job returns)
    """Do so on the event loop of a middleware."""
    try:
        await _awaited(job.set_up())
        result = await _awaited(job.handle())
    finally:
        await _awaited(job.tear_down())
    return result


async def _awaited(result: Any) -> Any:  # noqa: ANN401 (what the job returns)
    return await result if inspect.isawaitable(result) else result


def tell(job: JobDefinition, hook: str, *args: object) -> None:
    """Call `succeeded` or `failed`; what they raise is logged."""
    if getattr(type(job), hook) is getattr(JobDefinition, hook):
        return
    try:
        _finish(getattr(job, hook)(*args))
    except Interruption:
        raise
    except BaseException:
        log.exception("%s.%s raised", type(job).__name__, hook)


def skipped(error: BaseException) -> bool:
    """Whether an attempt ended by asking not to be run."""
    return isinstance(error, DontHandle)


_kept = threading.local()


@contextlib.contextmanager
def kept_event_loop() -> Iterator[None]:
    """Run the `async` jobs of this thread on one event loop instead of a new one each."""
    _kept.runner = asyncio.Runner()
    try:
        yield
    finally:
        runner, _kept.runner = _kept.runner, None
        runner.close()


def _finish(result: Any) -> Any:  # noqa: ANN401 (what the job returns)
    """Wait for what an `async def` hook gave."""
    if not inspect.isawaitable(result):
        return result
    if _on_a_loop():
        return _in_a_thread(lambda: asyncio.run(_await(result)))
    runner: asyncio.Runner | None = getattr(_kept, "runner", None)
    if runner is None:
        return asyncio.run(_await(result))
    try:
        return runner.run(_await(result))
    except Interruption:
        # The task is still suspended: closing the loop cancels it, so its `finally` blocks run.
        _kept.runner = asyncio.Runner()
        runner.close()
        raise


async def _await(awaitable: Any) -> Any:  # noqa: ANN401 (what the job returns)
    return await awaitable


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(call: Callable[[], Any]) -> Any:  # noqa: ANN401 (what the job returns)
    """Run on a thread of its own, for a synchronous call made from a running event loop."""
    outcome: list[Any] = []
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            trouble.append(error)

    thread = threading.Thread(target=work, name="qframe-async-job")
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return outcome[0]
