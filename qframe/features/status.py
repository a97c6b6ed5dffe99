"""Statuses of tracked jobs: a fact that only moves forward, written whole at each move.

Its rank orders what is said of a job: first by how often it was retried by hand, then whether that
life has ended, then by the attempt. So what comes late never overwrites what is newer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from qframe.contracts.backend import Backend
from qframe.contracts.status import JobStatus, State
from qframe.contracts.step import Operation, Raise
from qframe.drivers import process
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope, secret
from qframe.payload.text import printable

MAX_RESULT = 65_536
"""The longest result that is kept, in bytes of JSON."""
MAX_TEXT = 500
RETRIED = "retried"
"""The payload's key: how often the job was retried by hand."""
SINCE = "trackedSince"
"""The payload's key: the epoch time of the dispatch, more exactly than `createdAt`."""
_LONGEST_UUID = 200
_LONGEST_ERROR = 2000
_LONGEST = 10**9
_EVERY = 0.1
"""Seconds between two writes of a job's progress."""
_LIFE = 1 << 34
_FINAL = 1 << 33
_MOST = 1 << 18


class Tracked(NamedTuple):
    """What a payload says of the status that is to be kept."""

    uuid: str
    seconds: float
    life: int
    queued_at: float | None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Tracked | None:
        """Read it; None where the payload does not ask for it, or names no job."""
        seconds = envelope.number(message, "track")
        uuid = envelope.text(message, "uuid")
        if not seconds or not 0 < seconds < _LONGEST:
            return None
        if uuid is None:
            return None
        since = envelope.number(message, SINCE) or envelope.number(message, "createdAt")
        return cls(uuid, seconds, life_of(message), since)


class _Attempt:
    """What is known of the attempt that runs here."""

    def __init__(self, started: dict[str, Any]) -> None:
        self.started = started
        self.progress: dict[str, Any] = {}
        self.unwritten = False
        self.written_at = 0.0


class StatusFeature(Feature):
    """Writes the status of a tracked job in the steps that move it."""

    key: ClassVar[str] = "track"
    waits: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Say that the job waits."""
        tracked = Tracked.of(job.message)
        if tracked is not None:
            what = _named(job.message, context.connection, job.queue, tracked)
            ttl = tracked.seconds + job.delay
            plan.add(_write(tracked, State.WAITING, 0, ttl, {**what, "attempt": 0}))

    def start(self, job: ReservedJob, plan: Plan) -> None:
        """Say that it runs: in this step where that costs no exchange, else while it runs on."""
        tracked = Tracked.of(job.payload)
        if tracked is None:
            return
        attempt = job.kept[self.key] = _Attempt(
            {"started_at": time.time(), "host": process.NAME, "pid": process.pid()}
        )
        attempt.unwritten = not job.context.joint
        if job.context.joint:
            plan.add(_running(job, tracked, attempt, job.attempts() + 1))

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Say how the reservation ended."""
        tracked = Tracked.of(job.payload)
        if tracked is None or (end.state is State.WAITING and not job.reservation.started):
            return
        attempts = job.attempts()
        taken_back = end.state is State.WAITING or (job.reservation.started and not end.ran)
        what = _named(job.payload, job.connection_name, job.queue, tracked)
        attempt = job.kept.get(self.key)
        if attempt is not None:
            what |= attempt.started | attempt.progress
        what |= {"attempt": attempts - taken_back, "ended_at": time.time(), **_ended(end)}
        ttl = tracked.seconds + end.delay
        plan.add(_write(tracked, end.state, attempts, ttl, what))

    def progress(self, job: ReservedJob, done: float, text: str) -> None:
        """Write a progress, unless one was written a moment ago: then with what follows."""
        attempt = job.kept.get(self.key)
        if attempt is None:
            return
        attempt.progress = {"progress": done}
        if text:
            attempt.progress["message"] = printable(text, MAX_TEXT)
        attempt.unwritten = True
        if time.monotonic() - attempt.written_at >= _EVERY:
            job.look()

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Write what is not written so far of an attempt that runs."""
        tracked, attempt = Tracked.of(job.payload), job.kept.get(self.key)
        if tracked is None or attempt is None or not attempt.unwritten:
            return ()
        attempt.unwritten = False
        attempt.written_at = time.monotonic()
        return (_running(job, tracked, attempt, job.attempts()),)


def read(backend: Backend, uuid: str) -> JobStatus | None:
    """Give the status of a job, or None where there is none."""
    if not 0 < len(uuid) <= _LONGEST_UUID:
        return None
    (text,) = backend.read(_key(uuid))
    return None if text is None else JobStatus.from_dict(uuid, json.loads(text))


def life_of(message: Mapping[str, Any]) -> int:
    """Say how often a job was retried by hand."""
    life = envelope.number(message, RETRIED) or 0
    return int(min(max(0, life), _MOST))


def cancel_key(uuid: str) -> str:
    """Give the fact by which the worker that runs a job is told to end it."""
    return f"cancel:{uuid}"


class Encoded(NamedTuple):
    """What a job gave as JSON, or "" and why it is not kept."""

    text: str
    remark: str


def as_json(result: object) -> Encoded:
    """Encode what a job gave, unless that has been done."""
    if isinstance(result, Encoded):
        return result
    try:
        plain = to_jsonable_python(result, inf_nan_mode="constants", fallback=secret.shown)
        text = _json(plain)
    except Exception:  # noqa: BLE001 (a result may be anything, and raise anything)
        return Encoded("", f"the result is a {type(result).__name__}, which JSON cannot carry")
    if len(text) > MAX_RESULT:
        too_long = f"the result has {len(text):,} bytes of JSON, more than {MAX_RESULT:,}"
        return Encoded("", too_long)
    return Encoded(text, "")


# -- what is written ------------------------------------------------------------------------------


def _key(uuid: str) -> str:
    return f"status:{uuid}"


def _write(
    tracked: Tracked, state: State, attempt: int, ttl: float, what: Mapping[str, Any]
) -> Raise:
    rank = tracked.life * _LIFE + (_FINAL if state.is_final else 0) + min(attempt, _FINAL - 1)
    return Raise(_key(tracked.uuid), rank, _encoded({"state": state.value, **what}), ttl)


def _encoded(what: Mapping[str, Any]) -> str:
    """Encode a status, twice for each tracked job: by `json` it costs 20 us more, of some 120."""
    try:
        return to_json(what).decode()
    except PydanticSerializationError:  # a result with half a character
        return _json(what)


def _running(job: ReservedJob, tracked: Tracked, attempt: _Attempt, number: int) -> Raise:
    what = _named(job.payload, job.connection_name, job.queue, tracked)
    what |= {"attempt": number, **attempt.started, **attempt.progress}
    return _write(tracked, State.RUNNING, number, tracked.seconds, what)


def _named(
    message: Mapping[str, Any], connection: str, queue: str, tracked: Tracked
) -> dict[str, Any]:
    return {
        "name": envelope.display_name(message),
        "connection": connection,
        "queue": queue,
        "queued_at": tracked.queued_at,
        "retries": tracked.life,
    }


def _ended(end: End) -> dict[str, Any]:
    """Say what ended it, and what came of it."""
    said: dict[str, Any] = {}
    remark = end.remark
    if end.error is not None:
        said["exception"] = _error(end.error)
    if end.state is State.COMPLETE and end.result is not None:
        text, why_not = as_json(end.result)
        remark = remark or why_not
        if text:
            said["result"] = json.loads(text)
    if remark:
        said["remark"] = printable(remark, MAX_TEXT)
    return said


def _error(error: BaseException | str) -> dict[str, str]:
    if isinstance(error, str):
        kind, _, words = error.partition(": ")
    else:
        kind, words = type(error).__name__, _words(error)
    return {"type": printable(kind, 200), "message": printable(words, _LONGEST_ERROR)}


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (an exception's own __str__ may do anything)
        return ""


_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
