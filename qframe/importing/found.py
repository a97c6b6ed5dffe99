"""Found: a job that waits in another program's queues, as its source reads it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import redis

from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.text import one_line

PICKLED = "pickled, which is never read here: drain it with its own worker"


class Kept(Exception):
    """Why a job stays where it is."""


@dataclass(slots=True)
class FoundJob:
    """A job, or why it cannot be one: then `kept` is not empty."""

    queue: str
    remove: Callable[[], None]
    """Removes it from the source; does nothing if it is no longer there. Raises `RedisError`."""
    name: str = "(unreadable)"
    id: str = ""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    due: float | None = None
    """The epoch time at which it may start; None: at once."""
    expires: float | None = None
    priority: int | None = None
    kept: str = ""


class JobSource(ABC):
    """A program's Redis."""

    name: ClassVar[str]
    prefix: ClassVar[str] = ""
    """What its keys begin with, unless it is told otherwise."""

    def __init__(self, url: str, prefix: str | None = None, *, held: bool = False) -> None:
        try:
            self.redis: Any = redis.Redis.from_url(url, socket_timeout=10)
        except ValueError as error:
            raise ConfigurationError(f"{one_line(str(error))}: give redis://HOST:PORT/DB") from None
        self.keys = self.prefix if prefix is None else prefix
        self.held = held
        """Whether to take what a worker has, or had when it died."""

    def jobs(self, *, change: bool) -> Iterator[FoundJob]:
        """Iterate over what waits, oldest first. Without `change`, nothing is written.

        Raises `BackendUnavailable`.
        """
        with self._answering():
            yield from self._jobs(change=change)

    def remove(self, found: FoundJob) -> None:
        """Remove a job that was found. Raises `BackendUnavailable`."""
        with self._answering():
            found.remove()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise BackendUnavailable(f"{self.name}: {one_line(str(error))}") from error

    @abstractmethod
    def _jobs(self, *, change: bool) -> Iterator[FoundJob]:
        """Read what waits."""


def parsed(raw: bytes | str, what: str) -> Any:  # noqa: ANN401 (any JSON)
    """Return decoded JSON. Raises `Kept`."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Kept(f"{what} is no JSON") from None


def texted(value: bytes) -> str:
    """Return bytes as text; what is no UTF-8 shows as such."""
    return value.decode("utf-8", "replace")


def moment(value: object, what: str) -> float | None:
    """Return a time in ISO format, or an epoch time, as an epoch time. Raises `Kept`."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Kept(f"{what} is no time") from None
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise Kept(f"{what} is no time") from None
    if at.tzinfo is None:  # Celery writes UTC without saying so, unless told otherwise
        at = datetime.fromisoformat(f"{value}+00:00")
    return at.timestamp()
