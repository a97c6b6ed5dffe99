"""The application on a database that Laravel uses as well: PostgreSQL, MariaDB or SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.laravel.application import Application
from tests.support.process import Finished

_DRIVERS = {"postgresql": "pgsql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""What PHP calls them, in config/database.php as in the names of its extensions."""


def config_of(url: str, **more: object) -> dict[str, Any]:
    """Give the connection of config/database.php for a URL, as a fresh Laravel has it."""
    given = sa.make_url(url)
    config: dict[str, Any] = {
        "driver": _DRIVERS[given.get_backend_name()],
        "database": given.database,
        "prefix": "",
    }
    if config["driver"] != "sqlite":
        config |= {"host": given.host, "port": given.port}
        config |= {"username": given.username or "", "password": given.password or ""}
    if config["driver"] == "mysql":
        config |= {"charset": "utf8mb4", "collation": "utf8mb4_unicode_ci", "strict": True}
    if config["driver"] == "pgsql":
        config |= {"charset": "utf8", "search_path": "public", "sslmode": "prefer"}
    return config | more


class DatabaseApplication(Application):
    """A project on the tables `jobs` and `failed_jobs` of a database."""

    driver = "database"

    def __init__(
        self, root: Path, url: str, php: str, made_by: str = "laravel", **settings: object
    ) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.php_config: dict[str, Any] = config_of(url)
        super().__init__(root, php, **settings)
        # One rule says for both when a reservation of either is over.
        self.php_options = {"queue": {"retry_after": settings.get("retry_after", 60)}}
        if made_by == "laravel":
            self.artisan("migrate")
        self.migrate()

    def connection(self) -> dict[str, Any]:
        return {"url": self.url}

    def php_connection(self) -> dict[str, Any]:
        return {"database": self.php_config}

    def artisan(self, *words: object) -> Finished:
        """Run a command of Laravel's own to its end."""
        finished = self.php("artisan.php", *words).finished()
        assert finished.code == 0, finished.out + finished.err
        return finished

    def migrate(self) -> None:
        """Add to the tables what they lack for Python."""
        self.queue.backend.migrate()

    def rows(self, table: str = "jobs") -> list[dict[str, Any]]:
        """Give the rows of a table, in order of their ids."""
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY id")
            return [dict(row) for row in found.mappings()]

    def one(self, table: str = "jobs") -> dict[str, Any]:
        """Give the one row of a table."""
        (row,) = self.rows(table)
        return row

    def now(self) -> float:
        """Give the database's time."""
        clock = {
            "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
            "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400",
        }.get(self.engine.dialect.name, "SELECT unix_timestamp(now(6))")
        with self.engine.connect() as connection:
            return float(connection.exec_driver_sql(clock).scalar_one())

    def is_past(self, moment: float) -> bool:
        """Whether it is so late, by the database's time."""
        return self.now() >= moment


def empty(url: str) -> None:
    """Leave nothing in a database."""
    given = sa.make_url(url)
    if given.get_backend_name() == "sqlite":
        Path(str(given.database)).touch()
        return
    engine = sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        else:
            connection.exec_driver_sql(f"DROP DATABASE `{given.database}`")
            connection.exec_driver_sql(f"CREATE DATABASE `{given.database}` CHARACTER SET utf8mb4")
