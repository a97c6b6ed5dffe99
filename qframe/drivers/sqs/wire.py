"""Messages as SQS has them: the body is the payload, as Laravel's workers read it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic_core import from_json

from qframe.drivers.broker.message import BrokerMessage
from qframe.drivers.sqs.settings import LONGEST_MESSAGE, is_fifo

LONGEST_HEADERS = 1024
"""Bytes of the attributes of a message without notes, at most."""
TOGETHER = 10
"""Messages of one call."""

_ENCODING = "qframe-encoding"
_BASE64 = "base64"
_BODY_OF_NONE = "-"
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_LONGEST_NAME = 80
_NOT_LEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")


class SentEntry(NamedTuple):
    """A message of a call, and the bytes that it counts."""

    fields: dict[str, Any]
    size: int


def entry_of(message: BrokerMessage, name: str, raw: bytes) -> SentEntry:
    """Return the entry of a message for the queue of this name in SQS, with `raw` for its body."""
    headers = dict(message.headers)
    body = _text_of(raw)
    if body is None:
        body = base64.b64encode(raw).decode() or _BODY_OF_NONE
        headers[_ENCODING] = _BASE64
    fields: dict[str, Any] = {
        "MessageBody": body,
        "MessageAttributes": {
            key: {"DataType": "String", "StringValue": value} for key, value in headers.items()
        },
    }
    group = group_of(message.raw)
    if is_fifo(name):
        fields["MessageGroupId"] = group or message.queue[:128]
        fields["MessageDeduplicationId"] = message.id
    else:
        if group:
            fields["MessageGroupId"] = group
        if message.delay > 0:
            fields["DelaySeconds"] = math.ceil(message.delay)
    size = len(body.encode()) + sum(len(key) + len(value) + 6 for key, value in headers.items())
    return SentEntry(fields, size)


def batches(entries: Iterable[SentEntry]) -> Iterator[list[SentEntry]]:
    """Divide entries into as many as go into one call."""
    batch: list[SentEntry] = []
    for entry in entries:
        if (
            len(batch) == TOGETHER
            or sum(each.size for each in batch) + entry.size > LONGEST_MESSAGE
        ):
            if batch:
                yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch


def read(message: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return the payload and the headers of a received message."""
    attributes = message.get("MessageAttributes") or {}
    headers = {key: str(each.get("StringValue", "")) for key, each in attributes.items()}
    body = str(message.get("Body", ""))
    if headers.get(_ENCODING) == _BASE64:
        if body == _BODY_OF_NONE:
            return b"", headers
        with suppress(binascii.Error, ValueError):
            return base64.b64decode(body, validate=True), headers
    return body.encode(), headers


def _text_of(raw: bytes) -> str | None:
    """Return the text that SQS may be given for a payload; None if it takes no such text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if not text or _NOT_LEGAL.search(text) else text


def group_of(raw: bytes) -> str:
    """Return the group of a job as SQS takes it; "" if it is in none."""
    if b'"group"' not in raw:
        return ""
    try:
        payload = from_json(raw)
    except ValueError:
        return ""
    name = payload.get("group") if isinstance(payload, dict) else None
    if not isinstance(name, str) or not name:
        return ""
    return name if _GROUP.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()


def is_name(name: str) -> bool:
    """Whether a queue of SQS may have this name."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None
