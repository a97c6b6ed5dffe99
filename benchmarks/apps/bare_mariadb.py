"""The ceiling on MariaDB: PyMySQL and the bare statements on our table, with nothing around them.

`python -m benchmarks.apps.bare_mariadb inserts PORT CLIENTS COUNT` inserts rows like the first one;
`claims` claims that many, one by one, and deletes each. Each client is a process.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from typing import Any

import pymysql

_FIRST = "SELECT queue, payload, available_at, created_at, due FROM jobs ORDER BY id LIMIT 1"
_INSERT = """
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at, due)
    VALUES (%s, %s, 0, %s, %s, %s)"""
_TAKE = """
    SELECT id FROM jobs WHERE queue = 'default' AND reserved_at IS NULL
    ORDER BY due, id LIMIT 1 FOR UPDATE SKIP LOCKED"""
_HOLD = "UPDATE jobs SET reserved_at = 1 WHERE id = %s"
_DELETE = "DELETE FROM jobs WHERE id = %s"


def _connected(port: int) -> Any:  # noqa: ANN401 (PyMySQL has no types)
    connection = pymysql.connect(
        host="127.0.0.1", port=port, user="bench", password="bench",  # noqa: S106
        database="bench", autocommit=True,
    )  # fmt: skip
    connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


def inserts(port: int, count: int) -> float:
    """Insert so many rows; give the seconds."""
    cursor = _connected(port).cursor()
    cursor.execute(_FIRST)
    row = cursor.fetchone()
    began = time.perf_counter()
    for _ in range(count):
        cursor.execute(_INSERT, row)
    return time.perf_counter() - began


def claims(port: int, count: int) -> float:
    """Claim so many rows, each in a transaction, and delete each; give the seconds."""
    cursor = _connected(port).cursor()
    began = time.perf_counter()
    for _ in range(count):
        cursor.execute("BEGIN")
        cursor.execute(_TAKE)
        while (taken := cursor.fetchone()) is None:  # others hold what it looked at
            cursor.execute(_TAKE)
        cursor.execute(_HOLD, taken)
        cursor.execute("COMMIT")
        cursor.execute(_DELETE, taken)
    return time.perf_counter() - began


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    port, clients, count = map(int, numbers)
    shares = [(port, max(1, count // clients))] * clients
    with multiprocessing.get_context("fork").Pool(clients) as pool:
        seconds = pool.starmap({"inserts": inserts, "claims": claims}[name], shares, 1)
    print(json.dumps(clients * shares[0][1] / max(seconds)))
