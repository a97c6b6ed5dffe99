"""The tables as a Laravel application sees them, that makes them, writes to them and pops.

PHP's part is played by its own SQL, run on a connection of its own.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from qframe.contracts import Sizes
from qframe.exceptions import LeaseLost
from tests.conformance.batches import new, opened
from tests.conformance.drivers import RETRY_AFTER, SqliteBench

# Q/Console/stubs/jobs.stub and failed_jobs.stub, as SQLite gets them.
JOBS = """
create table "jobs" ("id" integer primary key autoincrement not null, "queue" varchar not null,
    "payload" text not null, "attempts" integer not null, "reserved_at" integer,
    "available_at" integer not null, "created_at" integer not null)
"""
JOBS_INDEX = 'create index "jobs_queue_index" on "jobs" ("queue")'
FAILED_JOBS = """
create table "failed_jobs" ("id" integer primary key autoincrement not null,
    "uuid" varchar not null, "connection" text not null, "queue" text not null,
    "payload" text not null, "exception" text not null,
    "failed_at" datetime default CURRENT_TIMESTAMP not null)
"""
FAILED_INDEX = 'create unique index "failed_jobs_uuid_unique" on "failed_jobs" ("uuid")'

# Q/Console/stubs/batches.stub
BATCHES = """
create table "job_batches" ("id" varchar not null, "name" varchar not null,
    "total_jobs" integer not null, "pending_jobs" integer not null,
    "failed_jobs" integer not null, "failed_job_ids" text not null, "options" text,
    "cancelled_at" integer, "created_at" integer not null, "finished_at" integer,
    primary key ("id"))
"""
BATCH = """
insert into job_batches (id, name, total_jobs, pending_jobs, failed_jobs, failed_job_ids, options,
    created_at, finished_at)
    values (?, 'of PHP', 3, 1, 1, '["x"]', 'a:0:{}', 1700000000, ?)
"""

# DatabaseQueue::getNextAvailableJob
POP = """
select * from "jobs" where "queue" = ? and (("reserved_at" is null and "available_at" <= ?)
    or ("reserved_at" <= ?)) order by "id" asc limit 1
"""


class Php:
    """A Laravel application on the same database."""

    def __init__(self, bench: SqliteBench) -> None:
        self.raw = sqlite3.connect(bench.file, timeout=10, isolation_level=None)
        self.raw.row_factory = sqlite3.Row

    def migrate(self) -> None:
        for statement in (JOBS, JOBS_INDEX, FAILED_JOBS, FAILED_INDEX, BATCHES):
            self.raw.execute(statement)

    def push(
        self, uuid: str, delay: int = 0, queue: str = "default", payload: object = None
    ) -> None:
        now = int(time.time())
        text = json.dumps({"uuid": uuid, "job": "x.Test", "data": {}})
        self.raw.execute(
            "insert into jobs (queue, payload, attempts, reserved_at, available_at, created_at)"
            " values (?, ?, 0, null, ?, ?)",
            [queue, text if payload is None else payload, now + delay, now],
        )

    def eligible(self, queue: str = "default", later: float = 0) -> sqlite3.Row | None:
        """Give what Laravel would pop now, or `later` seconds from now."""
        now = int(time.time() + later)
        row: sqlite3.Row | None = self.raw.execute(POP, [queue, now, now - RETRY_AFTER]).fetchone()
        return row

    def pop(self, queue: str = "default") -> sqlite3.Row:
        """Reserve a row (markJobAsReserved)."""
        row = self.eligible(queue)
        assert row is not None
        self.raw.execute(
            "update jobs set reserved_at = ?, attempts = ? where id = ?",
            [int(time.time()), row["attempts"] + 1, row["id"]],
        )
        return self.row(row["id"])

    def row(self, number: int) -> sqlite3.Row:
        found: sqlite3.Row = self.raw.execute(
            "select * from jobs where id = ?", [number]
        ).fetchone()
        return found

    def rows(self, table: str = "jobs", order: str = "id") -> list[dict[str, Any]]:
        return [dict(row) for row in self.raw.execute(f"select * from {table} order by {order}")]


@pytest.fixture
def php(bench: SqliteBench) -> Iterator[Php]:
    made = Php(bench)
    with closing(made.raw):
        yield made


class TestTables:
    def test_the_tables_have_laravel_s_columns(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        tables = {"jobs": JOBS, "failed_jobs": FAILED_JOBS, "job_batches": BATCHES}
        for table, statement in tables.items():
            with closing(sqlite3.connect(":memory:")) as laravel:
                laravel.execute(statement)
                theirs = {row[1]: row for row in laravel.execute(f"pragma table_info({table})")}
            ours = {row[1]: row for row in php.raw.execute(f"pragma table_info({table})")}
            assert theirs.keys() <= ours.keys()
            required = {name for name, row in ours.items() if row[3] and row[4] is None}
            assert required - {"id"} <= theirs.keys(), "PHP could not insert"

    def test_tables_that_laravel_made_get_what_they_lack_on_first_use(
        self, bench: SqliteBench, php: Php
    ) -> None:
        php.migrate()
        php.push("from PHP")
        php.raw.execute(
            "insert into failed_jobs (uuid, connection, queue, payload, exception)"
            " values ('failed in PHP', 'database', 'default', '{\"job\":\"x\"}', 'why')"
        )
        assert bench.queue.push_raw('{"uuid": "from Python"}') == "from Python"
        found = []
        for _ in range(2):
            (job,) = bench.queue.reserve(["default"])
            assert bench.queue.start(job)
            found.append(job.uuid)
            job.fail(ValueError("no"))
        assert found == ["from PHP", "from Python"]
        record = bench.failed.find("failed in PHP")
        assert record is not None
        assert (record.attempts, record.exception, record.payload) == (0, "why", b'{"job":"x"}')
        assert abs(record.failed_at - time.time()) < 3600
        assert bench.failed.count() == 3
        indexes = {row[1] for row in php.raw.execute("pragma index_list(jobs)")}
        assert {"jobs_queue_index", "jobs_waiting", "jobs_reserved"} <= indexes

    def test_upgrading_twice_changes_nothing(self, bench: SqliteBench, php: Php) -> None:
        php.migrate()
        bench.queue.ping()
        schema = php.raw.execute("select sql from sqlite_master").fetchall()
        bench.another().ping()
        assert php.raw.execute("select sql from sqlite_master").fetchall() == schema

    def test_the_tables_can_be_named(self, bench: SqliteBench, php: Php) -> None:
        named = {
            "table": "my_jobs",
            "failed_table": "my_failed",
            "store_table": "my_store",
            "batch_table": "my_batches",
            "batch_member_table": "my_members",
        }
        manager = bench.another_manager()
        manager.settings.connections["here"].update(named)
        queue = manager.connection("here")
        queue.push_raw("{}")
        names = {row["name"] for row in php.raw.execute("select name from sqlite_master")}
        assert set(named.values()) <= names
        assert names & {"jobs", "job_batches"} == set()


class TestBatches:
    def test_those_of_laravel_are_left_alone(self, bench: SqliteBench, php: Php) -> None:
        php.migrate()
        php.raw.execute(BATCH, ["theirs", None])
        php.raw.execute(BATCH, ["finished", 1700000001])
        store = bench.queue.own_batches()
        assert store is not None
        opened(store, 2, "ours")
        before = [row for row in php.rows("job_batches") if row["id"] != "ours"]
        assert len(before) == 2
        assert [each.id for each in store.page()] == ["ours"]
        assert store.read("theirs") is None
        assert not store.create(new("theirs"))
        assert store.grow("theirs", 1) is None
        assert store.seal("theirs") is None
        assert store.settle("theirs", 0, "x", failed=True) is None
        assert store.settle("theirs", 1, "y", failed=False) is None
        assert not store.cancel("theirs")
        store.told("theirs", "then", progress=3)
        assert list(store.page(after="theirs")) == []
        later = time.time() + 100
        assert store.prune(later, unfinished=later, cancelled=later) == 1
        assert php.rows("job_batches") == before
        assert php.rows("qframe_batch_members", "number") == []

    def test_ours_can_be_read_by_laravel_s_columns(self, bench: SqliteBench, php: Php) -> None:
        store = bench.batches
        opened(store, 3)
        store.settle("b", 0, "x", failed=False)
        store.settle("b", 1, "y", failed=True)
        (row,) = php.rows("job_batches")
        assert (row["total_jobs"], row["pending_jobs"], row["failed_jobs"]) == (3, 2, 1)
        assert abs(row["created_at"] - time.time()) < 60
        assert abs(row["cancelled_at"] - time.time()) < 60
        assert row["finished_at"] is None
        store.settle("b", 2, "z", failed=True)
        (row,) = php.rows("job_batches")
        assert (row["pending_jobs"], row["failed_jobs"]) == (2, 2)
        assert abs(row["finished_at"] - time.time()) < 60

    def test_what_laravel_has_pruned_leaves_no_members(self, bench: SqliteBench, php: Php) -> None:
        store = bench.batches
        opened(store, 1200, "theirs now", allows=True)
        opened(store, 2, "ours")
        php.raw.execute(
            "with recursive n(n) as (select 0 union all select n + 1 from n where n < 1199)"
            " insert into qframe_batch_members (batch_id, number, state)"
            " select 'theirs now', n, 1 from n"
        )
        store.settle("ours", 0, "x", failed=False)
        php.raw.execute("delete from job_batches where id = 'theirs now'")
        assert store.prune(0) == 0
        (member,) = php.rows("qframe_batch_members", "number")
        assert (member["batch_id"], member["number"]) == ("ours", 0)


class TestWrittenByPhp:
    def test_a_row_of_laravel_s_columns_is_reserved(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        php.push("a")
        (job,) = bench.queue.reserve(["default"])
        assert (job.uuid, job.attempts()) == ("a", 0)
        assert bench.queue.start(job)
        job.delete()
        assert php.rows() == []

    def test_a_delayed_one_not_before_its_time(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        php.push("late", delay=30)
        assert bench.queue.sizes() == Sizes(delayed=1)
        assert bench.queue.reserve(["default"]) == []
        assert bench.queue.sizes() == Sizes(delayed=1)
        bench.forward(25)
        assert bench.queue.reserve(["default"]) == []
        bench.forward(7)
        (job,) = bench.queue.reserve(["default"])
        assert job.uuid == "late"

    def test_many_of_them_all_come_in_order(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        for number in range(250):
            php.push(str(number))
        found = []
        while jobs := bench.queue.reserve(["default"], 20):
            for job in jobs:
                found.append(job.uuid)
                job.delete()
        assert found == [str(number) for number in range(250)]

    def test_an_insert_by_php_ends_a_wait(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        php.push("late", delay=2)
        began = time.monotonic()
        bench.queue.wait(["default"], 60)
        while not (jobs := bench.queue.reserve(["default"])):
            bench.queue.wait(["default"], 60)
        assert jobs[0].uuid == "late"
        assert time.monotonic() - began < 20

    def test_clear_and_size_count_them(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        php.push("a")
        php.push("late", delay=30)
        assert bench.queue.sizes() == Sizes(ready=1, delayed=1)
        assert bench.queue.clear() == 2

    def test_text_that_is_not_utf_8_stops_nobody(self, bench: SqliteBench, php: Php) -> None:
        """It is failed with its raw bytes, and what is behind it is worked on."""
        bench.queue.ping()
        php.raw.execute(
            "insert into jobs (queue, payload, attempts, available_at, created_at)"
            " values ('default', cast(x'7bff00fe7d' as text), 0, 0, 0)"
        )
        php.push("behind")
        (broken,) = bench.queue.reserve(["default"])
        assert broken.raw_body == b"{\xff\x00\xfe}"
        assert bench.queue.start(broken)
        broken.fail(ValueError("not a payload"))
        (record,) = bench.failed.page()
        assert record.uuid.startswith(broken.uuid)
        assert record.payload == b"{\xff\x00\xfe}"
        (job,) = bench.queue.reserve(["default"])
        assert job.uuid == "behind"

    def test_a_failed_row_whose_text_is_not_utf_8_can_be_read(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.ping()
        php.raw.execute(
            "insert into failed_jobs (uuid, connection, queue, payload, exception) values"
            " ('a', 'database', 'default', cast(x'ff' as text), cast(x'41ff42' as text))"
        )
        record = bench.failed.find("a")
        assert record is not None
        assert record.payload == b"\xff"
        assert record.exception.startswith("A")
        assert len(bench.failed.page()) == 1


class TestReservedByPhp:
    def test_a_row_php_works_on_is_left_alone_until_retry_after(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.ping()
        php.push("a")
        assert php.pop()["attempts"] == 1
        assert bench.queue.reserve(["default"]) == []
        assert bench.queue.sizes() == Sizes(reserved=1)
        bench.forward(RETRY_AFTER - 5)
        assert bench.queue.reserve(["default"]) == []
        bench.forward(7)
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        assert job.attempts() == 2

    def test_also_one_that_we_have_had_before(self, bench: SqliteBench, php: Php) -> None:
        """Our columns are still those of our own reservation, long over."""
        bench.queue.push_raw('{"uuid": "a"}')
        (late,) = bench.queue.reserve(["default"])
        assert bench.queue.start(late)
        bench.forward(RETRY_AFTER + 10)
        row = php.pop()
        assert row["lease"] is not None
        assert row["lease_until"] < time.time() * 1000
        assert bench.queue.reserve(["default"]) == []
        bench.forward(RETRY_AFTER - 5)
        assert bench.queue.reserve(["default"]) == []
        with pytest.raises(LeaseLost):
            late.delete()
        bench.forward(7)
        (job,) = bench.queue.reserve(["default"])
        assert job.attempts() == 2

    def test_waiting_for_such_a_row_is_no_busy_loop(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.push_raw('{"uuid": "a"}')
        (late,) = bench.queue.reserve(["default"])
        assert bench.queue.start(late)
        bench.forward(RETRY_AFTER + 10)
        php.pop()
        began = time.monotonic()
        bench.queue.wait(["default"], 0.5)
        assert time.monotonic() - began > 0.4

    def test_a_wait_ends_when_php_s_reservation_does(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.ping()
        php.push("a")
        php.pop()
        bench.forward(RETRY_AFTER - 1)
        began = time.monotonic()
        bench.queue.wait(["default"], 60)
        assert time.monotonic() - began < 20
        bench.forward(1)
        assert len(bench.queue.reserve(["default"])) == 1

    def test_what_php_deletes_meanwhile_is_lost_to_us(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.push_raw('{"uuid": "a"}')
        (job,) = bench.queue.reserve(["default"])
        php.raw.execute("delete from jobs")
        assert not bench.queue.start(job)


class TestSeenByPhp:
    def test_our_row_can_be_popped(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.push_raw('{"uuid": "a"}')
        row = php.eligible()
        assert row is not None
        assert (row["payload"], row["attempts"], row["reserved_at"]) == ('{"uuid": "a"}', 0, None)
        assert abs(row["created_at"] - time.time()) < 60

    def test_a_delayed_row_is_not_eligible_before_it_is_due(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}", delay=30.2)
        assert php.eligible(later=29) is None
        assert php.eligible(later=32) is not None

    def test_a_held_row_is_not_eligible_until_its_hold_ends(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}")
        bench.queue.reserve(["default"])
        assert php.eligible() is None
        assert php.eligible(later=3) is not None

    def test_a_started_row_is_not_eligible_until_its_lease_ends(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        (row,) = php.rows()
        assert row["attempts"] == 1
        assert php.eligible(later=RETRY_AFTER - 2) is None
        assert php.eligible(later=RETRY_AFTER + 3) is not None

    def test_a_renewed_row_is_not_eligible_until_its_new_lease_ends(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        bench.forward(RETRY_AFTER - 10)
        job.renew()
        assert php.eligible(later=RETRY_AFTER - 2) is None

    def test_what_php_took_after_our_lease_ended_we_cannot_change(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw('{"uuid": "a"}')
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        bench.forward(RETRY_AFTER + 10)
        before = php.pop()
        for act in (job.renew, job.delete):
            with pytest.raises(LeaseLost):
                act()
        assert php.row(before["id"]) == before

    def test_a_released_row_is_eligible_at_once_with_its_attempts(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        job.release()
        row = php.eligible(later=1)
        assert row is not None
        assert (row["attempts"], row["reserved_at"]) == (1, None)

    def test_a_row_released_with_a_delay_is_not_eligible_before(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        job.release(30)
        assert php.eligible(later=29) is None
        assert php.eligible(later=32) is not None

    def test_a_row_given_back_is_eligible(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        assert bench.queue.start(job)
        job.give_back()
        row = php.eligible()
        assert row is not None
        assert row["attempts"] == 0

    def test_a_buried_row_is_never_eligible(self, bench: SqliteBench, php: Php) -> None:
        bench.queue.push_raw("{}")
        (job,) = bench.queue.reserve(["default"])
        job.bury()
        assert php.eligible(later=10 * 365 * 86400) is None
        (row,) = php.rows()
        assert row["available_at"] <= 2**31 - 1
        bench.queue.kick()
        assert php.eligible(later=1) is not None

    def test_a_failed_job_is_a_row_that_laravel_can_retry(
        self, bench: SqliteBench, php: Php
    ) -> None:
        bench.queue.push_raw('{"uuid": "a", "job": "x"}', "emails")
        (job,) = bench.queue.reserve(["emails"])
        assert bench.queue.start(job)
        job.fail(ValueError("no"))
        (row,) = php.rows("failed_jobs")
        assert (row["uuid"], row["connection"], row["queue"]) == ("a", "here", "emails")
        assert row["payload"] == '{"uuid": "a", "job": "x"}'
        assert row["exception"].strip().endswith("ValueError: no")
        now = time.strftime("%Y-%m-%d %H", time.gmtime())
        assert row["failed_at"][:13] in {
            now,
            time.strftime("%Y-%m-%d %H", time.gmtime(time.time() - 60)),
        }
