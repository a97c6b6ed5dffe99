"""Jobs as people see them: those that wait or run, and all that is known of one job."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.exceptions import InvalidPayload
from qframe.failed.filters import Filter, tags_of
from qframe.payload import envelope, secret
from qframe.payload.timing import iso

LOOKED_AT = 5000
"""So many messages are examined for one page of filtered ones."""
_PAGE = 500
_PART = 250
"""So many are examined between two looks at the clock."""
_LONGEST = 200_000
"""Characters of a payload that are shown."""


@dataclass(frozen=True, slots=True)
class FilteredMessage:
    """A message as a filter sees it."""

    uuid: str
    connection: str
    queue: str
    name: str
    payload: bytes
    failed_at: float
    """When it is due, or was dispatched."""
    found: Found | None
    """The backend's name for it; None if it runs."""
    exception: str = ""
    hosts: tuple[str, ...] = ()
    """Where it runs."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Its payload, read once; empty if it is malformed."""

    @property
    def state(self) -> str:
        """`ready`, `delayed`, `running` or `buried`."""
        return (self.found.place if self.found else Place.RUNNING).value

    @classmethod
    def of(cls, connection: str, found: Found) -> FilteredMessage:
        """Reads a message; a malformed payload has no name."""
        try:
            message = envelope.parse(found.raw_body)
        except InvalidPayload:
            message = {}
        uuid = message.get("uuid")
        at = found.at or envelope.due(message) or envelope.number(message, "createdAt") or 0.0
        name = envelope.display_name(message) if message else "(no payload)"
        known = uuid if isinstance(uuid, str) else ""
        return cls(known, connection, found.queue, name, found.raw_body, at, found, message=message)


class JobState(BaseModel):
    """One job that waits, is delayed, buried or runs."""

    uuid: str
    connection: str
    queue: str
    job: str
    place: str
    at: str | None
    """When it is due, or became ready; of a running job, since when."""
    bytes: int
    tags: list[str] = []

    @classmethod
    def of(cls, job: FilteredMessage) -> JobState:
        return cls(
            uuid=job.uuid,
            connection=job.connection,
            queue=job.queue,
            job=job.name,
            place=job.state,
            at=iso(job.failed_at) if job.failed_at else None,
            bytes=len(job.payload),
            tags=tags_of(job),
        )


class Jobs(BaseModel):
    """A page of jobs."""

    jobs: list[JobState]
    after: str
    """Where the next page begins; "" if there is none."""
    looked_at: int
    note: str = ""
    """What the backend does not show of them."""


def note_of(connection: Connection, place: Place) -> str:
    """Returns what a backend does not show of the jobs in a place; "" if it shows all."""
    if Capability.SEARCH in connection.capabilities:
        return ""
    if place is Place.RUNNING:
        return f"{connection.name} does not show the jobs that run: their workers name them"
    return f"{connection.name} shows only the first of the jobs that are {place.value}"


def listed(
    connection: Connection,
    queue: str,
    place: Place,
    chosen: Filter,
    after: str = "",
    limit: int = 50,
    seconds: float = math.inf,
    most: int = LOOKED_AT,
) -> Jobs:
    """Lists the jobs of a queue in a place that a filter chooses, page by page, next first.

    A page examines at most `most`, or for about so many seconds: it may have fewer than `limit`
    although others follow. With a filter it may also have more.
    """
    connection.need(Capability.BROWSE)
    ends = time.monotonic() + seconds
    found: list[JobState] = []
    looked_at = 0
    while looked_at < most:
        step = limit if chosen.is_empty else _PART
        page = connection.backend.browse(queue, place, step, after)
        looked_at += len(page.found)
        jobs = (FilteredMessage.of(connection.name, each) for each in page.found)
        found += [JobState.of(each) for each in jobs if chosen.fits(each)]
        after = page.after
        if not after or len(found) >= limit or time.monotonic() >= ends:
            break
    note = note_of(connection, place)
    return Jobs(jobs=found, after=after, looked_at=looked_at, note=note)


def chosen_of(
    connection: Connection, queue: str, place: Place, chosen: Filter
) -> Iterator[FilteredMessage]:
    """Yields all messages of a queue in a place that a filter chooses."""
    connection.need(Capability.BROWSE)
    after = ""
    while True:
        page = connection.backend.browse(queue, place, _PAGE, after)
        for each in page.found:
            job = FilteredMessage.of(connection.name, each)
            if chosen.fits(job):
                yield job
        after = page.after
        if not after:
            return


def shown_payload(raw: bytes) -> str:
    """Returns a payload for people: indented, with its secrets as stars; even a malformed one."""
    try:
        message: dict[str, Any] = envelope.parse(raw)
    except InvalidPayload:
        return raw[:_LONGEST].decode("utf-8", "backslashreplace")
    shown = secret.redacted(message) or message
    text = json.dumps(shown, indent=2, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n..."
