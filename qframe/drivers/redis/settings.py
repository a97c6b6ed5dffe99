"""Settings of a Redis connection."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, model_validator

from qframe.config import ConnectionSettings
from qframe.config.values import Address, Int, Wait, split_address
from qframe.drivers import levels
from qframe.payload.text import nearest

_NUMBER = re.compile("[0-9]{1,9}")
_SCHEMES = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
_OPTIONS = {
    "db", "client_name", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile",
    "ssl_password", "ssl_cert_reqs", "ssl_check_hostname",
}  # fmt: skip


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        number = parts.path.strip("/")
        _ = parts.port
    except ValueError:  # its message may show the password
        raise ValueError("is not a URL; write / # ? @ in a password as %2F %23 %3F %40") from None
    if parts.scheme not in {*_SCHEMES, "unix"}:
        raise ValueError(
            "must begin with redis://, rediss:// (TLS), unix://, valkey://, valkeys://"
        )
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("unix:// needs the path of a socket")
    if parts.scheme != "unix" and number and not _NUMBER.fullmatch(number):
        raise ValueError("what follows the host is the number of the database, such as /0")
    for key, value in parse_qsl(parts.query):
        if key not in _OPTIONS:
            raise ValueError(f"unknown option {key!r}{nearest(key, _OPTIONS)} in the URL")
        if key == "db" and not _NUMBER.fullmatch(value):
            raise ValueError("db in the URL is the number of the database")
    return url


class RedisSettings(ConnectionSettings):
    """Jobs wait in Redis or Valkey, under Laravel's keys, each with `prefix`.

    `url` begins with redis://, rediss:// (TLS) or unix://, and may have user, password and database
    number. With `sentinels` (host:port each), qframe asks them for the master of `service`; with
    `cluster`, the URL and `nodes` are some of its nodes.

    `block_for` is the seconds after which an idle worker polls, `timeout` the seconds to wait for a
    reply, and `connect_timeout` for a connection. With `min_replicas` a dispatch waits until that
    many replicas have the job, at most `replica_timeout` seconds. `aging` is the seconds that a
    level of priority is worth.
    """

    driver: Literal["redis"] = "redis"
    url: Annotated[str, AfterValidator(_url), Field(repr=False)] = "redis://127.0.0.1:6379/0"
    prefix: Annotated[str, Field(pattern=r"^[^{}\s]*$", max_length=200)] = ""
    block_for: Wait = 5
    timeout: Wait = 5
    connect_timeout: Wait = 5
    sentinels: list[Address] = []
    service: str = "mymaster"
    sentinel_username: str | None = None
    sentinel_password: Annotated[str | None, Field(repr=False)] = None
    cluster: bool = False
    nodes: list[Address] = []
    min_replicas: Annotated[Int, Field(ge=0, le=100)] = 0
    replica_timeout: Wait = 1
    aging: Annotated[Int, Field(ge=1, le=levels.LONGEST_AGING)] = levels.AGING

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.cluster and self.sentinels:
            raise ValueError("cluster and sentinels exclude each other")
        if self.nodes and not self.cluster:
            raise ValueError("nodes are those of a cluster: set cluster = true")
        if self.cluster and urlsplit(self.url).scheme == "unix":
            raise ValueError("a cluster has no unix socket")
        return self

    def plain_url(self) -> str:
        """Return the URL in the form of Redis' own clients."""
        scheme, rest = self.url.split("://", 1)
        return f"{_SCHEMES.get(scheme, scheme)}://{rest}"

    def shown_url(self) -> str:
        """Return the URL without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.plain_url()).scheme == "rediss"

    def addresses(self) -> list[tuple[str, int]]:
        """Return the sentinels, or the further nodes of a Cluster."""
        return [split_address(each) for each in (*self.sentinels, *self.nodes)]
