"""The tables as a Laravel application sees them, that makes them, writes to them and pops."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qframe.contracts.backend import Timing
from qframe.contracts.browsing import Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    LOST,
    Bury,
    Delete,
    Push,
    Record,
    Release,
    Renew,
    Reservation,
    Start,
    Step,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from tests.drivers.database.conftest import Opener

RETRY_AFTER = 60
TABLES = """
create table "jobs" ("id" integer primary key autoincrement not null, "queue" varchar not null,
    "payload" text not null, "attempts" integer not null, "reserved_at" integer,
    "available_at" integer not null, "created_at" integer not null);
create index "jobs_queue_index" on "jobs" ("queue");
create table "failed_jobs" ("id" integer primary key autoincrement not null,
    "uuid" varchar not null, "connection" text not null, "queue" text not null,
    "payload" text not null, "exception" text not null,
    "failed_at" datetime default CURRENT_TIMESTAMP not null);
create unique index "failed_jobs_uuid_unique" on "failed_jobs" ("uuid");
insert into jobs values (7, 'a', 'waited', 0, null, 1700000000, 1700000000);
insert into failed_jobs values (3, 'u3', 'database', 'a', '{"displayName": "App\\\\Jobs\\\\Mail"}',
    'Exception: no', '2024-01-02 03:04:05');
"""
# DatabaseQueue::getNextAvailableJob, ::markJobAsReserved
POP = """
select id, payload from jobs where queue = ? and ((reserved_at is null and available_at <= ?)
    or (reserved_at <= ?)) order by id asc limit 1
"""


class Php:
    """A Laravel application on the same database, played by its own SQL."""

    def __init__(self, file: Path, timing: Timing) -> None:
        self.raw = sqlite3.connect(file, isolation_level=None)
        self.timing = timing

    def now(self) -> int:
        return int(time.time() + self.timing.skew)

    def push(self, payload: str | bytes, delay: int = 0) -> None:
        times = (self.now() + delay, self.now())
        self.raw.execute("insert into jobs (queue, payload, attempts, available_at, created_at) "
                         "values ('a', cast(? as text), 0, ?, ?)", [payload, *times])  # fmt: skip

    def eligible(self, later: float = 0) -> bool:
        """Whether Laravel would pop something now, or `later` seconds from now."""
        now = int(time.time() + self.timing.skew + later)
        found = self.raw.execute(POP, ["a", now, now - RETRY_AFTER]).fetchone()
        return found is not None

    def row(self, table: str = "jobs") -> dict[str, Any]:
        """Give the one row there is."""
        cursor = self.raw.execute(f"select * from {table}")
        (row,) = cursor.fetchall()
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def pop(self) -> Any:
        now = self.now()
        row = self.raw.execute(POP, ["a", now, now - RETRY_AFTER]).fetchone()
        if row is not None:
            self.raw.execute(
                "update jobs set reserved_at = ?, attempts = attempts + 1 where id = ?",
                [now, row[0]],
            )
        return row and row[1]


@pytest.fixture
def php(backend: DatabaseBackend, file: Path, timing: Timing) -> Iterator[Php]:
    backend.check()
    php = Php(file, timing)
    with closing(php.raw):
        yield php


def push(backend: DatabaseBackend, raw: bytes, delay: float = 0) -> None:
    backend.apply(Step(None, Push("a", raw, delay)))


def held(backend: DatabaseBackend) -> Reservation:
    (job,), _ = backend.reserve(["a"])
    return job


def started(backend: DatabaseBackend, lease: float = RETRY_AFTER) -> Reservation:
    job = held(backend)
    assert backend.apply(Step(job, Start(lease)))[0].applied
    return job


# -- the tables -----------------------------------------------------------------------------------


def test_php_can_insert_into_tables_of_ours(php: Php) -> None:
    for table in ("jobs", "failed_jobs"):
        with closing(sqlite3.connect(":memory:")) as laravel:
            laravel.executescript(TABLES)
            theirs = {row[1] for row in laravel.execute(f"pragma table_info({table})")}
        ours = {row[1]: row for row in php.raw.execute(f"pragma table_info({table})")}
        assert theirs <= ours.keys()
        required = {name for name, row in ours.items() if row[3] and row[4] is None}
        assert required <= theirs


def test_opening_again_changes_nothing(another: Opener, file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(TABLES)
        another().check()
        schema = raw.execute("select sql from sqlite_master").fetchall()
        another().check()
        assert raw.execute("select sql from sqlite_master").fetchall() == schema
        indexes = {row[1] for row in raw.execute("pragma index_list(jobs)")}
    assert indexes == {"jobs_queue_index", "jobs_due_at", "jobs_leases"}


def test_the_tables_can_be_named(file: Path) -> None:
    named = {
        "table": "my_jobs", "failed_table": "my_failed", "fact_table": "my_facts",
        "latch_table": "my_latches", "latch_member_table": "my_members",
    }  # fmt: skip
    settings = DatabaseSettings.model_validate({"url": f"sqlite:///{file}", **named})
    backend = DatabaseBackend("here", settings)
    push(backend, b"{}")
    backend.close()
    with closing(sqlite3.connect(file)) as raw:
        names = {name for (name,) in raw.execute("select name from sqlite_master")}
    assert set(named.values()) <= names
    assert not names & {"jobs", "failed_jobs"}


def test_tables_of_laravel_get_our_columns(backend: DatabaseBackend, file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(TABLES)
    jobs, _ = backend.reserve(["a"])
    assert [(job.id, job.raw_body, job.attempts) for job in jobs] == [("7", b"waited", 0)]
    (record,) = backend.list_failed()
    assert (record.uuid, record.name, record.attempts) == ("u3", "App\\Jobs\\Mail", 0)
    assert record.failed_at == 1704164645.0


# -- what PHP writes ------------------------------------------------------------------------------


def test_what_php_pushes_is_taken_in_order(backend: DatabaseBackend, php: Php) -> None:
    php.push("first")
    php.push("later", delay=100)
    backend.apply(Step(None, Push("a", b"ours", 0.0)))
    assert backend.sizes("a") == Sizes(ready=2, delayed=1)
    jobs, _ = backend.reserve(["a"], 10)
    assert [job.raw_body for job in jobs] == [b"first", b"ours"]


def test_many_that_php_pushes_all_come_in_order(backend: DatabaseBackend, php: Php) -> None:
    for number in range(250):
        php.push(str(number))
    found = []
    while jobs := backend.reserve(["a"], 20)[0]:
        found += [int(job.raw_body) for job in jobs]
        backend.apply(*(job.delete() for job in jobs))
    assert found == [*range(250)]


def test_one_that_php_delays_does_not_come_before_its_time(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    php.push("late", delay=30)
    for skew in (0, 25):
        timing.skew = skew
        assert backend.reserve(["a"]) == ([], [])
        assert backend.sizes("a") == Sizes(delayed=1)
    timing.skew = 32
    assert held(backend).raw_body == b"late"


def test_a_push_of_php_ends_a_wait(backend: DatabaseBackend, php: Php) -> None:
    php.push("late", delay=2)
    began = time.monotonic()
    while not (jobs := backend.reserve(["a"])[0]):
        backend.wait(["a"], 60)
    assert jobs[0].raw_body == b"late"
    assert time.monotonic() - began < 20


def test_what_php_pushed_is_purged(backend: DatabaseBackend, php: Php) -> None:
    php.push("a")
    php.push("late", delay=30)
    assert backend.sizes("a") == Sizes(ready=1, delayed=1)
    assert backend.purge("a") == 2


def test_text_that_is_not_utf_8_stops_nobody(backend: DatabaseBackend, php: Php) -> None:
    php.push(b"{\xff\x00\xfe}")
    php.push("behind")
    jobs, _ = backend.reserve(["a"], 2)
    assert [job.raw_body for job in jobs] == [b"{\xff\x00\xfe}", b"behind"]


def test_a_failed_row_whose_text_is_not_utf_8_can_be_read(
    backend: DatabaseBackend, php: Php
) -> None:
    php.raw.execute(
        "insert into failed_jobs (uuid, connection, queue, payload, exception) values"
        " ('u', 'database', 'a', cast(x'ff' as text), cast(x'41ff42' as text))"
    )
    (record,) = backend.list_failed()
    assert backend.find_failed("u") == record
    assert record.payload == b"\xff"
    assert record.exception.startswith("A")


# -- what PHP reserves ----------------------------------------------------------------------------


def test_what_php_runs_is_left_alone_until_retry_after(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    php.push("a")
    php.pop()
    for skew in (0, RETRY_AFTER - 5):
        timing.skew = skew
        assert backend.reserve(["a"]) == ([], [])
        assert backend.sizes("a") == Sizes(reserved=1)
    timing.skew += 7
    assert started(backend).attempts == 2


def test_waiting_for_what_php_has_reserved_is_no_busy_loop(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    push(backend, b"a")
    started(backend)
    timing.skew += RETRY_AFTER + 10
    assert php.pop() == "a"
    began = time.monotonic()
    backend.wait(["a"], 0.5)
    assert time.monotonic() - began > 0.4


def test_a_wait_ends_when_a_reservation_of_php_does(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    php.push("a")
    php.pop()
    timing.skew += RETRY_AFTER - 1
    began = time.monotonic()
    while not backend.reserve(["a"])[0]:
        backend.wait(["a"], 60)
    assert time.monotonic() - began < 20


def test_what_php_deletes_meanwhile_is_lost_to_us(backend: DatabaseBackend, php: Php) -> None:
    push(backend, b"a")
    job = held(backend)
    php.raw.execute("delete from jobs")
    assert backend.apply(Step(job, Start(9))) == [LOST]


def test_what_php_took_when_our_lease_had_ended_we_cannot_change(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    push(backend, b"a")
    job = started(backend)
    timing.skew += RETRY_AFTER + 10
    assert php.pop() == "a"
    before = php.row()
    for operation in (Renew(9), Release(), Bury(), Delete()):
        assert backend.apply(Step(job, operation)) == [LOST]
    assert php.row() == before


# -- what PHP sees --------------------------------------------------------------------------------


def test_ours_looks_like_laravel_s(backend: DatabaseBackend, php: Php) -> None:
    push(backend, b'{"uuid": "a"}')
    row = php.row()
    assert (row["queue"], row["payload"], row["attempts"]) == ("a", '{"uuid": "a"}', 0)
    assert row["reserved_at"] is None
    assert abs(row["created_at"] - time.time()) < 60
    assert php.eligible()


def test_a_delay_is_none_too_short_for_php(backend: DatabaseBackend, php: Php) -> None:
    push(backend, b"a", delay=30.2)
    assert not php.eligible(later=29)
    assert php.eligible(later=32)
    php.raw.execute("delete from jobs")
    push(backend, b"b")
    backend.apply(Step(held(backend), Release(30)))
    assert not php.eligible(later=29)
    assert php.eligible(later=32)


def test_a_lease_is_none_too_short_for_php(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    push(backend, b"a")
    job = held(backend)
    assert not php.eligible()
    assert php.eligible(later=3)
    backend.apply(Step(job, Start(RETRY_AFTER)))
    assert php.row()["attempts"] == 1
    assert not php.eligible(later=RETRY_AFTER - 2)
    assert php.eligible(later=RETRY_AFTER + 3)
    timing.skew += RETRY_AFTER - 10
    backend.apply(Step(job, Renew(RETRY_AFTER)))
    assert not php.eligible(later=RETRY_AFTER - 2)


@pytest.mark.parametrize("counted", [True, False])
def test_what_is_released_has_its_attempts(
    backend: DatabaseBackend, php: Php, *, counted: bool
) -> None:
    push(backend, b"a")
    backend.apply(Step(started(backend), Release(counted=counted)))
    assert php.eligible(later=1)
    assert (php.row()["attempts"], php.row()["reserved_at"]) == (int(counted), None)


def test_what_is_buried_php_never_sees(backend: DatabaseBackend, php: Php) -> None:
    push(backend, b"a")
    backend.apply(held(backend).bury())
    assert not php.eligible(later=10 * 365 * 86400)
    assert php.row()["available_at"] <= 2**31 - 1
    backend.kick("a")
    assert php.eligible(later=1)


def test_a_failed_job_is_a_row_that_laravel_can_retry(backend: DatabaseBackend, php: Php) -> None:
    record = FailedJob(
        "u", "here", "emails", b'{"uuid": "u", "job": "x"}', "Traceback\nValueError: no", "x", 1,
        History(), time.time(),
    )  # fmt: skip
    backend.apply(Step(None, Record(record)))
    row = php.row("failed_jobs")
    assert (row["uuid"], row["connection"], row["queue"]) == ("u", "here", "emails")
    assert (row["payload"], row["exception"]) == (record.payload.decode(), record.exception)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.failed_at))
    assert row["failed_at"][:19] == moment


def test_php_takes_ours_when_their_lease_has_ended(
    backend: DatabaseBackend, php: Php, timing: Timing
) -> None:
    backend.apply(Step(None, Push("a", b"ours")), Step(None, Push("a", b"later", 100.0)))
    (job,), _ = backend.reserve(["a"])
    backend.apply(Step(job, Start(30.0)))
    timing.skew += 29
    assert php.pop() is None
    timing.skew += 2.1
    assert php.pop() == "ours"
    assert backend.apply(Step(job, Delete())) == [LOST]
    (found,) = backend.search("a", b"ours")
    assert found.place is Place.RUNNING
    timing.skew += RETRY_AFTER + 2
    (job,), _ = backend.reserve(["a"])
    assert (job.raw_body, job.attempts) == (b"ours", 2)


def test_php_sees_what_is_released_and_not_what_is_buried(
    backend: DatabaseBackend, php: Php
) -> None:
    backend.apply(*(Step(None, Push("a", raw)) for raw in (b"1", b"2")))
    (first, second), _ = backend.reserve(["a"], 2)
    assert php.pop() is None
    backend.apply(first.bury(), Step(second, Release()))
    assert [php.pop(), php.pop()] == ["2", None]
