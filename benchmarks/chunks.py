"""What chunks gain: `python -m benchmarks.chunks`, rows of a SQLite file one by one and by 100."""

from __future__ import annotations

import importlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.redis_server import RedisServer
from qframe import Chunk, Queueable, QueueManager, Worker, WorkerOptions, bulk, manager

ROWS = 5000


def insert(rows: Sequence[tuple[int]]) -> None:
    """Insert rows in one transaction."""
    with sqlite3.connect(os.environ["ROWS"]) as database:
        database.executemany("INSERT INTO rows VALUES (?)", rows)


class One(Queueable):
    """A row by itself."""

    row: int

    def handle(self) -> None:
        """Insert it."""
        insert([(self.row,)])


class Many(Queueable):
    """Rows by the hundred."""

    row: int
    chunk: ClassVar[Chunk | None] = Chunk(100, within=2)

    @classmethod
    def handle_many(cls, jobs: Sequence[Many]) -> None:
        """Insert them."""
        insert([(job.row,) for job in jobs])


def main() -> None:
    """Measure both on SQLite and on a Redis of its own."""
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        os.environ["ROWS"] = f"{folder}/rows.sqlite3"
        sqlite3.connect(os.environ["ROWS"]).execute("CREATE TABLE rows (number INTEGER)")
        for place, values in {
            "sqlite": {"driver": "database", "url": f"sqlite:///{folder}/q.sqlite3"},
            "redis": {"driver": "redis", "url": f"redis://127.0.0.1:{server.port}"},
        }.items():
            settings = {"root": folder, "default": "it", "connections": {"it": values}}
            manager.use(QueueManager({**settings, "jobs": [__name__]}))
            for kind in (One, Many):
                bulk(kind(row=number) for number in range(ROWS))
                began = time.perf_counter()
                Worker(manager.default(), WorkerOptions(stop_when_empty=True, memory=0)).run()
                rate = ROWS / (time.perf_counter() - began)
                print(f"{place:8} {kind.__name__:5} {rate:7,.0f} rows a second", flush=True)


if __name__ == "__main__":
    importlib.import_module("benchmarks.chunks").main()  # where workers find the jobs
