"""A failover and databases: whether one may have applied a step that raised, and doubts in one."""

from __future__ import annotations

import threading

import psycopg
import pytest

from qframe.contracts.step import Push, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.failover.doubts import open_doubts
from qframe.exceptions import BackendUnavailable
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy
from tests.support.sql_server import SqlServer

PUSH = Step(None, Push("here", b"{}"))


def test_what_was_not_sent_is_not_in_doubt(postgres_running: SqlServer) -> None:
    url, port = postgres_running.prepared(), postgres_running.port
    with Proxy("127.0.0.1", port) as proxy:
        through = url.replace(f":{port}", f":{proxy.port}")
        backend = DatabaseBackend("x", DatabaseSettings(url=through))
        proxy.switch(Mode.CUT)
        with pytest.raises(BackendUnavailable) as raised:
            backend.apply(PUSH)
        assert not raised.value.in_doubt
        proxy.switch(Mode.PASS)
        backend.apply(PUSH)
        proxy.switch(Mode.CUT_AFTER_REQUEST)
        with pytest.raises(BackendUnavailable) as raised:
            backend.apply(PUSH)
        assert raised.value.in_doubt
        backend.close()


def test_a_doubt_waits_for_a_start_and_is_no_deadlock_with_it(postgres_running: SqlServer) -> None:
    backend = DatabaseBackend("x", DatabaseSettings(url=postgres_running.prepared()))
    backend.check()
    found: list[set[str]] = []
    opening = threading.Thread(target=lambda: found.append(open_doubts(backend, ["a"])))
    write = (
        "insert into qframe_facts (key, value, expires_at) values (%s, %s, %s)"
        " on conflict (key) do update set value = excluded.value, expires_at = excluded.expires_at"
    )
    blocked = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and cardinality(pg_blocking_pids(pid)) > 0"
    )
    with psycopg.connect(postgres_running.url_at().replace("+psycopg", "")) as worker:
        worker.execute("set lock_timeout = 400")
        worker.execute(write, ("doubt:a", "", 0))  # as the start of the job does first
        opening.start()
        wait_for(lambda: postgres_running.sql(blocked)[0][0], "the doubt to wait")
        worker.execute(write, ("started:a", "first", None))
    opening.join()
    assert found == [{"a"}]
    backend.close()
