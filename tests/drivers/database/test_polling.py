"""Waiting on MariaDB, where a server can tell nothing: looks that grow rarer while no job comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from qframe.contracts.step import Delete, Push, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.wait import ServerWatch
from tests.support.mariadb_server import MariadbServer

Opener = Callable[[], DatabaseBackend]


@pytest.fixture
def another(mariadb_running: MariadbServer) -> Iterator[Opener]:
    url = mariadb_running.database()
    opened: list[DatabaseBackend] = []

    def open_one() -> DatabaseBackend:
        opened.append(DatabaseBackend("here", DatabaseSettings(url=url)))
        return opened[-1]

    open_one().database.migrate()
    yield open_one
    for each in opened:
        each.close()


def asked(mariadb: MariadbServer, worker: DatabaseBackend, seconds: float) -> int:
    """Count what a worker asks while it waits."""
    worker.wait(["q", "r"], 0.01)  # it is connected
    _questions(mariadb)
    ours = -_questions(mariadb) + _questions(mariadb)
    before = _questions(mariadb)
    begun = time.monotonic()
    worker.wait(["q", "r"], seconds)
    assert time.monotonic() - begun >= seconds
    return _questions(mariadb) - before - ours


def _questions(mariadb: MariadbServer) -> int:
    return int(mariadb.sql("show global status like 'Questions'")[0][1])


def test_a_look_is_one_statement_for_all_queues(
    mariadb_running: MariadbServer, another: Opener
) -> None:
    assert asked(mariadb_running, another(), 0.05) == 1


def test_an_idle_worker_looks_four_times_a_second(
    mariadb_running: MariadbServer, another: Opener
) -> None:
    assert asked(mariadb_running, another(), 2.0) <= 9


def test_a_worker_that_had_a_job_lately_looks_often(another: Opener) -> None:
    worker, program = another(), another()
    watch = worker._watch
    assert isinstance(watch, ServerWatch)
    assert watch._pause(time.monotonic()) == watch._LONGEST
    program.apply(Step(None, Push("q", b"1")))
    begun = time.monotonic()
    (job,), _ = worker.reserve(["q"])
    worker.apply(Step(job, Delete()))
    assert watch._pause(begun) == watch._SHORTEST
