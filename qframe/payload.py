"""The payload: Laravel's JSON envelope around a job, made at dispatch and read by the worker."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from qframe.exceptions import InvalidJob, InvalidPayload
from qframe.names import one_line

if TYPE_CHECKING:
    from qframe.foreign import Foreign
    from qframe.queueable import Queueable

PHP_SERIALIZED = "Illuminate\\Queue\\CallQueuedHandler"
_METHODS = {"", "handle", "fire"}


def create(job: Queueable | Foreign) -> dict[str, Any]:
    """Build the payload of a job; raises `InvalidJob` naming what cannot be sent."""
    identity = _uuid4()
    payload: dict[str, Any] = {
        "uuid": identity,
        "displayName": job.shown_name(),
        "job": job.wire_name(),
        "maxTries": job.tries,
        "maxExceptions": job.max_exceptions,
        "failOnTimeout": bool(job.fail_on_timeout),
        "backoff": job.wire_backoff(),
        "timeout": job.timeout,
        "retryUntil": job.retry_deadline(),
        "data": job.to_data(),
        "createdAt": int(time.time()),
        "id": identity,
        "attempts": 0,
        "delay": None,
    }
    if job.expires is not None:
        payload["expiresAt"] = job.expiry()
    if job.tags:
        payload["tags"] = job.wire_tags()
    return payload


def _uuid4() -> str:
    """Make a random uuid; several times faster than `uuid.uuid4`, which makes an object first."""
    text = os.urandom(16).hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


class Envelope:
    """A payload about to be pushed, and its bytes."""

    __slots__ = ("payload", "raw", "uuid")

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload
        self.uuid = str(payload["uuid"])
        self.encode()

    def encode(self) -> None:
        """Make the bytes anew, after the payload has changed."""
        self.raw = encode(self.payload)


def encode(payload: dict[str, Any]) -> bytes:
    """Encode a payload as JSON bytes; raises `InvalidJob` where JSON or UTF-8 cannot carry it."""
    try:
        return _ENCODER.encode(payload).encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(
            f"{_unencodable_field(payload)} holds a lone surrogate "
            f"({error.object[error.start]!r}), which UTF-8 cannot carry"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(
            f"{_unencodable_field(payload)} cannot be JSON: {one_line(str(error))}"
        ) from None


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _unencodable_field(payload: dict[str, Any]) -> str:
    data = payload.get("data")
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            _ENCODER.encode({name: value}).encode()
        except (TypeError, ValueError, RecursionError):
            return f"{payload['displayName']}.{name}"
    return "the payload"


def parse(raw: bytes) -> dict[str, Any]:
    """Decode payload bytes; raises `InvalidPayload` saying what they are instead."""
    try:
        payload = _decoded(raw.decode())
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"the payload is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise InvalidPayload("the payload is nested too deeply to be read") from None
    except ValueError as error:
        raise InvalidPayload(f"the payload is not JSON: {one_line(str(error))}") from None
    if not isinstance(payload, dict):
        raise InvalidPayload(f"the payload is not a JSON object but {type(payload).__name__}")
    return payload


def _decoded(text: str) -> Any:  # noqa: ANN401 (any JSON value)
    """Decode JSON; that without space around it, as payloads are, with less ado than `loads`."""
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:  # its way to say that nothing, or not all, is there
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


_SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # there, but in no stub


def job_name(payload: dict[str, Any]) -> str:
    """Give the name of the job to run; raises `InvalidPayload` when there is none to run here.

    Laravel's `Class@method` form is accepted for the methods `handle` and `fire`.
    """
    name = payload.get("job")
    if not isinstance(name, str) or not name:
        raise InvalidPayload("the payload has no job name under `job`")
    name, _, method = name.partition("@")
    if name == PHP_SERIALIZED:
        raise InvalidPayload(
            "the payload holds a PHP-serialized command, which only Laravel can run; dispatch it "
            "from PHP as Queue::push('app.jobs.SendWelcome', ['user_id' => 7], 'queue')"
        )
    if method not in _METHODS:
        raise InvalidPayload(
            f"the payload asks for {one_line(name)}@{one_line(method)}; use @handle"
        )
    return name


def display_name(payload: dict[str, Any]) -> str:
    """Give what people call the job."""
    for key in ("displayName", "job"):
        if isinstance(payload.get(key), str) and payload[key]:
            return one_line(payload[key], 200)
    return "(no name)"


_GREATEST = 1e12


def number(payload: dict[str, Any], key: str) -> float | None:
    """Give a number of the payload; None where there is none or something else.

    NaN, infinities and what is beyond any time or count are something else.
    """
    value = payload.get(key)
    if value is None:
        return None
    if type(value) is not int and type(value) is not float:
        return None
    return value if abs(value) <= _GREATEST else None


def backoffs(payload: dict[str, Any]) -> list[float] | None:
    """Give the payload's backoff seconds (`"1,5,10"`, or a number); None where it has none."""
    value = payload.get("backoff")
    if value is None or value == "" or isinstance(value, bool):
        return None
    try:
        seconds = [max(0.0, float(part)) for part in str(value).split(",")]
    except ValueError:
        return None
    return seconds if max(seconds) <= _GREATEST else None
