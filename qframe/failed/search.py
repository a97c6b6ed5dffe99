"""Finds failed jobs in the stores of all configured connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qframe.contracts import FailedJob, FailedStore

_PAGE = 200


def distinct(stores: Iterable[FailedStore]) -> list[FailedStore]:
    """Give each store once; connections may share one."""
    found: list[FailedStore] = []
    for store in stores:
        if store not in found:
            found.append(store)
    return found


def everything(store: FailedStore, queue: str | None = None) -> Iterator[FailedJob]:
    """Give all failed jobs of a store, latest first, page by page.

    Each once, also when others are removed meanwhile: where the last one of a page is gone, the
    store begins again from the latest.
    """
    seen: set[str] = set()
    after: str | None = None
    while page := store.page(_PAGE, after, queue):
        after = page[-1].uuid
        for record in page:
            if record.uuid not in seen:
                seen.add(record.uuid)
                yield record


def find(stores: Iterable[FailedStore], uuid: str) -> tuple[FailedStore, FailedJob] | None:
    """Find one failed job and the store it is in."""
    for store in stores:
        record = store.find(uuid)
        if record is not None:
            return store, record
    return None
