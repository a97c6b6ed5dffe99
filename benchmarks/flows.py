"""What flows cost: `python -m benchmarks.flows`, on SQLite and a Redis of its own.

For 10,000 nodes it measures: a batch of the same jobs, a fan (all follow one node, one follows all
of them with their results), a map over a list, and a line of 1,000 nodes. Each is dispatched and
worked by one worker of one job at a time; the largest step is counted in operations.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.redis_server import RedisServer
from qframe import Flow, Queueable, QueueManager, Worker, WorkerOptions, batch, manager
from qframe.contracts.step import Step

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000


class One(Queueable):
    """A job that does nothing."""

    number: int = 0

    def handle(self) -> int:
        """Give its number."""
        return self.number


class All(Queueable):
    """A job that gets the results of all others."""

    numbers: list[int]

    def handle(self) -> None:
        """Make sure that all are there."""
        if len(self.numbers) != NODES:
            raise ValueError(len(self.numbers))


class Listing(Queueable):
    """A job that gives the list of a map."""

    def handle(self) -> list[int]:
        """Give it."""
        return [*range(NODES)]


def members() -> int:
    """Dispatch a batch; give how many jobs it has."""
    batch([One(number=number) for number in range(NODES)]).allow_failures().dispatch()
    return NODES


def fan() -> int:
    """Dispatch a node, many behind it, and one behind these."""
    flow = Flow("fan")
    first = flow.add(One())
    nodes = [flow.add(One(number=number), after=[first]) for number in range(NODES)]
    flow.add(All(numbers=[each.result for each in nodes]))
    flow.dispatch()
    return NODES + 2


def mapped() -> int:
    """Dispatch a map over a list."""
    flow = Flow("map")
    listing = flow.add(Listing())
    flow.add(All(numbers=flow.map(One, over=listing.result).result))
    flow.dispatch()
    return NODES + 2


def line() -> int:
    """Dispatch nodes of which each gets the result of the one before."""
    flow = Flow("line")
    node = flow.add(One())
    for _ in range(NODES // 10 - 1):
        node = flow.add(One(number=node.result))
    flow.dispatch()
    return NODES // 10


@contextmanager
def counted(backend: Any, largest: list[int]) -> Iterator[None]:  # noqa: ANN401 (any backend)
    """Note how many operations the largest step has."""
    apply = backend.apply

    def call(*steps: Step) -> Any:  # noqa: ANN401 (what it returns)
        largest[0] = max([largest[0], *(len(each.operations) for each in steps)])
        return apply(*steps)

    backend.apply = call
    try:
        yield
    finally:
        del backend.apply


def measured(name: str, place: str, dispatch: Callable[[], int]) -> None:
    """Dispatch, work, and print what it took."""
    queues, largest = manager.default(), [0]
    with counted(queues.connection().backend, largest):
        began = time.perf_counter()
        jobs = dispatch()
        dispatched = time.perf_counter()
        options = WorkerOptions(stop_when_empty=True, memory=0)
        code = Worker(queues, options).run()
        ended = time.perf_counter()
    if code or queues.failed_store().count():
        sys.exit(f"{place} {name}: exit {code}, {queues.failed_store().count()} jobs failed")
    print(
        f"{place:8} {name:6} {jobs:6,} jobs: dispatched in {dispatched - began:6.2f} s, worked in "
        f"{ended - dispatched:6.2f} s ({1e3 * (ended - dispatched) / jobs:.2f} ms each), largest "
        f"step {largest[0]} operations",
        flush=True,
    )


def main() -> None:
    """Measure everything on both."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        for place, values in {
            "sqlite": {"driver": "database", "url": f"sqlite:///{folder}/q.sqlite3"},
            "redis": {"driver": "redis", "url": f"redis://127.0.0.1:{server.port}"},
        }.items():
            settings = {"root": folder, "default": "it", "connections": {"it": values}}
            manager.use(QueueManager({**settings, "jobs": [__name__]}))
            for name, dispatch in {
                "batch": members, "fan": fan, "map": mapped, "line": line,
            }.items():  # fmt: skip
                measured(name, place, dispatch)


if __name__ == "__main__":
    importlib.import_module("benchmarks.flows").main()  # where workers find the jobs
