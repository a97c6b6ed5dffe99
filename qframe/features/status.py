"""Statuses of tracked jobs: a fact that only moves forward, rewritten at each step.

Its rank orders the updates: first by how often the job was retried by hand, then by whether that
life has ended, then by attempt. So a late update never overwrites a newer one.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from pydantic_core import to_jsonable_python

from qframe.contracts.backend import Backend
from qframe.contracts.status import MOST_LINES, JobStatus, State
from qframe.contracts.step import Operation, Raise
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.jobs import logged
from qframe.models import keys, kinds
from qframe.payload import envelope, secret, tags
from qframe.payload.text import printable

MAX_RESULT = 65_536
"""The largest result to keep, in bytes of JSON."""
MAX_TEXT = 500
MAX_LOG = 65_536
"""The largest log to keep, in bytes of JSON; the oldest lines are dropped."""
LOG = "keepLog"
"""Payload key: how many log lines of the job to keep."""
RETRIED = "retried"
"""Payload key: how often the job was retried by hand."""
SINCE = "trackedSince"
"""Payload key: the epoch time of the dispatch, more exact than `createdAt`."""
_LONGEST_UUID = 200
_LONGEST_NOTED = 100
_LONGEST_ERROR = 2000
_LONGEST = 10**9
_EVERY = 0.1
"""Seconds between two writes of a job's progress."""
_LIFE = 1 << 34
_FINAL = 1 << 33
_MOST = 1 << 18


class Tracked:
    """A tracked job, and the attempt that runs here."""

    __slots__ = (
        "attempt",
        "life",
        "log",
        "named",
        "progress",
        "seconds",
        "unwritten",
        "uuid",
        "written_at",
    )

    def __init__(self, uuid: str, seconds: float, life: int, named: str) -> None:
        self.uuid = uuid
        self.seconds = seconds
        self.life = life
        self.named = named
        """The JSON that all its statuses share; each text is put together from parts."""
        self.attempt = ""
        """JSON of when and where it was started; "" unless it was started here."""
        self.progress = ""
        self.log: deque[str] | None = None
        """The last log lines; None if they are not kept."""
        self.unwritten = False
        self.written_at = 0.0

    @classmethod
    def of(cls, message: Mapping[str, Any], connection: str, queue: str) -> Tracked | None:
        """Read a payload; None if it does not ask for a status, or has no uuid."""
        seconds = envelope.number(message, "track")
        uuid = envelope.uuid(message)
        if not seconds or not 0 < seconds < _LONGEST or uuid is None:
            return None
        since = envelope.number(message, SINCE) or envelope.number(message, "createdAt")
        life = life_of(message)
        named = (
            f'{{"name":{_quoted(envelope.display_name(message))},'
            f'"connection":{_quoted(connection)},"queue":{_quoted(queue)},'
            f'"queued_at":{"null" if since is None else repr(since)},"retries":{life}'
        )
        if found := tags.read(message):
            named += f',"tags":{_json(found)}'
        made = cls(uuid, seconds, life, named)
        lines = envelope.number(message, LOG)
        if lines and lines >= 1:
            made.log = deque(maxlen=int(min(lines, MOST_LINES)))
        return made

    def write(self, state: State, attempt: int, ttl: float, more: str = "") -> Raise:
        """Return the operation that writes a status.

        `attempt` is its rank, `more` additional JSON.
        """
        rank = rank_of(self.life, state, attempt)
        text = (
            f'{self.named}{self.attempt}{self.progress}{_log(self.log)}{more},"state":"{state}"}}'
        )
        return Raise(f"status:{self.uuid}", rank, text, ttl)

    def running(self, number: int) -> Raise:
        """Return the operation for a running attempt."""
        return self.write(State.RUNNING, number, self.seconds, f',"attempt":{number}')


def rank_of(life: int, state: State, attempt: int) -> int:
    return life * _LIFE + (_FINAL if state.is_final else 0) + min(attempt, _FINAL - 1)


class StatusFeature(Feature):
    """Writes the status of a tracked job in the steps that move it."""

    key: ClassVar[str] = "track"
    waits: ClassVar[bool] = True
    keeps_result: ClassVar[bool] = True

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        tracked = Tracked.of(job.message, context.connection, job.queue)
        if tracked is not None:
            ttl = tracked.seconds + job.delay
            waits = tracked.write(State.WAITING, 0, ttl, ',"attempt":0')
            plan.add(context.once_pushed(waits))

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        key = key_of(envelope.uuid(job.message) or "")
        return () if key is None else (key,)

    def start(self, job: ReservedJob, plan: Plan) -> None:
        """Note when and where it starts; `look` writes it if the job runs on.

        Nobody would see it of a short job, and it would be a third of the cost of tracking.
        """
        tracked = _tracked(job)
        if tracked is not None:
            tracked.attempt = (
                f',"started_at":{time.time():.6f},"host":{_HOST},"pid":{process.pid()}'
            )
            tracked.unwritten = True
            if tracked.log is not None:
                logged.capture()
                if job.attempts():
                    _remember(job, tracked)

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        tracked = _tracked(job)
        started = job.reservation.started
        if tracked is None or end.is_repeated:
            return
        if end.state is State.WAITING and not (started or end.set_aside):
            return
        attempts = job.attempts()
        if attempts and not tracked.attempt:  # it was started in another process
            _remember(job, tracked)
        taken_back = started and (end.state is State.WAITING or not end.ran)
        more = f',"attempt":{attempts - taken_back},"ended_at":{time.time():.6f}{_ended(end)}'
        plan.add(tracked.write(end.state, attempts, tracked.seconds + end.delay, more))

    def progress(self, job: ReservedJob, done: float, text: str) -> None:
        """Write the progress, or after a recent write leave it to the next one."""
        tracked = _tracked(job)
        if tracked is None or not tracked.attempt:
            return
        message = {"message": printable(text, MAX_TEXT)} if text else {}
        tracked.progress = _also({"progress": done, **message})
        tracked.unwritten = True
        if time.monotonic() - tracked.written_at >= _EVERY:
            job.look()

    def log(self, job: ReservedJob, line: str) -> None:
        """Keep a log line; the next write includes it."""
        tracked = _tracked(job)
        if tracked is not None and tracked.log is not None:
            tracked.log.append(f"#{job.attempts()} {line}")
            tracked.unwritten = True

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Write what is unwritten of a running attempt."""
        tracked = _tracked(job)
        if tracked is None or not tracked.unwritten:
            return ()
        tracked.unwritten = False
        tracked.written_at = time.monotonic()
        return (tracked.running(job.attempts()),)


def _remember(job: ReservedJob, tracked: Tracked) -> None:
    """Take over the lines of earlier attempts."""
    if tracked.log is None or tracked.log:
        return
    with suppress(BackendUnavailable):
        before = read(job.context.backend, tracked.uuid)
        tracked.log.extend(() if before is None else before.log)


def _log(lines: deque[str] | None) -> str:
    """Return the last lines as JSON, as many as there is room for."""
    if not lines:
        return ""
    left, kept = MAX_LOG, list[str]()
    for line in reversed(lines.copy()):
        text = _quoted(line)
        left -= len(text) + 1
        if left < 0:
            break
        kept.append(text)
    return f',"log":[{",".join(reversed(kept))}]'


def _tracked(job: ReservedJob) -> Tracked | None:
    return job.read_once(
        StatusFeature.key, lambda: Tracked.of(job.payload, job.connection_name, job.queue)
    )


def read(backend: Backend, uuid: str) -> JobStatus | None:
    key = key_of(uuid)
    return None if key is None else read_as(uuid, *backend.read(key))


def key_of(uuid: str) -> str | None:
    """Return the key of a job's status; None if its uuid cannot have one."""
    return f"status:{uuid}" if 0 < len(uuid) <= _LONGEST_UUID else None


def read_as(uuid: str, text: str | None) -> JobStatus | None:
    return None if text is None else JobStatus.from_dict(uuid, json.loads(text))


def life_of(message: Mapping[str, Any]) -> int:
    """Return how often a job was retried by hand."""
    life = envelope.number(message, RETRIED)
    return int(min(max(0, life), _MOST)) if life else 0


def cancelled_key(connection: str, uuid: str = "") -> str:
    """Return the key that tells workers not to start a job; without a uuid, what all begin with."""
    return f"cancelled:{connection[:120]}:{uuid}"


def may_be_noted(uuid: str) -> bool:
    """Whether a job with this uuid can be noted under such a key."""
    return 0 < len(uuid) <= _LONGEST_NOTED


def last_cancelled_key(connection: str) -> str:
    """Return the key whose value is another one after each such note."""
    return f"last-cancelled:{connection[:120]}"


def cancel_key(uuid: str) -> str:
    """Return the key that requests the worker of a job to end it."""
    return f"cancel:{uuid}"


class Encoded(NamedTuple):
    """The JSON of a job's result; "" and the reason if it is not kept."""

    text: str
    remark: str


def as_json(result: object) -> Encoded:
    """Encode a job's result, unless it is encoded already."""
    if isinstance(result, Encoded):
        return result
    try:
        if result is not None and kinds.has_any():
            result = keys.written(result)
        plain = to_jsonable_python(result, inf_nan_mode="constants", fallback=secret.shown)
        text = _json(plain)
    except Exception:  # noqa: BLE001 (a result may be anything, and raise anything)
        return Encoded("", f"the result is a {type(result).__name__}, which JSON cannot carry")
    if len(text) > MAX_RESULT:
        too_long = f"the result has {len(text):,} bytes of JSON, more than {MAX_RESULT:,}"
        return Encoded("", too_long)
    return Encoded(text, "")


# -- the end of an attempt ------------------------------------------------------------------------


def _ended(end: End) -> str:
    """Return the JSON of what ended it, and of its result."""
    if end.error is None and end.result is None and not end.remark:
        return ""
    fields: dict[str, Any] = {}
    result, remark = "", end.remark
    if end.error is not None:
        fields["exception"] = _error(end.error)
    if end.state is State.COMPLETE and end.result is not None:
        result, why_not = as_json(end.result)
        remark = remark or why_not
    if remark:
        fields["remark"] = printable(remark, MAX_TEXT)
    return _also(fields) + (f',"result":{result}' if result else "")


def _also(fields: Mapping[str, Any]) -> str:
    """Return fields as a part of JSON."""
    return f",{_json(fields)[1:-1]}" if fields else ""


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
_quoted = json.encoder.encode_basestring_ascii
_HOST = _quoted(process.NAME)
