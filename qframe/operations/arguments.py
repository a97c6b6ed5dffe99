"""Arguments: the data of a job in one short line, for lists; secrets are stars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qframe.exceptions import InvalidPayload
from qframe.payload import encryption, envelope, model_keys, secret
from qframe.payload.text import one_line

_SHORT = 240
_LONGEST = 50_000
"""Bytes of a payload whose data is shown in a list."""


def arguments_in(raw: bytes) -> str:
    """Returns the data of a payload; "" if it is malformed."""
    if len(raw) > _LONGEST:
        return _too_long(len(raw))
    try:
        return arguments_of(envelope.parse(raw), len(raw))
    except InvalidPayload:
        return ""


def arguments_of(message: Mapping[str, Any], size: int) -> str:
    """Returns the data of a payload that was read and has so many bytes."""
    if size > _LONGEST:
        return _too_long(size)
    if encryption.is_encrypted(message):
        return "(encrypted)"
    data = model_keys.named(secret.redacted(message) or message).get("data")
    if data in (None, {}, []):
        return ""
    if isinstance(data, dict):
        shown = ", ".join(f"{key}: {_json(value)}" for key, value in data.items())
        return one_line(shown, _SHORT)
    return one_line(_json(data), _SHORT)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _too_long(size: int) -> str:
    return f"({size:,} bytes)"
