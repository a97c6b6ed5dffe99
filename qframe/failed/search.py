"""Finds failed jobs on all configured connections."""

from __future__ import annotations

from collections.abc import Iterable

from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore


def distinct(stores: Iterable[FailedStore]) -> list[FailedStore]:
    """Give one store for each place; connections may share one."""
    found = {id(store.place): store for store in reversed(list(stores))}
    return list(reversed(found.values()))


def find(stores: Iterable[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob] | None:
    """Find one failed job and the store it is in."""
    for store in stores:
        record = store.find(uuid)
        if record is not None:
            return store, record
    return None
