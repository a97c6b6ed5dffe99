"""Outbox: a table of steps for other backends; a relay sends them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row of the outbox: a step as text."""

    id: int
    mark: str
    """A random text, unique even if the table was recreated."""
    text: str
    age: float
    """Seconds since the row was added, by the database's clock."""
    tries: int
    """How often the receiver could not accept the row."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of one connection, and its rows that were set aside."""

    connection: str
    waiting: int
    oldest: float
    """Seconds that the oldest row has waited."""
    set_aside: int
    error: str
    """Why the first of the rows set aside was refused; "" if there is none."""


class OutboxClaim(ABC):
    """The first rows of one connection, locked for this relay."""

    rows: Sequence[OutboxRow]

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> None:
        """Remove rows that were sent."""

    @abstractmethod
    def note(self, row: int, error: str, *, aside: bool) -> None:
        """Record that the receiver could not accept a row; set it aside or leave it for a retry."""


class Outbox(ABC):
    """Rows for connections, by name of the connection. Thread-safe. Raises `BackendUnavailable`."""

    @abstractmethod
    def within(self, transaction: object) -> Outbox:
        """Return the outbox bound to a transaction of the caller, in which `add` does not commit.

        Raises `InvalidTransaction`.
        """

    @abstractmethod
    def add(self, connection: str, texts: Sequence[str]) -> None:
        """Add rows for a connection, in this order."""

    @abstractmethod
    def receivers(self) -> list[str]:
        """List the connections that have waiting rows."""

    @abstractmethod
    def claim(self, connection: str) -> AbstractContextManager[OutboxClaim | None]:
        """Lock the first rows of a connection, about a megabyte; None if another relay holds them.

        The changes are committed when the context ends.
        """

    @abstractmethod
    def wait(self, timeout: float, wake: int | None, but: Collection[str] = ()) -> None:
        """Return when a connection not in `but` has rows, after `timeout` seconds, or on `wake`."""

    @abstractmethod
    def lags(self) -> list[Lag]:
        """Return the backlog of each connection."""

    @abstractmethod
    def look(self, after: int = 0, limit: int = 20) -> list[tuple[int, str, str]]:
        """Return rows behind the id `after`: id, connection and text; also those set aside."""

    @abstractmethod
    def retry(self) -> int:
        """Make all rows that were set aside wait again, in their old order. Returns how many."""

    @abstractmethod
    def described(self) -> str:
        """Describe in a few words where the outbox is, never with a password."""

    @abstractmethod
    def close(self) -> None:
        """Close this thread's connection; the next call opens a new one."""
