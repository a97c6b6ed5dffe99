"""The contract of the small shared state beside the queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


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

    @abstractmethod
    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        """Add to whole numbers, to all or to none; a key that is not there counts as 0.

        May be said again where an answer was lost: a `step` that was added already adds nothing.
        `marker` is a key of the caller's own; it keeps the caller's last step, for an hour. Says
        whether something was added.
        """

    @abstractmethod
    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        """Change keys from what is expected to what is wanted, all of them or none.

        `changes` gives both for each key; None stands for a key that is not there. So
        `{"lock": (None, "me")}` takes, `{"lock": ("me", "me")}` prolongs and `{"lock": ("me",
        None)}` gives back. What is written lives for `ttl`. Says whether it was done; of two
        callers with the same expectation one does it. Where this raises it may have been done.
        """
