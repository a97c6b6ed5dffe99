"""The tables of `qframe.toml` that have a few settings each."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from qframe.config.values import AtOnce, Int, QueuePattern, Seconds, Section
from qframe.payload import encryption

_SHORTEST_KEY = 16


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


class PlaceSettings(Section):
    """Where the store, or the failed jobs, are kept: `auto` or the name of a connection.

    For failed jobs also `null`: not kept.
    """

    driver: str = "auto"


class BinSettings(Section):
    """How long it is kept what `clear`, `flush`, `forget` and `cancel` remove; 0 seconds: never.

    `jobs` and `bytes` are the most that are kept of each connection.
    """

    seconds: Annotated[Seconds, Field(le=86400)] = 3600.0
    jobs: Annotated[Int, Field(ge=0, le=1_000_000)] = 10_000
    bytes: Annotated[Int, Field(ge=0, le=2**40)] = 67_108_864


class QueueSettings(Section):
    """Concurrency limits of a queue: `concurrency` over all workers, `per_worker` in each.

    They apply separately to each queue that the pattern matches, on each connection.
    """

    concurrency: AtOnce | None = None
    per_worker: AtOnce | None = None


_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)/([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def checked_rate(text: str, slowest: str = "0.001/d", fastest: str = "1000000/s") -> str:
    """Return a rate like `500/m` as it is. Raises `ValueError`."""
    if _RATE.fullmatch(text) is None or not per_second(text):
        raise ValueError("takes a number for each second, minute, hour or day, like 10/s or 500/m")
    if not per_second(slowest) <= per_second(text) <= per_second(fastest):
        raise ValueError(f"takes {slowest} to {fastest}")
    return text


def per_second(rate: str) -> float:
    """Return a rate like `500/m` as a number a second."""
    number, unit = rate.split("/")
    return float(number) / _UNITS[unit]


class GroupSettings(Section):
    """How the groups of a queue take turns; for each queue that the pattern matches.

    Each group runs up to `concurrency` jobs at once, over all workers (default: no limit), and
    starts no more than `rate` (like `10/s`). With `order = "strict"` its jobs run one after the
    other, and while one is failed the others wait, unless `on_failure` is `skip`.
    """

    concurrency: AtOnce | None = None
    order: Literal["fair", "strict"] = "fair"
    rate: Annotated[str, AfterValidator(checked_rate)] | None = None
    on_failure: Literal["wait", "skip"] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.order == "strict" and self.concurrency not in {None, 1}:
            raise ValueError("order = 'strict' runs one job of a group at a time: no concurrency")
        if self.on_failure is not None and self.order != "strict":
            raise ValueError("on_failure is for order = 'strict'")
        return self

    @property
    def at_once(self) -> int | None:
        """How many jobs of a group run at once."""
        return 1 if self.order == "strict" else self.concurrency

    @property
    def blocks(self) -> bool:
        """Whether a failed job keeps those behind it waiting."""
        return self.order == "strict" and self.on_failure != "skip"

    @property
    def per_second(self) -> float:
        """How many jobs of a group start in a second; 0 if that is not limited."""
        return 0.0 if self.rate is None else per_second(self.rate)


class OutboxSettings(Section):
    """The SQL connection whose database stores dispatches within its transactions.

    It is for connections whose jobs are elsewhere; workers relay them. Default: no outbox.
    """

    connection: str | None = None


class OtelSettings(Section):
    """Tracing by OpenTelemetry (`pip install 'qframe[otel]'`).

    `relation`: an attempt is its own trace with a `link` to its dispatch, or a `child` of it.
    `setup` (`module:function`) is called first, to set up the SDK.
    """

    enabled: bool = False
    relation: Literal["link", "child"] = "link"
    setup: str | None = None


def _place(path: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", path):
        raise ValueError("names a function, module:function, like app.worker:lifespan")
    return path


class WorkerSettings(Section):
    """What all workers of the program have around their jobs.

    `lifespan` (`module:function`) returns a context manager, also an async one: it is entered
    before the first job and left after the last one, in each process that runs jobs. `recorder`
    says what is kept of a job that is killed, times out or runs out of memory: `full`, `no-log`
    (without its log lines), `off`.
    """

    lifespan: Annotated[str, AfterValidator(_place)] | None = None
    recorder: Literal["full", "no-log", "off"] = "full"


class ScheduleSettings(Section):
    """Where schedules are defined, and who dispatches them.

    `modules` are imported in addition to those of `jobs`. With `enabled`, every worker dispatches
    due jobs. `timezone` is the default zone. `environment` is what `.environments()` compares with.
    `app` separates programs that keep their facts in the same place.
    """

    modules: list[str] = []
    enabled: bool = True
    timezone: str = "UTC"
    environment: str = ""
    app: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,40}$")] = ""


_Token = Annotated[SecretStr, Field(min_length=_SHORTEST_KEY)]


class DispatchSettings(Section):
    """What other programs may dispatch, by `POST /api/v1/jobs` of the dashboard.

    `jobs` are the names of the allowed classes. Each of `tokens`, by the name of its program, may
    dispatch them, and nothing else. A request may choose a queue that matches `queues`, a
    connection of `connections`, and a delay up to `max_delay` seconds. It has up to `max_bytes`,
    and each visitor makes up to `rate` of them (like `100/s` or `500/m`).
    """

    jobs: list[str] = []
    tokens: dict[str, _Token] = {}
    queues: list[QueuePattern] = []
    connections: list[str] = []
    max_delay: Seconds = 30 * 86400
    max_bytes: Annotated[Int, Field(ge=1, le=100_000_000)] = 200_000
    rate: Annotated[str, AfterValidator(checked_rate)] = "100/s"


class WebSettings(Section):
    """Access to `qframe web`: by `password`, or by `token` in `Authorization: Bearer`.

    `access` is what visitors may do: `read`, `act`, `dispatch`, or the names of actions. Without
    any password or token, only this machine has access. `dispatch` is what other programs may
    dispatch. The page shows `name`, the environment's, in `color`.
    """

    password: Annotated[SecretStr | None, Field(min_length=8)] = None
    token: Annotated[SecretStr | None, Field(min_length=16)] = None
    access: Literal["read", "act", "dispatch"] | list[str] = "act"
    dispatch: DispatchSettings = DispatchSettings()
    name: Annotated[str, Field(max_length=40)] = ""
    color: Literal["grey", "red", "orange", "yellow", "green", "blue", "purple"] = "grey"
