"""The ceiling: our table and our transactions in bare `sqlite3`, with nothing around them.

`python -m benchmarks.apps.bare drain 5000` in a folder whose queue holds that many jobs.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time

from benchmarks.apps import effects

_AHEAD = 50
_RETRY_AFTER = 90
_TAKE = """
    SELECT id, CAST(payload AS BLOB), attempts, CAST(notes AS BLOB) FROM jobs
    WHERE queue = ? AND reserved_at IS NULL AND due <= ? ORDER BY due, id LIMIT ?"""
_HOLD = """
    UPDATE jobs SET lease = ?, lease_end = ?, reserved_at = ?, leased_at = ?, started = NULL
    WHERE id = ?"""
_START = """
    UPDATE jobs SET attempts = ?, notes = ?, lease_end = ?, reserved_at = ?, leased_at = ?,
    started = 1 WHERE id = ? AND lease = ? AND reserved_at IS leased_at"""
_DELETE = "DELETE FROM jobs WHERE id = ? AND lease = ? AND reserved_at IS leased_at"
_INSERT = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    VALUES (?, ?, 0, ?, ?, ?)"""
_NOTES = '{"starts":[[1,"host",12345,1795219200.0]]}'


def _connected() -> sqlite3.Connection:
    connection = sqlite3.connect("qframe.sqlite3", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _until(seconds: float) -> tuple[int, int, int]:
    """Give the columns of a lease that ends then."""
    end = time.time_ns() // 1000 + int(seconds * 1_000_000)
    reserved_at = -(-end // 1_000_000) - _RETRY_AFTER
    return end, reserved_at, reserved_at


def drain(count: int) -> float:
    """Reserve fifty, start each in the transaction that deletes the one before; give the rate."""
    cursor = _connected().cursor()
    finished: list[tuple[int, str]] = []
    done = 0
    began = time.perf_counter()
    while done < count:
        now = time.time_ns() // 1000
        lease = f"{now:x}"
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(_DELETE, finished)
        rows = cursor.execute(_TAKE, ("default", now, _AHEAD)).fetchall()
        until = _until(1)
        cursor.executemany(_HOLD, [(lease, *until, row[0]) for row in rows])
        cursor.execute("COMMIT")
        finished = []
        for number, _, attempts, _ in rows:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(_DELETE, finished)
            cursor.execute(_START, (attempts + 1, _NOTES, *_until(_RETRY_AFTER), number, lease))
            cursor.execute("COMMIT")
            effects.write_byte()
            finished = [(number, lease)]
        done += len(rows)
        if not rows:
            raise SystemExit(f"the queue was empty after {done} jobs")
    cursor.executemany(_DELETE, finished)
    return done / (time.perf_counter() - began)


def bulk(count: int) -> float:
    """Insert rows that are ready made, in one `executemany`; give the rate."""
    connection = _connected()
    (payload,) = connection.execute("SELECT payload FROM jobs LIMIT 1").fetchone()
    now = time.time_ns() // 1000
    rows = [("default", payload, now // 1_000_000, now // 1_000_000, now)] * count
    began = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_INSERT, rows)
    connection.execute("COMMIT")
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps({"drain": drain, "bulk": bulk}[sys.argv[1]](int(sys.argv[2]))))
