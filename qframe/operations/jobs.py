"""Jobs as people see them: those that wait or run, and all that is known of one job."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.exceptions import InvalidPayload
from qframe.failed.filters import IN_LINE, Filter, tags_of
from qframe.features import in_line
from qframe.features.group_lines import has_had
from qframe.features.in_line import LinedJob
from qframe.operations.arguments import arguments_of
from qframe.operations.binning import Binning
from qframe.payload import envelope, model_keys, secret
from qframe.payload.text import one_line
from qframe.payload.timing import iso

LOOKED_AT = 5000
"""So many messages are examined for one page of filtered ones."""
_LINE = "line:"
"""Where a page of the jobs in line begins."""
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
    lined: LinedJob | None = None
    """Its place in the line of its group, if it has no message yet."""

    @property
    def state(self) -> str:
        """`ready`, `delayed`, `running`, `buried`, or `in line`."""
        if self.lined is not None:
            return IN_LINE
        return (self.found.place if self.found else Place.RUNNING).value

    @classmethod
    def of(cls, connection: str, found: Found | LinedJob) -> FilteredMessage:
        """Reads a message, or a job in line; a malformed payload has no name."""
        lined = found if isinstance(found, LinedJob) else None
        place = None if isinstance(found, LinedJob) else found
        raw = found.raw if isinstance(found, LinedJob) else found.raw_body
        try:
            message = envelope.parse(raw)
        except InvalidPayload:
            message = {}
        uuid, at = message.get("uuid"), None if place is None else place.at
        at = at or envelope.due(message) or envelope.number(message, "createdAt") or 0.0
        name = envelope.display_name(message) if message else "(no payload)"
        known = uuid if isinstance(uuid, str) else ""
        return cls(
            known, connection, found.queue, name, raw, at, place, message=message, lined=lined
        )


class JobState(BaseModel):
    """One job that waits, is delayed, buried or runs, or stands in the line of its group."""

    uuid: str
    connection: str
    queue: str
    job: str
    place: str
    at: str | None
    """When it is due, or became ready; of a running job, since when."""
    bytes: int
    tags: list[str] = []
    group: str = ""
    """The group in whose line it stands."""
    position: int | None = None
    """Its place in that line; 1 is the next one."""
    arguments: str = ""
    """Its data in one line, shortened; secrets are stars."""

    @classmethod
    def of(cls, job: FilteredMessage) -> JobState:
        lined = job.lined
        return cls(
            arguments=arguments_of(job.message, len(job.payload)),
            group="" if lined is None else one_line(lined.group, 200),
            position=None if lined is None else lined.position,
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
        step = limit - len(found) if chosen.is_empty else _PART
        page = _page(connection, queue, place, step, after)
        looked_at += page.looked_at
        found += [JobState.of(each) for each in page.jobs if chosen.fits(each)]
        after = page.after
        if not after or len(found) >= limit or time.monotonic() >= ends:
            break
    note = note_of(connection, place)
    return Jobs(jobs=found, after=after, looked_at=looked_at, note=note)


def chosen_of(
    connection: Connection, queue: str, place: Place, chosen: Filter
) -> Iterator[FilteredMessage]:
    """Yields all jobs of a queue in a place that a filter chooses, those in line first.

    So one who removes them removes the lines before the jobs whose end pushes from there.
    """
    connection.need(Capability.BROWSE)
    for begin in [_LINE, ""] if place is Place.READY else [""]:
        page = _page(connection, queue, place, _PAGE, begin)
        while True:
            yield from (each for each in page.jobs if chosen.fits(each))
            if page.after in {"", _LINE}:
                break
            page = _page(connection, queue, place, _PAGE, page.after)


def remove(connection: Connection, job: FilteredMessage, into: Binning | None = None) -> bool:
    """Removes a job that waits or stands in line. Returns False if it moved."""
    if job.lined is not None:
        return into.remove_in_line(job.lined) if into else connection.remove_in_line(job.lined)
    if job.found is None:
        return False
    return into.remove(job.found) if into else connection.remove(job.found)


class _Part(NamedTuple):
    jobs: list[FilteredMessage]
    looked_at: int
    after: str


def _page(connection: Connection, queue: str, place: Place, limit: int, after: str) -> _Part:
    """Reads some jobs of a queue: behind the ready messages are the jobs in line."""
    of = partial(FilteredMessage.of, connection.name)
    if after.startswith(_LINE):
        line = in_line.page(connection.context, queue, limit, after.removeprefix(_LINE))
        following = f"{_LINE}{line.after}" if line.after else ""
        return _Part([*map(of, line.jobs)], line.looked_at, following)
    page = connection.backend.browse(queue, place, limit, after)
    following = page.after
    if not following and place is Place.READY and has_had(connection.context, queue):
        following = _LINE
    return _Part([*map(of, page.found)], len(page.found), following)


def shown_payload(raw: bytes) -> str:
    """Returns a payload for people: indented, with its secrets as stars; even a malformed one."""
    try:
        message: dict[str, Any] = envelope.parse(raw)
    except InvalidPayload:
        return raw[:_LONGEST].decode("utf-8", "backslashreplace")
    shown = model_keys.named(secret.redacted(message) or message)
    text = json.dumps(shown, indent=2, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n..."
