"""The payload: Laravel's JSON envelope around a job, made at dispatch and read by the worker."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qframe import secret
from qframe.exceptions import InvalidJob, InvalidPayload
from qframe.names import one_line

if TYPE_CHECKING:
    from qframe.foreign import Foreign
    from qframe.queueable import Queueable
    from qframe.sealing import Keyring

log = logging.getLogger("qframe")

PHP_SERIALIZED = "Illuminate\\Queue\\CallQueuedHandler"
_METHODS = {"", "handle", "fire"}


def create(job: Queueable | Foreign, keys: Keyring | None = None) -> dict[str, Any]:
    """Build the payload of a job; raises `InvalidJob` naming what cannot be sent.

    The data of an encrypted job is encrypted with `keys`; raises `ConfigurationError` without.
    """
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
    if job.unique_rule is not None:
        lock, _ = job.unique_rule.lock(job, payload["job"], payload["data"], identity)
        add(payload, {"unique": lock.wire()})
    if job.track:
        track(payload, job.kept_for())
    if job.priority is not None:
        payload["priority"] = job.priority
    if job.expires is not None:
        payload["expiresAt"] = job.expiry()
    if job.tags:
        payload["tags"] = job.wire_tags()
    if job.secret_fields:
        add(payload, {secret.KEY: list(job.secret_fields)})
        if job.in_clear and payload["job"] not in _warned:
            _warned.add(payload["job"])
            log.warning(
                "%s has secrets (%s) that can be read in the backend: set encrypted = True, or "
                "False to say that this is meant",
                payload["job"],
                ", ".join(job.secret_fields),
            )
    if job.encrypted:
        payload["data"] = _sealed(payload, keys)
    return payload


_warned: set[str] = set()


def _sealed(payload: dict[str, Any], keys: Keyring | None) -> dict[str, str]:
    name = payload["job"]
    if keys is None:
        raise InvalidJob(f"{name} is encrypted: only a connection can build its payload")
    inside = {"displayName": payload["displayName"], "job": name, "data": payload["data"]}
    return keys.sealed(name, encode(inside))


def track(payload: dict[str, Any], seconds: float) -> None:
    """Have the status of a job kept, for so long after it was last written."""
    add(payload, {"track": seconds, "trackedSince": round(time.time(), 6)})


def add(payload: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add keys, before those that drivers look for at the end."""
    at_the_end = ("attempts", "delay")  # where drivers look for them
    last = {key: payload.pop(key) for key in at_the_end if key in payload}
    payload.update(more)
    payload.update(last)


def _uuid4() -> str:
    """Make a random uuid; several times faster than `uuid.uuid4`, which makes an object first."""
    text = os.urandom(16).hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


_END = b'"attempts":0,"delay":null}'
"""How the payload of a job ends that is about to be pushed."""


class Envelope:
    """A payload about to be pushed, and its bytes."""

    __slots__ = ("_payload", "lock", "raw", "uuid")

    def __init__(
        self, payload: dict[str, Any] | None, uuid: str = "", raw: bytes | None = None
    ) -> None:
        self._payload = payload
        self.uuid = uuid if payload is None else str(payload["uuid"])
        self.lock: object = None
        """The lock of a unique job, where it is known without reading the payload."""
        self.raw = encode(self.payload) if raw is None else raw

    @classmethod
    def of(cls, job: Queueable | Foreign, keys: Keyring | None = None) -> Envelope:
        """Build the payload of a job; raises `InvalidJob` naming what cannot be sent.

        What its class has in common is encoded once. `keys` are for an encrypted job.
        """
        if job.encrypted or job.secret_fields:
            return cls(create(job, keys))
        plain = not job.tags and job.expires is None and not job.track and job.priority is None
        if plain and job.retry_deadline() is None:
            try:
                return cls._alike(job)
            except (TypeError, ValueError, RecursionError):
                pass  # said better by what follows
        return cls(create(job))

    @classmethod
    def _alike(cls, job: Queueable | Foreign) -> Envelope:
        common = (
            job.shown_name(), job.wire_name(), job.tries, job.max_exceptions,
            bool(job.fail_on_timeout), job.wire_backoff(), job.timeout,
        )  # fmt: skip
        head = _heads.get(common)
        if head is None:
            head = _heads[common] = _head(*common)
        identity = _uuid4()
        fields = job.to_data()
        data = "".join(_encoded(fields, 0))
        more, lock = "", None
        if job.unique_rule is not None:
            lock, said = job.unique_rule.lock(job, common[1], fields, identity)
            more = f'"unique":{said},'
        text = (
            f'{{"uuid":"{identity}",{head},"data":{data},"createdAt":{int(time.time())},'
            f'"id":"{identity}",{more}'
        )
        envelope = cls(None, identity, text.encode() + _END)
        envelope.lock = lock
        return envelope

    @property
    def payload(self) -> dict[str, Any]:
        """The payload; what is changed in it is sent once it is encoded anew."""
        if self._payload is None:
            self._payload = parse(self.raw)
        return self._payload

    def add(self, more: Mapping[str, Any]) -> None:
        """Add keys to the payload and its bytes."""
        if self._payload is None and self.raw.endswith(_END):
            text = _ENCODER.encode(more)[1:-1].encode()
            self.raw = b"%b%b,%b" % (self.raw[: -len(_END)], text, _END)
        else:
            add(self.payload, more)
            self.encode()

    def encode(self) -> None:
        """Make the bytes anew, after the payload has changed."""
        self.raw = encode(self.payload)


_heads: dict[tuple[object, ...], str] = {}
_MOST_HEADS = 1000


def _head(
    shown: str,
    name: str,
    tries: int | None,
    max_exceptions: int | None,
    fails: bool,
    backoff: str | None,
    timeout: float | None,
) -> str:
    if len(_heads) >= _MOST_HEADS:  # a display name for each job
        _heads.clear()
    text = _ENCODER.encode(
        {
            "displayName": shown,
            "job": name,
            "maxTries": tries,
            "maxExceptions": max_exceptions,
            "failOnTimeout": fails,
            "backoff": backoff,
            "timeout": timeout,
            "retryUntil": None,
        }
    )
    return text[1:-1]


def encode(payload: dict[str, Any]) -> bytes:
    """Encode a payload as JSON bytes; raises `InvalidJob` where JSON or UTF-8 cannot carry it."""
    try:
        return "".join(_encoded(payload, 0)).encode()
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


def encoder(*, sort_keys: bool = False) -> Callable[[object, int], Iterable[str]]:
    """Give what `_ENCODER` makes anew for each call, where the interpreter has it."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        slow = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
        )
        return lambda value, _level: slow.iterencode(value)
    text = json.encoder.encode_basestring
    made: Callable[[object, int], Iterable[str]]
    made = make(None, _ENCODER.default, text, None, ":", ",", sort_keys, False, False)
    return made


_encoded = encoder()


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
