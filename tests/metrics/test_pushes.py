"""Pushes: each way to push is counted once, by who pushes, and written whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, text

from qframe import Queueable, QueueManager, batch, bulk, chain, dispatch, manager
from qframe.connection import Connection
from qframe.exceptions import BackendUnavailable
from qframe.failed.retry import retry
from qframe.metrics import pushes
from qframe.metrics.kept import Metrics
from qframe.metrics.series import PUSHED
from qframe.outbox.relay import Relay
from qframe.schedules.rows import ScheduleRow, ScheduleRows
from qframe.testing import Drained, drain, fake
from tests.schedules.conftest import Bench, bench
from tests.support.process import Project, wait_for
from tests.support.redis_server import RedisServer


class Plain(Queueable):
    number: int = 0
    fails: bool = False

    def handle(self) -> None:
        if self.fails:
            raise RuntimeError("it fails")


class Only(Plain):
    unique: ClassVar[Any] = True


__all__ = ["bench"]


@pytest.fixture
def connection(fresh: Path, backend: dict[str, Any]) -> Connection:
    used = {"database": {"driver": "database"}, "used": backend}
    settings = {"default": "used", "connections": used, "root": fresh, "jobs": [__name__]}
    manager.use(QueueManager(settings))
    return manager.default().connection()


def pushed(connection: Connection) -> dict[str, int]:
    """Give how many jobs of each class were pushed, as it was written."""
    totals = Metrics(connection.store, connection.name).totals()
    return {
        pair.job.rpartition(".")[2]: fields[PUSHED]
        for pair, fields in totals.items()
        if PUSHED in fields
    }


def counted(connection: Connection) -> dict[str, int]:
    """Give the same, with what is not written yet."""
    assert connection.context.pushes is not None
    connection.context.pushes.write()
    return pushed(connection)


def test_what_is_dispatched_one_by_one_and_together(connection: Connection) -> None:
    dispatch(Plain()).send()
    dispatch(Plain()).delay(60).send()
    assert counted(connection) == {"Plain": 2}
    bulk([Plain(), Only(), Plain()])
    connection.push_raw('{"job": "app.Other@handle"}', "mail")
    connection.push_raw("no job at all", "mail")
    expected = {"Plain": 4, "Only": 1, "Other": 1, "(unknown)": 1}
    assert counted(connection) == expected
    assert counted(connection) == expected


def test_a_duplicate_was_not_pushed(connection: Connection) -> None:
    for _ in range(3):
        dispatch(Only()).send()
    bulk([Only(), Plain()])
    assert counted(connection) == {"Only": 1, "Plain": 1}


def test_links_count_as_they_are_pushed(connection: Connection) -> None:
    chain([Plain(), Plain(), Only()]).dispatch()
    assert counted(connection) == {"Plain": 1}
    assert drain() == Drained(done=3)
    assert counted(connection) == {"Plain": 2, "Only": 1}


def test_members_and_what_follows_them(connection: Connection) -> None:
    batch([Plain(), [Plain(), Plain()]]).then(Only()).dispatch()
    assert counted(connection) == {"Plain": 2}
    assert drain().failed == 0
    assert counted(connection) == {"Plain": 3, "Only": 1}


def test_one_that_is_retried_was_pushed_twice(connection: Connection) -> None:
    dispatch(Plain(fails=True)).send()
    drain()
    store = manager.default().failed_store()
    (record,) = store.page(9)
    assert retry(manager.default(), store, record)
    assert counted(connection) == {"Plain": 2}


def test_one_that_is_awaited(connection: Connection) -> None:
    async def main() -> None:
        await asyncio.gather(*(dispatch(Plain(number=each)) for each in range(20)))
        await dispatch(Only())
        await dispatch(Only())

    asyncio.run(main())
    assert counted(connection) == {"Plain": 20, "Only": 1}


def test_a_fake_counts_nothing(connection: Connection) -> None:
    with fake():
        dispatch(Plain()).send()
        bulk([Plain()])
    assert counted(connection) == {}


def test_one_whose_push_is_refused(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(connection.backend, "apply", refuse)
        with pytest.raises(BackendUnavailable):
            dispatch(Plain()).send()
    assert counted(connection) == {}


def test_what_a_schedule_dispatches(bench: Bench) -> None:
    row = ScheduleRow(job="App.Sync", foreign=True, when="every 10s")
    ScheduleRows(bench.queues).add(bench.queue, "sync", row)
    host = bench.host()
    bench.clock.now = time.time()
    bench.pass_(host, seconds=25)
    assert counted(bench.queue) == {"Sync": len(bench.times())}
    assert len(bench.times()) > 0


@pytest.mark.parametrize("native", [False, True])
def test_within_a_transaction_it_counts_once(
    fresh: Path, redis_running: RedisServer, native: bool
) -> None:
    redis_running.command("FLUSHALL")
    redis = {"driver": "redis", "url": redis_running.url}
    url = f"sqlite:///{fresh}/app.sqlite3"
    settings: dict[str, Any] = {
        "default": "main" if native else "redis",
        "connections": {"main": {"driver": "database", "url": url}, "redis": redis},
        "outbox": {"connection": "main"},
        "root": fresh,
    }
    queues = QueueManager(settings)
    manager.use(queues)
    queues.backend("main").migrate()
    engine, connection = create_engine(url), queues.connection()
    with engine.begin() as own:
        own.execute(text("CREATE TABLE orders (name TEXT)"))
    with engine.begin() as own:
        dispatch(Plain()).within(own)
        dispatch(Only()).within(own)
    if not native:
        assert counted(connection) == {}  # nobody has pushed it yet
        kept = queues.outbox()
        assert kept is not None
        while Relay(queues, kept).turn():
            pass
    assert counted(connection) == {"Plain": 1, "Only": 1}


# -- when it is written ---------------------------------------------------------------------------


def test_a_thread_writes_it_and_ends(
    counting: None, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "EVERY", 0.05)
    before = {*threading.enumerate()}
    for _ in range(2):
        dispatch(Plain()).send()
        (thread,) = {*threading.enumerate()} - before
        thread.join(30)
        assert not thread.is_alive()
    assert pushed(connection) == {"Plain": 2}


def test_what_cannot_be_written_is_written_later(
    counting: None, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "EVERY", 0.05)
    tried = threading.Event()

    def fails(*_: object) -> None:
        tried.set()
        raise BackendUnavailable("away")

    with monkeypatch.context() as patched:
        assert connection.context.pushes is not None
        patched.setattr(connection.context.pushes._metrics.store, "set", fails)
        dispatch(Plain()).send()
        assert tried.wait(30)
    wait_for(lambda: pushed(connection) == {"Plain": 1}, "the count")


def test_a_forked_child_counts_its_own(connection: Connection) -> None:
    dispatch(Plain()).send()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            dispatch(Only()).send()
            connection.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert pushed(connection) == {"Only": 1}
    assert counted(connection) == {"Plain": 1, "Only": 1}


JOBS = """
import multiprocessing, sys
from qframe import Queueable, chain, dispatch, manager

class Plain(Queueable):
    job_name = "jobs.Plain"
    def handle(self):
        pass

class More(Queueable):
    job_name = "jobs.More"
    def handle(self):
        dispatch(Plain()).send()

def child():
    sys.modules['jobs'] = sys.modules[__name__]
    dispatch(Plain()).send()

if __name__ == "__main__":
    sys.modules['jobs'] = sys.modules[__name__]
    if sys.argv[1] == "ends":
        for _ in range(3):
            dispatch(Plain()).send()
    elif sys.argv[1] == "more":
        for _ in range(3):
            dispatch(More()).send()
    else:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=child)
        process.start()
        process.join()
"""


@pytest.fixture
def project(tmp_path: Path) -> Any:
    with Project(tmp_path / "app", 'jobs = ["jobs"]') as made:
        (made.root / "jobs.py").write_text(JOBS)
        yield made


@pytest.mark.parametrize(("how", "count"), [("ends", 3), ("fork", 1), ("spawn", 1)])
def test_it_is_written_when_a_process_ends(project: Project, how: str, count: int) -> None:
    assert project.run([sys.executable, "jobs.py", how]).finished().code == 0
    assert pushed(project.queue) == {"Plain": count}


@pytest.mark.parametrize("words", [[], ["--isolate"], ["--concurrency", "4"]])
def test_what_jobs_dispatch_is_written_by_their_worker(project: Project, words: list[str]) -> None:
    assert project.run([sys.executable, "jobs.py", "more"]).finished().code == 0
    assert pushed(project.queue) == {"More": 3}
    worker = project.start("work", *words)
    wait_for(lambda: pushed(project.queue) == {"More": 3, "Plain": 3}, "the counts")
    assert worker.alive()
