"""Fills the default connection, and says how long each page of the dashboard takes on it.

    python -m benchmarks.apps.filled_page WAITING FAILED

Prints JSON: the seconds of each look at each page, calls of the backend, and the memory.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from qframe import manager
from qframe.connection import Connection
from qframe.console.threads import favour_those_that_wait
from qframe.contracts import FailedJob, History
from qframe.contracts.step import Operation, Push, Record, Set, Step
from qframe.metrics.kept import PREFIX, Metrics
from qframe.metrics.series import RUN, WAIT
from qframe.web import app
from qframe.web.app import pause

LOOKS = 12
_NOW = time.time()
_PAUSE = 0.2
_STILL = 5
"""So many looks alike an open page has had before it is looked at less often."""
_STILL_LOOKS = 4
_AT_ONCE = 2000
_CLASSES = 20
"""So many job classes were measured, for 14 days."""
_CALLS = (
    *("apply", "read", "scan", "sizes", "queues", "browse", "search", "spans", "peek", "check"),
    *("list_failed", "find_failed", "count_failed", "latch"),
)
PAGES = {
    "overview": "/",
    "overview of 24 hours": "/?period=24h",
    "overview of 14 days": "/?period=14d",
    "queues": "/queues",
    "jobs of all queues": "/jobs",
    "jobs of all queues, filtered": "/jobs?filter=args.user:7",
    "waiting jobs": "/jobs?queue=mail",
    "waiting jobs, filtered": "/jobs?queue=mail&filter=args.user:7",
    "failed by cause": "/failed",
    "failed by time": "/failed?by=time",
    "failed, filtered": "/failed?filter=error:199999",
    "one failed job": "/failed/f-00000005",
    "one waiting job": "/jobs/{waiting}?queue=mail",
    "workers": "/workers",
    "batches": "/batches",
    "classes": "/classes",
    "classes of 14 days": "/classes?hours=336",
    "one class": "/classes/app.Send",
    "one class of 24 hours": "/classes/app.Send?period=24h",
    "one class of 14 days": "/classes/app.Send?period=14d",
    "Prometheus": "/metrics",
}


def main() -> None:
    """Fill, look, and print."""
    waiting, failed = map(int, sys.argv[1:])
    forked = multiprocessing.get_context("fork")
    filling = forked.Process(target=_fill_all, args=(waiting, failed))
    filling.start()  # apart, as the memory that it takes is not the page's
    filling.join()
    assert filling.exitcode == 0  # noqa: S101 (it has told why)
    connection = manager.default().connection()
    count = _counted(connection)
    client = TestClient(app(authorize=lambda _: "act"), base_url="http://localhost")
    times: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    known = _uuid(waiting * 5 // 8, waiting)
    favour_those_that_wait()
    client.get("/healthz")  # the first request of all makes the test client's own loop
    for name, page in PAGES.items():
        path = page.replace("{waiting}", known)
        for _ in range(LOOKS):
            before, began = count(), time.perf_counter()
            said = client.get(path)
            times.setdefault(name, []).append(time.perf_counter() - began)
            calls[name] = max(calls.get(name, 0), count() - before)
            assert said.status_code == 200, (path, said.text)  # noqa: S101 (a page that fails is none)
            time.sleep(_PAUSE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"times": times, "calls": calls, "open": _open(client, count), "mb": peak}))


def _fill_all(waiting: int, failed: int) -> None:
    connection = manager.default().connection()
    _fill(connection, waiting, failed)
    _measure(connection)


def _fill(connection: Connection, waiting: int, failed: int) -> None:
    def push(number: int) -> Operation:
        data = {"user": number % 1000}
        message = {"uuid": _uuid(number, waiting), "job": "app.Send", "data": data}
        return Push("mail", json.dumps(message).encode(), 0)

    def record(number: int) -> Operation:
        frames = (
            f'Traceback (most recent call last):\n  File "/app/x.py", line 3, in f{number % 40}\n'
        )
        return Record(
            FailedJob(
                uuid=f"f-{number:08}",
                connection=connection.name,
                queue="mail",
                payload=b'{"uuid":"x","job":"app.Send","data":{"user":7}}',
                exception=f"{frames}    x()\nValueError: bad {number}",
                name="app.Send",
                attempts=3,
                history=History(),
                failed_at=time.time() - number,
            )
        )

    for make, many in ((push, waiting), (record, failed)):
        for first in range(0, many, _AT_ONCE):
            numbers = range(first, min(many, first + _AT_ONCE))
            connection.backend.apply(Step(None, *map(make, numbers)))


def _measure(connection: Connection) -> None:
    """Write what workers would have measured: each minute of a day, and each tenth before."""
    names = ["app.Send", *(f"app.Job{number}" for number in range(1, _CLASSES))]
    histograms = {kind.bucket(0.002 * 1.4**at): 4 for kind in (RUN, WAIT) for at in range(15)}
    histograms |= {RUN.total: 60_000_000, WAIT.total: 60_000_000}
    fields = {"pushed": 60, "started": 60, "done": 58, "failed": 2, **histograms}
    text = json.dumps([["mail", name, fields] for name in names])
    now = int(_NOW // 60)
    minutes = [*range(5, 1440), *range(1440, 14 * 1440, 10)]
    keys = [f"{PREFIX}part:{connection.name}|{now - ago:010d}|filled" for ago in minutes]
    for first in range(0, len(keys), 100):
        parts = (Set(key, text, 3600.0) for key in keys[first : first + 100])
        connection.store.backend.apply(Step(None, *parts))
    Metrics(connection.store, connection.name).put_together()


def _uuid(number: int, count: int) -> str:
    """Give the id of a job that was dispatched at an even pace in the last hour."""
    made = int((_NOW - 3600 + 3600 * number / count) * 1000)
    whole = f"{made:012x}7{number % 4096:03x}8{number:015x}"
    return "-".join((whole[:8], whole[8:12], whole[12:16], whole[16:20], whole[20:]))


def _counted(connection: Connection) -> Callable[[], int]:
    """Have the calls of the backend counted."""
    counts = [0]
    backend: Any = connection.backend

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401 (any call's)
            counts[0] += 1
            return call(*arguments, **more)

        return called

    for name in _CALLS:
        setattr(backend, name, counting(getattr(backend, name)))
    return lambda: counts[0]


def _open(client: TestClient, count: Callable[[], int]) -> float:
    """Give how many calls a second an open page makes where nothing happens."""
    before, began = count(), time.monotonic()
    for _ in range(_STILL_LOOKS):
        client.get("/")
        time.sleep(pause(_STILL))
    return (count() - before) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
