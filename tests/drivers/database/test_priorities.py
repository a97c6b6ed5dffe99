"""What a priority makes of a row, and how claims find it: the one index, whatever waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from qframe.contracts.browsing import Place
from qframe.contracts.step import Delete, Push, Release, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.zones import WIDTH, ZONES, Heads, moment, zone_of
from qframe.drivers.levels import MIDDLE
from qframe.testing.conformance.steps import started

WAITING = 30_000
SECOND = 1_000_000
_COPIES = {
    "postgresql": "generate_series(1, {0}) AS n(number)",
    "mariadb": "(SELECT CAST(seq AS SIGNED) AS number FROM seq_1_to_{0}) AS n",
    "sqlite": (
        "(WITH RECURSIVE s(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM s LIMIT {0}) "
        "SELECT number FROM s) AS n"
    ),
}


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("mariadb", marks=pytest.mark.slow)])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseBackend]:
    """Give a backend with as many rows as that in each of four levels, half of them delayed."""
    kind = request.param
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.sqlite3"
    else:
        fixture = {"postgresql": "postgres_running"}.get(kind, f"{kind}_running")
        url = request.getfixturevalue(fixture).prepared()
    with closing(DatabaseBackend("here", DatabaseSettings(url=url))) as backend:
        backend.migrate()
        for priority in (0, 1000, 1024, 5000):
            backend.apply(Step(None, Push("q", b"%d" % priority, 0, priority)))
        with backend.database.session() as session:
            session.cursor.execute(
                "INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due) "
                "SELECT queue, payload, 0, available_at, created_at, "
                "due + number + (number % 2) * 1000000000 "
                f"FROM jobs, {_COPIES[kind].format(WAITING)}"
            )
            session.cursor.execute({"mariadb": "ANALYZE TABLE jobs"}.get(kind, "ANALYZE jobs"))
            if kind == "mariadb":
                session.cursor.fetchall()
        yield backend


def rows_read(backend: DatabaseBackend) -> int:
    """Count what a server has read of its tables and indexes."""
    with backend.database.session() as session:
        if backend.database.is_postgresql:
            session.cursor.execute("SELECT pg_stat_force_next_flush()")
            session.cursor.execute(
                "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables "
                "WHERE relname = 'jobs'"
            )
            return int(session.cursor.fetchone()[0])
        session.cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in session.cursor.fetchall())


def test_a_claim_by_rank_reads_no_more_than_it_takes(filled: DatabaseBackend) -> None:
    if filled.database.is_sqlite:
        pytest.skip("it counts no reads; its plans are below")
    started(filled, "q")  # so that it knows of the levels
    before = rows_read(filled)
    for _ in range(10):
        jobs, _ = filled.reserve(["q"], 100)
        assert [job.raw_body for job in jobs] == [b"0"] * 100
    assert rows_read(filled) - before < 10 * 100 * 20


@pytest.mark.parametrize("level", [1024, 5000])
def test_the_turn_of_a_later_level_reads_no_more(filled: DatabaseBackend, level: int) -> None:
    if filled.database.is_sqlite:
        pytest.skip("it counts no reads; its plans are below")
    started(filled, "q")
    with filled.database.session() as session:  # so long ago that they come before urgent ones
        session.cursor.execute(
            f"UPDATE jobs SET due = due - {14400 * SECOND} WHERE payload = '{level}'"
        )
    before = rows_read(filled)
    jobs, _ = filled.reserve(["q"], 100)
    assert [job.raw_body for job in jobs] == [b"%d" % level] * 100
    assert rows_read(filled) - before < 100 * 20


def test_a_page_far_behind_reads_little_more_than_it_shows(filled: DatabaseBackend) -> None:
    if filled.database.is_sqlite:
        pytest.skip("it counts no reads")
    after = filled.browse("q", Place.READY, 40_000).after
    before = rows_read(filled)
    page = filled.browse("q", Place.READY, 50, after)
    assert len(page.found) == 50
    assert rows_read(filled) - before < 50 * len(ZONES) * 4


def test_the_one_index_answers_each_statement_of_a_claim(filled: DatabaseBackend) -> None:
    if not filled.database.is_sqlite:
        pytest.skip("its reads are counted above")
    sql = filled._tables.messages._sql
    heads = Heads(filled.database, 600)
    among = {"low": ZONES[0], "high": ZONES[0] + 2**52}
    values = {"queue": "q", "limit": 10, "now": 2**52, **among}
    with filled.database.session() as session:
        for statement in (sql.ready, sql.ready_among, heads._first, heads._firsts):
            session.cursor.execute(f"EXPLAIN QUERY PLAN {statement.sql}", values)
            plan = [row[3] for row in session.cursor.fetchall()]
            searches = [step for step in plan if step.startswith(("SEARCH jobs", "SCAN jobs"))]
            assert all(
                "INDEX jobs_due_at (queue=? AND due_at" in step
                or "INDEX jobs_due_at (queue=?)" in step
                for step in searches
            ), plan
            assert not any("TEMP B-TREE" in step for step in plan), plan
            assert len(searches) in {1, len(ZONES)}


def test_all_levels_come_in_order_from_many_rows(filled: DatabaseBackend) -> None:
    assert filled.sizes("q").ready + filled.sizes("q").delayed == 4 * (WAITING + 1)
    for row, raw in enumerate([b"0", b"1000", b"1024", b"5000"]):
        (job,), _ = filled.reserve(["q"])
        assert job.raw_body == raw, row
        filled.apply(Step(job, Start(60)))
        with filled.database.session() as session:  # the rest of this level is done
            zone = ZONES[{b"0": 0, b"1000": 4, b"1024": 5, b"5000": 8}[raw]]
            session.cursor.execute(
                f"DELETE FROM jobs WHERE reserved_at IS NULL AND due >= {zone} "
                f"AND due < {zone + WIDTH}"
            )


def test_zones_are_below_zero_and_hold_moments() -> None:
    assert [zone for zone in ZONES if zone >= 0] == [0]
    assert list(ZONES[:MIDDLE]) == sorted(ZONES[:MIDDLE])
    now = 1_800_000_000 * SECOND
    assert {moment(zone + now) for zone in ZONES} == {now}
    assert zone_of(None) == zone_of(1024) == 0
    assert zone_of(0) == min(ZONES)


# -- PHP and others at the table ------------------------------------------------------------------


def rows(backend: DatabaseBackend, columns: str) -> list[tuple[object, ...]]:
    with sa.create_engine(backend.database.url).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f"SELECT {columns} FROM jobs"))]


def test_php_sees_an_ordinary_row(backend: DatabaseBackend) -> None:
    for priority, delay in ((0, 0), (5000, 0), (0, 100)):
        backend.apply(Step(None, Push("q", b"{}", delay, priority)))
    found = rows(backend, "due, available_at, created_at, reserved_at")
    assert [due < 0 for due, *_ in found] == [True] * 3  # type: ignore[operator]
    late = [available - created for _, available, created, _ in found]  # type: ignore[operator]
    assert late == [0, 0, pytest.approx(100, abs=1)]


def test_what_php_took_and_gave_back_is_plain(backend: DatabaseBackend, file: Path) -> None:
    backend.apply(Step(None, Push("q", b"urgent", 0, 0)), Step(None, Push("q", b"plain")))
    with sqlite3.connect(file) as php:  # Laravel's release: a row of its own
        php.execute(
            "INSERT INTO jobs (queue, payload, attempts, available_at, created_at) "
            "SELECT queue, payload, attempts, available_at, created_at FROM jobs "
            "WHERE payload = 'urgent'"
        )
        php.execute("DELETE FROM jobs WHERE payload = 'urgent' AND due IS NOT NULL")
    jobs, _ = backend.reserve(["q"], 5)
    assert {job.raw_body for job in jobs} == {b"urgent", b"plain"}


def test_what_php_pushed_may_get_a_priority(backend: DatabaseBackend, file: Path) -> None:
    backend.sizes("q")
    with sqlite3.connect(file) as php:
        php.execute(
            "INSERT INTO jobs (queue, payload, attempts, available_at, created_at) "
            "VALUES ('q', 'php', 0, 1000, 1000)"
        )
    (job,), _ = backend.reserve(["q"])
    backend.apply(Step(job, Start(60)))
    backend.apply(Step(job, Release(priority=5000)))
    backend.apply(Step(None, Push("q", b"plain")))
    jobs, _ = backend.reserve(["q"], 5)
    assert [job.raw_body for job in jobs] == [b"plain", b"php"]
    backend.apply(*(Step(job, Start(60)) for job in jobs))
    backend.apply(*(Step(job, Delete()) for job in jobs))
    assert not backend.database.leveled or backend.reserve(["q"]) == ([], [])
    assert not backend.database.leveled, "the next claims are the plain ones again"


def test_aging_is_the_connection_s(file: Path) -> None:
    settings = DatabaseSettings(url=f"sqlite:///{file}", aging=1)
    with closing(DatabaseBackend("here", settings)) as backend:
        backend.apply(Step(None, Push("q", b"plain")))
        backend.timing.skew += 6
        backend.apply(Step(None, Push("q", b"urgent", 0, 0)))
        jobs, _ = backend.reserve(["q"], 2)
        assert [job.raw_body for job in jobs] == [b"plain", b"urgent"]


def test_the_longest_delay_is_still_one(backend: DatabaseBackend) -> None:
    for priority in (0, None, 10_000):
        backend.apply(Step(None, Push("q", b"{}", 1e15, priority)))
    assert backend.reserve(["q"]) == ([], [])
    assert backend.sizes("q").delayed == 3
