"""A page over one connection of each kind, or over several, and a browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from qframe import QueueManager, manager
from qframe.connection import Connection
from qframe.contracts import FailedJob, History
from qframe.contracts.backend import Capability
from qframe.web import app, class_page, job_pages, pages, rendering
from qframe.web.access import Authorize

FROM_HERE = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form on the page itself."""


class Site:
    """A page, the connections it shows, and what is put into them."""

    def __init__(self, queues: QueueManager) -> None:
        self.queues = queues
        self.queue: Connection = queues.connection()

    def client(self, authorize: Authorize | None = lambda _: "act", **options: Any) -> TestClient:
        """Give a browser on this machine."""
        made = app(self.queues, authorize, **options)
        return TestClient(made, base_url="http://localhost", follow_redirects=False)

    def able(self, capability: Capability) -> bool:
        return capability in self.queue.capabilities

    def keep(self, uuid: str, error: str = "ValueError: bad", **more: Any) -> FailedJob:
        """Keep a failed job."""
        raw = f'{{"uuid": "{uuid}", "job": "app.Send", "data": {{"user": 7}}}}'.encode()
        fields = {
            "connection": self.queue.name,
            "queue": "default",
            "payload": raw,
            "name": "app.Send",
            "attempts": 3,
            "failed_at": time.time(),
            **more,
        }
        text = f'Traceback (most recent call last):\n  File "/app/x.py", line 3, in f\n{error}'
        record = FailedJob(uuid=uuid, exception=text, **{"history": History(), **fields})
        self.queue.failed.add(record)
        return record

    def failed(self) -> list[str]:
        return sorted(each.uuid for each in self.queue.failed.all())


def bulk_page(answer: Any) -> str:
    """Give the page of the background action that an answer leads to."""
    (bulk,) = parse_qs(urlsplit(answer.headers["location"]).query)["bulk"]
    return f"/bulk/{bulk}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages wait for slow counts, and search, for as long as a slow machine needs."""
    monkeypatch.setattr(rendering, "_PATIENCE", 60.0)
    for module in (pages, job_pages, class_page):
        monkeypatch.setattr(module, "LOOK", 60.0)


@pytest.fixture
def open_site(fresh: Path) -> Iterator[Callable[..., Site]]:
    """Give what makes a page over connections, the first of them the default."""
    made: list[QueueManager] = []

    def open_it(**connections: dict[str, Any]) -> Site:
        queues = QueueManager(
            {"default": next(iter(connections)), "root": fresh, "connections": connections}
        )
        manager.use(queues)
        made.append(queues)
        return Site(queues)

    yield open_it
    manager.use(None)


@pytest.fixture
def site(open_site: Callable[..., Site], backend: dict[str, Any]) -> Site:
    """Give a page over one connection of each kind."""
    name = backend["driver"]
    more = {} if name == "database" else {"database": {"driver": "database"}}
    return open_site(**{name: backend}, **more)


@pytest.fixture
def small(open_site: Callable[..., Site]) -> Site:
    """Give a page over SQLite."""
    return open_site(database={"driver": "database"})
