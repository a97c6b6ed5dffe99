"""The contract of the small shared state beside the queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class Store(ABC):
    """Keys and text values shared by all processes: restart token, pauses, locks, counters.

    Every change is one atomic step. A value set with `ttl` (seconds, by the backend's clock) is
    gone after that; without it, it stays. Raises `BackendUnavailable`.
    """

    @abstractmethod
    def get(self, *keys: str) -> list[str | None]:
        """Give the values of the keys, None for each that is not there."""

    @abstractmethod
    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Set a value, whatever was there."""

    @abstractmethod
    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Set a value unless there is one; says whether it was set. Two callers: one wins."""

    @abstractmethod
    def delete(self, key: str, value: str | None = None) -> bool:
        """Remove a key, only if it still holds `value` where one is given; says whether it did."""

    @abstractmethod
    def keys(self, prefix: str) -> Sequence[str]:
        """List the keys that begin with `prefix`, sorted."""
