"""`qframe schedule work`: dispatch what is due, without working on jobs."""

from __future__ import annotations

import logging
import sys
import time
from datetime import datetime

from qframe import events
from qframe.console.connections import configured
from qframe.console.options import Config, Json
from qframe.console.stream import Stream, log_to_stderr
from qframe.console.text import as_json as json_of
from qframe.console.text import clock
from qframe.payload.text import one_line
from qframe.schedules.schedulers import Schedulers, able
from qframe.worker.wakeup import STOPS, WakeUp

_FOREVER = 3600.0


def work(*, as_json: Json = False, config: Config = None) -> int:
    """Dispatch what is due until told to stop; workers do so, too, unless --no-schedule.

    Any number may run, on any hosts: each planned time has one job.

      qframe schedule work
    """
    log_to_stderr(logging.WARNING, as_lines_of_json=as_json)
    stream = Stream(sys.stdout)
    queues = configured(config)
    schedulers = Schedulers(queues, able(queues))

    def tell(event: events.Event) -> None:
        if isinstance(event, events.ScheduleEvent):
            stream.write(_line(event, stream.encoding, as_json=as_json))

    events.listen(events.ScheduleEvent)(tell)
    names = ", ".join(each.name for each in schedulers.connections)
    if not as_json:
        count = len(schedulers.schedules)
        stream.write(one_line(f"{count} schedules of the code, and rows, for {names}", 1000) + "\n")
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    with WakeUp() as wake:
        wake.handle(STOPS, stop)
        schedulers.start()
        while not stopped:
            wake.wait(_FOREVER)
        schedulers.stop()
    stream.finish()
    return 0


def _line(event: events.ScheduleEvent, encoding: str, *, as_json: bool) -> str:
    """Returns a line about what was dispatched, or why not."""
    status, more = {
        events.ScheduledJobDispatched: ("DISPATCHED", getattr(event, "id", "")),
        events.ScheduleSkipped: ("SKIPPED", getattr(event, "reason", "")),
        events.ScheduleMissed: ("MISSED", f"until {getattr(event, 'until', '')}"),
        events.ScheduleFailed: ("FAILED", str(getattr(event, "error", ""))),
    }.get(type(event), ("", ""))
    at: datetime = event.scheduled_for
    if as_json:
        fields = {
            "time": time.time(),
            "status": status.lower(),
            "schedule": event.schedule,
            "connection": event.connection,
            "scheduled_for": at.isoformat(),
            "message": one_line(more, 300),
        }
        return json_of(fields, encoding=encoding) + "\n"
    return f"  {clock()} {status} {one_line(event.schedule)} for {at} {one_line(more, 300)}\n"
