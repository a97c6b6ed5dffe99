"""Celery's messages of protocol 2: a task's call in headers and a body, read and written."""

from __future__ import annotations

import base64
import bz2
import json
import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from qframe.payload import envelope
from qframe.payload.envelope import CALL, OWN_TIMEOUT, REFUSED
from qframe.payload.text import one_line

PICKLED = "pickled, which is never read here: drain it with its own worker"

JSON = "application/json"
_LATEST = 3e11
"""The latest moment that is taken for one, as an epoch time."""
_LAST = 2.5e11
"""An epoch time that every calendar has."""
_DONE_AFTER = ("callbacks", "errbacks", "chain", "chord")
_SHOWN = 1024
_LONGEST_ID = 255
"""Bytes of the longest id that AMQP takes."""
"""Characters of the arguments in the headers, at most."""
_PARTS = 3
"""Parts of a body: arguments, named arguments, what comes after."""


class NotReadable(Exception):
    """Why a message cannot become a job."""


@dataclass(frozen=True, slots=True)
class CeleryCall:
    """A call of a task."""

    name: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    due: float | None = None
    """The epoch time at which it may start; None: at once."""
    expires: float | None = None
    """The epoch time after which it must not start."""
    retries: int = 0
    timeout: float | None = None
    """Its own limit in seconds."""
    shadow: str | None = None
    """The name to show for it."""


def is_call(headers: Mapping[str, Any]) -> bool:
    """Whether these are the headers of a message of protocol 2."""
    return isinstance(headers.get("task"), str) and isinstance(headers.get("id"), str)


def read(headers: Mapping[str, Any], kind: str, body: bytes | str, longest: int) -> CeleryCall:
    """Read a message. Raises `NotReadable` with the reason.

    `kind` is its content type; a body that was compressed may have `longest` bytes.
    """
    if kind != JSON:
        raise NotReadable(PICKLED if "python" in kind else f"its content is {kind}, not JSON")
    due, expires = moment(headers.get("eta"), "its eta"), moment(headers.get("expires"), "expires")
    parts = parsed(_opened(headers.get("compression"), body, longest), "its body")
    if not isinstance(parts, list) or len(parts) != _PARTS:
        raise NotReadable("its body is not that of Celery's protocol 2")
    args, kwargs, after = parts
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise NotReadable("its body is not that of Celery's protocol 2")
    after = after if isinstance(after, dict) else {}
    used = [each for each in _DONE_AFTER if after.get(each)]
    if used:
        raise NotReadable(
            f"it has a {used[0].removesuffix('s')}, which only Celery's workers continue"
        )
    retries, shadow = headers.get("retries"), headers.get("shadow")
    return CeleryCall(
        str(headers["task"]),
        str(headers["id"]),
        args,
        kwargs,
        due,
        expires,
        min(retries, 1000) if type(retries) is int and retries > 0 else 0,
        _limit(headers.get("timelimit")),
        shadow if isinstance(shadow, str) else None,
    )


def payload_of(call: CeleryCall, name: str) -> bytes:
    """Return the payload of the job that a call becomes. Raises `NotReadable`."""
    payload: dict[str, Any] = {
        "uuid": call.id,
        "displayName": call.shadow or name,
        "job": name,
        "data": {"args": call.args, "kwargs": call.kwargs},
        CALL: True,
    }
    if call.expires is not None:
        payload["expiresAt"] = call.expires
    if call.timeout is not None:
        payload |= {"timeout": call.timeout, OWN_TIMEOUT: True}
    envelope.add(payload, {"id": call.id, "attempts": 0, "delay": None})
    try:
        return json.dumps(payload, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise NotReadable("its body is no JSON") from None


def refused(headers: Mapping[str, Any], kind: str, body: bytes, why: str) -> bytes:
    """Return the payload of a job that fails with this reason, and holds the whole message.

    Headers may have what JSON has not, so they are texts, as Python writes their values.
    """
    name, id_ = one_line(headers["task"]), one_line(headers["id"], 200)
    payload = {
        "uuid": id_,
        "displayName": name,
        "job": None,
        REFUSED: f"{name} is a message of Celery that cannot be run here: {why}",
        "data": {
            "contentType": ascii(kind),
            "headers": {ascii(key): ascii(value) for key, value in headers.items()},
            "body": base64.b64encode(body).decode(),
        },
        "id": id_,
        "attempts": 0,
        "delay": None,
    }
    return json.dumps(payload).encode()


def written(payload: Mapping[str, Any]) -> tuple[dict[str, Any], bytes] | None:
    """Return headers and body of the message for a job that Celery is to run.

    None if Celery could not read them: a payload that was pushed raw may hold anything.
    """
    data, id_, name = (
        payload.get("data"),
        envelope.uuid(payload),
        envelope.text(payload, "job", _SHOWN),
    )
    fits = isinstance(data, list | dict | None) and name is not None
    if id_ is None or len(id_.encode()) > _LONGEST_ID or not fits:
        return None
    args, kwargs = (data, {}) if isinstance(data, list) else ([], data or {})
    expires = envelope.number(payload, "expiresAt")
    ends = None if expires is None else datetime.fromtimestamp(min(expires, _LAST), UTC)
    shown = envelope.display_name(payload)
    headers: dict[str, Any] = {
        "lang": "py",
        "task": name,
        "id": id_,
        "shadow": None if shown == name else shown,
        "eta": None,
        "expires": None if ends is None else ends.isoformat(),
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [envelope.number(payload, "timeout"), None],
        "root_id": id_,
        "parent_id": None,
        "argsrepr": one_line(repr(args), _SHOWN),
        "kwargsrepr": one_line(repr(kwargs), _SHOWN),
        "origin": "qframe",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    after = dict.fromkeys(_DONE_AFTER)
    return headers, json.dumps([args, kwargs, after]).encode()


def parsed(raw: bytes | str, what: str) -> Any:  # noqa: ANN401 (any JSON)
    """Return decoded JSON. Raises `NotReadable`."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise NotReadable(f"{what} is no JSON") from None


def moment(value: object, what: str) -> float | None:
    """Return a time in ISO format, or an epoch time, as an epoch time. Raises `NotReadable`."""
    if value is None:
        return None
    found = math.nan
    with suppress(ValueError, OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool):
            found = float(value)
        elif (at := datetime.fromisoformat(str(value))).tzinfo is not None:
            found = at.timestamp()
        else:  # Celery writes UTC without saying so, unless told otherwise
            found = datetime.fromisoformat(f"{value}+00:00").timestamp()
    if not abs(found) < _LATEST:
        raise NotReadable(f"{what} is no time")
    return found


def _opened(compression: object, body: bytes | str, longest: int) -> bytes | str:
    if compression is None:
        return body
    compression = str(compression)  # a header may be a table
    raw = body.encode() if isinstance(body, str) else body
    opener: Any = None
    if compression == "application/x-gzip":
        opener = zlib.decompressobj(wbits=47)  # what zlib or gzip wrote
    elif compression in {"application/x-bz2", "application/x-bzip2"}:
        opener = bz2.BZ2Decompressor()
    if opener is None:
        raise NotReadable(f"it is compressed as {compression}; only gzip and bzip2 are read")
    try:
        opened: bytes = opener.decompress(raw, longest + 1)
    except (zlib.error, OSError, ValueError):
        raise NotReadable("its body cannot be decompressed") from None
    if len(opened) > longest:
        raise NotReadable(f"its body has more than {longest:,} bytes (max_payload)")
    if not opener.eof:
        raise NotReadable("its body cannot be decompressed")
    return opened


def _limit(timelimit: object) -> float | None:
    """Return the limit of a call: the soft one, or else the hard one."""
    if not isinstance(timelimit, list | tuple) or len(timelimit) != 2:  # noqa: PLR2004 (the hard one, the soft one)
        return None
    hard, soft = timelimit
    found = soft or hard
    if type(found) not in {int, float} or not 0 < found < _LATEST:
        return None
    return float(found)
