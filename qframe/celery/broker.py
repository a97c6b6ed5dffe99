"""The connection of an app: the one of qframe's configuration that its `broker_url` names."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from qframe import manager
from qframe.celery.exceptions import ImproperlyConfigured, NotSupported
from qframe.manager import QueueManager
from qframe.payload.text import one_line

NAME: Final = "celery"
"""The connection that is made of `broker_url` where nothing configures qframe."""
_REDIS: Final = {"redis", "rediss", "valkey", "valkeys", "unix"}
_DATABASES: Final = {"sqla+", "db+"}
_SQL: Final = {"sqlite", "postgresql", "postgres", "mysql", "mariadb"}
_PORT: Final = 6379
_PASSWORD: Final = re.compile(r"(://[^:/;]*):[^;]*@")
_AMQP: Final = {"amqp": "amqp", "pyamqp": "amqp", "amqps": "amqps"}
_AMQP_PORTS: Final = {"amqp": 5672, "amqps": 5671}


def settings_of(url: str, key: str) -> dict[str, Any]:
    """Return the settings of the connection that a URL of Celery's stands for.

    Raises `NotSupported` for a broker that qframe has no driver for.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        return {"driver": "memory"}
    if scheme.removesuffix("+socket") in _REDIS and scheme != "unix":
        path = "unix" if scheme.endswith("+socket") else scheme
        return {"driver": "redis", "url": f"{path}{url[len(scheme) :]}"}
    for prefix in _DATABASES:
        sql = scheme.removeprefix(prefix).partition("+")[0]
        if scheme.startswith(prefix) and sql in _SQL:
            return {"driver": "database", "url": url[len(prefix) :]}
    if scheme in _AMQP and key == "broker_url":
        return _rabbitmq(url)
    if key == "result_backend":
        raise NotSupported(
            f"qframe.celery has no result_backend {one_line(scheme, 40)!r}: results are kept "
            "beside the jobs; leave result_backend out"
        )
    raise NotSupported(
        f"qframe.celery has no broker {one_line(scheme, 40)!r}: use redis://, "
        "amqp://, sqla+postgresql:// or sqla+sqlite://, or leave broker_url out and configure a "
        "connection in qframe.toml"
    )


def _rabbitmq(url: str) -> dict[str, Any]:
    """Return the settings for one URL, or for those of a cluster's nodes with `;` between them."""
    first, *others = filter(None, map(str.strip, url.split(";")))
    scheme, _, rest = first.partition(":")
    rest = rest.removeprefix("//")
    user, at, place = rest.rpartition("@")
    if not place or place.startswith(("/", ":")):
        place = f"127.0.0.1{place}"
    found: dict[str, Any] = {
        "driver": "rabbitmq", "url": f"{_AMQP[scheme.lower()]}://{user}{at}{place}"
    }  # fmt: skip
    if others:
        found["hosts"] = [_address(*_amqp_server(each)[1:]) for each in others]
    return found


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _amqp_server(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    scheme = _AMQP.get(parts.scheme, "amqp")
    host = "127.0.0.1" if parts.hostname in {None, "localhost"} else str(parts.hostname)
    return scheme, host, parts.port or _AMQP_PORTS[scheme]


def connection_name(url: str | None) -> str | None:
    """Return the name of the connection with this broker; None for the default one.

    Raises `ImproperlyConfigured` if qframe's configuration has none.
    """
    if not url:
        return None
    queues = manager.default()
    wanted = settings_of(url, "broker_url")
    names = queues.settings.connection_names()
    for name in names:
        if _place(_known(queues, name)) == _place(wanted):
            return name
    if not queues.settings.origin.is_nothing:
        raise ImproperlyConfigured(
            f"broker_url is {_shown(url)}, and no connection of qframe's configuration is there; "
            "give one that URL, or leave broker_url out to use the default one "
            f"({queues.settings.default})"
        )
    queues.settings.connections[NAME] = wanted
    return NAME


def same_server(one: str, other: str) -> bool:
    """Whether a result backend is on the server of the broker."""
    a, b = settings_of(one, "result_backend"), settings_of(other, "broker_url")
    if a["driver"] != b["driver"]:
        return False
    if a["driver"] != "redis":
        return _place(a) == _place(b)
    return _server(a["url"]) == _server(b["url"])


def _known(queues: QueueManager, name: str) -> dict[str, Any]:
    values = queues.settings.connection(name)
    if values["driver"] == "redis":
        values.setdefault("url", "redis://127.0.0.1:6379/0")
    elif values["driver"] == "database":
        values.setdefault("url", "sqlite:///qframe.sqlite3")
    elif values["driver"] == "rabbitmq":
        values.setdefault("url", "amqp://127.0.0.1:5672/")
    return values


def _place(values: dict[str, Any]) -> object:
    """Return what is the same for two connections to the same place."""
    driver, url = values["driver"], str(values.get("url", ""))
    if driver == "redis":
        parts = urlsplit(url)
        number = parts.path.strip("/") or "0"
        return driver, _server(url), number, parts.username, parts.password
    if driver == "rabbitmq":
        parts = urlsplit(url)
        login = parts.username or "guest", parts.password or "guest"
        return driver, _amqp_server(url), unquote(parts.path[1:]) or "/", login
    if driver == "database" and not url:
        return None
    return driver, url.replace("postgres://", "postgresql://")


def _server(url: str) -> object:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.scheme, parts.path
    host = parts.hostname or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    return parts.scheme.replace("valkey", "redis"), host, parts.port or _PORT


def _shown(url: str) -> str:
    """Return a URL, or several, without their passwords."""
    return one_line(_PASSWORD.sub(r"\1:***@", url), 100)
