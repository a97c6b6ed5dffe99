"""Names: what a queue may be called, and the nearest right name for a wrong one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from qframe.exceptions import InvalidQueueName

_QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def queue_name(name: object) -> str:
    """Give `name` back when it may name a queue; raises `InvalidQueueName` when not."""
    if type(name) is str and is_queue_name(name):
        return name
    shown = printable(repr(name), 60)
    raise InvalidQueueName(f"{shown} is not a queue name: use 1 to 128 of A-Z a-z 0-9 _ . : -")


@lru_cache(maxsize=1024)
def is_queue_name(name: str) -> bool:
    """Whether this may name a queue: what others have named may not."""
    return _QUEUE.fullmatch(name) is not None


def nearest(name: str, known: Iterable[str]) -> str:
    """Say ` (did you mean ...?)`, or nothing where no known name is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def printable(text: str, limit: int = 2000) -> str:
    """Escape control, bidirectional and other unprintable characters, and cap the length.

    Text that comes from jobs passes through here before it reaches a terminal or a log.
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """Fold all white space into single spaces, then make the text printable."""
    return printable(" ".join(text.split()), limit)
