"""Title: the process title says what a worker does, if setproctitle is installed."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qframe.work import Worker
    from qframe.worker.roster import Entry


def say(what: str) -> None:
    """Sets a title that stays; nothing if setproctitle is not installed."""
    if find_spec("setproctitle") is not None:  # an extra
        from setproctitle import setproctitle  # noqa: PLC0415

        setproctitle(f"qframe: {what}"[:200])


def show(worker: Worker) -> None:
    """Updates the title of this process; it follows about a second behind."""
    shown = ""

    def follow(entry: Entry) -> None:
        nonlocal shown
        if described(entry) != shown:
            shown = described(entry)
            say(shown)

    worker.on_written = follow
    say(f"{worker.connection.name}:{','.join(worker.queues)} starting")


def described(entry: Entry) -> str:
    """Returns what a worker is doing, in words."""
    if not entry.jobs:
        return f"{entry.connection}:{','.join(entry.queues)} {entry.state}"
    job, *others = entry.jobs
    since = time.strftime("%H:%M:%S", time.localtime(job.since))
    more = f" and {len(others)} more" if others else ""
    return f"{entry.connection}:{job.queue} running {job.name} since {since}{more}"
