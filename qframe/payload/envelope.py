"""The payload: Laravel's JSON envelope around a job, built at dispatch and read by the worker."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from qframe.exceptions import InvalidJob, InvalidPayload
from qframe.payload import model_keys, secret, tags, timing
from qframe.payload.text import one_line

if TYPE_CHECKING:
    from qframe.payload.encryption import Keyring

log = logging.getLogger("qframe")

PHP_SERIALIZED = "Illuminate\\Queue\\CallQueuedHandler"
OWN_TIMEOUT = "ownTimeout"
"""Payload key: the timeout is that of this one job, and goes before that of its class."""
CALL = "call"
"""Payload key: the data are the `args` and `kwargs` of a call, whatever the fields are."""
WIRE = "wire"
"""Payload key: the program whose form a message is to have, if it is another than Laravel's."""
REFUSED = "refused"
"""Payload key: why a job without a name is none."""
VERSION = "dataVersion"
"""Payload key: the version of the job's class that wrote the data, if the class has one."""
LARGEST_VERSION = 10**9
_METHODS = {"", "handle", "fire"}


def create(  # noqa: C901, PLR0912 (another call would slow each dispatch)
    job: Any,  # noqa: ANN401 (a job, from a higher layer)
    keys: Keyring | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the payload of a job, with `more` keys. Raises `InvalidJob` for unsendable values.

    `keys` encrypt the data of an encrypted job; without keys it raises `ConfigurationError`.
    """
    identity, name = new_uuid(), job.fixed_name or job.wire_name()
    payload: dict[str, Any] = {
        "uuid": identity,
        "displayName": name if job.display_name is None else job.shown_name(name),
        "job": name,
        "maxTries": job.tries,
        "maxExceptions": job.max_exceptions,
        "failOnTimeout": bool(job.fail_on_timeout),
        "backoff": None if job.backoff is None else job.wire_backoff(),
        "timeout": job.timeout,
        "retryUntil": None if job.retry_until is None else job.retry_deadline(),
        "data": job.to_data(),
        "createdAt": int(time.time()),
        "id": identity,
        "attempts": 0,
        "delay": None,
    }
    if job.unique_rule is not None:
        rule = job.unique_rule
        add(payload, {rule.key: rule.wire(job, name, payload["data"])})
    if job.once_rule is not None:
        add(payload, {"once": job.once_rule.wire(job, name, payload["data"])})
    if job.group is not None:
        add(payload, {"group": job.wire_group()})
    if job.track:
        track(payload, timing.kept_for(job.track))
    if job.keep_log:
        add(payload, {"keepLog": job.keep_log})
    if job.priority is not None:
        payload["priority"] = job.priority
    if job.expires is not None:
        payload["expiresAt"] = timing.moment(job.expires, "expires")
    if job.written_version is not None:
        add(payload, {VERSION: job.written_version})
    if job.tags:
        payload[tags.KEY] = tags.of(job, name)
    if job.model_fields:
        add(payload, {model_keys.KEY: dict(job.model_fields)})
    if job.secret_fields:
        _name_secrets(payload, job, name)
    if job.encrypted:
        payload["data"] = _sealed(payload, keys, payload["data"])
    if job.besides is not None:
        more = job.wire_besides(more, partial(_sealed, payload, keys) if job.encrypted else None)
    if more:
        add(payload, more)
    return payload


def _name_secrets(payload: dict[str, Any], job: Any, name: str) -> None:  # noqa: ANN401 (a job)
    """List the secret fields, and warn once about a class whose secrets are readable."""
    add(payload, {secret.KEY: list(job.secret_fields)})
    if job.in_clear and name not in _warned:
        _warned.add(name)
        log.warning(
            "%s has secrets (%s) that can be read in the backend: set encrypted = True, or "
            "False to say that this is meant",
            name,
            ", ".join(job.secret_fields),
        )


_warned: set[str] = set()


def new_uuid() -> str:
    """Return a uuid of version 7: milliseconds since 1970, and 74 random bits."""
    at, text = f"{int(time.time() * 1000):012x}", os.urandom(10).hex()
    return f"{at[:8]}-{at[8:]}-7{text[:3]}-{_VARIANTS[text[3]]}{text[4:7]}-{text[7:19]}"


_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def _sealed(payload: dict[str, Any], keys: Keyring | None, data: object) -> dict[str, str]:
    name = payload["job"]
    if keys is None:
        raise InvalidJob(f"{name} is encrypted: only a connection can build its payload")
    inside = {"displayName": payload["displayName"], "job": name, "data": data}
    return keys.sealed(name, encode(inside))


def track(payload: dict[str, Any], seconds: float) -> None:
    """Keep the status of a job, for `seconds` after each update."""
    add(payload, {"track": seconds, "trackedSince": round(time.time(), 6)})


def add(payload: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add keys, before those that drivers expect at the end."""
    at_the_end = ("id", "attempts", "delay")  # where drivers look for them
    last = {key: payload.pop(key) for key in at_the_end if key in payload}
    payload |= more
    payload |= last


class Envelope:
    """A payload from `create`, before its push, and its bytes."""

    __slots__ = ("payload", "raw", "uuid")

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload
        """Call `encode` after a change."""
        self.uuid: str = payload["uuid"]
        try:
            self.raw = to_json(payload)  # in a quarter of the time that `encode` takes
        except (ValueError, RecursionError):
            self.raw = b""
        raw = self.raw
        # A number may be NaN or infinite. Searching for the first letters saves 0.5 us a job;
        # "displayName" has one N.
        if not raw or (raw.count(_N) > 1 and b"NaN" in raw) or (_I in raw and b"Infinity" in raw):
            self.encode()  # checks the numbers
        elif len(raw) > _MOST_DIGITS and _TOO_LONG.search(raw):
            self.encode()  # refuses a number that no Python reads

    def encode(self) -> None:
        """Encode again, after a change of the payload."""
        self.raw = encode(self.payload)


_N, _I = b"NI"
_MOST_DIGITS = 4300
"""Of a whole number that Python reads, unless it is told otherwise."""
_TOO_LONG = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS + 1))


def encode(payload: dict[str, Any]) -> bytes:
    """Encode a payload as JSON. Raises `InvalidJob` if JSON or UTF-8 cannot represent it."""
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
"""Refuses what JSON cannot represent, also in keys of listeners; `to_json` would change sets, dates
and NaN."""


def _unencodable_field(payload: dict[str, Any]) -> str:
    data = payload.get("data")
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            _ENCODER.encode({name: value}).encode()
        except (TypeError, ValueError, RecursionError):
            return f"{payload['displayName']}.{name}"
    return "the payload"


def parse(raw: bytes) -> dict[str, Any]:
    """Decode payload bytes. Raises `InvalidPayload` with what they are instead.

    The result can be encoded again: it has no lone surrogate, NaN or infinity, and is not nested
    too deeply.
    """
    try:
        text = raw.decode()
        # 1 us less a job than `decode`, which looks for white space around it.
        payload, end = _SCAN(text, 0) if text.startswith("{") else (None, -1)
        if end != len(text):
            payload = _DECODER.decode(text)
        # Perhaps a lone surrogate, written as an escape.
        if b"\\u" in raw and (b"\\ud" in raw or b"\\uD" in raw):
            _ENCODER.encode(payload).encode()
        if len(raw) > _DEEPEST and raw.count(b"[") + raw.count(b"{") > _DEEPEST:
            _check_depth(payload)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"the payload is not UTF-8 (byte {error.start})") from None
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"the payload holds a lone surrogate ({error.object[error.start]!r}), which is no text"
        ) from None
    except StopIteration as found:
        at = f"Expecting value: char {found.value}"
        raise InvalidPayload(f"the payload is not JSON: {at}") from None
    except RecursionError:
        raise InvalidPayload("the payload is nested too deeply to be read") from None
    except ValueError as error:
        raise InvalidPayload(f"the payload is not JSON: {one_line(str(error))}") from None
    if not isinstance(payload, dict):
        raise InvalidPayload(f"the payload is not a JSON object but {type(payload).__name__}")
    return payload


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refused)
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined] # typeshed does not list it
_DEEPEST = 512
"""The deepest nesting of payloads: as deep as PHP reads JSON."""


def _check_depth(payload: object) -> None:
    level: list[Any] = [payload]
    for _ in range(_DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inner for value in values if type(value) in {dict, list}]
        if not level:
            return
    raise RecursionError


def job_name(payload: Mapping[str, Any]) -> str:
    """Return the name of the job to run. Raises `InvalidPayload` if there is none for Python.

    Laravel's `Class@method` form is accepted for the methods `handle` and `fire`.
    """
    name = payload.get("job")
    if not isinstance(name, str) or not name:
        why = text(payload, REFUSED, 1000)
        shown = one_line(why, 500) if why else "the payload has no job name under `job`"
        raise InvalidPayload(shown)
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


def display_name(payload: Mapping[str, Any]) -> str:
    for key in ("displayName", "job"):
        shown_as = payload.get(key)
        if isinstance(shown_as, str) and (shown := one_line(shown_as, 200)):
            return shown
    return "(no name)"


def wire_name(raw: bytes, shown: str) -> str:
    """Return the name of the job to run, the same for all of a class; `shown` if there is none.

    `shown` is the display name: mostly it is that same name, and nothing needs to be parsed.
    """
    if f'"job":"{shown}"'.encode("utf-8", "replace") in raw:
        return shown
    try:
        return one_line(job_name(parse(raw)), 200) or shown
    except InvalidPayload:
        return shown


def text(payload: Mapping[str, Any], key: str, longest: int = 200) -> str | None:
    """Return a text of the payload that may be a key or an id.

    None unless it has 1 to `longest` characters, all of which backends accept in keys (no NUL, no
    lone surrogate).
    """
    value = payload.get(key)
    if type(value) is not str or not 0 < len(value) <= longest or "\0" in value:
        return None
    return value if value.isascii() or _is_encodable(value) else None


def uuid(payload: Mapping[str, Any]) -> str | None:
    """Return the uuid of a payload; None if there is none, or it could forge a log line.

    qframe makes its own; another program's may be any printable text.
    """
    found = text(payload, "uuid")
    return found if found is not None and found.isprintable() else None


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_GREATEST = 1e12


def number(payload: Mapping[str, Any], key: str) -> float | None:
    """Return a number of the payload; None if there is none or it is something else.

    NaN, infinities and numbers beyond any time or count are something else.
    """
    value = payload.get(key)
    if value is None:
        return None
    if type(value) is not int and type(value) is not float:
        return None
    return value if abs(value) <= _GREATEST else None


def due(payload: Mapping[str, Any]) -> float | None:
    """Return the epoch time at which a job should first start; None if unknown.

    qframe's uuids have the time of the dispatch, more exact than `createdAt`; Horizon adds
    `pushedAt`. Links of a chain are pushed some time after they were made.
    """
    if "chain" in payload:
        return None
    created, delay = payload.get("createdAt"), payload.get("delay")
    uuid, horizon = payload.get("uuid"), payload.get("pushedAt")
    try:
        pushed = None
        if type(uuid) is str and uuid[14:15] == "7":  # as in `dispatched_at`, but no call
            pushed = int(uuid[:8] + uuid[9:13], 16) / 1000
        if pushed is None and type(horizon) is str:
            pushed = float(horizon)
        if pushed is None or created is None or not -_SAME < pushed - created < 1 + _SAME:
            return None
    except (TypeError, ValueError, OverflowError):  # a payload may have anything there
        return None
    return pushed if delay is None else pushed + max(0.0, number(payload, "delay") or 0.0)


def dispatched_at(uuid: str) -> float | None:
    """Return the epoch time in a uuid of version 7; None for any other text."""
    if uuid[14:15] != "7":
        return None
    try:
        return int(uuid[:8] + uuid[9:13], 16) / 1000
    except ValueError:
        return None


def uuid_of(raw: bytes) -> str:
    """Return the uuid in a stored message; "" if it is not a payload, or has none."""
    try:
        return uuid(parse(raw)) or ""
    except ValueError:
        return ""


_SAME = 2.0
"""Seconds by which two records of the dispatch time may differ."""


def backoffs(payload: Mapping[str, Any]) -> list[float] | None:
    """Return the payload's backoff seconds (`"1,5,10"`, or a number); None if it has none."""
    value = payload.get("backoff")
    if value is None or value == "" or isinstance(value, bool):
        return None
    try:
        seconds = [max(0.0, float(part)) for part in str(value).split(",")]
    except ValueError:
        return None
    return seconds if max(seconds) <= _GREATEST else None
