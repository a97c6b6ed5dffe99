"""AttemptLog: notes of messages, and which of their reservations were attempts.

beanstalkd can keep neither.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Operation, Set, Step, Unset
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

T = TypeVar("T")

_KEPT = 30 * 86400.0
"""Seconds that an unremoved entry is kept, in addition to the delay of its message."""


class AttemptEntry(NamedTuple):
    """A message was started `attempts` times when its reservation number was `reserves`."""

    attempts: int
    reserves: int
    notes: bytes = b""

    def attempts_before(self, reserves: int) -> int:
        """Return how often the message was started before this reservation.

        Later reservations count as started. A restarted server may know of fewer reservations than
        the entry does; then only the entry's attempts count.
        """
        return self.attempts + max(0, reserves - self.reserves - 1)

    def to_text(self) -> str:
        return json.dumps([self.attempts, self.reserves, base64.b64encode(self.notes).decode()])

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Decode; None for any other text."""
        try:
            attempts, reserves, notes = json.loads(text or "")
            return cls(int(attempts), int(reserves), base64.b64decode(notes))
        except (ValueError, TypeError):
            return None


class AttemptLog:
    """The entries of a connection, kept as facts.

    If the facts' backend does not answer, jobs run all the same: then beanstalkd's own count is
    used, and a log record says so.
    """

    def __init__(self, connection: str, facts: Callable[[], Backend]) -> None:
        self._connection = connection
        self._facts = facts

    def read(self, number: int, raw: bytes) -> AttemptEntry | None:
        key = self._key(number, raw)
        (text,) = self._do(lambda facts: facts.read(key)) or [None]
        return AttemptEntry.from_text(text)

    def write(self, number: int, raw: bytes, entry: AttemptEntry, delay: float = 0) -> None:
        """Write the entry of a message, replacing any other."""
        self._apply(Set(self._key(number, raw), entry.to_text(), _KEPT + delay))

    def replace(
        self, number: int, raw: bytes, known: AttemptEntry | None, entry: AttemptEntry
    ) -> bool:
        """Write the entry of a message if it still is `known`."""
        key = self._key(number, raw)
        before = None if known is None else known.to_text()
        return self._apply(Expect(key, before), Set(key, entry.to_text(), _KEPT))

    def forget(self, number: int, raw: bytes) -> None:
        self._apply(Unset(self._key(number, raw)))

    def _key(self, number: int, raw: bytes) -> str:
        """Return a key with a digest of the message: a server without a log reuses its numbers."""
        digest = hashlib.blake2b(raw, digest_size=12).hexdigest()
        return f"beanstalkd:{self._connection[:120]}:{number}:{digest}"

    def _apply(self, *operations: Operation) -> bool:
        results = self._do(lambda facts: facts.apply(Step(None, *operations)))
        return bool(results) and results[0].applied

    def _do(self, act: Callable[[Backend], list[T]]) -> list[T]:
        try:
            return act(self._facts())
        except BackendUnavailable as error:
            text = "facts cannot be reached: attempts are counted as beanstalkd counts them"
            log.warning("%s: %s: %s", self._connection, text, error)
            return []
