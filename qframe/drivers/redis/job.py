"""RedisJob: a message in a `:reserved` set that this process holds the lease of."""

from __future__ import annotations

import base64
from typing import Any

from qframe.contracts.step import Release, Reservation
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
        "in_flight",
        "keys",
        "level",
        "note",
        "score",
        "stored",
        "tag",
    )  # fmt: skip

    def __init__(self, keys: QueueKeys, stored: bytes, score: bytes, notes: bytes) -> None:
        raw, id, attempts, self.tag, self.at, self.beside, left = message.read(stored, notes)  # noqa: A001 (the contract's name)
        super().__init__(keys.queue, id, raw, attempts, left)
        self.keys = keys
        self.level = b""
        """The end of its bytes that says its priority, behind the white space `tag`."""
        if stored[-16:-15] == b"\r":
            self.level = message.level_in(stored)
            self.tag = self.tag.removesuffix(self.level)
        self.stored = stored
        self.score = score
        """Its score while it is held; b"" once it is started."""
        self.note = keys.notes + self.tag if notes else b""
        """The key of its notes; b"" if it has none."""
        self.in_flight: Any = None
        """Its start, while that is sent but unanswered."""
        self._begun = (b"", b"")

    @property
    def fence(self) -> bytes:
        return b"%s %s" % (self.queue.encode(), self.stored)

    def begun(self) -> tuple[bytes, bytes]:
        """Return the stored bytes after a start, and their tag; the same on each call."""
        if not self._begun[0]:
            stored, tag = message.counted(
                self.raw_body, self.at, self.beside, self.attempts + 1, message.new_tag()
            )
            self._begun = stored + self.level, tag
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

    def handle(self, release: Release) -> str:
        stored, _, _ = released(self, release)
        return base64.b64encode(stored).decode()


def noted(
    job: RedisJob, notes: bytes | None, beside: int, attempts: int | None = None
) -> tuple[bytes, bytes, bytes]:
    """Return the stored bytes of a job, the key of its notes, and the notes (b"" if unchanged).

    A changed count alone leaves the notes as they are.
    """
    stored, tag = job.stored, job.tag
    if attempts not in (None, job.attempts) and job.at >= 0:
        stored, _ = message.counted(job.raw_body, job.at, job.beside, attempts, tag)
        stored += job.level
    if notes is None:
        return stored, job.note, b"" if beside == job.beside else b"%d" % beside
    kept = message.noted(beside, notes)
    if not kept and not job.note:
        return stored, b"", b""
    if not tag:  # so it has no level
        tag = message.new_tag()
        stored += tag
    return stored, job.keys.notes + tag, kept or b"0 "


def released(job: RedisJob, release: Release) -> tuple[bytes, bytes, bytes]:
    """As `noted`, of a job after a release."""
    back = job.started and not release.counted
    beside = job.beside - (back and job.at < 0)
    stored, note, notes = noted(job, release.notes, beside, job.attempts - back)
    if release.priority is not None:
        level = message.level(release.priority, job.keys.aging)
        stored = stored.removesuffix(job.level)
        if level and not message.tag_of(stored):
            stored += message.new_tag()
        stored += level
    return stored, note, notes
