"""Settings of a connection to SQLite, PostgreSQL, MariaDB or MySQL."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from qframe.config import ConnectionSettings, framework
from qframe.config.values import Int, Wait
from qframe.drivers import levels

DATABASE_FILE = "qframe.sqlite3"
"""The default database file, under the project root."""
_TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,50}$")]


class DatabaseSettings(ConnectionSettings):
    """Jobs wait in an SQL database; a relative SQLite path counts from the project root.

    `synchronous` is SQLite's own setting: with `normal`, jobs survive the death of any process,
    with `full` also a power loss. On PostgreSQL the start or end of a job waits for the disk if it
    is `full`; a dispatch follows the server's setting. `busy_timeout` is the seconds that a call
    waits for SQLite's write lock. `pool_size` is the number of connections to a server that the
    threads of one process share for this connection, in addition to those of a worker itself;
    `pool_timeout` is the seconds that a call waits for one of them. `schema` is PostgreSQL's schema
    of the tables, or another database of the MariaDB server; default: the connection's own.
    `migrate_command` is the command to suggest when the tables are missing. `listen` is how
    PostgreSQL wakes idle workers: by LISTEN and NOTIFY unless there is a pooler (`"auto"`), even
    with a pooler (true: it must pool sessions), or by polling (false). `aging` is the seconds that
    a level of priority is worth.
    """

    driver: Literal["database"] = "database"
    url: Annotated[str, Field(repr=False)] = f"sqlite:///{DATABASE_FILE}"
    schema_name: Annotated[_TableName | None, Field(alias="schema")] = None
    table: _TableName = "jobs"
    failed_table: _TableName = "failed_jobs"
    fact_table: _TableName = "qframe_facts"
    latch_table: _TableName = "qframe_latches"
    latch_member_table: _TableName = "qframe_latch_members"
    mark_table: _TableName = "qframe_marks"
    outbox_table: _TableName = "qframe_outbox"
    synchronous: Literal["normal", "full", "extra"] = "normal"
    busy_timeout: Wait = 10
    pool_size: Annotated[Int, Field(ge=1, le=1000)] = 10
    pool_timeout: Wait = 30
    migrate_command: str = Field(default_factory=lambda: f"{framework.command_line} migrate")
    listen: Literal["auto"] | bool = "auto"
    aging: Annotated[Int, Field(ge=1, le=levels.LONGEST_AGING)] = levels.AGING

    @model_validator(mode="after")
    def _has_schemas(self) -> Self:
        if self.schema_name is not None and self.url.startswith("sqlite"):
            raise ValueError("SQLite has no schema: give each connection a file of its own")
        return self
