"""Lookup: finds a message by its uuid, starting where the time in the uuid suggests."""

from __future__ import annotations

import json
import time
from statistics import median
from typing import NamedTuple

from qframe.contracts.backend import Backend
from qframe.contracts.browsing import Found, Span
from qframe.payload import envelope

CLOSE = 500
"""Positions on each side of the expected one that are searched first; most messages are there."""
NEAR = 10_000
"""Positions on each side that are searched next, before all others."""
AT_ONCE = 20_000
"""Positions that are searched between two checks of the time; more in very long queues."""
_PARTS = 100
_PROBE = 5
"""Messages that are read to date a position: a single one may be out of order."""


class LookResult(NamedTuple):
    """The result of a search for a message."""

    found: Found | None
    is_complete: bool = True
    """Whether the search covered all positions, or found the message."""


def look(backend: Backend, queue: str, uuid: str, seconds: float | None = None) -> LookResult:
    """Search for a message until it is found, all positions are searched, or `seconds` have passed.

    A short queue is searched whole, however late it is. The search may miss a message that moves
    meanwhile.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    spans, made = backend.spans(queue), envelope.dispatched_at(uuid)
    if made is not None:
        for span in spans:
            found = _near(backend, queue, uuid, span, made)
            if found is not None:
                return LookResult(found)
    if ends is None or not spans:
        return LookResult(_among(backend, queue, uuid, None))
    is_short = sum(span.end - span.first for span in spans) <= 2 * CLOSE
    for span in spans:
        # From the end: removing messages at the front shifts the others, and this way none is
        # missed.
        size = max(AT_ONCE, (span.end - span.first) // _PARTS)
        for end in range(span.end, span.first, -size):
            if not is_short and time.monotonic() > ends:
                return LookResult(None, is_complete=False)
            part = span._replace(first=max(span.first, end - size), end=end)
            found = _among(backend, queue, uuid, part)
            if found is not None:
                return LookResult(found)
    return LookResult(None)


def position(backend: Backend, queue: str, uuid: str, within: Span) -> int | None:
    """Return the position of a message in a range that is in order, by the time in its uuid.

    None if it is not where that suggests, or its uuid has no time.
    """
    made = envelope.dispatched_at(uuid)
    there = None if made is None else _where(backend, queue, within, made)
    if there is None:
        return None
    first, end = max(within.first, there[0] - CLOSE), min(within.end, there[1] + CLOSE)
    near = backend.peek(queue, within._replace(first=first, end=end), end - first)
    return next((at for at, raw in near if envelope.uuid_of(raw) == uuid), None)


def _among(backend: Backend, queue: str, uuid: str, within: Span | None) -> Found | None:
    """Find the message in a range (None: anywhere). Other messages may contain the text as well."""
    for text in _written(uuid):
        for each in backend.search(queue, text, within=within):
            if envelope.uuid_of(each.raw_body) == uuid:
                return each
    return None


def _written(uuid: str) -> list[bytes]:
    """Return the ways in which JSON may write a uuid: PHP escapes `/`, many escape non-ASCII."""
    plain = uuid.encode("utf-8", "surrogatepass")
    if uuid.isascii() and uuid.isalnum():
        return [plain]
    ways = [json.dumps(uuid, ensure_ascii=escaped)[1:-1] for escaped in (False, True)]
    ways += [each.replace("/", "\\/") for each in ways]
    return [*dict.fromkeys([plain, *(each.encode("utf-8", "surrogatepass") for each in ways)])]


def _near(backend: Backend, queue: str, uuid: str, span: Span, made: float) -> Found | None:
    """Find the message near the position that matches its dispatch time."""
    there = _where(backend, queue, span, made) if span.in_order else None
    if there is None:
        return None
    before = None
    for reach in (CLOSE, NEAR):
        first, end = max(span.first, there[0] - reach), min(span.end, there[1] + reach)
        if (first, end) != before:
            found = _among(backend, queue, uuid, span._replace(first=first, end=end))
            if found is not None:
                return found
        before = first, end
    return None


def _where(backend: Backend, queue: str, span: Span, made: float) -> tuple[int, int] | None:
    """Return the positions that match a dispatch time, by bisection.

    None if the messages carry no usable times.
    """
    low, high = span.first, span.end
    while high - low > CLOSE:
        middle = (low + high) // 2
        there = backend.peek(queue, span._replace(first=middle, end=high), _PROBE)
        moments = [
            moment
            for _, raw in there
            if (moment := envelope.dispatched_at(envelope.uuid_of(raw))) is not None
        ]
        if there and not moments:
            return None
        if there and median(moments) < made:
            low = there[0][0] + 1
        else:
            high = middle
    return low, high
