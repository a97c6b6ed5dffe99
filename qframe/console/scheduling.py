"""`qframe schedule work`: dispatch what is due, without working on jobs."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from qframe import events, forks
from qframe.console.connections import configured
from qframe.console.options import Config, Json
from qframe.console.text import as_json as json_of
from qframe.console.text import encodable, say
from qframe.payload.text import one_line
from qframe.schedules.schedulers import Schedulers, able
from qframe.worker.wakeup import STOPS, WakeUp

_FOREVER = 3600.0


def work(*, as_json: Json = False, config: Config = None) -> int:
    """Dispatch what is due until told to stop; workers do so, too, unless --no-schedule.

    Any number may run, on any hosts: each planned time has one job.

      qframe schedule work
    """
    logging.basicConfig(level=logging.WARNING, format="  %(asctime)s %(levelname)s %(message)s")
    queues = configured(config)
    schedulers = Schedulers(queues, able(queues))
    lock = forks.lock()

    def tell(event: events.Event) -> None:
        if isinstance(event, events.ScheduleEvent):
            with lock:
                _print(event, as_json=as_json)

    events.listen(events.ScheduleEvent)(tell)
    names = ", ".join(each.name for each in schedulers.connections)
    if not as_json:
        say(f"{len(schedulers.schedules)} schedules of the code, and rows, for {names}")
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    with WakeUp() as wake:
        wake.hear(STOPS, stop)
        schedulers.start()
        while not stopped:
            wake.wait(_FOREVER)
        schedulers.stop()
    return 0


def _print(event: events.ScheduleEvent, *, as_json: bool) -> None:
    """Say in a line what was dispatched, or why not."""
    status, more = {
        events.ScheduledJobDispatched: ("DISPATCHED", getattr(event, "id", "")),
        events.ScheduleSkipped: ("SKIPPED", getattr(event, "reason", "")),
        events.ScheduleMissed: ("MISSED", f"until {getattr(event, 'until', '')}"),
        events.ScheduleFailed: ("FAILED", str(getattr(event, "error", ""))),
    }.get(type(event), ("", ""))
    at: datetime = event.scheduled_for
    if as_json:
        told = {
            "time": time.time(),
            "status": status.lower(),
            "schedule": event.schedule,
            "connection": event.connection,
            "scheduled_for": at.isoformat(),
            "message": one_line(more, 300),
        }
        say_line(json_of(told))
    else:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        say_line(f"  {stamp} {status} {one_line(event.schedule)} for {at} {one_line(more, 300)}")


def say_line(text: str) -> None:
    """Write a line at once; who does not read any more changes nothing."""
    try:
        print(encodable(text), flush=True)  # noqa: T201 (what it is for)
    except OSError:
        return
