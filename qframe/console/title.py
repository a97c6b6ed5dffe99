"""The process title: what a worker does, where setproctitle is installed; never the arguments."""

from __future__ import annotations

import time

from qframe import events

_LONGEST = 200


def show(queues: str) -> None:
    """Keep the title of this process up to date; nothing where setproctitle is not installed."""
    try:
        from setproctitle import setproctitle  # noqa: PLC0415 (an extra)
    except ImportError:
        return

    def busy(event: events.JobProcessing) -> None:
        since = time.strftime("%H:%M:%S")
        setproctitle(f"qframe: {event.job.queue} {event.job.name} since {since}"[:_LONGEST])

    def idle(_event: events.WorkerIdle) -> None:
        setproctitle(f"qframe: {queues} idle"[:_LONGEST])

    def paused(_event: events.WorkerPaused) -> None:
        setproctitle(f"qframe: {queues} paused"[:_LONGEST])

    events.listen(events.JobProcessing)(busy)
    events.listen(events.WorkerIdle)(idle)
    events.listen(events.WorkerPaused)(paused)
    setproctitle(f"qframe: {queues} starting"[:_LONGEST])
