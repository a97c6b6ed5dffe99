"""AttemptLog: notes of messages, and which deliveries were attempts, as facts.

For servers that only count deliveries.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self, TypeVar

from qframe.contracts.backend import Backend
from qframe.contracts.step import Expect, Operation, Set, Step, Unset
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

T = TypeVar("T")

_KEPT = 30 * 86400.0
"""Seconds that an unremoved entry is kept, in addition to the delay of its message."""
_KEPT_ENDED = 86400.0
"""Seconds that a message is known to have ended, and is dropped if it comes again."""


class AttemptEntry(NamedTuple):
    """A message was started `attempts` times when it had been delivered `deliveries` times."""

    attempts: int
    deliveries: int
    notes: bytes = b""
    ended: bool = False
    """Whether the message is done or was replaced by a copy: drop it if it comes again."""
    by: str = ""
    """The delivery that wrote it, among those of a message that was published twice."""

    def attempts_before(self, deliveries: int) -> int:
        """Return how often the message was started before this delivery.

        Later deliveries count as started. A restarted server may know of fewer deliveries than
        the entry does; then only the entry's attempts count.
        """
        return self.attempts + max(0, deliveries - self.deliveries - 1)

    def to_text(self) -> str:
        more = [self.ended, self.by] if self.by else [True] if self.ended else []
        notes = base64.b64encode(self.notes).decode()
        return json.dumps([self.attempts, self.deliveries, notes, *more])

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Decode; None for any other text."""
        try:
            attempts, deliveries, notes, *more = json.loads(text or "")
            ended = bool(more and more[0])
            by = str(more[1]) if more[1:] else ""
            return cls(int(attempts), int(deliveries), base64.b64decode(notes), ended, by)
        except (ValueError, TypeError):
            return None


class AttemptLog:
    """The entries of a connection, kept as facts, by the ids of their messages.

    If the facts' backend does not answer, jobs run all the same: then the server's own count is
    used, and a log record says so. `prefix` begins all keys; it has at most 140 characters, as an
    id has at most 100.
    """

    def __init__(self, prefix: str, facts: Callable[[], Backend]) -> None:
        self._prefix = prefix
        self._facts = facts

    def read(self, id: str) -> AttemptEntry | None:  # noqa: A002 (as the contract calls it)
        return (self.look(id) or [None])[0]

    def look(self, id: str) -> list[AttemptEntry | None]:  # noqa: A002 (as above)
        """Return the entry of a message (None: it has none); an empty list without an answer."""
        return [
            AttemptEntry.from_text(each)
            for each in self._do(lambda facts: facts.read(self.key(id)))
        ]

    def write(self, id: str, entry: AttemptEntry, delay: float = 0) -> None:  # noqa: A002
        """Write the entry of a message, replacing any other."""
        self._apply(Set(self.key(id), entry.to_text(), _KEPT + delay))

    def replace(self, id: str, known: AttemptEntry | None, entry: AttemptEntry) -> bool | None:  # noqa: A002
        """Write the entry of a message if it still is `known`. Returns whether; None: no answer."""
        return self._apply(*self.replacing(id, known, entry))

    def replacing(
        self,
        id: str,  # noqa: A002
        known: AttemptEntry | None,
        entry: AttemptEntry,
    ) -> tuple[Operation, ...]:
        """Return the operations that write the entry of a message if it still is `known`."""
        before = None if known is None else known.to_text()
        ttl = _KEPT_ENDED if entry.ended else _KEPT
        return Expect(self.key(id), before), Set(self.key(id), entry.to_text(), ttl)

    def forget(self, ids: Iterable[str]) -> None:
        """Remove the entries of messages."""
        steps = [Step(None, Unset(self.key(id))) for id in ids]  # noqa: A001 (as above)
        if steps:
            self._do(lambda facts: facts.apply(*steps))

    def key(self, id: str) -> str:  # noqa: A002
        return f"{self._prefix}:{id}"

    def _apply(self, *operations: Operation) -> bool | None:
        results = self._do(lambda facts: facts.apply(Step(None, *operations)))
        return results[0].applied if results else None

    def _do(self, act: Callable[[Backend], list[T]]) -> list[T]:
        try:
            return act(self._facts())
        except BackendUnavailable as error:
            text = "facts cannot be reached: attempts are counted as the server counts deliveries"
            log.warning("%s: %s: %s", self._prefix, text, error)
            return []
