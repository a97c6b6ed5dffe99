"""`python -m benchmarks.clients`: what client libraries of PostgreSQL and MariaDB cost a worker.

Each does what the `database` driver does: a row by its key, an insert, 100 inserts at once, and two
statements before one wait. A process per client, in rounds that take turns, all on the same server.
Printed are microseconds for one: by the clock, and of the client's own processor time.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROUNDS = 5
SECONDS = 0.4
ROW = "SELECT id, payload, attempts, notes FROM jobs WHERE id = %s"
INSERT = "INSERT INTO jobs (queue, payload, attempts) VALUES (%s, %s, %s)"
PAYLOAD = '{"uuid":"0b6b3c5e","job":"app.jobs.Send","data":{"user_id":7}}' + " " * 300
VALUES = ("default", PAYLOAD, 0)
TABLE = (
    "CREATE TABLE jobs (id {key} PRIMARY KEY, queue varchar(255) NOT NULL, "
    "payload text NOT NULL, attempts int NOT NULL, notes text)"
)
CLIENTS = {
    "psycopg": ("psycopg 3", "postgresql"),
    "asyncpg": ("asyncpg, from another thread", "postgresql"),
    "pymysql": ("PyMySQL", "mariadb"),
    "mysqlclient": ("mysqlclient", "mariadb"),
    "mariadb": ("mariadb", "mariadb"),
}
Acts = dict[str, Callable[[], Any]]


def psycopg(port: int) -> Acts:
    """Give what is measured: statements are prepared at their sixth use, and pipelined."""
    connection = import_module("psycopg").connect(
        f"host=127.0.0.1 port={port} user=qframe dbname=qframe", autocommit=True
    )
    cursor = connection.cursor()

    def two() -> None:
        with connection.pipeline():
            cursor.execute(INSERT, VALUES)
            cursor.execute(ROW, (1,))
        cursor.fetchone()

    return {
        "a row": lambda: cursor.execute(ROW, (1,)).fetchone(),
        "an insert": lambda: cursor.execute(INSERT, VALUES),
        "100 inserts": lambda: cursor.executemany(INSERT, [VALUES] * 100),
        "an insert and a row": two,
    }


def asyncpg(port: int) -> Acts:
    """Give what is measured: a loop in a thread, asked from the one that runs jobs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(made: Any) -> Any:  # noqa: ANN401 (an awaitable)
        return asyncio.run_coroutine_threadsafe(made, loop).result()

    where = {"host": "127.0.0.1", "port": port, "user": "qframe", "database": "qframe"}
    connection = wait(import_module("asyncpg").connect(**where))
    row, insert = (
        ROW.replace("%s", "$1"),
        INSERT.replace("%s", "$1", 1).replace("%s", "$2", 1).replace("%s", "$3"),
    )

    async def two() -> None:
        await connection.execute(insert, *VALUES)  # it has no pipeline
        await connection.fetchrow(row, 1)

    return {
        "a row": lambda: wait(connection.fetchrow(row, 1)),
        "an insert": lambda: wait(connection.execute(insert, *VALUES)),
        "100 inserts": lambda: wait(connection.executemany(insert, [VALUES] * 100)),
        "an insert and a row": lambda: wait(two()),
    }


def mysql(module: str, port: int) -> Acts:
    """Give what is measured by a DBAPI client of MariaDB; none has a pipeline."""
    names = {"mysqlclient": "MySQLdb"}
    connection = import_module(names.get(module, module)).connect(
        host="127.0.0.1", port=port, user="qframe", database="qframe"
    )
    connection.autocommit = True if module == "mariadb" else connection.autocommit(True)
    cursor = connection.cursor()

    def row() -> object:
        cursor.execute(ROW, (1,))
        return cursor.fetchone()

    def insert() -> None:
        cursor.execute(INSERT, VALUES)

    def two() -> None:
        insert()
        row()

    return {
        "a row": row,
        "an insert": insert,
        "100 inserts": lambda: cursor.executemany(INSERT, [VALUES] * 100),
        "an insert and a row": two,
    }


def measure(client: str, port: int) -> None:
    """Print for each act the microseconds of one by the clock and by the processor."""
    makers: dict[str, Callable[[int], Acts]] = {"psycopg": psycopg, "asyncpg": asyncpg}
    acts = makers[client](port) if client in makers else mysql(client, port)
    for act in acts.values():
        for _ in range(10):
            act()
        done, begun, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < SECONDS:
            act()
            done += 1
        clock, processor = time.perf_counter() - begun, time.process_time() - used
        print(f"{clock / done * 1e6:.1f} {processor / done * 1e6:.1f}")


def main() -> None:
    """Measure every client in turn, and print the medians."""
    from benchmarks.environments import pinned, programs  # noqa: PLC0415 (not the clients' process)
    from tests.support.mariadb_server import MariadbServer  # noqa: PLC0415
    from tests.support.postgres_server import PostgresServer  # noqa: PLC0415

    python = programs("clients") / "python"
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(Path(folder, "postgresql")) as postgres,
        MariadbServer(Path(folder, "mariadb")) as mariadb,
    ):
        servers = {"postgresql": postgres, "mariadb": mariadb}
        postgres.sql(TABLE.format(key="bigserial"))
        postgres.sql("GRANT ALL ON jobs, jobs_id_seq TO qframe")
        mariadb.sql(TABLE.format(key="bigint AUTO_INCREMENT"))
        for server in servers.values():
            server.sql(INSERT, *VALUES)
        found: dict[str, list[list[tuple[float, float]]]] = {client: [] for client in CLIENTS}
        for _ in range(ROUNDS):
            for client, (_, kind) in CLIENTS.items():
                words = [str(python), __file__, client, str(servers[kind].port)]
                said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
                pairs = [tuple(map(float, line.split())) for line in said.splitlines()]
                found[client].append([(pair[0], pair[1]) for pair in pairs])
    print(", ".join(f"{name} {version}" for name, version in pinned("clients").items()))
    print("| | a row | an insert | 100 inserts | an insert and a row |\n|---|---|---|---|---|")
    for client, (name, _) in CLIENTS.items():
        cells = []
        for number in range(4):
            clock, processor = (
                statistics.median(each[number][part] for each in found[client]) for part in (0, 1)
            )
            cells.append(f"{clock:.0f} ({processor:.0f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
