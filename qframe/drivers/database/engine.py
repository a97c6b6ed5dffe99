"""The SQLAlchemy engine for a URL, set up for each dialect."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote_plus

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from qframe.drivers.database import opened
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.urls import check_options, parsed
from qframe.drivers.sockets import notice_gone, prepare_names
from qframe.exceptions import BackendUnusable, ConfigurationError
from qframe.jobs import project
from qframe.payload.text import one_line

_SETUP_PATIENCE = 30.0
_PATIENCE = 20
"""Seconds without an acknowledgement after which a server counts as gone."""
_LIBPQ: dict[str, Any] = {
    "fallback_application_name": "qframe",
    "connect_timeout": 10,
    "keepalives_idle": _PATIENCE // 2,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": _PATIENCE * 1000,
}
"""libpq's options for what `notice_gone` does."""
_OLDEST = {"sqlite": (3, 35), "postgresql": (12,), "mysql": (10, 6), "mariadb": (10, 6)}
"""The oldest versions with RETURNING, generated columns and SKIP LOCKED."""
_CLIENTS = {
    "sqlite": ("pysqlite", ""),
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("pymysql", "mariadb"),
    "mariadb": ("pymysql", "mariadb"),
}
"""The client library for each kind of database, and the extra that installs it."""


_HIDDEN = "***"
_SECRET_KEY = re.compile(r"pass(?!file)|pwd|secret|token|credential", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(?:pass(?:word|wd)|secret|token)\s*=", re.IGNORECASE)


def database_url(settings: DatabaseSettings) -> URL:
    """Return the URL of the settings, an SQLite file by its full path."""
    url = parsed(settings.url)
    if url.get_backend_name() not in _OLDEST:
        raise ConfigurationError("url: not SQLite, PostgreSQL or MariaDB")
    kind, _, named = url.drivername.partition("+")
    if named and named != _CLIENTS[kind][0]:
        raise ConfigurationError(
            f"url: {kind} is used by {_CLIENTS[kind][0]}, not by {one_line(named)}: "
            f"write {kind}://..."
        )
    if url.get_backend_name() != "sqlite":
        return url
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "url: an SQLite database in memory cannot be shared with a worker; name a file"
        )
    if url.query:
        raise ConfigurationError("url: an SQLite file takes no options behind a ?")
    return url.set(database=str(project.root() / url.database))


def shown(url: URL) -> str:
    """Describe a database without secrets, an SQLite file by its full path."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    query = {key: _HIDDEN if _is_secret(key, value) else value for key, value in url.query.items()}
    text = url.set(query=query).render_as_string(hide_password=True)
    return text.replace(quote_plus(_HIDDEN), _HIDDEN)


def _is_secret(key: str, value: str | tuple[str, ...]) -> bool:
    """Whether an option of a URL is a secret; the name of a file that has one is not."""
    text = value if isinstance(value, str) else " ".join(value)
    return _SECRET_KEY.search(key) is not None or _SECRET_VALUE.search(text) is not None


def make_engine(url: URL, settings: DatabaseSettings) -> Engine:
    """Return an engine that pools nothing and leaves transactions to qframe."""
    kind = url.get_backend_name()
    client, extra = _CLIENTS[kind]
    arguments: dict[str, Any] = {}
    if kind == "sqlite":
        arguments = {"timeout": settings.busy_timeout, "check_same_thread": False}
    elif kind == "postgresql" and url.get_driver_name() in {"psycopg", "psycopg2"}:
        arguments = {name: value for name, value in _LIBPQ.items() if name not in url.query}
        # A pooler may be in front of the server; a session finds out later.
        arguments["prepare_threshold"] = None
        # Any database encoding will do: the server converts.
        arguments["client_encoding"] = "utf8"
    elif client == "pymysql":
        prepare_names()
    try:
        engine = create_engine(
            url.set(drivername=f"{kind}+{client}"),
            poolclass=NullPool,
            # a closed connection is gone, and a lost one cannot be reset
            pool_reset_on_return=None,
            isolation_level="AUTOCOMMIT",
            paramstyle="named" if kind == "sqlite" else "pyformat",
            connect_args=arguments,
        )
    except ModuleNotFoundError as error:
        if error.name != client:
            raise
        raise ConfigurationError(
            f"the database {shown(url)} needs the package {client}: pip install 'qframe[{extra}]'"
        ) from None
    except (NoSuchModuleError, ArgumentError, ImportError, ValueError, TypeError) as error:
        text = str(error).replace(url.render_as_string(hide_password=False), shown(url))
        raise ConfigurationError(f"the database {shown(url)}: {one_line(text)}") from None
    check_options(engine.url, engine.dialect)
    if kind == "sqlite":
        synchronous = settings.synchronous
        event.listen(engine, "connect", lambda raw, _: _set_up_sqlite(raw, engine, synchronous))
    elif kind in {"mysql", "mariadb"}:
        event.listen(engine, "connect", _set_up_mysql)
    if kind != "sqlite":
        event.listen(engine, "connect", lambda raw, _: opened.note(raw, str(url.database)))
    return engine


def _set_up_sqlite(raw: Any, engine: Engine, synchronous: str) -> None:  # noqa: ANN401 (a DBAPI connection)
    """Turn on write-ahead logging.

    If two processes do so on a new file at once, one gets `locked` whatever the busy timeout, so it
    is retried for a while.
    """
    deadline = time.monotonic() + _SETUP_PATIENCE
    raw.isolation_level = None
    mode = ""
    while not mode:
        try:
            mode = str(raw.execute("PRAGMA journal_mode=WAL").fetchone()[0]).lower()
            raw.execute(f"PRAGMA synchronous={synchronous.upper()}")
        except engine.dialect.loaded_dbapi.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if mode != "wal":
        raise BackendUnusable(
            f"the database {shown(engine.url)} cannot use write-ahead logging "
            f"(journal mode {mode}); is it on a network file system?"
        )


def _set_up_mysql(raw: Any, _record: object) -> None:  # noqa: ANN401 (a DBAPI connection)
    """Use READ COMMITTED, which does not lock the gaps between rows, and UTC, without DST."""
    line = getattr(raw, "_sock", None)  # PyMySQL has no setting for it
    if line is not None:
        notice_gone(line, _PATIENCE)
    with raw.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


def check_version(engine: Engine) -> None:
    """Refuse a version that is too old; needs a connection to have been made."""
    dialect, name = engine.dialect, shown(engine.url)
    version = getattr(dialect, "server_version_info", None) or ()
    if dialect.name == "sqlite":
        version = dialect.loaded_dbapi.sqlite_version_info
    if dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False):
        raise BackendUnusable(f"the database {name} is MySQL: MariaDB is needed")
    if version < _OLDEST[dialect.name]:
        found, wanted = (".".join(map(str, each)) for each in (version, _OLDEST[dialect.name]))
        raise BackendUnusable(f"the database {name} is too old ({found}): {wanted} is needed")
