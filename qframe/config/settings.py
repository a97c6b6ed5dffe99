"""Settings: all settings of a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from qframe.config.alerts import AlertSettings
from qframe.config.files import Origin
from qframe.config.places import Places, QueuePlace
from qframe.config.sections import (
    BinSettings,
    EncryptionKey,
    GroupSettings,
    OtelSettings,
    OutboxSettings,
    PlaceSettings,
    QueueSettings,
    ScheduleSettings,
    SigningKey,
    WebSettings,
    WorkerSettings,
)
from qframe.config.supervisors import SupervisorName, SupervisorSettings
from qframe.config.values import QueueName, QueuePattern, Seconds, is_list, listed
from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line
from qframe.rules import BEHIND, OF_OUTBOX, check_connections

PREFIX = "QFRAME_"
file_values: ContextVar[dict[str, Any]] = ContextVar("qframe_file_values")
"""The contents of the file, while `load` builds the settings."""

BUILT_IN = (
    "database", "redis", "beanstalkd", "rabbitmq", "sqs", "sync", "deferred", "background",
    "null", "memory",
)  # fmt: skip
"""The drivers that come with qframe; each has a connection of its name."""


class Settings(BaseSettings):
    """All settings of a process. Pass it to `QueueManager`, or let that load it.

    `jobs` names the only modules whose jobs a worker runs. `listeners` maps an event's name to its
    `module:function`s. `middleware` wraps every job that runs here, outermost first, as
    `module:name`. `unknown_job_delays` are the seconds between retries of a job that this worker
    does not know, before it fails.

    `queues` has concurrency limits by name or pattern of a queue (`QueueSettings`), `groups` how
    the groups of its jobs take turns (`GroupSettings`).

    `bin`: how long what is removed by hand can be taken back (`BinSettings`).

    `routes` has the queue, as `queue@connection`, of jobs that name none, by name or pattern of the
    job; `forward` where the pushes for a queue go instead, in the same form.

    `metrics`: whether jobs and their run times are counted by the minute.

    `metric_tags` are patterns of tags to count separately.

    `version` is the application's version: when workers start with a new one, a deploy is marked.

    The first of `encryption_keys` encrypts, all decrypt; `signing_key`, or the first of
    `signing_keys`, signs, all verify. `signing` decides about payloads without a signature if there
    is a key.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid")

    default: str = "database"
    jobs: list[str] = []
    listeners: dict[str, list[str]] = {}
    middleware: list[str] = []
    unknown_job_delays: list[Seconds] = [5, 15, 40]
    encryption_keys: Annotated[list[EncryptionKey], NoDecode, BeforeValidator(listed)] = []
    signing_key: SigningKey | None = None
    signing_keys: Annotated[list[SigningKey], NoDecode, BeforeValidator(listed)] = []
    signing: Literal["require", "accept-unsigned"] = "require"
    connections: Annotated[dict[str, dict[str, Any]], Field(repr=False)] = {}
    store: PlaceSettings = PlaceSettings()
    failed: PlaceSettings = PlaceSettings()
    outbox: OutboxSettings = OutboxSettings()
    queues: dict[QueuePattern, QueueSettings] = {}
    groups: dict[QueuePattern, GroupSettings] = {}
    routes: dict[Annotated[str, Field(min_length=1, max_length=250)], str] = {}
    forward: dict[QueueName, str] = {}
    metrics: bool = True
    metric_tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = []
    version: Annotated[str, Field(max_length=200)] = ""
    bin: BinSettings = BinSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    supervisors: dict[SupervisorName, SupervisorSettings] = {}
    web: WebSettings = WebSettings()
    otel: OtelSettings = OtelSettings()
    alerts: AlertSettings = AlertSettings()
    worker: WorkerSettings = WorkerSettings()
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
            if (each.is_counted or each.subject == BEHIND) and not self.metrics:
                raise ValueError(f"alerts: the rule {each.text!r} needs metrics = true")
            if each.subject in OF_OUTBOX and self.outbox.connection is None:
                raise ValueError(f"alerts: the rule {each.text!r} needs an outbox: [outbox]")
        place = self.alerts.connection
        if place is not None and place not in known:
            raise ValueError(f"alerts.connection: {_unknown(place, known)}")
        return self

    @model_validator(mode="after")
    def _has_places_that_are_there(self) -> Self:
        known = self.connection_names()
        for table, given in (("routes", self.routes), ("forward", self.forward)):
            for name, text in given.items():
                try:
                    connection = QueuePlace.of(text).connection
                    if connection is not None and connection not in known:
                        raise ValueError(_unknown(connection, known))
                except ValueError as error:
                    raise ValueError(f"{table}.{one_line(name, 60)}: {error}") from None
        Places(self.routes, self.forward)  # raises for a circle
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
        file: Any = file_values.get({}).copy  # a source is a function that returns settings
        return init_settings, _Environment(settings_cls), file

    def connection(self, name: str) -> dict[str, Any]:
        """Return the settings of a connection, merged over the built-in one of its name.

        Raises `ConfigurationError` for an unknown name.
        """
        given = self.connections.get(name)
        if given is None and name not in BUILT_IN:
            known = self.connection_names()
            raise ConfigurationError(f"{_unknown(name, known)}; configured are {', '.join(known)}")
        return {"driver": name, **(given or {})}

    def connection_names(self) -> list[str]:
        """Return the names of all connections, the default first."""
        names = sorted({*BUILT_IN, *self.connections})
        return sorted(names, key=lambda name: name != self.default)


def _unknown(connection: str, known: Sequence[str]) -> str:
    return f"unknown connection {one_line(connection, 60)!r}{nearest(connection, known)}"


class _Environment(EnvSettingsSource):
    """The variables `QFRAME_...`: lists with commas or as JSON, tables as JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 (pydantic-settings' own)
        """Parse a list or a table. Raises `ConfigurationError` for anything else."""
        if NoDecode in getattr(field, "metadata", ()):
            return value
        annotation = getattr(field, "annotation", None)
        if is_list(annotation):
            if get_origin(annotation) is not list and not {*"[,"}.intersection(value):
                raise ValueError(value)  # not a list, where both are allowed
            # A rule may have commas, so a text is a single rule.
            is_rule = field_name == "rules" and not value.lstrip().startswith("[")
            with suppress(ValueError):
                return [value] if is_rule else listed(value)
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
        return next(found, f"{PREFIX}{field_name}").upper()
