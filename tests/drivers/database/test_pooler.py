"""PgBouncer: connections that belong to nobody for longer than a transaction."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from qframe.contracts.step import APPLIED, Delete, Push, Result, Start, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from tests.support.pgbouncer_server import PgbouncerServer
from tests.support.postgres_server import PostgresServer

TIMES = 12
"""psycopg prepares what it has been asked five times."""


@pytest.fixture
def url(postgres_running: PostgresServer) -> str:
    url = postgres_running.database()
    direct = DatabaseBackend("here", DatabaseSettings(url=url))
    direct.migrate()
    direct.close()
    return url


def through(url: str, server: PostgresServer, bouncer: PgbouncerServer) -> DatabaseSettings:
    return DatabaseSettings(url=url.replace(f":{server.port}/", f":{bouncer.port}/"))


def test_clients_that_share_connections_share_no_statements(
    postgres_running: PostgresServer, url: str, tmp_path: Path
) -> None:
    wrong: list[BaseException | list[Result]] = []

    def work(settings: DatabaseSettings, queue: str) -> None:
        backend = DatabaseBackend("here", settings)
        try:
            for _ in range(TIMES):
                backend.apply(Step(None, Push(queue, b"1")))
                (job,), _ = backend.reserve([queue])
                heard: list[list[Result]] = []
                backend.apply_async([Step(job, Start(60))], heard.append)
                heard.append(backend.apply(Step(job, Delete())))
                if heard != [[APPLIED], [APPLIED]]:
                    wrong.extend(heard)
        except Exception as error:  # noqa: BLE001 (told by the test)
            wrong.append(error)
        backend.close()

    with PgbouncerServer(tmp_path, postgres_running, config=["default_pool_size = 2"]) as bouncer:
        settings = through(url, postgres_running, bouncer)
        threads = [threading.Thread(target=work, args=(settings, f"q{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_noticed(
    postgres_running: PostgresServer, url: str, tmp_path: Path, mode: str
) -> None:
    with PgbouncerServer(tmp_path, postgres_running, mode=mode) as bouncer:
        pooled = through(url, postgres_running, bouncer)
        trusted = pooled.model_copy(update={"listen": True})
        found = [_is_whole(each) for each in (DatabaseSettings(url=url), pooled, trusted)]
    assert found == [True, False, True]


def test_tables_are_made_through_a_pooler(postgres_running: PostgresServer, tmp_path: Path) -> None:
    with PgbouncerServer(tmp_path, postgres_running) as bouncer:
        backend = DatabaseBackend(
            "here", through(postgres_running.database(), postgres_running, bouncer)
        )
        made = [backend.migrate() for _ in range(TIMES)]
        backend.check()
        backend.close()
    assert made[0]
    assert made[1:] == [[]] * (TIMES - 1)


def _is_whole(settings: DatabaseSettings) -> bool:
    backend = DatabaseBackend("here", settings)
    with backend.database.session() as session:
        whole = session.is_whole
    backend.close()
    return whole
