"""The ORM's connections around each job: a worker's are cleaned up, a caller's are left alone."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from asgiref.sync import (
    AsyncToSync,
    SyncToAsync,
    ThreadSensitiveContext,
    async_to_sync,
    sync_to_async,
)
from django.db import close_old_connections, connections, reset_queries

from qframe import events
from qframe.hooks import Awaits, of_process
from qframe.jobs import execution


def look_after_connections() -> None:
    """Cleans up connections around each job that runs in this process; idempotent."""
    for each in (_before, _after, _before_fork):
        events.forget(each)
    for kind, listener in (
        (events.JobProcessing, _before),
        (events.JobAttempted, _after),
        # These also end jobs that never began; their listeners may use the ORM.
        (events.JobFailed, _after),
        (events.JobSkipped, _after),
        (events.JobForking, _before_fork),
    ):
        events.listen(kind)(listener)
    of_process.around_on_loop = around_on_loop
    of_process.finish_in_caller = finish_in_caller
    of_process.submit = submit


# -- in a worker: as Django does around each request ----------------------------------------------


def _before(_: events.Event) -> None:
    """Clears the last job's queries, and closes broken connections: the database may be back."""
    if _is_of_a_worker():
        reset_queries()
        close_old_connections()


def _after(_: events.Event) -> None:
    """Closes what is broken, or older than CONN_MAX_AGE; in the thread of the job."""
    if _is_of_a_worker():
        close_old_connections()


def _is_of_a_worker() -> bool:
    """Whether the connections of this thread are a worker's, and no caller's."""
    return not (execution.in_caller.get() or execution.on_a_running_loop())


def _before_fork(_: events.Event) -> None:
    """Closes all: a forked process must not share a socket."""
    connections.close_all()


async def around_on_loop(run: Awaits) -> Any:  # noqa: ANN401 (what the job gave)
    """Runs an `async` job with its own thread for the ORM, whose connections end with it.

    As Django does with each request under ASGI: concurrent jobs share no transaction. A job that
    runs for a caller uses the caller's thread for the ORM.
    """
    if execution.in_caller.get():
        return await run()
    async with ThreadSensitiveContext() as context:
        try:
            return await run()
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # it may have used the ORM
                await asyncio.shield(sync_to_async(connections.close_all)())


# -- for a caller: in the thread, and so in the transaction, that it uses the ORM in ---------------


def finish_in_caller(run: Awaits) -> Any:  # noqa: ANN401 (what the job gave)
    """Runs an `async` job on a loop in another thread; the caller's runs its ORM calls.

    It never runs on a loop that is there already: that one may wait for the caller.
    """
    if execution.on_a_running_loop():
        return _finish_for_loop(run)
    attempt = _ServedJob(run)
    try:
        return async_to_sync(attempt.run, force_new_loop=True)()
    except BaseException:
        attempt.cancel()  # this thread was interrupted; an exception of the job's own has ended it
        raise


class _ServedJob:
    """One `async` job, for a thread that waits for it and runs its ORM calls meanwhile."""

    def __init__(self, run: Awaits) -> None:
        self._run = run
        self._task: asyncio.Task[Any] | None = None
        self._server: Any = None
        self._ended: Future[None] = Future()

    async def run(self) -> Any:  # noqa: ANN401 (what the job gave)
        self._task = asyncio.current_task()
        self._server = getattr(AsyncToSync.executors, "current", None)
        try:
            return await self._run()
        finally:
            self._ended.set_result(None)

    def cancel(self) -> None:
        """Ends the job, if it has not ended, and runs its ORM calls during that."""
        if self._task is None or self._ended.done():
            return
        with suppress(RuntimeError):  # its loop has just been closed
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
            self._server.run_until_future(self._ended)


def _finish_for_loop(run: Awaits) -> Any:  # noqa: ANN401 (what the job gave)
    served_by = _thread_for_the_orm()

    async def served() -> Any:  # noqa: ANN401 (as above)
        context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[context] = served_by
        token = SyncToAsync.thread_sensitive_context.set(context)
        try:
            return await run()
        finally:
            SyncToAsync.thread_sensitive_context.reset(token)

    with ThreadPoolExecutor(1, "qframe-async-job") as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, served()).result()


def submit(act: Callable[[], None]) -> None:
    """Runs what blocks in the thread that runs the ORM calls of this loop's code."""
    asyncio.get_running_loop().run_in_executor(_thread_for_the_orm(), act)


def _thread_for_the_orm() -> Executor:
    """Returns the executor that `sync_to_async` would use here.

    Awaiting it would take another step of the loop, which the caller may block until the job is
    over.
    """
    loop = asyncio.get_running_loop()
    serving: Executor | None = getattr(AsyncToSync.executors, "current", None)
    context = SyncToAsync.thread_sensitive_context.get(None)
    if serving is not None:  # a thread waits for this loop, as that of a test does
        return serving
    if context is None:
        return AsyncToSync.loop_thread_executors.get(loop) or SyncToAsync.single_thread_executor
    executors = SyncToAsync.context_to_thread_executor
    if context not in executors:  # of a request
        executors[context] = ThreadPoolExecutor(max_workers=1)
    return executors[context]
