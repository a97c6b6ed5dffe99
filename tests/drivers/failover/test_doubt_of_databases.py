"""Whether a database may have applied a step that raised, which decides about a failover."""

from __future__ import annotations

import pytest

from qframe.contracts.step import Push, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import BackendUnavailable
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
