"""What is stored for a job: its payload as it was sent, with our notes spliced in.

A payload that is a JSON object stays one, which Laravel can run as well: its `attempts` counts the
starts, and behind its last key follows `"qframe"` with what it held as attempts before, the history
and, where the payload has no uuid, an id. Behind anything else follow a line and such notes. White
space after a line feed at the end tells jobs of the same bytes apart.

`write` and `read` are each other's inverse, so that the payload comes back byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined] # there, but in no stub
from typing import Any

from qframe.exceptions import InvalidPayload
from qframe.payload import parse

_PAD = re.compile(rb"\n[ \t]*\Z")
_OUR_END = re.compile(rb'[{,]"attempts":(\d{1,9}),"delay":(?:null|[0-9.e+]+)\}\Z')
"""How a payload of qframe ends that nobody has added a key to: where its attempts are is known."""
_FRESH = b',"attempts":0,"delay":null}'
_STARTED = b',"attempts":1,"delay":null,"qframe":{"history":'
_STARTED_END = b',"sent":"0"}}'
_NOTES = b'"qframe":'
_LINE = b"\n#" + _NOTES
_ADDED_ATTEMPTS = re.compile(rb',?"attempts":\d+,\Z')
_LONGEST_ADDED = 40
_NOTED = {"history", "id", "sent"}
_SPACE = re.compile(r"[ \t\n\r]*")
_MOST = 10**9


@dataclass(slots=True)
class Member:
    """A stored job, taken apart.

    `payload` is the decoded one, None where the bytes are none; `history` is JSON text or None.
    """

    raw: bytes
    payload: dict[str, Any] | None
    attempts: int = 0
    history: str | None = None
    identity: str | None = None
    pad: bytes = b""

    @property
    def unpayable(self) -> bool:
        """Whether the bytes are no payload."""
        return self.payload is None


def read(stored: bytes) -> Member:
    """Take a stored job apart."""
    pad = b""
    if stored[-1:] in _WHITE:
        found = _PAD.search(stored)
        if found is not None:
            pad = found.group()
            stored = stored[: found.start()]
    try:
        payload = parse(stored)
        notes = payload.get("qframe")
        if notes is None or not _are_ours(notes):
            return Member(stored, payload, _count(payload.get("attempts")), pad=pad)
        raw = _without_notes(stored, notes["sent"])
        del payload["qframe"]
        if _may_name_notes(raw):  # a key of its own, behind which ours stood
            payload |= {key: value for key, value in parse(raw).items() if key == "qframe"}
    except (InvalidPayload, RecursionError):
        return _read_line(stored, pad)
    return Member(
        raw, payload, _count(payload.get("attempts")), _text(notes.get("history")),
        _text(notes.get("id")), pad,
    )  # fmt: skip


def write(member: Member, attempts: int, history: str | None) -> bytes:
    """Put a job together again, with other notes."""
    notes: dict[str, Any] = {}
    if history is not None:
        notes["history"] = history
    if member.identity is not None:
        notes["id"] = member.identity
    if member.payload is not None:
        try:
            return _padded(_with_notes(member.raw, member.payload, attempts, notes), member.pad)
        except RecursionError:
            pass  # it is nested so deeply that it could be read only where there was more room
    if attempts:
        notes["attempts"] = attempts
    if not notes and _LINE not in member.raw:
        return _padded(member.raw, member.pad)
    return _padded(member.raw + _LINE + _json(notes), member.pad)


def _with_notes(raw: bytes, payload: dict[str, Any], attempts: int, notes: dict[str, Any]) -> bytes:
    """Write notes behind the last key of a JSON object; none where there is nothing to note."""
    needless = not notes and not _are_ours(payload.get("qframe"))
    sent = None
    start, end = _attempts_in(raw)
    number = b"%d" % attempts
    if start < 0:
        if needless and not attempts:
            return raw
        added = b'"attempts":%s,' % number
    else:
        sent = raw[start:end]
        if needless and _count(_value(sent)) == attempts:
            return raw
        raw = raw[:start] + number + raw[end:]
        added = b""
    body = raw.rstrip()
    tail = raw[len(body) :]
    comma = b"" if body[:-1].strip() == b"{" else b","
    notes = {**notes, "sent": None if sent is None else sent.decode()}
    return b"%s%s%s%s%s}%s" % (body[:-1], comma, added, _NOTES, _json(notes), tail)


def write_started(raw: bytes, pad: bytes, history: bytes) -> bytes | None:
    """Put together the first start of a payload as qframe sends it; None for any other."""
    if not raw.endswith(_FRESH):
        return None
    return b"%s%s%s%s%s" % (raw[: -len(_FRESH)], _STARTED, history, _STARTED_END, pad)


def identified(raw: bytes, identity: str) -> bytes:
    """Store with a payload that has no uuid the id by which it is known."""
    member = _sent(raw)
    member.identity = identity
    return write(member, member.attempts, None)


def sent(raw: bytes) -> bytes:
    """Give what is stored for a payload that was just sent."""
    if raw[-1:] not in _WHITE and not _may_name_notes(raw):
        return raw
    member = _sent(raw)
    return write(member, member.attempts, None)


def _sent(raw: bytes) -> Member:
    try:
        payload = parse(raw)
    except InvalidPayload:
        return Member(raw, None)
    return Member(raw, payload, _count(payload.get("attempts")))


def content_id(raw: bytes) -> str:
    """Name bytes that were stored without an id."""
    return hashlib.sha256(raw).hexdigest()[:32]


_WHITE = (b" ", b"\t", b"\n")


def _padded(stored: bytes, pad: bytes) -> bytes:
    """Put the pad back; bytes that end as with a pad get one, since one is taken off."""
    if not pad and stored[-1:] in _WHITE and _PAD.search(stored):
        pad = b"\n"
    return stored + pad


def _read_line(stored: bytes, pad: bytes) -> Member:
    raw, line, notes = stored.rpartition(_LINE)
    if not line:
        return Member(stored, None, pad=pad)
    try:
        found = json.loads(notes)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Member(stored, None, pad=pad)
    return Member(
        raw, None, _count(found.get("attempts")), _text(found.get("history")),
        _text(found.get("id")), pad,
    )  # fmt: skip


def _may_name_notes(raw: bytes) -> bool:
    """Whether a payload may have a key that is called as ours."""
    return b'"qframe"' in raw or b"\\u00" in raw


def _are_ours(notes: object) -> bool:
    """Whether these are notes as `write` makes them."""
    if not isinstance(notes, dict) or "sent" not in notes or not notes.keys() <= _NOTED:
        return False
    sent = notes["sent"]
    if sent is None or sent == "0":
        return True
    try:
        json.loads(sent)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _without_notes(stored: bytes, sent: str | None) -> bytes:
    """Give the payload without the key that `write` added, its attempts as they were sent."""
    start = stored.rfind(_NOTES)
    body = stored.rstrip()
    tail = stored[len(body) :]
    try:
        json.loads(stored[start + len(_NOTES) : len(body) - 1])
    except ValueError:
        return _cut_out(stored, sent)
    head = stored[:start]
    if not head.endswith(b","):
        return _cut_out(stored, sent)
    if sent is None:
        added = _ADDED_ATTEMPTS.search(head, max(0, start - _LONGEST_ADDED))
        head = head if added is None else head[: added.start()]
    return _as_sent(head.removesuffix(b",") + b"}" + tail, sent)


def _cut_out(stored: bytes, sent: str | None) -> bytes:
    """Do the same where Laravel has written the keys in an order of its own."""
    text = stored.decode()
    items = _items(text)
    ours = {"qframe"} if sent is not None else {"qframe", "attempts"}
    last = {key: number for number, (key, *_) in enumerate(items)}
    left_out = {last[key] for key in ours if key in last}
    kept = [
        text[begin:end] for number, (_, begin, _, end) in enumerate(items) if number not in left_out
    ]
    return _as_sent(f"{{{','.join(kept)}}}".encode(), sent)


def _as_sent(raw: bytes, sent: str | None) -> bytes:
    start, end = _attempts_in(raw)
    if start < 0 or sent is None:
        return raw
    return raw[:start] + sent.encode() + raw[end:]


def _attempts_in(raw: bytes) -> tuple[int, int]:
    """Find the value of the payload's own `attempts`; (-1, -1) where it has none."""
    found = _OUR_END.search(raw, max(0, len(raw) - 80))
    if found is not None:
        return found.span(1)
    text = raw.decode()
    span = (-1, -1)
    for key, _, start, end in _items(text):
        if key == "attempts":
            span = (start, end)  # of several, JSON's readers take the last
    if span[0] < 0 or text.isascii():
        return span
    return len(text[: span[0]].encode()), len(text[: span[1]].encode())


def _items(text: str) -> list[tuple[str, int, int, int]]:
    """Give each key of a JSON object's text: where it begins, and the span of its value."""
    found = []
    decoder = json.JSONDecoder()
    at = _skip(text, text.index("{") + 1)
    while text[at] == '"':
        begin = at
        key, at = scanstring(text, at + 1)
        start = _skip(text, _skip(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        found.append((key, begin, start, end))
        at = _skip(text, _skip(text, end) + 1)
        if at >= len(text):
            break
    return found


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _count(value: object) -> int:
    """Read a number of attempts; what is none is 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if not 0 <= value <= _MOST:
        return 0
    return int(value)


def _value(text: bytes) -> object:
    value: object = json.loads(text)
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(notes: dict[str, Any]) -> bytes:
    return _ENCODER.encode(notes).encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"))
