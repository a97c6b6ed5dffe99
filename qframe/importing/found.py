"""Found: a job that waits in another program's queues, as its source reads it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import redis

from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.payload.text import one_line

T = TypeVar("T")

AT_ONCE = 200
"""Jobs that are read in one request: with 1 MB each they are 200 MB."""


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
    is_removed: bool = False
    """Whether it was removed from the source, or had gone."""


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
        found.is_removed = True

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise BackendUnavailable(f"{self.name}: {one_line(str(error))}") from error

    @staticmethod
    def _in_parts(
        read: Callable[[int, int], Sequence[T]], found: Callable[[T], FoundJob]
    ) -> Iterator[FoundJob]:
        """Iterate over a list or sorted set, which `read` gives from one place to another.

        Only one part is in memory. What is removed meanwhile makes the rest move up; what is left
        there is passed over.
        """
        left = 0
        while part := read(left, left + AT_ONCE - 1):
            for each in part:
                job = found(each)
                yield job
                left += not job.is_removed

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
