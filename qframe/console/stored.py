"""Batches and flows on all connections: listing them, and finding one by its id."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from qframe.connection import Connection
from qframe.console.connections import JobConnections
from qframe.exceptions import ConfigurationError
from qframe.operations import ids
from qframe.operations.stored import R, RecordStore

Kept = Callable[[Connection], RecordStore[R]]
"""Returns the store of a connection. Raises `ConfigurationError` if it has none."""


def find(
    connections: JobConnections, identity: str, kept: Kept[R], what: str, listing: str
) -> tuple[Connection, R]:
    """Returns a record and its connection: the one it was dispatched on if several know it.

    `identity` may be the beginning or end of the id. Raises `ConfigurationError`, which names
    `what` is not there and the command that is `listing` them.
    """
    found = _read(connections, identity, kept)
    if not found and ids.may_be_part(identity):
        known = (record.id for record in everything(connections, kept))
        whole = ids.whole(identity, known)
        found = _read(connections, whole, kept) if whole is not None else []
    if not found:
        raise ConfigurationError(f"no {what} {identity[:100]!r}; {listing} lists them")
    return next((each for each in found if each[0].name == each[1].connection), found[0])


def _read(connections: JobConnections, identity: str, kept: Kept[R]) -> list[tuple[Connection, R]]:
    done = connections.each(lambda queue: kept(queue).read(identity))
    return [(queue, record) for queue, record in done if record is not None]


def everything(connections: JobConnections, kept: Kept[R]) -> Iterator[R]:
    """Yields the records in the stores that answer, latest first, each once."""

    def reach(queue: Connection) -> RecordStore[R]:
        store = kept(queue)
        next(store.all(), None)
        return store

    several = [store.all() for _, store in connections.each(reach)]
    seen: set[str] = set()
    for record in heapq.merge(*several, key=lambda each: -each.created_at):
        if record.id not in seen and connections.only in {None, record.connection}:
            seen.add(record.id)
            yield record
