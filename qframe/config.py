"""Settings: `qframe.toml` or `[tool.qframe]`, then `QFRAME_*` variables, then code."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from qframe.contracts.queue import LARGEST_BOUND
from qframe.exceptions import ConfigurationError
from qframe.payload import encryption
from qframe.payload.text import nearest, one_line, queue_name, queue_pattern

QueueName = Annotated[str, AfterValidator(queue_name)]
QueuePattern = Annotated[str, AfterValidator(queue_pattern)]

FILE = "qframe.toml"


class ConnectionSettings(BaseModel):
    """What every connection can be given; a driver's own settings derive from it.

    `retry_after` is the lease of a running job in seconds: a killed worker's job runs again
    after at most that long. Leases are renewed, so it may be shorter than a job's timeout.
    `push_retries` is how often a dropped dispatch is tried again; `give_up_after` is the number
    of seconds without an answer after which a worker exits (0: never).
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    driver: str
    queue: QueueName = "default"
    retry_after: Annotated[float, Field(ge=1)] = 60
    max_payload: PositiveInt = 1_000_000
    push_retries: Annotated[int, Field(ge=0)] = 3
    give_up_after: Annotated[float, Field(ge=0)] = 300


_TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,50}$")]
_Wait = Annotated[float, Field(gt=0, le=3600)]


class DatabaseSettings(ConnectionSettings):
    """Jobs wait in an SQL database; a relative SQLite path counts from the project root.

    `synchronous` is SQLite's own setting: `normal` survives the death of any process, `full`
    power loss as well. On PostgreSQL a start or an end of a job waits for the disk where it is
    `full`; a dispatch does as the server is set.
    `busy_timeout` is how many seconds a call waits for SQLite's write lock.
    `schema` is PostgreSQL's schema that the tables are in, or another database of MariaDB's server;
    without it they are where the connection's own search finds them.
    `listen` is how idle workers are woken on PostgreSQL: by LISTEN and NOTIFY, where no pooler is
    between (`"auto"`), also where one is (true: it has to pool sessions), or by looking (false).
    """

    driver: Literal["database"] = "database"
    url: str = "sqlite:///qframe.sqlite3"
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
    except ValueError:  # whose words may hold the password
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
    """Jobs wait in Redis or Valkey, under the keys Laravel uses, each behind `prefix`.

    `url` begins with redis://, rediss:// (TLS) or unix://, and may hold user, password and the
    number of the database. With `sentinels` (host:port each) the master of `service` is asked for;
    with `cluster` the URL, and `nodes`, name some of its nodes.

    `block_for` is the number of seconds after which an idle worker looks for itself, `timeout` how
    many a reply, and `connect_timeout` how many a connection may take. With `min_replicas` a
    dispatch waits until that many replicas have the job, at most `replica_timeout` seconds.
    """

    driver: Literal["redis"] = "redis"
    url: Annotated[str, AfterValidator(_redis_url)] = "redis://127.0.0.1:6379/0"
    prefix: Annotated[str, Field(pattern=r"^[^{}\s]*$", max_length=200)] = ""
    block_for: _Wait = 5
    timeout: _Wait = 5
    connect_timeout: _Wait = 5
    sentinels: list[Annotated[str, AfterValidator(_address)]] = []
    service: str = "mymaster"
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    cluster: bool = False
    nodes: list[Annotated[str, AfterValidator(_address)]] = []
    min_replicas: Annotated[int, Field(ge=0)] = 0
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
        """Give the URL as Redis' own clients take it."""
        scheme, rest = self.url.split("://", 1)
        return f"{_REDIS.get(scheme, scheme)}://{rest}"

    def shown_url(self) -> str:
        """Give the URL without user, password and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.plain_url()).scheme == "rediss"

    def addresses(self) -> list[tuple[str, int]]:
        """Give the sentinels, or the further nodes of a cluster."""
        split = (address.rpartition(":") for address in (*self.sentinels, *self.nodes))
        return [(host.strip("[]"), int(port)) for host, _, port in split]


class BeanstalkdSettings(ConnectionSettings):
    """Jobs wait in beanstalkd, each queue in a tube of its name (`;` there for `:`).

    It counts in whole seconds: delays and `retry_after`, the time to run of what is pushed here,
    are rounded up. `host` may be the path of a unix socket. `max_payload` is bounded by the server
    (65,535 bytes unless started with -z). `priority` is that of jobs which name none; 0 is first.

    `on_lost_connection` is what becomes of a job that runs when its connection, and so
    its lease, is lost: `finish` lets it end, `interrupt` ends it at once, and the worker with it.

    `block_for` is the number of seconds after which an idle worker looks for itself, `timeout` how
    many an answer, and `connect_timeout` how many a connection may take.
    """

    driver: Literal["beanstalkd"] = "beanstalkd"
    host: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 11300
    retry_after: Annotated[float, Field(ge=1, le=2**32 - 1)] = 60
    priority: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1024
    on_lost_connection: Literal["finish", "interrupt"] = "finish"
    block_for: _Wait = 5
    timeout: _Wait = 5
    connect_timeout: _Wait = 5


_SHORTEST_KEY = 16


def _listed(value: object) -> object:
    """Take keys as a list, or as a text with commas, as in a variable of the environment."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.startswith("[") else value.split(",")


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
    """Where the store, or the failed jobs, are kept: `auto` or a connection's name.

    Failed jobs may also be `null`: not kept.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    driver: str = "auto"


AtOnce = Annotated[int, Field(ge=1, le=LARGEST_BOUND)]


class QueueSettings(BaseModel):
    """How many jobs of a queue run at once: `concurrency` over all workers, `per_worker` in each.

    That is of each queue its pattern matches, and on each connection that has it.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    concurrency: AtOnce | None = None
    per_worker: AtOnce | None = None


class OutboxSettings(BaseModel):
    """Which SQL connection's database keeps what is dispatched within its transactions.

    That is for connections whose jobs are elsewhere. Workers relay it; without it there is none.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    connection: str | None = None


BUILT_IN: dict[str, type[ConnectionSettings]] = {
    "database": DatabaseSettings,
    "redis": RedisSettings,
    "beanstalkd": BeanstalkdSettings,
    "sync": ConnectionSettings,
    "null": ConnectionSettings,
    "memory": ConnectionSettings,
}


class Settings(BaseSettings):
    """All settings of a process. Give it to `QueueManager`, or let that load it.

    `jobs` names the only modules whose jobs a worker runs. `listeners` maps an event's name to
    the `module:function`s that hear it. `middleware` names what every job that runs here goes
    through, outermost first, as `module:name`. `unknown_job_delays` are the seconds after which a
    job this worker does not know is tried again, before it is failed.

    `queues` says by name or pattern of a queue how many of its jobs run at once (`QueueSettings`).

    The first of `encryption_keys` encrypts, all decrypt; `signing_key`, or else the first of
    `signing_keys`, signs, all verify. `signing` says what becomes of payloads without a signature
    where there is a signing key.
    """

    model_config = SettingsConfigDict(
        env_prefix="QFRAME_", env_nested_delimiter="__", extra="forbid"
    )

    default: str = "database"
    jobs: list[str] = []
    listeners: dict[str, list[str]] = {}
    middleware: list[str] = []
    unknown_job_delays: list[Annotated[float, Field(ge=0)]] = [5, 15, 40]
    encryption_keys: Annotated[list[EncryptionKey], NoDecode, BeforeValidator(_listed)] = []
    signing_key: SigningKey | None = None
    signing_keys: Annotated[list[SigningKey], NoDecode, BeforeValidator(_listed)] = []
    signing: Literal["require", "accept-unsigned"] = "require"
    connections: dict[str, dict[str, Any]] = {}
    store: PlaceSettings = PlaceSettings()
    failed: PlaceSettings = PlaceSettings()
    outbox: OutboxSettings = OutboxSettings()
    queues: dict[QueuePattern, QueueSettings] = {}
    root: Path = Field(default_factory=Path.cwd)

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
        del settings_cls, dotenv_settings, file_secret_settings
        file: Any = _file_settings.copy  # a source is what gives settings when called
        return init_settings, env_settings, file

    def connection(self, name: str) -> dict[str, Any]:
        """Give a connection as configured, over the one that exists without configuration.

        Raises `ConfigurationError` for a name that is neither.
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
        """Name every connection there is, the default first."""
        names = sorted({*BUILT_IN, *self.connections})
        return sorted(names, key=lambda name: name != self.default)


_file_settings: dict[str, Any] = {}
"""What the file says, while `load` makes settings of it."""


def load(file: str | Path | None = None, **over: Any) -> Settings:  # noqa: ANN401 (any setting)
    """Read the settings: `file`, or QFRAME_CONFIG, or the one found upward from here.

    Keyword arguments are settings that win over file and environment. Raises
    `ConfigurationError` with one line that names the key and, for an unknown one, the nearest.
    """
    file = file or os.environ.get("QFRAME_CONFIG")
    path = Path(file) if file else find(Path.cwd())
    values = (read(path) or {}) if path is not None else {}
    if isinstance(root := values.setdefault("root", "."), str):
        values["root"] = (path.resolve().parent if path is not None else Path.cwd()) / root
    _check_environment()
    _file_settings.update(values)
    try:
        return Settings(**over)
    except ValidationError as error:
        where = path.name if path is not None else "settings"
        raise ConfigurationError(describe(error, Settings, where)) from None
    except ValueError as error:  # a QFRAME_ variable that is not the JSON its setting needs
        raise ConfigurationError(f"in the environment: {one_line(str(error))}") from None
    finally:
        _file_settings.clear()


def _check_environment() -> None:
    known = {name.upper() for name in Settings.model_fields} | {"CONFIG"}
    for variable in os.environ:
        if variable.upper().startswith("QFRAME_"):
            key = variable.upper().removeprefix("QFRAME_").split("__")[0]
            if key not in known:
                raise ConfigurationError(
                    f"in the environment: unknown variable {variable}{nearest(key, known)}"
                )


def find(start: Path) -> Path | None:
    """Find the nearest `qframe.toml`, or pyproject.toml with `[tool.qframe]`, at or above."""
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        project = folder / "pyproject.toml"
        if project.is_file() and read(project) is not None:
            return project
    return None


def read(path: Path) -> dict[str, Any] | None:
    """Read the settings of one file; None for a pyproject.toml that has none.

    Raises `ConfigurationError` when it cannot be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {one_line(str(error))}") from None
    for key in ("tool", "qframe") if path.name == "pyproject.toml" else ():
        if key not in values:
            return None
        values = values[key]
        if not isinstance(values, dict):
            raise ConfigurationError(f"{path}: {key!r} must be a table")
    return values


def validated(
    model: type[ConnectionSettings], values: dict[str, Any], name: str
) -> ConnectionSettings:
    """Check one connection's settings; raises `ConfigurationError` naming the key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(describe(error, model, f"connections.{name}")) from None


def describe(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """Put the first fault of a validation into one line that names the key."""
    fault = error.errors(include_url=False, include_input=False)[0]
    *path, key = [str(part) for part in fault["loc"]] or [""]
    full = ".".join((*path, key))
    if fault["type"] == "extra_forbidden":
        for part in path:
            inner = model.model_fields[part].annotation if part in model.model_fields else None
            inner = next(iter(get_args(inner)[1:]), inner)  # what the values of a table are
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
        known = [field.alias or name for name, field in model.model_fields.items()]
        return f"{where}: unknown key {full!r}{nearest(key, known)}"
    return ": ".join(filter(None, (where, full, one_line(fault["msg"]))))
