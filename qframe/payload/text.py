"""Names of queues and patterns of them, suggestions for misspelt names, and printable text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

from qframe.exceptions import InvalidQueueName

_QUEUE = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PATTERN = re.compile(r"(?:[A-Za-z0-9_.:*?-]|\[!?[A-Za-z0-9_.:-]+\])+")
_SET = re.compile(r"\[!?(.+?)\]")
_RANGE = re.compile(r"([A-Za-z0-9_.:])-([A-Za-z0-9_.:])")


def queue_name(name: object) -> str:
    """Return `name` if it may name a queue. Raises `InvalidQueueName` otherwise."""
    if type(name) is str and is_queue_name(name):
        return name
    shown = printable(repr(name), 60)
    raise InvalidQueueName(f"{shown} is not a queue name: use 1 to 128 of A-Z a-z 0-9 _ . : -")


@lru_cache(maxsize=1024)
def is_queue_name(name: str) -> bool:
    """Whether this may name a queue; queues of other programs may have other names."""
    return _QUEUE.fullmatch(name) is not None


def is_queue_pattern(text: str) -> bool:
    return not {*"*?[]"}.isdisjoint(text)


def queue_pattern(given: object) -> str:
    """Return a queue name or a pattern of names. Raises `InvalidQueueName` otherwise."""
    if not isinstance(given, str) or not is_queue_pattern(given):
        return queue_name(given)
    if not _PATTERN.fullmatch(given) or _is_backward(given):
        shown = printable(repr(given), 60)
        raise InvalidQueueName(
            f"{shown} is not a pattern of queue names: use A-Z a-z 0-9 _ . : - and * ? [abc] [a-z]"
        )
    return given


def _is_backward(pattern: str) -> bool:
    """Whether a pattern has a set like `[z-a]`, which matches nothing."""
    sets = _SET.findall(pattern)
    return any(first > last for each in sets for first, last in _RANGE.findall(each))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)`, or "" if no known name is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def printable(text: str, limit: int = 2000) -> str:
    """Escape control, bidirectional and other unprintable characters, and limit the length.

    All text from jobs goes through here before it reaches a terminal or a log.
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """Replace all white space by single spaces, then make the text printable."""
    return printable(" ".join(text.split()), limit)


def count_of(number: float, one: str, more: str) -> str:
    """Return a number with its noun, in singular or plural."""
    return f"{number:,.0f} {one if number == 1 else more}"
