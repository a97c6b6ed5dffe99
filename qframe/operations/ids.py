"""Ids as people type them: any beginning or end that only one job, or batch, has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qframe.connection import Connection
from qframe.contracts.backend import Backend, Capability
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import AmbiguousId
from qframe.features.steps import index_key, waits_key
from qframe.payload import envelope
from qframe.payload.text import one_line

SHORTEST = 4
"""A part of an id has at least so many characters."""
_WHOLE = 36
"""Characters of a whole uuid."""
_NAMED = 5
_MOST_FOUND = 1000
_STATUS = "status:"


def may_be_part(given: str) -> bool:
    return SHORTEST <= len(given) < _WHOLE


def whole(given: str, known: Iterable[str]) -> str | None:
    """Returns the one id that begins or ends so; None for none. Raises `AmbiguousId`."""
    if not may_be_part(given):
        return None
    part, found = given.casefold(), dict[str, None]()
    for identity in known:
        folded = identity.casefold()
        if folded.startswith(part) or folded.endswith(part):
            found[identity] = None
            if len(found) > _NAMED:
                break
    if len(found) > 1:
        named = [one_line(each, 60) for each in [*found][:_NAMED]]
        more = ", and others" if len(found) > _NAMED else ""
        shown = one_line(given, 60)
        raise AmbiguousId(f"{shown!r} begins or ends several ids: {', '.join(named)}{more}")
    return next(iter(found), None)


def failed(stores: Iterable[FailedStore]) -> Iterator[str]:
    return (record.uuid for store in stores for record in store.all())


def tracked(backend: Backend) -> Iterator[str]:
    return _named(backend, _STATUS)


def with_steps(backend: Backend) -> Iterator[str]:
    """Yields the ids of jobs with durable steps, or that wait for an event."""
    for prefix in (index_key(""), waits_key("")):
        yield from (key.partition(":")[0] for key in _named(backend, prefix))


def _named(backend: Backend, prefix: str) -> Iterator[str]:
    if Capability.FACTS not in backend.capabilities:
        return
    after = ""
    while page := backend.scan(prefix, after=after):
        yield from (key.removeprefix(prefix) for key, _ in page)
        after = page[-1][0]


def queued(connection: Connection, given: str) -> Iterator[str]:
    """Yields the ids of waiting and running jobs that may begin or end so."""
    if Capability.SEARCH not in connection.capabilities or not may_be_part(given):
        return
    for text in dict.fromkeys((given, given.lower())):
        for queue in connection.queues():
            raw = text.encode("utf-8", "surrogatepass")
            for each in connection.backend.search(queue, raw, _MOST_FOUND):
                yield envelope.uuid_of(each.raw_body)
