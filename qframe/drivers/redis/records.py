"""Failed records as JSON."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History


def encoded(record: FailedJob) -> bytes:
    """Encode a record; a payload that is not UTF-8 becomes base64."""
    found: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields(record)}
    found["history"] = record.history.to_json()
    payload: bytes = found.pop("payload")
    try:
        found["payload"] = payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(payload).decode()
    return json.dumps(found, separators=(",", ":")).encode()


def decoded(text: bytes) -> FailedJob:
    """Decode a record."""
    found = json.loads(text)
    in_base64 = found.pop("payload_base64", None)
    if in_base64 is not None:
        found["payload"] = base64.b64decode(in_base64)
    else:
        found["payload"] = found["payload"].encode()
    found["history"] = History.from_json(found["history"])
    return FailedJob(**found)
