"""BeanstalkdJob: a reserved message. LeftJob: a message whose worker died."""

from __future__ import annotations

import hashlib
import zlib

from qframe.contracts import step as op
from qframe.contracts.step import APPLIED, LOST, Reservation, Result
from qframe.drivers.attempt_log import AttemptEntry, AttemptLog
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection, BeanstalkdConnections, Reply
from qframe.drivers.beanstalkd.errors import Cut
from qframe.drivers.beanstalkd.protocol import JobStats, queue_of, whole_seconds, within
from qframe.exceptions import BackendUnavailable


def log_id(number: int, raw: bytes) -> str:
    """Return an id with a digest of the message: a server without a log reuses its numbers."""
    return f"{number}:{hashlib.blake2b(raw, digest_size=12).hexdigest()}"


class BeanstalkdJob(Reservation):
    """A message on the connection that reserved it (Laravel's BeanstalkdJob).

    It can be settled and touched only there, and is lost with the connection. The server lets any
    client delete a message that is not reserved, so the lease must be certain before a deletion or
    a note. It is certain for half of its time after a touch; later the job is touched again.
    """

    __slots__ = (
        "_connections",
        "_log",
        "_unanswered",
        "connection",
        "logged",
        "number",
        "priority",
        "releases",
        "reserves",
        "ttr",
        "worker_died",
    )  # fmt: skip

    def __init__(
        self,
        reply: Reply,
        stats: JobStats,
        asked_at: float,
        connection: BeanstalkdConnection,
        connections: BeanstalkdConnections,
        log: AttemptLog,
    ) -> None:
        _, words, raw = reply
        super().__init__(queue_of(stats.tube), words[1].decode(), raw, stats.reserves - 1)
        self.connection = connection
        self.number = int(words[1])
        self.priority, self.ttr = stats.priority, stats.ttr
        self.reserves, self.releases = stats.reserves, stats.releases
        ended = stats.releases + stats.timeouts + stats.buries
        self.worker_died = stats.reserves - 1 > ended  # one attempt ended with its connection
        self.logged = False
        """Whether the log may have an entry, because the message may have been reserved before."""
        self._connections = connections
        self._log = log
        self._unanswered = b""
        """The answer to its settling that was lost with the connection."""
        self.sure_until = asked_at + self.ttr / 2
        if stats.reserves > 1:
            connection.lose(self.id)
        connection.held.add(self)

    @property
    def fence(self) -> bytes:
        numbers = self.number, self.reserves, self.releases, self.attempts
        return b"%d %d %d %d %d\n%b" % (*numbers, zlib.crc32(self.raw_body), self.notes)

    @property
    def _log_id(self) -> str:
        return log_id(self.number, self.raw_body)

    def recall(self) -> None:
        """Read the log of a message that may have been started before."""
        self.logged = self.unsent = True
        entry = self._log.read(self._log_id)
        if entry is not None:
            self.attempts = entry.attempts_before(self.reserves)
            self.notes = entry.notes

    # -- its lease --------------------------------------------------------------------------------

    def is_held(self) -> bool:
        """Whether the lease is valid; asks the server if that is not certain."""
        return self in self.connection.held and (
            self.connection.clock() < self.sure_until or self._touch()
        )

    def _touch(self) -> bool:
        asked_at = self.connection.clock()
        ((word, _, _),) = self.connection.exchange([b"touch %d\r\n" % self.number])
        if word == b"TOUCHED":
            self.sure_until = asked_at + self.ttr / 2
            return True
        self._is_gone()
        return False

    def _is_gone(self) -> None:
        self.connection.held.discard(self)
        self.sure_until = 0.0

    # -- operations -------------------------------------------------------------------------------

    def operate(self, operation: op.OfReservation) -> Result:
        with self.connection.lock:
            return APPLIED if self._operated(operation) else LOST

    def _operated(self, operation: op.OfReservation) -> bool:
        match operation:
            case op.Start():
                return self._start(operation.notes)
            case op.Delete():
                done = self._settle(self.deletion, b"DELETED")
                if done:
                    self._forget()
                return done
            case op.Renew():
                return self._renew()
            case op.Release():
                return self._release(operation)
            case op.Bury():
                self._note_end(operation.notes)
                return self._settle(b"bury %d %d\r\n" % (self.number, self.priority), b"BURIED")

    def _start(self, notes: bytes) -> bool:
        """Count the attempt; logs it only if it is not the first, or the server may forget it."""
        if not self.is_held():
            return False
        if not self.started:
            self.started, self.lease = True, float(self.ttr)
            self.attempts += 1
        self.notes = notes
        if self.logged:
            self._note(self.attempts)
        return True

    def _renew(self) -> bool:
        """Touch the job. Logs the start of a long job, in case its worker dies.

        An unstarted job reads what was logged since.
        """
        try:
            held = self in self.connection.held and self._touch()
        except BackendUnavailable:
            return False  # the lease ended with the connection
        if held and self.started and not self.logged:
            self._note(self.attempts)
        elif held and self.logged and not self.started:
            self.recall()
        return held

    def _release(self, release: op.Release) -> bool:
        delay = whole_seconds(release.delay)
        if release.priority is not None:
            self.priority = within(release.priority)
        self._note_end(release.notes, uncounted=self.started and not release.counted, delay=delay)
        words = self.number, self.priority, delay
        return self._settle(b"release %d %d %d\r\n" % words, b"RELEASED")

    def _note_end(self, notes: bytes | None, *, uncounted: bool = False, delay: int = 0) -> None:
        """Log before the command, for the next worker that reserves the message."""
        if self.is_held():
            self.notes = self.notes if notes is None else notes
            self._note(self.attempts - uncounted, delay)

    def _note(self, attempts: int, delay: int = 0) -> None:
        self.logged = True
        entry = AttemptEntry(attempts, self.reserves, self.notes)
        self._log.write(self._log_id, entry, delay)

    @property
    def deletion(self) -> bytes:
        return b"delete %d\r\n" % self.number

    def is_deleted(self, reply: Reply) -> Result:
        """Handle the answer to its deletion, which was sent with other commands."""
        self._is_gone()
        if reply[0] != b"DELETED":
            return LOST
        self._forget()
        return APPLIED

    def may_be_deleted(self) -> None:
        """Note that the connection broke while its deletion was sent with other commands."""
        self._unanswered = b"DELETED"

    def _forget(self) -> None:
        if self.logged:
            self._log.forget([self._log_id])

    def _settle(self, command: bytes, word: bytes) -> bool:
        """Send one command if the lease is valid; otherwise return False."""
        if not self.is_held():
            return self._unanswered == word and self._was_done(word)
        try:
            ((answer, _, _),) = self.connection.exchange([command])
        except Cut as cut:
            self._unanswered = word if cut.sent else b""
            cut.in_doubt = False  # the next call asks the server
            raise
        self._is_gone()
        return answer == word

    def _was_done(self, word: bytes) -> bool:
        """Query, on another connection, the result of a command whose answer was lost."""
        stats = self._connections.talk.stats_of(self.number)
        if stats is None:
            return word == b"DELETED"
        if word == b"BURIED":
            return stats.state == b"buried"
        return word == b"RELEASED" and stats.releases > self.releases


class LeftJob(Reservation):
    """A message whose worker died during an attempt; the server delivers it to others by itself.

    `Release` or `Bury` can only record how the attempt ended, unless a later record exists. They do
    not change the message.
    """

    __slots__ = ("_known", "_log", "_reserves", "stands")

    fence = b""

    def __init__(self, fence: bytes, raw: bytes, stats: JobStats, log: AttemptLog) -> None:
        head, _, notes = fence.partition(b"\n")
        number, reserves, releases, attempts, checksum = map(int, head.split())
        super().__init__(queue_of(stats.tube), str(number), raw, attempts, notes)
        self.started = True
        self._reserves = reserves
        self._log = log
        self._known = log.read(log_id(number, raw))
        if self._known is not None and self._known.deliveries == reserves:
            self.notes = self._known.notes
        self.stands = (
            stats.releases == releases
            and stats.state != b"buried"
            and zlib.crc32(raw) == checksum
            and (self._known is None or self._known.deliveries <= reserves)
        )
        """Whether the attempt has not ended in another way."""

    def operate(self, operation: op.OfReservation) -> Result:
        """Record how the attempt ended."""
        if isinstance(operation, op.Renew):
            return APPLIED
        if not isinstance(operation, op.Release | op.Bury):
            return LOST
        uncounted = isinstance(operation, op.Release) and not operation.counted
        notes = self.notes if operation.notes is None else operation.notes
        entry = AttemptEntry(self.attempts - uncounted, self._reserves, notes)
        done = self._log.replace(log_id(int(self.id), self.raw_body), self._known, entry)
        return APPLIED if done else LOST
