"""What is noted of a tracked job: built from its payload, by whoever moves it."""

from __future__ import annotations

import json
import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_jsonable_python

from qframe import host, payload, secret, timing
from qframe.contracts.status import JobStatus, Note, State
from qframe.exceptions import InvalidPayload
from qframe.names import printable

if TYPE_CHECKING:
    from datetime import timedelta

KEY = "track"
"""The payload's key: how many seconds a status is kept after it was last written."""
SINCE = "trackedSince"
"""The payload's key: the epoch time of the dispatch, more exactly than `createdAt`."""
LIFE = "retried"
"""The payload's key: how often the job was retried by hand."""
DEFAULT_TTL = 86400
"""Seconds a status is kept where nothing else was asked for."""
MAX_RESULT = 65_536
"""The longest result that is kept, in bytes of JSON."""
CANCEL = "cancel:"
"""What the key begins with under which a running job's worker is told to end it."""
MAX_TEXT = 500
WHILE_IT_WAITED = "cancelled while it waited"
_LONGEST_UUID = 200
_LONGEST_ERROR = 2000
_LONGEST = 10**9
_EVERY = 0.1
"""Seconds between two writes of a job's progress."""


class Tracking:
    """The notes of one reservation, or of a push."""

    # Of the class until they are said: a worker makes one of these for each tracked job.
    _attempt = 0
    _started: str | None = None
    _state: State | None = None
    _result: str | None = None
    _remark = ""
    _error: tuple[str, str] | None = None
    _said: str | None = None
    _pending: str | None = None
    _written = 0.0

    def __init__(self, message: dict[str, Any], uuid: str, ttl: float, queued: str) -> None:
        self.uuid = uuid
        self.ttl = ttl
        self.life = life_of(message) if LIFE in message else 0
        self.queued = queued

    # -- what happens ---------------------------------------------------------------------------

    def waiting(self, delay: float = 0) -> Note:
        """Note a push; a delay adds to the time it is kept."""
        return Note(
            self.uuid, self.life, 0, 0, State.WAITING, self.ttl + delay, self.queued, "", "", ""
        )

    def running(self, attempt: int) -> Note:
        """Note the start of an attempt."""
        self._attempt = attempt
        self._said = ""
        self._started = started = f'{{"at":{time.time()},"host":{_HOST},"pid":{host.pid()}}}'
        return Note(
            self.uuid, self.life, attempt, attempt, State.RUNNING, self.ttl, self.queued,
            started, "", "",
        )  # fmt: skip

    def ended(
        self, attempt: int, state: State, *, uncounted: bool = False, wait: float = 0
    ) -> Note:
        """Note what a settle does, with what was said of it before."""
        text = f'{{"at":{time.time()}'
        if self._remark or self._error is not None:
            text += f',"remark":{_json(self._remark)},"error":{_json(self._error)}'
        if state is State.COMPLETE and self._result is not None:
            text += f',"result":{self._result}'
        return Note(
            self.uuid, self.life, attempt, attempt - uncounted, state, self.ttl + wait, self.queued,
            self._started, text + "}", self._said,
        )  # fmt: skip

    @property
    def end(self) -> State:
        """What the deletion of the job means."""
        return self._state or State.COMPLETE

    # -- what is said of the end, before it ------------------------------------------------------

    def ends_as(self, state: State, remark: str) -> None:
        """Take the deletion that follows for another end than that of work done."""
        self._state = state
        self._remark = printable(remark, MAX_TEXT)

    def remark(self, text: str) -> None:
        """Say a word on the end."""
        self._remark = printable(text, MAX_TEXT)

    def error(self, error: BaseException | str) -> None:
        """Keep the error of the attempt; a text is `Type: message`."""
        if isinstance(error, str):
            kind, _, words = error.partition(": ")
        else:
            kind, words = type(error).__name__, _words(error)
        self._error = (printable(kind, 200), printable(words, _LONGEST_ERROR))

    def result(self, text: str, remark: str) -> None:
        """Keep what the job gave, as `as_json` says it."""
        self._result = text or None
        if remark:
            self.remark(remark)

    # -- progress -------------------------------------------------------------------------------

    def progress(self, done: float, text: str) -> Note | None:
        """Give the note of a progress; None where one was written a moment ago.

        What is held back comes with the next, with `held_back`, or with the end.
        """
        shown = {"done": done, "text": printable(text, MAX_TEXT)} if text else {"done": done}
        self._said = self._pending = _json(shown)
        return self.held_back()

    def held_back(self) -> Note | None:
        """Give the note of the last progress if it is not written and may be by now."""
        now = time.monotonic()
        if self._pending is None or now - self._written < _EVERY:
            return None
        self._written = now
        return Note(
            self.uuid, self.life, self._attempt, self._attempt, State.RUNNING, self.ttl,
            self.queued, progress=self._pending,
        )  # fmt: skip

    def wrote(self, note: Note) -> None:
        """The progress was written: nothing is held back unless another followed."""
        if self._pending == note.progress:
            self._pending = None


def of_push(raw: bytes, connection: str, queue: str) -> Tracking | None:
    """Give what is tracked of a payload about to be pushed; None where nothing is."""
    try:
        message = payload.parse(raw)
    except InvalidPayload:
        return None
    return of_payload(message, connection, queue)


def of_payload(message: dict[str, Any], connection: str, queue: str) -> Tracking | None:
    """Give what is tracked of a job, where its payload asks for it and names it."""
    ttl = message.get(KEY)
    if type(ttl) is not int or not 0 < ttl < _LONGEST:
        ttl = payload.number(message, KEY)
        if not ttl or ttl < 0:
            return None
    uuid = message.get("uuid")
    if not isinstance(uuid, str) or not 0 < len(uuid) <= _LONGEST_UUID:
        return None
    at = payload.number(message, SINCE) or payload.number(message, "createdAt")
    head = _queued(message.get("displayName"), message.get("job"), connection, queue)
    return Tracking(message, uuid, ttl, f"{head}null}}" if at is None else f"{head}{at}}}")


def cancelled(known: JobStatus) -> Note:
    """Note that a job of which only the status is known was removed while it waited."""
    return Note(
        known.uuid, known.retries, known.attempt, known.attempt, State.CANCELLED, DEFAULT_TTL, "",
        ended=_json({"at": time.time(), "remark": WHILE_IT_WAITED}),
    )  # fmt: skip


def seconds(track: bool | float | timedelta) -> float:
    """Give how long a status is kept; raises `ValueError` or `TypeError` for what is no time."""
    if track is True:
        return DEFAULT_TTL
    kept = timing.seconds_until(track, "track")
    if not kept:
        raise ValueError("track is how long the status is kept: more than 0 seconds, or True")
    return int(kept) if kept == int(kept) else kept


def life_of(message: dict[str, Any]) -> int:
    """Say how often a job was retried by hand."""
    return int(payload.number(message, LIFE) or 0)


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


def cancel_key(uuid: str) -> str:
    """Give the store's key by which the worker that runs a job is told to end it."""
    return f"{CANCEL}{uuid}"


def checked_progress(done: float, text: str) -> None:
    """Raise `ValueError` or `TypeError` where this is no progress."""
    if isinstance(done, bool) or not isinstance(done, int | float):
        raise TypeError(f"progress is a number from 0 to 1, not {type(done).__name__}")
    if not math.isfinite(done) or not 0 <= done <= 1:
        raise ValueError(f"progress is a number from 0 to 1, not {done}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is text, not {type(text).__name__}")


def _queued(name: object, job: object, connection: str, queue: str) -> str:
    return _head(str(name or ""), str(job), connection, queue)


@lru_cache(maxsize=1000)
def _head(name: str, job: str, connection: str, queue: str) -> str:
    shown = payload.display_name({"displayName": name, "job": job})
    return _json({"name": shown, "connection": connection, "queue": queue})[:-1] + ',"at":'


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (an exception's own __str__ may do anything)
        return ""


_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_HOST = json.dumps(host.NAME)
