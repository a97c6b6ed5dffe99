"""The stored form of a message: its bytes as pushed, and what a start changes.

A start appends new random white space to the bytes; it identifies that start and its notes. If the
payload has a count of attempts, the start is counted there, so that PHP sees it, and the notes keep
the original count. All other starts are counted in the notes.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from typing import Any

from qframe.drivers.levels import behind, level_of

_PAD = re.compile(rb"\n[ \t\r]{33,}\Z")
_COUNTED = b"\n\t"
"""First bytes of the white space if the starts are counted in the payload."""
_PLAIN = b"\n "
_TAG = 34
"""Length of the white space of a message without a priority."""
_LEVELED = re.compile(rb"\n[ \t\r]{33}(\r[ \t\r]{15})\Z")
"""The white space of a message with a priority, whose end says how much later it comes."""
_DIGITS_OF_LEVEL = 15
_ZERO = 2**22
_COUNT = b'"attempts":'
_ID = b'"id":"'
_END = re.compile(
    rb'(?:"id":"([\w-]{1,64})",)?"attempts":(0|[1-9]\d{0,8})(?:,"delay":(?:null|[0-9.e+]+))?\}\Z'
)
"""The end of a payload as qframe and Laravel write it.

It is matched at a known position: searching takes 2 us more a job.
"""
_LONGEST_END = 160
_DIGITS = re.compile(rb"\d+")
_SPACE = re.compile(r"[ \t\n\r]*")
_WHITE = bytes(b" \t\r"[n % 3] for n in range(256))
_MOST = 10**9


Message = tuple[bytes, str, int, bytes, int, int, bytes]
"""A stored message, parsed: raw bytes, id, attempts, white space, position of the payload's
count (-1 if there is none), the original count (or without one, the number of starts), notes.
"""


def new_tag() -> bytes:
    """Return white space that no other message ends with."""
    return _PLAIN + random.getrandbits(256).to_bytes(32, "big").translate(_WHITE)


def level(priority: int | None, aging: int) -> bytes:
    """Return what a message with this priority ends with; b"" if that is the default's."""
    seconds = int(behind(level_of(priority), aging))
    if not seconds:
        return b""
    number, digits = seconds + _ZERO, bytearray()
    for _ in range(_DIGITS_OF_LEVEL):
        number, digit = divmod(number, 3)
        digits.append(b" \t\r"[digit])
    return b"\r" + digits[::-1]


def level_in(stored: bytes) -> bytes:
    """Return what a stored message ends with because of its priority, or b""."""
    found = _LEVELED.search(stored) if stored[-16:-15] == b"\r" else None
    return b"" if found is None else found[1]


def sent(raw: bytes, level: bytes = b"") -> bytes:
    """Return the stored form of a new message."""
    if level:
        return raw + new_tag() + level
    return raw + new_tag() if raw[-1:] in b" \t\r" and _PAD.search(raw) else raw


def read(stored: bytes, notes: bytes) -> Message:
    """Parse a stored message; `notes` is the text of `noted`."""
    raw, tag = stored, b""
    if stored[-1:] in b" \t\r":
        pad = _PAD.search(stored)
        if pad is not None:
            raw, tag = stored[: pad.start()], pad.group()
    count, _, notes = notes.partition(b" ")
    beside = int(count or 0)
    end = _end_of(raw)
    if end is None:
        id, at, attempts = None, *_count_in(raw)  # noqa: A001 (the contract's name)
    else:
        id, at, attempts = end[1], end.start(2), int(end[2])  # noqa: A001
    if at < 0:
        return raw, _named(raw), attempts + beside, tag, at, beside, notes
    if tag.startswith(_COUNTED):
        raw = b"%b%d%b" % (raw[:at], beside, raw[at + len(b"%d" % attempts) :])
    else:
        beside = attempts
    return raw, id.decode() if id else _named(raw), attempts, tag, at, beside, notes


def _end_of(raw: bytes) -> re.Match[bytes] | None:
    """Find the id and the count at the end of a payload, or only the count."""
    least = max(0, len(raw) - _LONGEST_END)
    for begin in (_ID, _COUNT):
        at = raw.rfind(begin, least)
        end = None if at < 0 else _END.match(raw, at)
        if end is not None:
            return end
    return None


def counted(raw: bytes, at: int, before: int, attempts: int, tag: bytes) -> tuple[bytes, bytes]:
    """Return a stored message with its count changed from `before`, and its white space."""
    if at < 0:
        return raw + tag, tag
    tag = _COUNTED + tag[len(_COUNTED) :]
    return b"%b%d%b%b" % (raw[:at], attempts, raw[at + len(b"%d" % before) :], tag), tag


def begun(raw: bytes, attempts: int, notes: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the stored form of a message after so many starts, its white space and its notes."""
    _, _, _, _, at, before, _ = read(raw, b"")
    stored, tag = counted(raw, at, before, attempts, new_tag())
    return stored, tag, noted(before if at >= 0 else attempts, notes) or b"0 "


def noted(beside: int, notes: bytes) -> bytes:
    """Encode what is kept beside a message; b"" if there is nothing to keep."""
    return b"%d %s" % (beside, notes) if beside or notes else b""


def tag_of(stored: bytes) -> bytes:
    """Return the white space at the end of a stored message, without its level."""
    pad = _PAD.search(stored)
    return b"" if pad is None else pad.group().removesuffix(level_in(stored))


def _named(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def _count_in(raw: bytes) -> tuple[int, int]:
    """Find the count of attempts in a payload with keys in any order. Returns position and count.

    The position is -1 if the payload cannot be changed there; the count is 0 if there is none.
    """
    if b'"attempts"' not in raw:
        return -1, 0
    text = raw.decode("latin-1")  # one character for each byte; JSON's syntax is ASCII
    found: list[tuple[int, Any]] = []
    try:
        found += [(at, value) for key, at, value in _items(text) if key == "attempts"]
    except (ValueError, RecursionError):
        return -1, 0
    if not found:
        return -1, 0
    at, value = found[-1]  # the last of several counts
    if type(value) not in (int, float) or not 0 <= value <= _MOST:
        return -1, 0
    digits = _DIGITS.match(raw, at)
    same = type(value) is int and digits is not None and digits.group() == b"%d" % value
    return at if same else -1, int(value)


def _items(text: str) -> Iterator[tuple[str, int, Any]]:
    """Iterate over the keys of a JSON object: key, position of the value, value."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        value, end = _DECODER.raw_decode(text, start)
        yield key, start, value
        at = _skip(text, _skip(text, end) + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


_DECODER = json.JSONDecoder()
