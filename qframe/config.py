"""Settings: `qframe.toml` or `[tool.qframe]`, then `QFRAME_*` variables, then code."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from qframe.contracts.queue import LARGEST_BOUND
from qframe.exceptions import ConfigurationError
from qframe.payload import encryption
from qframe.payload.text import nearest, one_line, queue_name, queue_pattern
from qframe.rules import OF_OUTBOX, Rule, check_connections, parse

_YEAR = 365 * 86400
_LARGEST_PAYLOAD = 1 << 29
"""Bytes; Redis stores no larger value."""


def _number(value: object) -> object:
    """Refuse True and False, which Python accepts as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")  # noqa: TRY004 (what pydantic makes an error of its own)
    return value


_Int = Annotated[int, BeforeValidator(_number)]
_Float = Annotated[float, BeforeValidator(_number)]
_Seconds = Annotated[_Float, Field(ge=0, le=_YEAR)]
QueueName = Annotated[str, AfterValidator(queue_name)]
QueuePattern = Annotated[str, AfterValidator(queue_pattern)]

FILE = "qframe.toml"
_PROJECT = "pyproject.toml"
_PREFIX = "QFRAME_"
_NAMES_A_FILE = "QFRAME_CONFIG"
_SHOWN = 3
"""The most environment variables to name in a description of what was read."""
DATABASE_FILE = "qframe.sqlite3"
"""The default database file, under the project root."""


class ConnectionSettings(BaseModel):
    """Settings of every connection; each driver's settings derive from it.

    `retry_after` is the lease of a running job in seconds: the job of a killed worker runs again
    after at most that long. Leases are renewed, so it may be shorter than a job's timeout.
    `push_retries` is how often a dropped dispatch is retried. `give_up_after` is the seconds
    without an answer after which a worker exits (0: never).
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    driver: str
    queue: QueueName = "default"
    retry_after: Annotated[_Float, Field(ge=1, le=_YEAR)] = 60
    max_payload: Annotated[_Int, Field(gt=0, le=_LARGEST_PAYLOAD)] = 1_000_000
    push_retries: Annotated[_Int, Field(ge=0, le=1000)] = 3
    give_up_after: Annotated[_Float, Field(ge=0, le=_YEAR)] = 300


_TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,50}$")]
_Wait = Annotated[_Float, Field(gt=0, le=3600)]


class DatabaseSettings(ConnectionSettings):
    """Jobs wait in an SQL database; a relative SQLite path counts from the project root.

    `synchronous` is SQLite's own setting: with `normal`, jobs survive the death of any process,
    with `full` also a power loss. On PostgreSQL the start or end of a job waits for the disk if it
    is `full`; a dispatch follows the server's setting. `busy_timeout` is the seconds that a call
    waits for SQLite's write lock. `pool_size` is the number of connections to a server that the
    threads of one process share, in addition to those of a worker itself; `pool_timeout` is the
    seconds that a call waits for one of them. `schema` is PostgreSQL's schema of the tables, or
    another database of the MariaDB server; default: the connection's own. `migrate_command` is the
    command to suggest when the tables are missing. `listen` is how PostgreSQL wakes idle workers:
    by LISTEN and NOTIFY unless there is a pooler (`"auto"`), even with a pooler (true: it must pool
    sessions), or by polling (false).
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
    busy_timeout: _Wait = 10
    pool_size: Annotated[_Int, Field(ge=1, le=1000)] = 10
    pool_timeout: _Wait = 30
    migrate_command: str = Field(default_factory=lambda: f"{command_line} migrate")
    listen: Literal["auto"] | bool = "auto"

    @model_validator(mode="after")
    def _has_schemas(self) -> Self:
        if self.schema_name is not None and self.url.startswith("sqlite"):
            raise ValueError("SQLite has no schema: give each connection a file of its own")
        return self


_REDIS = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
_REDIS_QUERY = {
    "db", "client_name", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile",
    "ssl_password", "ssl_cert_reqs", "ssl_check_hostname",
}  # fmt: skip


def _redis_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        number = parts.path.strip("/")
        _ = parts.port
    except ValueError:  # its message may show the password
        raise ValueError("is not a URL; write / # ? @ in a password as %2F %23 %3F %40") from None
    if parts.scheme not in {*_REDIS, "unix"}:
        raise ValueError(
            "must begin with redis://, rediss:// (TLS), unix://, valkey://, valkeys://"
        )
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("unix:// needs the path of a socket")
    if parts.scheme != "unix" and number and not number.isdecimal():
        raise ValueError("what follows the host is the number of the database, such as /0")
    for key, value in parse_qsl(parts.query):
        if key not in _REDIS_QUERY:
            raise ValueError(f"unknown option {key!r}{nearest(key, _REDIS_QUERY)} in the URL")
        if key == "db" and not value.isdecimal():
            raise ValueError("db in the URL is the number of the database")
    return url


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{one_line(text, 60)!r} is not host:port")
    return text


class RedisSettings(ConnectionSettings):
    """Jobs wait in Redis or Valkey, under Laravel's keys, each with `prefix`.

    `url` begins with redis://, rediss:// (TLS) or unix://, and may have user, password and database
    number. With `sentinels` (host:port each), qframe asks them for the master of `service`; with
    `cluster`, the URL and `nodes` are some of its nodes.

    `block_for` is the seconds after which an idle worker polls, `timeout` the seconds to wait for a
    reply, and `connect_timeout` for a connection. With `min_replicas` a dispatch waits until that
    many replicas have the job, at most `replica_timeout` seconds.
    """

    driver: Literal["redis"] = "redis"
    url: Annotated[str, AfterValidator(_redis_url), Field(repr=False)] = "redis://127.0.0.1:6379/0"
    prefix: Annotated[str, Field(pattern=r"^[^{}\s]*$", max_length=200)] = ""
    block_for: _Wait = 5
    timeout: _Wait = 5
    connect_timeout: _Wait = 5
    sentinels: list[Annotated[str, AfterValidator(_address)]] = []
    service: str = "mymaster"
    sentinel_username: str | None = None
    sentinel_password: Annotated[str | None, Field(repr=False)] = None
    cluster: bool = False
    nodes: list[Annotated[str, AfterValidator(_address)]] = []
    min_replicas: Annotated[_Int, Field(ge=0, le=100)] = 0
    replica_timeout: _Wait = 1

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
        return f"{_REDIS.get(scheme, scheme)}://{rest}"

    def shown_url(self) -> str:
        """Return the URL without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.plain_url()).scheme == "rediss"

    def addresses(self) -> list[tuple[str, int]]:
        """Return the sentinels, or the further nodes of a Cluster."""
        split = (address.rpartition(":") for address in (*self.sentinels, *self.nodes))
        return [(host.strip("[]"), int(port)) for host, _, port in split]


class BeanstalkdSettings(ConnectionSettings):
    """Jobs wait in beanstalkd, each queue in a tube of its name (with `;` for `:`).

    beanstalkd counts whole seconds: delays and `retry_after`, the time to run of pushed jobs, are
    rounded up. `host` may be the path of a unix socket. The server limits `max_payload` (65,535
    bytes unless started with -z). `priority` is the default priority; 0 is first.

    `on_lost_connection` decides about a running job whose connection, and therefore lease, is lost:
    `finish` lets it end, `interrupt` ends it, and the worker, at once.

    `block_for` is the seconds after which an idle worker polls, `timeout` the seconds to wait for
    an answer, and `connect_timeout` for a connection.
    """

    driver: Literal["beanstalkd"] = "beanstalkd"
    host: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = "127.0.0.1"
    port: Annotated[_Int, Field(ge=1, le=65535)] = 11300
    priority: Annotated[_Int, Field(ge=0, le=2**32 - 1)] = 1024
    on_lost_connection: Literal["finish", "interrupt"] = "finish"
    block_for: _Wait = 5
    timeout: _Wait = 5
    connect_timeout: _Wait = 5


_SHORTEST_KEY = 16


def _listed(value: object) -> object:
    """Accept a list, or a text with commas or JSON, as in an environment variable."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith(("[", '"')):
        return [part.strip() for part in value.split(",") if part.strip()]
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # its message may show a key
        raise ValueError('is neither JSON, like ["a", "b"], nor a list like a,b') from None
    return [found] if isinstance(found, str) else found


def _is_list(annotation: object) -> bool:
    if get_origin(annotation) in {Annotated, UnionType, Union}:
        return any(map(_is_list, get_args(annotation)))
    return annotation is list or get_origin(annotation) is list


def _encryption_key(key: SecretStr) -> SecretStr:
    if not encryption.is_key(key.get_secret_value()):
        raise ValueError("is no key: qframe key prints one")
    return key


def _signing_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < _SHORTEST_KEY:
        raise ValueError(f"has fewer than {_SHORTEST_KEY} characters: qframe key prints a good one")
    return key


SigningKey = Annotated[SecretStr, AfterValidator(_signing_key)]
EncryptionKey = Annotated[SecretStr, AfterValidator(_encryption_key)]


class PlaceSettings(BaseModel):
    """Where the store, or the failed jobs, are kept: `auto` or the name of a connection.

    For failed jobs also `null`: not kept.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    driver: str = "auto"


AtOnce = Annotated[_Int, Field(ge=1, le=LARGEST_BOUND)]


class QueueSettings(BaseModel):
    """Concurrency limits of a queue: `concurrency` over all workers, `per_worker` in each.

    They apply separately to each queue that the pattern matches, on each connection.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    concurrency: AtOnce | None = None
    per_worker: AtOnce | None = None


class OutboxSettings(BaseModel):
    """The SQL connection whose database stores dispatches within its transactions.

    It is for connections whose jobs are elsewhere; workers relay them. Default: no outbox.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    connection: str | None = None


class OtelSettings(BaseModel):
    """Tracing by OpenTelemetry (`pip install 'qframe[otel]'`).

    `relation`: an attempt is its own trace with a `link` to its dispatch, or a `child` of it.
    `setup` (`module:function`) is called first, to set up the SDK.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    enabled: bool = False
    relation: Literal["link", "child"] = "link"
    setup: str | None = None


class ScheduleSettings(BaseModel):
    """Where schedules are defined, and who dispatches them.

    `modules` are imported in addition to those of `jobs`. With `enabled`, every worker dispatches
    due jobs. `timezone` is the default zone. `environment` is what `.environments()` compares with.
    `app` separates programs that keep their facts in the same place.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    modules: list[str] = []
    enabled: bool = True
    timezone: str = "UTC"
    environment: str = ""
    app: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,40}$")] = ""


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, bool | int | float | str) else value


_Processes = Annotated[_Int, Field(ge=1, le=1000)]


class SupervisorSettings(BaseModel):
    """What `qframe supervise` runs for some queues, in Horizon's terms.

    `balance`: `auto` gives each queue the processes it needs, `simple` the same number, `off` runs
    processes that work all queues in order. Each queue has at least `min_processes`, all together
    at most `max_processes`. Every `balance_cooldown` seconds a queue gets at most
    `balance_max_shift` more; waiting jobs should be gone `clear_within` seconds later. `strategy`:
    jobs count by the `time` they run, or all the same (`size`). If there are too few processes,
    `order` decides: the first queue first (`strict`), or `weights`. `nice` is the niceness of the
    processes. The other settings are options of `qframe work`.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    connection: str | None = None
    queues: list[QueueName] = []
    balance: Literal["off", "simple", "auto"] = "auto"
    min_processes: _Processes = 1
    max_processes: _Processes = 1
    balance_max_shift: _Processes = 3
    balance_cooldown: Annotated[_Float, Field(ge=1, le=3600)] = 3
    strategy: Literal["time", "size"] = "time"
    order: Literal["weighted", "strict"] = "weighted"
    weights: dict[QueueName, Annotated[_Float, Field(gt=0, le=1000)]] = {}
    clear_within: Annotated[_Float, Field(ge=1, le=86400)] = 10
    timeout: _Seconds = 60
    tries: Annotated[_Int, Field(ge=0, le=1_000_000)] = 1
    backoff: Annotated[list[_Seconds], BeforeValidator(_one_or_more)] = [0]
    grace: _Seconds = 5
    sleep: _Seconds = 3
    rest: _Seconds = 0
    memory: Annotated[_Float, Field(ge=0, le=2**24)] = 256
    max_jobs: Annotated[_Int, Field(ge=0, le=10**9)] = 0
    max_time: _Seconds = 0
    force: bool = False
    concurrency: Annotated[_Int, Field(ge=1, le=10_000)] = 1
    isolate: bool = False
    preload: bool = False
    schedule: bool = True
    stop_timeout: Annotated[_Float, Field(ge=0, le=86400)] = 0
    nice: Annotated[_Int, Field(ge=0, le=19)] = 0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        queues = self.queues or ["default"]
        if len({*queues}) < len(queues):
            raise ValueError("queues: each comes once")
        groups = 1 if self.balance == "off" else len(queues)
        if self.min_processes * groups > self.max_processes:
            raise ValueError(
                f"max_processes {self.max_processes} is fewer than min_processes "
                f"{self.min_processes} of {groups} queues"
            )
        for name in self.weights:
            if name not in queues:
                raise ValueError(f"weights: {name!r} is none of its queues{nearest(name, queues)}")
        if self.weights and (self.order == "strict" or self.balance != "auto"):
            raise ValueError('weights are for balance = "auto" and order = "weighted"')
        return self


SupervisorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")]


class WebSettings(BaseModel):
    """Access to `qframe web`: by `password`, or by `token` in `Authorization: Bearer`.

    `access` is what visitors may do: `read`, `act`, or the names of actions. Without password and
    token, only this machine has access.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    password: Annotated[SecretStr | None, Field(min_length=8)] = None
    token: Annotated[SecretStr | None, Field(min_length=16)] = None
    access: Literal["read", "act"] | list[str] = "act"


def _rule(text: str) -> str:
    parse(text)
    return text


def _http_url(url: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(url.get_secret_value())
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        fits = False
    if not fits or not url.get_secret_value().isprintable():
        raise ValueError("is no address: it begins with https:// or http://")
    return url


def _mail_address(text: str) -> str:
    if not re.fullmatch(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+", text) or not text.isprintable():
        raise ValueError(f"{one_line(text, 60)!r} is no mail address")
    return text


_Span = Annotated[_Float, Field(gt=0, le=60)]
_MailAddress = Annotated[str, AfterValidator(_mail_address)]


class WebhookSettings(BaseModel):
    """Where alerts are posted as JSON; with a `secret` they are signed (HMAC-SHA256).

    `timeout` is the seconds that a post may take in all. `ca` is a file of certificate authorities
    to trust in addition to the system's.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    url: Annotated[SecretStr, AfterValidator(_http_url)]
    secret: Annotated[SecretStr | None, Field(min_length=16)] = None
    ca: FilePath | None = None
    timeout: _Span = 10


class MailSettings(BaseModel):
    """Who gets alerts by mail, and through which server.

    `tls`: `starttls`, `tls` from the first byte, or `none`; with a password, `none` is allowed only
    for a server on this machine. `ca` is as for the webhook.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    to: Annotated[list[_MailAddress], Field(min_length=1)]
    sender: Annotated[_MailAddress, Field(alias="from")]
    host: Annotated[str, Field(pattern=r"^\S+$")] = "127.0.0.1"
    port: Annotated[_Int, Field(ge=1, le=65535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: SecretStr | None = None
    ca: FilePath | None = None
    timeout: _Span = 20

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        is_here = self.host in {"localhost", "127.0.0.1", "::1"}
        if self.password is not None and self.tls == "none" and not is_here:
            raise ValueError('a password needs tls = "starttls" or "tls"')
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


class CommandSettings(BaseModel):
    """A program to run for each alert, with its arguments, without a shell.

    It gets the alert as JSON on stdin, and is killed after `timeout` seconds.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    run: Annotated[list[str], Field(min_length=1)]
    timeout: _Span = 20


class AlertSettings(BaseModel):
    """Rules of alerts, and where to send them; `AlertRaised` and `AlertResolved` are always fired.

    The running workers check the rules every `every` seconds, one worker at a time. An alert ends
    when nothing was wrong for `calm` seconds; with `resolved`, the end is sent, too. While it
    lasts, it is repeated every `remind` seconds (0: never). `connection` stores the state; default:
    the default connection.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    rules: list[Annotated[str, AfterValidator(_rule)]] = []
    every: Annotated[_Float, Field(ge=1, le=3600)] = 10
    calm: Annotated[_Float, Field(ge=0, le=86400)] = 60
    remind: Annotated[_Float, Field(ge=0, le=_YEAR)] = 0
    resolved: bool = True
    connection: str | None = None
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None
    command: CommandSettings | None = None

    def parsed(self) -> list[Rule]:
        """Return the rules, each once."""
        return [parse(each) for each in dict.fromkeys(self.rules)]


BUILT_IN: dict[str, type[ConnectionSettings]] = {
    "database": DatabaseSettings,
    "redis": RedisSettings,
    "beanstalkd": BeanstalkdSettings,
    "sync": ConnectionSettings,
    "null": ConnectionSettings,
    "memory": ConnectionSettings,
}


class Origin(NamedTuple):
    """Where settings came from: a file or a framework; neither if both are missing."""

    file: Path | None = None
    framework: str = ""
    """The framework's name for them, such as `settings.QFRAME`."""
    looked_in: Path | None = None
    """The folder where the search upward began; None without a search."""
    variables: tuple[str, ...] = ()
    """The environment variables that are settings."""

    @property
    def is_nothing(self) -> bool:
        """Whether a search found no file."""
        return self.looked_in is not None and not (self.file or self.framework)

    def described(self) -> str:
        """Describe in a line what was read, and what follows if it was nothing."""
        read = str(self.file or self.framework)
        if self.is_nothing:
            read = f"none: neither {FILE} nor [tool.qframe] in {self.looked_in} or above"
        shown = ", ".join(self.variables[:_SHOWN])
        more = len(self.variables) - _SHOWN
        variables = f"{shown} and {more} more" if more > 0 else shown
        return ", and ".join(filter(None, (read or "none", variables)))

    def ignored(self) -> list[Path]:
        """Return the files that would count if the used one did not exist, nearest first."""
        found = []
        for path in _candidates(self.looked_in or Path.cwd()):
            with suppress(ConfigurationError):  # another user's file may be unreadable
                if path != self.file and read(path) is not None:
                    found.append(path)
        return found


class Settings(BaseSettings):
    """All settings of a process. Pass it to `QueueManager`, or let that load it.

    `jobs` names the only modules whose jobs a worker runs. `listeners` maps an event's name to its
    `module:function`s. `middleware` wraps every job that runs here, outermost first, as
    `module:name`. `unknown_job_delays` are the seconds between retries of a job that this worker
    does not know, before it fails.

    `queues` has concurrency limits by name or pattern of a queue (`QueueSettings`).

    `metrics`: whether jobs and their run times are counted by the minute.

    `metric_tags` are patterns of tags to count separately.

    `version` is the application's version: when workers start with a new one, a deploy is marked.

    The first of `encryption_keys` encrypts, all decrypt; `signing_key`, or the first of
    `signing_keys`, signs, all verify. `signing` decides about payloads without a signature if there
    is a key.
    """

    model_config = SettingsConfigDict(
        env_prefix="QFRAME_", env_nested_delimiter="__", extra="forbid"
    )

    default: str = "database"
    jobs: list[str] = []
    listeners: dict[str, list[str]] = {}
    middleware: list[str] = []
    unknown_job_delays: list[_Seconds] = [5, 15, 40]
    encryption_keys: Annotated[list[EncryptionKey], NoDecode, BeforeValidator(_listed)] = []
    signing_key: SigningKey | None = None
    signing_keys: Annotated[list[SigningKey], NoDecode, BeforeValidator(_listed)] = []
    signing: Literal["require", "accept-unsigned"] = "require"
    connections: Annotated[dict[str, dict[str, Any]], Field(repr=False)] = {}
    store: PlaceSettings = PlaceSettings()
    failed: PlaceSettings = PlaceSettings()
    outbox: OutboxSettings = OutboxSettings()
    queues: dict[QueuePattern, QueueSettings] = {}
    metrics: bool = True
    metric_tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = []
    version: Annotated[str, Field(max_length=200)] = ""
    schedule: ScheduleSettings = ScheduleSettings()
    supervisors: dict[SupervisorName, SupervisorSettings] = {}
    web: WebSettings = WebSettings()
    otel: OtelSettings = OtelSettings()
    alerts: AlertSettings = AlertSettings()
    root: Path = Field(default_factory=Path.cwd)
    _origin: Origin = PrivateAttr(default=Origin())

    @property
    def origin(self) -> Origin:
        """Where `load` found them."""
        return self._origin

    @origin.setter
    def origin(self, origin: Origin) -> None:
        self._origin = origin

    @model_validator(mode="after")
    def _has_what_alerts_need(self) -> Self:
        found = self.alerts.parsed()
        known = self.connection_names()
        check_connections(found, known)
        for each in found:
            if each.is_counted and not self.metrics:
                raise ValueError(f"alerts: the rule {each.text!r} needs metrics = true")
            if each.subject in OF_OUTBOX and self.outbox.connection is None:
                raise ValueError(f"alerts: the rule {each.text!r} needs an outbox: [outbox]")
        place = self.alerts.connection
        if place is not None and place not in known:
            raise ValueError(
                f"alerts.connection: unknown connection {one_line(place, 60)!r}"
                f"{nearest(place, known)}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read code over environment over file; no `.env`, no secrets folder."""
        del env_settings, dotenv_settings, file_secret_settings
        file: Any = _file_settings.copy  # a source is a function that returns settings
        return init_settings, _Environment(settings_cls), file

    def connection(self, name: str) -> dict[str, Any]:
        """Return the settings of a connection, merged over the built-in one of its name.

        Raises `ConfigurationError` for an unknown name.
        """
        given = self.connections.get(name)
        if given is None and name not in BUILT_IN:
            known = self.connection_names()
            raise ConfigurationError(
                f"unknown connection {one_line(name, 60)!r}{nearest(name, known)}; "
                f"configured are {', '.join(known)}"
            )
        return {"driver": name, **(given or {})}

    def connection_names(self) -> list[str]:
        """Return the names of all connections, the default first."""
        names = sorted({*BUILT_IN, *self.connections})
        return sorted(names, key=lambda name: name != self.default)


class _Environment(EnvSettingsSource):
    """The variables `QFRAME_...`: lists with commas or as JSON, tables as JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 (pydantic-settings' own)
        """Parse a list or a table. Raises `ConfigurationError` for anything else."""
        if NoDecode in getattr(field, "metadata", ()):
            return value
        annotation = getattr(field, "annotation", None)
        if _is_list(annotation):
            if get_origin(annotation) is not list and not {*"[,"}.intersection(value):
                raise ValueError(value)  # not a list, where both are allowed
            # A rule may have commas, so a text is a single rule.
            is_rule = field_name == "rules" and not value.lstrip().startswith("[")
            with suppress(ValueError):
                return [value] if is_rule else _listed(value)
            return value  # validated like any other value, with its name in the error
        try:
            return json.loads(value)
        except (ValueError, RecursionError):  # its message may show a password
            name = self._variable(field_name, value)
            raise ConfigurationError(
                f'in the environment: {name} is not JSON, like {{"key": "value"}}; '
                f"a key of it can be set by itself, as {name}__KEY"
            ) from None

    def _variable(self, field_name: str, value: str) -> str:
        ends = (name for name, given in self.env_vars.items() if given == value)
        found = (name for name in ends if name.endswith(field_name.lower()))
        return next(found, f"{_PREFIX}{field_name}").upper()


source: Callable[[], tuple[str, Mapping[str, Any]] | None] | None = None
"""Returns a framework's settings and their name, or None if it has none.

They replace a file that is searched for, not one that is named.
"""
command_line: str = "qframe"
"""The command line with these settings, for messages; a framework has its own."""
_file_settings: dict[str, Any] = {}
"""The contents of the file, while `load` builds the settings."""


def here() -> Path:
    """Return the working directory. Raises `ConfigurationError` if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigurationError("the working directory was removed: change to another") from None


def load(file: str | Path | None = None, **over: Any) -> Settings:  # noqa: ANN401 (any setting)
    """Read the settings: from `file`, QFRAME_CONFIG, or the one found in this folder or above.

    Keyword arguments override file and environment. Raises `ConfigurationError` with one line that
    names the key and, for an unknown one, the nearest.
    """
    file = file or os.environ.get("QFRAME_CONFIG")
    given = source() if source is not None and not file else None
    folder = here()
    path = Path(file) if file else None if given else find(folder)
    values = (read(path) or {}) if path is not None else dict(given[1]) if given else {}
    if isinstance(root := values.setdefault("root", "."), str):
        values["root"] = (path.resolve().parent if path is not None else folder) / root
    _check_environment()
    _file_settings.update(values)
    try:
        settings = Settings(**over)
    except ValidationError as error:
        where = path.name if path is not None else given[0] if given else "settings"
        loc = error.errors(include_url=False, include_input=False)[0]["loc"]
        where = _variable_of(loc) or where
        raise ConfigurationError(describe(error, Settings, where)) from None
    except ValueError as error:  # a QFRAME_ variable without the JSON that its setting needs
        raise ConfigurationError(f"in the environment: {one_line(str(error))}") from None
    finally:
        _file_settings.clear()
    found = None if path is None else path.absolute()
    looked_in = None if over and found is None and not given else folder
    settings.origin = Origin(found, given[0] if given else "", looked_in, _variables())
    return settings


def _variables() -> tuple[str, ...]:
    names = (name for name in os.environ if name.upper().startswith(_PREFIX))
    return tuple(sorted(name for name in names if name.upper() != _NAMES_A_FILE))


def _variable_of(loc: Sequence[int | str]) -> str:
    """Describe the environment variable of a setting; "" if it has none."""
    there = {name.upper(): name for name in os.environ}
    for length in range(len(loc), 0, -1):
        found = there.get(_PREFIX + "__".join(map(str, loc[:length])).upper())
        if found is not None:
            return f"in the environment: {found}"
    return ""


def _check_environment() -> None:
    known = {name.upper() for name in Settings.model_fields} | {"CONFIG"}
    for variable in os.environ:
        if variable.upper().startswith(_PREFIX):
            key = variable.upper().removeprefix(_PREFIX).split("__")[0]
            if key not in known:
                raise ConfigurationError(
                    f"in the environment: unknown variable {variable}{nearest(key, known)}"
                )


def find(start: Path) -> Path | None:
    """Find the nearest `qframe.toml`, or pyproject.toml with `[tool.qframe]`, here or above."""
    return next((path for path in _candidates(start) if read(path) is not None), None)


def _candidates(start: Path) -> Iterator[Path]:
    """Iterate over the files here and above that may have settings, in order of precedence."""
    for folder in (start, *start.parents):
        yield from filter(Path.is_file, (folder / FILE, folder / _PROJECT))


def read(path: Path) -> dict[str, Any] | None:
    """Read the settings of one file; None for a pyproject.toml without any.

    Raises `ConfigurationError` if it cannot be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {one_line(str(error))}") from None
    for key in ("tool", "qframe") if path.name == _PROJECT else ():
        if key not in values:
            return None
        values = values[key]
        if not isinstance(values, dict):
            raise ConfigurationError(f"{path}: {key!r} must be a table")
    return values


def validated(
    model: type[ConnectionSettings], values: dict[str, Any], name: str
) -> ConnectionSettings:
    """Check the settings of a connection. Raises `ConfigurationError` with the key."""
    lists = {key for key, field in model.model_fields.items() if _is_list(field.annotation)}
    key = ""
    try:
        values = dict(values)
        for key in lists & values.keys():
            values[key] = _listed(values[key])
    except ValueError as error:
        raise ConfigurationError(f"connections.{name}: {key}: {error}") from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(describe(error, model, f"connections.{name}")) from None


def describe(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """Return the first error of a validation in one line with the key."""
    fault = error.errors(include_url=False, include_input=False)[0]
    *path, key = [str(part) for part in fault["loc"]] or [""]
    full = ".".join((*path, key))
    if fault["type"] == "extra_forbidden":
        for part in path:
            inner = model.model_fields[part].annotation if part in model.model_fields else None
            inner = next(iter(get_args(inner)[1:]), inner)  # the type of the table's values
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
        known = [field.alias or name for name, field in model.model_fields.items()]
        return f"{where}: unknown key {full!r}{nearest(key, known)}"
    said = fault["msg"].removeprefix("Value error, ")  # a validator's own message is a sentence
    return ": ".join(filter(None, (where, full, one_line(said))))
