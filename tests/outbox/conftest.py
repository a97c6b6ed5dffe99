"""A database with an outbox, of each kind, and a Redis elsewhere that its dispatches are for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from qframe import QueueManager, manager
from qframe.contracts.outbox import Outbox
from qframe.outbox.relay import Relay
from tests.support.redis_server import RedisServer


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a database without tables, or with empty ones."""
    kind = request.param
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/app.sqlite3"
    server: Any = request.getfixturevalue(f"{kind}_running")
    server.empty()
    return str(server.url)


@pytest.fixture
def redis_url(redis_running: RedisServer) -> str:
    redis_running.command("FLUSHALL")
    return redis_running.url


def settings(url: str, **connections: Any) -> dict[str, Any]:
    return {
        "default": next(iter(connections)),
        "jobs": ["tests.outbox.test_relay"],
        "connections": {"main": {"driver": "database", "url": url}, **connections},
        "outbox": {"connection": "main"},
    }


@pytest.fixture
def queues(fresh: Path, url: str, redis_url: str) -> QueueManager:
    redis = {"driver": "redis", "url": redis_url, "connect_timeout": 0.5}
    made = QueueManager(settings(url, redis=redis))
    manager.use(made)
    made.backend("main").migrate()
    return made


@pytest.fixture
def outbox(queues: QueueManager) -> Outbox:
    found = queues.outbox()
    assert found is not None
    return found


@pytest.fixture
def session(queues: QueueManager, url: str) -> Iterator[Session]:
    engine = create_engine(url)
    with Session(engine) as made:
        yield made
    engine.dispose()


@pytest.fixture
def relay(queues: QueueManager, outbox: Outbox) -> Iterator[Callable[[], Relay]]:
    """Hand on all that can be, and give the relay that did."""
    reader, writer = os.pipe()

    def run() -> Relay:
        made = Relay(queues, outbox)
        made.run(reader, lambda: False, until_empty=True)
        return made

    yield run
    os.close(reader)
    os.close(writer)


def count(session: Session) -> int:
    found = session.execute(text("SELECT count(*) FROM qframe_outbox")).scalar_one()
    session.rollback()
    return int(found)
