"""Runs a scheduler with many schedules on the default connection, and says what that costs.

    python -m benchmarks.apps.scheduling COUNT SECONDS

Prints JSON: of three parts, `idle` (none is due), `burst` (all are due at one moment) and `steady`
(a hundred are due each second): processor time and calls of the backend a second, and how many
seconds after its planned time each job was pushed.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import Any

from benchmarks.apps.qframe_jobs import Append
from qframe import events, manager, schedule
from qframe.connection import Connection
from qframe.schedules.definition import book
from qframe.schedules.scheduler import Scheduler
from qframe.schedules.schedulers import Schedulers

STEADY = 100
_CALLS = ("apply", "read", "scan")


def main() -> None:
    """Measure each part."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    connection = manager.default().connection()
    calls = _counted(connection)
    lateness: list[float] = []

    @events.listen(events.ScheduledJobDispatched)
    def note(event: events.ScheduledJobDispatched) -> None:
        lateness.append(time.time() - event.scheduled_for.timestamp())

    found: dict[str, Any] = {}
    for number in range(count):
        schedule(Append()).cron(f"{number % 60} 3 1 1 *").name(f"idle {number}")
    scheduler, found["start"] = _begun(connection)
    found["idle"] = _measured(scheduler, seconds, calls)
    book.clear()
    moment = time.time() + 3 + count / 2000
    for number in range(count):
        schedule(Append()).at(_aware(moment)).name(f"burst {number}")
    scheduler, _ = _begun(connection)
    while time.time() < moment or len(lateness) < count:
        time.sleep(min(0.2, scheduler.turn()))
    found["burst"] = {"lateness": [*lateness], "seconds": time.time() - moment}
    lateness.clear()
    book.clear()
    for number in range(min(STEADY, count)):
        schedule(Append()).every_second().name(f"steady {number}")
    scheduler, _ = _begun(connection)
    found["steady"] = {**_measured(scheduler, seconds, calls), "lateness": lateness}
    print(json.dumps(found))


def _aware(moment: float) -> Any:  # noqa: ANN401 (a datetime)
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(moment, UTC)


def _begun(connection: Connection) -> tuple[Scheduler, float]:
    """Give a scheduler that has learnt how far everything is, and how long that took."""
    began = time.perf_counter()
    scheduler = Schedulers(manager.default(), [connection]).scheduler(connection)
    scheduler.turn()
    return scheduler, time.perf_counter() - began


def _measured(scheduler: Scheduler, seconds: float, calls: list[int]) -> dict[str, float]:
    """Let it do what it does for some seconds."""
    processor, before, began = time.process_time(), calls[0], time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(min(scheduler.turn(), max(0.0, seconds - passed)))
    return {
        "processor": (time.process_time() - processor) / passed,
        "calls": (calls[0] - before) / passed,
    }


def _counted(connection: Connection) -> list[int]:
    """Count what is asked of the backend from now on."""
    calls, backend = [0], connection.backend
    for name in _CALLS:
        real = getattr(backend, name)

        @functools.wraps(real)
        def counted(*args: Any, _real: Any = real, **named: Any) -> Any:  # noqa: ANN401
            calls[0] += 1
            return _real(*args, **named)

        setattr(backend, name, counted)
    return calls


if __name__ == "__main__":
    main()
