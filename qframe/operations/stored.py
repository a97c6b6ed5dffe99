"""What batches and flows have in common for those who list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from qframe.connection import Connection


class StoredRecord(Protocol):
    """The state of one batch or flow."""

    @property
    def id(self) -> str: ...
    @property
    def connection(self) -> str: ...
    @property
    def created_at(self) -> float: ...


R = TypeVar("R", bound=StoredRecord)
R_co = TypeVar("R_co", bound=StoredRecord, covariant=True)


class RecordStore(Protocol[R_co]):
    """The batches or flows of one connection."""

    def read(self, identity: str) -> R_co | None:
        """Return one by its id; None if there is none."""

    def all(self) -> Iterator[R_co]:
        """Iterate over all, the latest first."""


FindStore = Callable[[Connection], RecordStore[R] | None]
"""Returns the batches or flows of a connection; None if it keeps none."""
