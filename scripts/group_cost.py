"""Measures what a job of a group costs beside a plain one.

    python scripts/group_cost.py redis://127.0.0.1:6379/9     # queues there are emptied
    python scripts/group_cost.py sqlite:////tmp/cost.db
    python scripts/group_cost.py beanstalkd://127.0.0.1:11300 # facts are in a temporary SQLite file

Milliseconds for each job, pushed with `bulk` and run by one worker in this process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qframe import Queueable, QueueManager, bulk, manager
from qframe.testing import drain

COUNT = 3000
ROUNDS = 5


class Measured(Queueable):
    """Does nothing, in no group."""

    number: int

    def handle(self) -> None:
        """Do nothing."""


class InGroup(Measured):
    """Does nothing, in a group."""

    group = "{number}"


def connect(url: str) -> QueueManager:
    """Return the queues at an address."""
    place = urlsplit(url)
    here: dict[str, Any] = {"driver": "database", "url": url}
    if place.scheme == "redis":
        here["driver"] = "redis"
    elif place.scheme == "beanstalkd":
        here = {"driver": "beanstalkd", "host": place.hostname, "port": place.port}
    groups = {"limited": {"concurrency": 1}}
    settings = {"root": Path(__file__).parent, "default": "here", "groups": groups}
    connections = {"here": here}
    if place.scheme == "beanstalkd":
        file = Path(tempfile.mkdtemp()) / "facts.sqlite3"
        connections["facts"] = {"driver": "database", "url": f"sqlite:///{file}"}
        settings |= {"store": {"driver": "facts"}, "failed": {"driver": "facts"}}
    return QueueManager({**settings, "connections": connections})


def measure(name: str, kind: type[Measured], groups: int, queue: str) -> str:
    """Return a line with the best and the worst milliseconds of pushing and of running a job."""
    pushed, ran = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        bulk([kind(number=number % groups) for number in range(COUNT)], queue=queue)
        middle = time.perf_counter()
        drain(queues=queue, at_most=20 * COUNT)
        pushed.append((middle - began) * 1000 / COUNT)
        ran.append((time.perf_counter() - middle) * 1000 / COUNT)
    shown = (f"{min(each):.2f}-{max(each):.2f}" for each in (pushed, ran))
    return f"{name:32} {' '.join(f'{each:>12}' for each in shown)}"


if __name__ == "__main__":
    manager.use(made := connect(sys.argv[1]))
    for name in ("plain", "grouped", "limited"):
        made.connection().clear(name)
    print(f"{'ms for each job':32} {'push':>12} {'run':>12}")
    print(measure("plain", Measured, COUNT, "plain"))
    print(measure("each in a group of its own", InGroup, COUNT, "grouped"))
    print(measure("20 groups", InGroup, 20, "grouped"))
    print(measure("20 groups, concurrency = 1", InGroup, 20, "limited"))
    print(measure("1 group, concurrency = 1", InGroup, 1, "limited"))
