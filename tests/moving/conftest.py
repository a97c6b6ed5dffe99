"""Two connections, old and new, of whichever kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, manager
from qframe.jobs.registry import Registry
from tests.moving.acts import RAN, Site
from tests.support.broker_settings import broker_settings
from tests.support.redis_server import RedisServer
from tests.support.sql_server import SqlServer


@pytest.fixture(autouse=True)
def _jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "_allowed", lambda *_: True)  # the classes of the tests
    RAN.clear()


def settings(kind: str, fresh: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    if kind == "sqlite":
        return {"driver": "database", "url": f"sqlite:///{fresh}/jobs.sqlite3"}
    if kind in {"postgres", "mariadb"}:
        database: SqlServer = request.getfixturevalue(f"{kind}_running")
        return {"driver": "database", "url": database.prepared()}
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_running")
        server.command("FLUSHALL")
        return {"driver": kind, "url": server.url}
    return {"driver": kind} if kind == "memory" else broker_settings(kind, request)


@pytest.fixture
def site(fresh: Path, request: pytest.FixtureRequest) -> Site:
    """Give a function that configures two connections, old and new."""

    def made(
        pair: str = "memory to memory", extra: dict[str, Any] | None = None, **more: Any
    ) -> QueueManager:
        one, other = pair.split(" to ")
        connections = {
            "old": settings(one, fresh, request),
            "new": settings(other, fresh, request),
            **(extra or {}),
        }
        queues = QueueManager({"default": "old", "root": fresh, "connections": connections, **more})
        manager.use(queues)
        return queues

    return made
