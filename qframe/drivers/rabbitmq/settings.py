"""Settings of a RabbitMQ connection."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, Field, model_validator

from qframe.config import ConnectionSettings
from qframe.config.values import YEAR, Address, Int, Wait, split_address

_PORTS = {"amqp": 5672, "amqps": 5671}


class Login(NamedTuple):
    """What the URL names besides the server."""

    user: str
    password: str
    vhost: str


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its message may show the password
        raise ValueError("is not a URL; write / # ? @ in a password as %2F %23 %3F %40") from None
    return parts


def _url(url: str) -> str:
    parts = _split(url)
    if parts.scheme not in _PORTS:
        raise ValueError("must begin with amqp:// or amqps:// (TLS)")
    if not parts.hostname:
        raise ValueError("must name a host, as in amqp://user:password@host:5672/vhost")
    if parts.query or parts.fragment:
        raise ValueError("has no options; write ? and # in a password or vhost as %3F and %23")
    return url


def _management(url: str | None) -> str | None:
    if url is None:
        return None
    parts = _split(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError("must begin with http:// or https://")
    if not parts.hostname:
        raise ValueError("must name a host, as in http://host:15672")
    if parts.query or parts.fragment:
        raise ValueError("has no options; write ? and # in a password as %3F and %23")
    return url


class RabbitmqSettings(ConnectionSettings):
    """Jobs wait in quorum queues of RabbitMQ, each of its name with `prefix` before it.

    `url` begins with amqp:// or amqps:// (TLS), and names user, password and vhost: `/%2F`, or no
    path, is the vhost `/`. `hosts` (host:port each) are further nodes of the cluster, tried in
    order when one cannot be reached. With TLS the server's certificate and name are verified, by
    `ca` (a file) or the system's authorities; `cert` and `key` are the client's own.

    `heartbeat` is the seconds between two signs of life of a connection with jobs; the server
    closes it after two or three without one. `timeout` is the seconds to wait for a reply or a
    confirm, and `connect_timeout` for a connection.

    `management` is the URL of the management plugin, for what AMQP does not tell: the names of
    queues, how many messages are reserved, policies. Its user is that of `url` unless it names one.
    `celery_tasks` has the names of Celery's tasks, each with the name of the job that runs it here,
    where that is another one.
    `consumer_timeout` repeats what `rabbitmq.conf` says, in seconds (0: none), for `qframe check`.
    """

    driver: Literal["rabbitmq"] = "rabbitmq"
    url: Annotated[str, AfterValidator(_url), Field(repr=False)] = "amqp://127.0.0.1:5672/"
    hosts: list[Address] = []
    prefix: Annotated[str, Field(pattern=r"^[^\s]*$", max_length=100)] = ""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    heartbeat: Annotated[Int, Field(ge=1, le=3600)] = 60
    timeout: Wait = 10
    connect_timeout: Wait = 5
    management: Annotated[str | None, AfterValidator(_management), Field(repr=False)] = None
    consumer_timeout: Annotated[Int, Field(ge=0, le=YEAR)] = 1800
    celery_tasks: dict[str, str] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        is_https = urlsplit(self.management or "").scheme == "https"
        if not (self.is_tls() or is_https) and (self.ca or self.cert or self.key):
            raise ValueError("ca, cert and key are for TLS: the url must begin with amqps://")
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key belong together")
        return self

    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "amqps"

    def login(self) -> Login:
        """Return user, password (guest unless given) and vhost."""
        parts = urlsplit(self.url)
        user = "guest" if parts.username is None else unquote(parts.username)
        password = "guest" if parts.password is None else unquote(parts.password)
        return Login(user, password, unquote(parts.path[1:]) or "/")

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each node, the URL's first."""
        parts = urlsplit(self.url)
        first = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        return [first, *map(split_address, self.hosts)]

    def name_of(self, queue: str) -> str:
        """Return the name of a queue in the broker."""
        return self.prefix + queue

    def queue_of(self, name: str) -> str:
        """Return the queue that has this name in the broker."""
        return name[len(self.prefix) :]

    def shown(self) -> str:
        """Return the URL without user and password."""
        parts = urlsplit(self.url)
        host, port = self.addresses()[0]
        host = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/') or '/'}"
