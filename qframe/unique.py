"""What makes a job unique or debounced: its class's rule, and the lock that its payload names."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from qframe import payload, timing
from qframe.contracts import Store
from qframe.exceptions import BackendUnavailable, InvalidJob, InvalidPayload, JobDefinitionError
from qframe.names import one_line

if TYPE_CHECKING:
    from qframe.queueable import Queueable

KEY = "unique"
"""The payload's key: which lock the job has, for how long, and until when in its life."""
HANDLED = "handled"
"""The lock is freed at the job's final end."""
STARTED = "started"
"""It is freed when the job starts for the first time."""
REPLACED = "replaced"
"""It is no lock but names the last dispatch: an earlier one that comes up is skipped."""
DEFAULT_FOR = 3600
"""Seconds a lock lasts where nothing else was asked for."""

_LONGEST_NAME = 80
_LONGEST_KEY = 200
_TRIES = 5
_sorted = payload.encoder(sort_keys=True)


class Lock(NamedTuple):
    """The lock of one job, as its payload names it; its value is the job's uuid."""

    key: str
    """The store's key."""
    uuid: str
    seconds: float
    until: str

    @classmethod
    def of(cls, envelope: payload.Envelope) -> Lock | None:
        """Give the lock of a job about to be pushed."""
        lock = envelope.lock
        return lock if isinstance(lock, cls) else of_payload(envelope.payload)

    def wire(self) -> dict[str, Any]:
        """Give what a payload says of it."""
        return {"key": self.key, "for": self.seconds, "until": self.until}

    @property
    def is_token(self) -> bool:
        """Whether it only names the last dispatch."""
        return self.until == REPLACED

    def take(self, store: Store, delay: float = 0) -> str:
        """Take the lock in its store; gives "", or the uuid of the job that has it already.

        That may be this one, where a push is said again.
        """
        for _ in range(_TRIES):
            if store.swap({self.key: (None, self.uuid)}, self.seconds + delay):
                return ""
            (holder,) = store.get(self.key)
            if holder is not None:
                return holder
        raise BackendUnavailable(f"{self.key} is taken and freed again and again")

    def prolong(self, store: Store) -> bool:
        """Let it last `seconds` from now; says whether it still was this job's."""
        return store.swap({self.key: (self.uuid, self.uuid)}, self.seconds)

    def free(self, store: Store) -> None:
        """Free it if it is this job's."""
        store.delete(self.key, self.uuid)


class Rule:
    """What a job class declares, looked up once."""

    __slots__ = ("_begun", "delay", "seconds", "until")

    def __init__(self, seconds: float, until: str, delay: float = 0.0) -> None:
        self.seconds = seconds
        self.until = until
        self.delay = delay
        """How long a dispatch waits for a later one; 0 where it does not."""
        self._begun: tuple[str, str, Any, str, str] | None = None

    def lock(self, job: Queueable, name: str, data: object, uuid: str) -> tuple[Lock, str]:
        """Give the lock of a job about to be pushed, and what its payload says of it, as JSON.

        Raises `InvalidJob` for an id that is none.
        """
        begun = self._begun
        if begun is None or begun[0] != name:
            begun = self._begun = self._begin(name)
        _, start, begun_hash, head, tail = begun
        digest = begun_hash.copy()
        digest.update(_identity(job, data).encode())
        end = digest.hexdigest()
        return Lock(start + end, uuid, self.seconds, self.until), f"{head}{end}{tail}"

    def _begin(self, name: str) -> tuple[str, str, Any, str, str]:
        """Make what the locks of all jobs of the class have in common."""
        start = f"{'debounce' if self.delay else 'unique'}:{name[-_LONGEST_NAME:]}:"
        said = Lock(start, "", self.seconds, self.until).wire()
        head, _, tail = payload.encode(said).decode().partition('","for"')
        begun = hashlib.blake2b(f"{name}\n".encode(), digest_size=16)
        return name, start, begun, head, f'","for"{tail}'


def _identity(job: Queueable, data: object) -> str:
    """Say which job it is among those of its class."""
    given = type(job).unique_id
    if given is None:
        return "=" + "".join(_sorted(data, 0))
    if callable(given):
        given = given(job)
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise InvalidJob(
            f"{type(job).__name__}.unique_id must give a text or a whole number, not "
            f"{one_line(repr(given), 60)}"
        )
    return f":{given}"


def rule_of(cls: type[Queueable]) -> Rule | None:
    """Give what a class declares; raises `JobDefinitionError` for what does not go together."""
    if cls.unique and cls.debounce is not None:
        raise JobDefinitionError(
            f"{cls.__name__}: unique and debounce do not go together: of unique jobs the first "
            "dispatch wins, of debounced ones the last"
        )
    if cls.debounce is not None:
        delay = _seconds(cls.debounce)
        return Rule(max(10 * delay, DEFAULT_FOR), REPLACED, delay)
    if cls.unique:
        return Rule(_seconds(cls.unique_for), cls.unique_until)
    for option in ("unique_id", "unique_for", "unique_until"):
        if option in vars(cls) and cls.is_runnable():
            raise JobDefinitionError(
                f"{cls.__name__}.{option} does nothing without unique = True, or debounce"
            )
    return None


def _seconds(value: float | timedelta) -> float:
    seconds = timing.seconds_until(value)
    return int(seconds) if seconds == int(seconds) else seconds


def of_payload(message: dict[str, Any]) -> Lock | None:
    """Give the lock that a payload names; None where it names none that could be a job's."""
    said = message.get(KEY)
    uuid = message.get("uuid")
    if not isinstance(said, dict) or not isinstance(uuid, str) or not uuid:
        return None
    key, until, seconds = said.get("key"), said.get("until"), payload.number(said, "for")
    head = "debounce:" if until == REPLACED else "unique:"
    if not isinstance(key, str) or not key.startswith(head) or len(key) > _LONGEST_KEY:
        return None
    if until not in {HANDLED, STARTED, REPLACED} or not seconds or seconds < 0:
        return None
    return Lock(key, uuid, seconds, until)


def of_raw(raw: bytes) -> Lock | None:
    """Give the lock that payload bytes name."""
    if b'"unique"' not in raw:
        return None
    try:
        return of_payload(payload.parse(raw))
    except InvalidPayload:
        return None
