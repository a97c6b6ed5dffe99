"""Database URLs: parsed and checked, with libpq's lists of hosts."""

from __future__ import annotations

import inspect
import re

from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import ArgumentError

from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line

_SEVERAL = re.compile(
    r"(?P<start>postgresql(?:\+\w+)?://(?:[^/?]*@)?)(?P<hosts>[^@/?]*,[^@/?]*)(?P<rest>.*)",
    re.DOTALL,
)
_ALIAS = "postgres://"
"""Another name of the scheme, common in DATABASE_URL, that SQLAlchemy does not know."""
_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:]*)(?::(?P<port>\d+))?")
_PORT = "5432"
_LIKE = "sqlite:///qframe.sqlite3"
_HOW = "write / # ? @ : in a user or password as %2F %23 %3F %40 %3A"
_LAST_PORT = 65535


def parsed(text: str) -> URL:
    """Parse a URL. Raises `ConfigurationError`, without secrets in it."""
    if text.startswith(_ALIAS):
        text = f"postgresql://{text.removeprefix(_ALIAS)}"
    try:
        url = _of_several(text) or make_url(text)
    except ArgumentError:
        raise ConfigurationError(f"url: not a database URL (like {_LIKE})") from None
    except ValueError:
        raise ConfigurationError(f"url: the port is no number; {_HOW}") from None
    _check_port(url.port)
    if "\0" in text or "%00" in text:
        raise ConfigurationError("url: it has a NUL in it")
    return url


def _check_port(port: int | None) -> None:
    if port is not None and not 0 < port <= _LAST_PORT:
        raise ConfigurationError(f"url: the port is from 1 to {_LAST_PORT}, not {port}")


def _of_several(text: str) -> URL | None:
    """Parse libpq's form with several hosts; None for any other form."""
    found = _SEVERAL.fullmatch(text)
    if found is None:
        return None
    hosts = [_HOST.fullmatch(each) for each in found["hosts"].split(",")]
    if not all(each and each["name"] for each in hosts):
        raise ConfigurationError(f"url: hosts are written host:port,host:port; {_HOW}")
    for each in hosts:
        _check_port(int(each["port"]) if each and each["port"] else None)
    url = make_url(found["start"] + found["rest"])
    names = ",".join(each["name"].strip("[]") for each in hosts if each)
    ports = ",".join(each["port"] or _PORT for each in hosts if each)
    return url.update_query_dict({"host": names, "port": ports})


def check_options(url: URL, dialect: Dialect) -> None:
    """Raise `ConfigurationError` for an option of the URL that the client does not know."""
    try:
        _, given = dialect.create_connect_args(url)
    except (ArgumentError, ValueError, TypeError) as error:
        raise ConfigurationError(f"url: {one_line(str(error))}") from None
    known = _known(dialect)
    for key in url.query if known else ():
        if key in given and key not in known:
            raise ConfigurationError(
                f"url: unknown option {one_line(key, 60)!r}{nearest(key, known)} behind the ?"
            )


def _known(dialect: Dialect) -> set[str]:
    """Return the options of a client; an empty set if unknown."""
    client = dialect.loaded_dbapi
    if dialect.driver == "pymysql":
        return {*inspect.signature(client.connections.Connection).parameters}
    if dialect.driver == "psycopg":
        return {each.keyword.decode() for each in client.pq.Conninfo.get_defaults()} | _OF_PSYCOPG
    return set()


_OF_PSYCOPG = {"autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"}
