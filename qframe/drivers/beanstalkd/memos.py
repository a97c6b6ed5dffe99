"""What beanstalkd cannot keep of a job: which reservations were attempts, and how they ended."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeVar

from qframe import host
from qframe.contracts import History, Store
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

T = TypeVar("T")

_KEPT = 30 * 86400.0
"""Seconds a memo is kept, beside the delay of its job, should nobody remove it."""


@dataclass(frozen=True, slots=True)
class Memo:
    """What is noted of one job: started `attempts` times when the server had counted `reserves`.

    `failed` is the uuid of the record of one that was buried as failed: kicked, it begins anew. It
    may be true alone: then the uuid is the job's.
    """

    attempts: int
    reserves: int
    history: History = field(default_factory=History)
    failed: str | bool = False

    def attempts_before(self, reserves: int) -> int:
        """Give how often the job was started before the reservation that is number `reserves`.

        What was reserved since counts as started. A server that was restarted may know of fewer
        reservations than the memo: then the memo's attempts are all there is to go by.
        """
        return self.attempts + max(0, reserves - self.reserves - 1)

    def is_ended(self, reserves: int) -> bool:
        """Whether it says how the attempt of the reservation with this number ended."""
        ran = self.history.attempts
        return self.reserves >= reserves and bool(ran) and bool(ran[-1].ended)

    def to_json(self) -> str:
        """Encode for the store."""
        history = self.history.to_json()
        return json.dumps([self.attempts, self.reserves, self.failed, history])

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Decode; None for what is no memo."""
        try:
            attempts, reserves, failed, history = json.loads(text)
            failed = failed if isinstance(failed, str) else bool(failed)
            return cls(int(attempts), int(reserves), History.from_json(history), failed)
        except (ValueError, TypeError):
            return None


class LeftJob(NamedTuple):
    """What names a started job to whoever finds its worker dead; `history` is JSON text."""

    number: int
    uuid: str
    reserves: int
    attempts: int
    pid: int
    began: float
    history: str

    def ticket(self) -> bytes:
        """Encode it."""
        return json.dumps(self).encode()

    @classmethod
    def read(cls, ticket: bytes) -> Self:
        """Decode it."""
        return cls(*json.loads(ticket))


class Memos:
    """The memos of a connection, in its store.

    A store that does not answer must not keep jobs from being worked: then what is known is what
    beanstalkd counts, and the log says so.
    """

    def __init__(self, connection: str, store: Callable[[], Store | None]) -> None:
        self._connection = connection
        self._store = store

    def explain(self, left: LeftJob, how: str, error: str) -> bool:
        """Note how an attempt ended whose worker is dead; False where more is known already."""
        memo = self.read(left.number, left.uuid)
        if memo is not None and (memo.reserves > left.reserves or memo.is_ended(left.reserves)):
            return False
        began = History.from_json(left.history).started(
            left.attempts, host.NAME, left.pid, left.began
        )
        memo = Memo(left.attempts, left.reserves, began.ended(how, error))
        self.write(left.number, left.uuid, memo)
        return True

    def read(self, number: int, uuid: str) -> Memo | None:
        """Give what was noted of a job."""
        (text,) = self._do(lambda store: store.get(self._key("job", uuid, number))) or [None]
        return None if text is None else Memo.from_json(text)

    def write(self, number: int, uuid: str, memo: Memo, delay: float = 0) -> None:
        """Note of a job, in place of what there was."""
        key = self._key("job", uuid, number)
        self._do(lambda store: store.set(key, memo.to_json(), _KEPT + delay))

    def forget(self, number: int, uuid: str) -> None:
        """Remove what was noted of a job that is gone."""
        self._do(lambda store: store.delete(self._key("job", uuid, number)))

    def buried(self, uuid: str) -> int:
        """Give the number of the job that was buried when it failed; 0 where none is known."""
        (text,) = self._do(lambda store: store.get(self._key("buried", uuid))) or [None]
        return int(text) if text is not None and text.isdecimal() else 0

    def has_buried(self, number: int, uuid: str) -> None:
        """Note the number of a job that is buried because it failed."""
        self._do(lambda store: store.set(self._key("buried", uuid), str(number)))

    def has_dug_up(self, uuid: str) -> None:
        """Remove that note."""
        self._do(lambda store: store.delete(self._key("buried", uuid)))

    def _key(self, what: str, uuid: str, number: int = 0) -> str:
        """Give a key of bounded length; the same uuid may have been pushed twice."""
        named = hashlib.blake2b(uuid.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return f"beanstalkd:{what}:{self._connection}:{named}" + (f":{number}" if number else "")

    def _do(self, act: Callable[[Store], T]) -> T | None:
        try:
            store = self._store()
            return None if store is None else act(store)
        except BackendUnavailable as error:
            log.warning(
                "%s: the store does not answer: attempts are counted as beanstalkd counts them: %s",
                self._connection,
                error,
            )
            return None
