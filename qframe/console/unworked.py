"""Unworked: a worker with nothing to do says once which queues have jobs and no worker."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from qframe import events
from qframe.console.output import Output
from qframe.contracts.backend import Capability
from qframe.exceptions import QframeError
from qframe.payload.text import count_of
from qframe.work import Worker
from qframe.worker import roster

_MOST = 3


def tell(worker: Worker, output: Output) -> None:
    """Has the worker say it when it is idle for the first time."""

    def once(_: events.WorkerIdle) -> None:
        events.forget(once)
        try:
            found = list(_waiting(worker))
        except QframeError:  # then other lines tell of the backend
            return
        for queue, ready in found[:_MOST]:
            jobs = count_of(ready, "job waits", "jobs wait")
            named = ",".join((*worker.queues, queue))
            words = f"{jobs} on {queue}, which no worker names: qframe work --queue {named}"
            output.notice("note", words, "yellow", queue=queue, ready=ready)

    if not output.quiet:
        events.listen(events.WorkerIdle)(once)


def _waiting(worker: Worker) -> Iterator[tuple[str, int]]:
    connection = worker.connection
    if Capability.LIST not in connection.capabilities:
        return
    named = [*worker.queues]
    for entry in roster.listed(connection.store):
        if entry.connection == connection.name:
            named += entry.queues
    for queue in connection.queues():
        is_named = any(fnmatchcase(queue, pattern) for pattern in named)
        if not is_named and (ready := connection.sizes(queue).ready):
            yield queue, ready
