"""The ORM's connections around each job, as Django has them around each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from qframe import events
from qframe.jobs import execution


def clean_around_jobs() -> None:
    """Have connections cleaned around each job that runs in this process; said once is enough."""
    for each in (_before, _after, _before_fork):
        events.forget(each)
    for kind, listener in (
        (events.JobProcessing, _before),
        (events.JobAttempted, _after),
        # These also end what was never begun; who hears of that may use the ORM.
        (events.JobFailed, _after),
        (events.JobSkipped, _after),
        (events.JobForking, _before_fork),
    ):
        events.listen(kind)(listener)
    execution.around_on_loop = around_on_loop


def _before(_: events.Event) -> None:
    """Forget the last job's queries, and what has become unusable: the database may be back."""
    if not execution.on_a_running_loop():
        reset_queries()
        close_old_connections()


def _after(_: events.Event) -> None:
    """Close what is broken, or older than CONN_MAX_AGE; it is the thread of the job."""
    if not execution.on_a_running_loop():
        close_old_connections()


def _before_fork(_: events.Event) -> None:
    """Close all: a process that is forked must not share a socket."""
    connections.close_all()


async def around_on_loop(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 (what the job gave)
    """Run an `async` job with a thread of its own for the ORM, whose connections end with it.

    As Django does with each request under ASGI: jobs beside each other share no transaction.
    """
    async with ThreadSensitiveContext() as context:
        try:
            return await run()
        finally:
            if context in SyncToAsync.context_to_thread_executor:  # it has used the ORM, perhaps
                await asyncio.shield(sync_to_async(connections.close_all)())
