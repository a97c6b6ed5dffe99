"""The process title: what a worker does, where setproctitle is installed; never the arguments."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.worker import Worker
    from qframe.worker.roster import Entry

_LONGEST = 200


def say(what: str) -> None:
    """Give this process a title that stays; nothing where setproctitle is not installed."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle  # noqa: PLC0415 (an extra)

        setproctitle(f"qframe: {what}"[:_LONGEST])


def show(worker: Worker) -> None:
    """Keep the title of this process up to date; nothing where setproctitle is not installed.

    It follows about a second behind, so no job costs anything.
    """
    try:
        from setproctitle import setproctitle  # noqa: PLC0415 (an extra)
    except ImportError:
        return
    shown = ""

    def follow(entry: Entry) -> None:
        nonlocal shown
        title = said(entry)
        if title != shown:
            shown = title
            setproctitle(title)

    worker.told = follow
    setproctitle(f"qframe: {worker.connection.name}:{','.join(worker.queues)} starting"[:_LONGEST])


def said(entry: Entry) -> str:
    """Say what a worker is doing."""
    if entry.job is None:
        text = f"{entry.connection}:{','.join(entry.queues)} {entry.state}"
    else:
        since = time.strftime("%H:%M:%S", time.localtime(entry.job.since))
        text = f"{entry.connection}:{entry.job.queue} running {entry.job.name} since {since}"
    return f"qframe: {text}"[:_LONGEST]
