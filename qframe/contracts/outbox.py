"""Outbox: a table in which steps wait that are for another backend, until a relay hands them on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row: a step as text, and how long it has waited."""

    id: int
    mark: str
    """A random text that no other row has, whatever became of the table."""
    text: str
    age: float
    """Seconds since it was added, by the database's clock."""
    tries: int
    """How often the receiver could not take it."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits for one connection, and what was set aside."""

    connection: str
    waiting: int
    oldest: float
    """Seconds the oldest of those has waited."""
    set_aside: int
    error: str
    """Why the first of these was; "" where there is none."""


class Claim(ABC):
    """The first rows of one connection, which no other relay has meanwhile."""

    rows: Sequence[Waiting]

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> None:
        """Remove rows that were handed on."""

    @abstractmethod
    def note(self, row: int, error: str, *, aside: bool) -> None:
        """Note that the receiver could not take a row, and set it aside, or try it again."""


class Outbox(ABC):
    """Rows for connections, by their names. Raises `BackendUnavailable`; safe in threads."""

    @abstractmethod
    def within(self, transaction: object) -> Outbox:
        """Give it as seen through a transaction of the caller's own: there `add` commits nothing.

        Raises `InvalidTransaction`.
        """

    @abstractmethod
    def add(self, connection: str, texts: Sequence[str]) -> None:
        """Add rows for a connection, in this order."""

    @abstractmethod
    def receivers(self) -> list[str]:
        """Name the connections for which rows wait."""

    @abstractmethod
    def claim(self, connection: str) -> AbstractContextManager[Claim | None]:
        """Take the first rows of a connection, of about a megabyte; None while another has them.

        What is done with them is committed at the end.
        """

    @abstractmethod
    def wait(self, timeout: float, wake: int | None, but: Collection[str] = ()) -> None:
        """Return when there are rows `but` for these connections, after `timeout`, or by `wake`."""

    @abstractmethod
    def lags(self) -> list[Lag]:
        """Count what is there for each connection."""

    @abstractmethod
    def retry(self) -> int:
        """Let all that was set aside wait again, in its old order; gives how many there were."""

    @abstractmethod
    def described(self) -> str:
        """Say in a few words where it is, never with a password."""

    @abstractmethod
    def close(self) -> None:
        """Close this thread's connection; the next call opens another."""
