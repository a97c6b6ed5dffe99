"""A shop: a program whose rows and jobs are in one database, on each kind of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from qframe import QueueManager, events, manager
from qframe.connection import Connection
from qframe.exceptions import BackendUnusable

_ASYNC = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg_async",
    "mariadb": "mariadb+aiomysql",
}


class Shop:
    """A database with a table `orders`, and the default connection's jobs in it."""

    def __init__(self, url: str, manager: QueueManager) -> None:
        self.url = url
        self.kind = make_url(url).get_backend_name()
        self.manager = manager
        self.engine: Engine = create_engine(url, poolclass=NullPool)
        self.queue: Connection = manager.connection()
        try:
            self.queue.size()
        except BackendUnusable:
            self.queue.backend.migrate()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (name VARCHAR(100))"))

    def order(self, session: Session, name: str = "a") -> None:
        """Add a row."""
        session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})

    def orders(self) -> list[str]:
        """Give the rows that are committed, sorted."""
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT name FROM orders")).scalars())

    def waiting(self) -> int:
        """Count the jobs that are committed."""
        return self.queue.size() + self.queue.size("x")

    def async_engine(self) -> AsyncEngine:
        """Give an asynchronous engine."""
        url = make_url(self.url).set(drivername=_ASYNC[self.kind])
        return create_async_engine(url, poolclass=NullPool)


@contextmanager
def opened(url: str) -> Iterator[Shop]:
    """Open a shop on an empty database."""
    settings = {
        "default": "database",
        "root": Path(__file__).parents[2],  # where the jobs of tests are
        "connections": {"database": {"driver": "database", "url": url, "busy_timeout": 20}},
    }
    before = manager.current()
    with events.kept():
        queues = QueueManager(settings)
        manager.use(queues)
        shop = Shop(url, queues)
        try:
            yield shop
        finally:
            manager.use(before)
            queues.close()
            shop.engine.dispose()
