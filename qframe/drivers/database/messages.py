"""Messages: rows of the jobs table, and what becomes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from qframe.contracts.backend import Found, Place
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Bury, Delete, Push, Release, Renew, Reservation, Start
from qframe.drivers import process
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.schema import LATEST, NEVER
from qframe.drivers.database.sql import as_bytes
from qframe.drivers.database.statements import Statements

_BEHIND = 1
"""Microseconds by which what is released is behind what the same step pushed before it."""

Text = str | bytes | None

_reservations = itertools.count()


class DatabaseJob(Reservation):
    """A row this process holds the lease of (Laravel's DatabaseJob)."""

    __slots__ = ("row", "token")

    def __init__(
        self, queue: str, token: str, row: int, raw: Text, attempts: int, notes: Text
    ) -> None:
        super().__init__(queue, str(row), as_bytes(raw), attempts, as_bytes(notes))
        self.row = row
        self.token = token

    @property
    def fence(self) -> bytes:
        return f"{self.row} {self.token}".encode()


class Messages:
    """What is done to messages, in the session's transaction.

    `retry_after` is what PHP's reservations last.
    """

    def __init__(self, database: Database, retry_after: float) -> None:
        self._timing = database.timing
        self._stored = database.stored
        self._is_postgresql = database.kind == "postgresql"
        self._retry_after = int(retry_after)
        self._sql = Statements(database, self._retry_after)

    # -- what waits -------------------------------------------------------------------------------

    def row(self, push: Push, at: int) -> dict[str, Any]:
        """Give the row of a new message, pushed at this time."""
        row = due_at(at, push.delay)
        row["queue"], row["payload"] = push.queue, self._stored(push.raw)
        row["created_at"] = at // 1_000_000
        return row

    def insert(self, session: Session, rows: Sequence[dict[str, Any]]) -> None:
        """Add messages."""
        session.run_many(self._sql.insert, rows)

    def make_ready(self, session: Session, queue: str) -> None:
        """Move what PHP wrote to its place, and what nobody renewed to the head of its queue."""
        now = session.now
        session.run(self._sql.adopt, queue=queue)
        before = -(-now // 1_000_000) - self._retry_after
        values = {"queue": queue, "now": now, "reserved_before": before}
        rows = session.run(self._sql.expired, **values).fetchall()
        if rows:
            head = self._head(session, queue)
            self._move(session, rows, [head - number for number in range(len(rows))])

    def _move(self, session: Session, rows: Sequence[tuple[int]], dues: Iterable[int]) -> None:
        available_at = session.now // 1_000_000
        ready = [
            {"id": row, "due": due, "available_at": available_at}
            for (row,), due in zip(rows, dues, strict=False)
        ]
        if ready:
            session.run_many(self._sql.make_ready, ready)

    def kick(self, session: Session, queue: str) -> int:
        """Make what is buried ready, the first buried first; gives how many there were."""
        rows = session.run(self._sql.buried, queue=queue).fetchall()
        self._move(session, rows, itertools.count(session.now))
        return len(rows)

    def _first(self, session: Session, queue: str) -> int:
        """Give when the first message is due; 0 for one of PHP that has no exact time yet."""
        row = session.run(self._sql.first_due, queue=queue).fetchone()
        return NEVER if row is None else row[0] or 0

    def _head(self, session: Session, queue: str) -> int:
        """Give the due time before those of all that are ready."""
        return min(self._first(session, queue), session.now) - 1

    def next_moment(self, session: Session, queue: str) -> int:
        """Give when a message is due, or the lease of one ends, as far as is known."""
        due = self._first(session, queue)
        (end,) = session.run(self._sql.next_end, queue=queue).fetchone()
        return due if end is None else min(due, end)

    def sizes(self, session: Session, queue: str) -> Sizes:
        """Count the messages of a queue by where they are."""
        values = {"queue": queue, "now": session.now}
        counts = session.run(self._sql.sizes, **values).fetchone()
        waiting, delayed, buried, reserved, running = map(int, counts)
        ready = waiting - delayed - buried + reserved - running
        return Sizes(ready, delayed, running, buried)

    def queues(self, session: Session) -> list[str]:
        """Name the queues that hold messages."""
        return [name for (name,) in session.run(self._sql.names).fetchall()]

    def purge(self, session: Session, queue: str) -> int:
        """Delete what waits; gives how many there were."""
        return int(session.run(self._sql.purge, queue=queue, now=session.now).rowcount)

    def search(self, session: Session, queue: str, text: bytes, limit: int) -> list[Found]:
        """Find messages that hold a text."""
        now = session.now
        wanted = text.decode() if self._is_postgresql else text
        values = {"queue": queue, "now": now, "text": wanted, "limit": limit}
        return [
            Found(queue, as_bytes(raw), _place(due, end, bool(held), now), row)
            for row, raw, due, end, held in session.run(self._sql.search, **values).fetchall()
        ]

    # -- reservations -----------------------------------------------------------------------------

    def reserve(
        self, session: Session, queues: Sequence[str], limit: int, sent: float
    ) -> list[DatabaseJob]:
        """Hold messages; `sent` is when they were asked for, by `Backend.clock`."""
        jobs: list[DatabaseJob] = []
        token, size = _token(), 0
        for queue in queues:
            if len(jobs) >= limit or size >= self._timing.most_bytes:
                break
            self.make_ready(session, queue)
            values = {"queue": queue, "now": session.now, "limit": limit - len(jobs)}
            for row in session.run(self._sql.ready, **values):
                jobs.append(DatabaseJob(queue, token, *row))
                size += len(jobs[-1].raw_body)
                if size >= self._timing.most_bytes:
                    break
        self._hold_all(session, jobs, sent)
        return jobs

    def take(self, session: Session, queue: str, row: int, sent: float) -> DatabaseJob | None:
        """Hold one message that nobody holds."""
        found = session.run(self._sql.waiting, id=row, now=session.now).fetchone()
        if found is None:
            return None
        job = DatabaseJob(queue, _token(), *found)
        self._hold_all(session, [job], sent)
        return job

    def _hold_all(self, session: Session, jobs: Sequence[DatabaseJob], sent: float) -> None:
        rows = []
        for job in jobs:
            seconds = self._timing.hold + len(job.raw_body) / self._timing.bytes_a_second
            job.sure_until = sent + seconds
            row = self._lease(session.now, seconds)
            row["id"], row["lease"] = job.row, job.token
            rows.append(row)
        if rows:
            session.run_many(self._sql.hold, rows)

    def adopt(self, session: Session, row: int, token: str) -> DatabaseJob | None:
        """Give the reservation a fence names, if it was started."""
        found = session.run(self._sql.adopted, id=row, lease=token).fetchone()
        if found is None:
            return None
        queue, *rest = found
        job = DatabaseJob(queue, token, *rest)
        job.started = True
        return job

    def is_held(self, session: Session, job: DatabaseJob) -> bool:
        """Whether a reservation is the current one, which it stays in this transaction."""
        return session.run(self._sql.holds, id=job.row, lease=job.token).fetchone() is not None

    # Each of these is false where the reservation is not the current one.

    def start(self, session: Session, job: DatabaseJob, operation: Start) -> bool:
        """Take the full lease and count the attempt."""
        values = self._lease(session.now, operation.lease)
        notes = self._stored(operation.notes)
        found = session.run(self._sql.start, id=job.row, lease=job.token, notes=notes, **values)
        return bool(found.rowcount)

    def renew(self, session: Session, job: DatabaseJob, operation: Renew) -> bool:
        """Let the lease end later."""
        values = self._lease(session.now, operation.lease)
        return bool(session.run(self._sql.renew, id=job.row, lease=job.token, **values).rowcount)

    def delete(self, session: Session, job: DatabaseJob, _: Delete) -> bool:
        """Remove the message."""
        return bool(session.run(self._sql.delete, id=job.row, lease=job.token).rowcount)

    def bury(self, session: Session, job: DatabaseJob, operation: Bury) -> bool:
        """Put the message aside."""
        due = {"due": NEVER + session.now, "available_at": LATEST}
        return self._free(session, job, operation.notes, uncounted=0, **due)

    def release(self, session: Session, job: DatabaseJob, operation: Release) -> bool:
        """Make the message ready, now or later."""
        if operation.front and operation.delay <= 0:
            self.make_ready(session, job.queue)
            due = due_at(self._head(session, job.queue))
        else:
            due = due_at(session.now + _BEHIND, operation.delay)
        uncounted = int(not operation.counted)
        return self._free(session, job, operation.notes, uncounted=uncounted, **due)

    def _free(self, session: Session, job: DatabaseJob, notes: bytes | None, **values: int) -> bool:
        kept = None if notes is None else self._stored(notes)
        fence = {"id": job.row, "lease": job.token}
        return bool(session.run(self._sql.release, notes=kept, **fence, **values).rowcount)

    def _lease(self, now: int, seconds: float) -> dict[str, Any]:
        """Give a lease's end, and the `reserved_at` that lets Laravel's rule end it no earlier."""
        end = now + int(seconds * 1_000_000)
        return {"lease_end": end, "reserved_at": -(-end // 1_000_000) - self._retry_after}


def due_at(now: int, delay: float = 0) -> dict[str, Any]:
    """Give when a row is due, exactly for us and in seconds for PHP, never too early."""
    if delay <= 0:
        return {"due": now, "available_at": now // 1_000_000}
    due = min(now + int(delay * 1_000_000), NEVER - 1)
    return {"due": due, "available_at": min(-(-due // 1_000_000), LATEST - 1)}


def _token() -> str:
    return f"{process.token()}{next(_reservations):x}"


def _place(due: int, end: int | None, held: bool, now: int) -> Place:
    """Tell where a row is: `end` is that of its lease, where it is reserved."""
    if end is not None:
        running = Place.HELD if held else Place.RUNNING
        return running if end > now else Place.READY
    if due >= NEVER:
        return Place.BURIED
    return Place.DELAYED if due > now else Place.READY
