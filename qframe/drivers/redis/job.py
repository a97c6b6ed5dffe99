"""RedisJob: a message in a `:reserved` set that this process holds the lease of."""

from __future__ import annotations

from typing import Any

from qframe.contracts.step import Reservation
from qframe.drivers.redis import message
from qframe.drivers.redis.keys import QueueKeys

State = tuple[bytes, bytes, bytes, bytes, bytes, bool, float, float, int, int]


class RedisJob(Reservation):
    """One reserved message (Laravel's RedisJob).

    While it is held, its bytes and its score in the set are the fence. Once it is started, its
    bytes alone are: each start changes them, and any other holder has them with a score of a hold.
    """

    __slots__ = (
        "_begun",
        "at",
        "beside",
        "in_doubt",
        "in_flight",
        "keys",
        "note",
        "score",
        "stored",
        "tag",
    )  # fmt: skip

    def __init__(self, keys: QueueKeys, stored: bytes, score: bytes, notes: bytes) -> None:
        raw, id, attempts, self.tag, self.at, self.beside, left = message.read(stored, notes)  # noqa: A001 (the contract's name)
        super().__init__(keys.queue, id, raw, attempts, left)
        self.keys = keys
        self.stored = stored
        self.score = score
        """Its score while it is held; b"" once it is started."""
        self.note = keys.notes + self.tag if notes else b""
        """The key of its notes; b"" if it has none."""
        self.in_flight: Any = None
        """Its start, while that is sent but unanswered."""
        self.in_doubt = False
        """Whether it may have been settled without an answer."""
        self._begun = (b"", b"")

    @property
    def fence(self) -> bytes:
        return b"%s %s" % (self.queue.encode(), self.stored)

    def begun(self) -> tuple[bytes, bytes]:
        """Return the stored bytes after a start, and their tag; the same on each call."""
        if not self._begun[0]:
            self._begun = message.counted(
                self.raw_body, self.at, self.beside, self.attempts + 1, message.new_tag()
            )
        return self._begun

    def state(self) -> State:
        """Return what `start` changes, for `restore`."""
        return (
            self.stored, self.score, self.tag, self.note, self.notes, self.started, self.lease,
            self.sure_until, self.beside, self.attempts,
        )  # fmt: skip

    def restore(self, state: State) -> None:
        """Undo `start`: the server did not apply it."""
        (
            self.stored, self.score, self.tag, self.note, self.notes, self.started, self.lease,
            self.sure_until, self.beside, self.attempts,
        ) = state  # fmt: skip

    def start(self, note: bytes, notes: bytes, lease: float) -> None:
        """Apply a start, as prepared by `begun`."""
        self.stored, self.tag = self._begun
        self.score = b""
        self.note = note
        self.notes = notes
        self.started = True
        self.lease = lease
        self.attempts += 1
        self.beside += self.at < 0
