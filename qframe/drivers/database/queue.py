"""The database connection: every move of a job is one transaction on one table."""

from __future__ import annotations

import errno
import itertools
import select
import time
from collections.abc import Sequence
from functools import cached_property

from qframe import host, unique
from qframe.config import DatabaseSettings
from qframe.contracts import (
    BatchStore,
    Cancelling,
    Capability,
    FailedJob,
    FailedStore,
    Job,
    Sizes,
    StatusStore,
)
from qframe.drivers.base import HOLD, BaseQueue
from qframe.drivers.database.batches import DatabaseBatchStore
from qframe.drivers.database.connection import Database
from qframe.drivers.database.failed import DatabaseFailedStore
from qframe.drivers.database.job import DatabaseJob, due_at, stored
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.session import Session
from qframe.drivers.database.statements import Statements
from qframe.drivers.database.statuses import DatabaseStatusStore
from qframe.drivers.database.store import DatabaseStore
from qframe.drivers.database.watch import FileWatch
from qframe.drivers.reservation import BaseJob, uuid_of
from qframe.foreign import Dispatchable
from qframe.names import queue_name
from qframe.payload import Envelope
from qframe.tail import Link
from qframe.unique import Lock

_LOOKS_PER_WRITE = 20
_BETWEEN_LOOKS = 0.001
_SUSPICION = 1.0
"""After a write: this many looks a moment apart, then one every `look` for this many seconds."""

_reservations = itertools.count()


class DatabaseQueue(BaseQueue):
    """Jobs as rows of Laravel's `jobs` table (Laravel's DatabaseQueue).

    Ready, delayed and expired rows are found by one index each, so the cost of a job does not
    grow with what waits. A row keeps its id from push to removal.
    """

    capabilities = (
        Capability.RESERVE
        | Capability.DELAY
        | Capability.AHEAD
        | Capability.RENEW
        | Capability.FENCE
        | Capability.UNCOUNTED
        | Capability.BURY
        | Capability.WAIT
        | Capability.LIST
        | Capability.SIZE
        | Capability.CLEAR
        | Capability.CANCEL
        | Capability.HISTORY
        | Capability.ATOMIC_FAIL
        | Capability.TAKE_UP
        | Capability.DURABLE
    )

    settings_model = DatabaseSettings

    def __init__(self, name: str, settings: DatabaseSettings) -> None:
        super().__init__(name, settings)
        self.database = Database(settings)
        self.sql = Statements(self.database)
        self._store = DatabaseStore(self.database)
        self._failed = DatabaseFailedStore(self.database)
        self.statuses = DatabaseStatusStore(self.database)
        self.noting = True

    @cached_property
    def batches(self) -> DatabaseBatchStore:
        """The batches; made when first asked for, as most processes have none."""
        return DatabaseBatchStore(self.database, self._store)

    # -- pushing --------------------------------------------------------------------------------

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        with self.database.session() as session:
            if len(messages) == 1 and not (self.noting and b'"track"' in messages[0][0]):
                return self._insert(session, messages, queue, delay)
        with self.database.transaction() as session:
            return self._insert(session, messages, queue, delay)

    def put_unique(self, raw: bytes, queue: str, delay: float, lock: Lock) -> str:
        if not self.noting:
            return super().put_unique(raw, queue, delay, lock)
        with self.database.transaction() as session:
            if lock.is_token:
                self._store.set(lock.key, lock.uuid, lock.seconds + delay)
            elif holder := lock.take(self._store, delay):
                return "" if holder == lock.uuid else holder  # its own: it has arrived
            self._insert(session, [(raw, lock.uuid)], queue, delay)
        return ""

    def _push_mixed(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None, uuids: list[str]
    ) -> list[str]:
        if not self.noting:
            return super()._push_mixed(made, queue, uuids)
        with self.database.transaction():
            return super()._push_mixed(made, queue, uuids)

    def put_groups(self, groups: Sequence[tuple[list[tuple[bytes, str]], str, float]]) -> None:
        with self.database.transaction() as session:
            for messages, queue, delay in groups:
                self._insert(session, messages, queue, delay)

    def _insert(
        self, session: Session, messages: Sequence[tuple[bytes, str]], queue: str, delay: float
    ) -> str:
        now = self.database.now(session)
        common = {"queue": queue, "created_at": now // 1000, **due_at(now, delay)}
        for note in self.queued_notes(messages, queue, delay) if self.noting else ():
            self.statuses.take(session, note, now)
        if len(messages) == 1:
            cursor = session.run(self.sql.insert, payload=stored(messages[0][0]), **common)
            return str(getattr(cursor, "lastrowid", ""))
        session.run_many(
            self.sql.insert, [{"payload": stored(raw), **common} for raw, _ in messages]
        )
        return ""

    def insert_link(self, session: Session, link: Link) -> None:
        """Push the next of a chain in the transaction that removes the one before it."""
        self._insert(session, [(self.due(link), link.uuid)], link.queue, link.delay)

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        lease = f"{host.token()}{next(_reservations):x}"
        jobs: list[Job] = []
        with self.database.transaction() as session:
            deleted = self._delete(session, finished)
            if deleted:  # first: what follows its batch may be the very next job
                self._count_finished(session, finished)
            now = self.database.now(session)
            for queue in queues:
                self._make_ready(session, queue, now)
                jobs += self._take(session, queue, limit - len(jobs), lease, now)
                if len(jobs) >= limit:
                    break
        self.finish(finished, deleted=deleted)
        return jobs

    def _make_ready(self, session: Session, queue: str, now: int) -> None:
        """Move what is due or expired back to ready (a delayed row is ready by being due)."""
        before = int(now / 1000 - self.retry_after)
        session.run(self.sql.reclaim, queue=queue, now=now, reserved_before=before)
        session.run(self.sql.adopt, queue=queue)

    def _take(
        self, session: Session, queue: str, limit: int, lease: str, now: int
    ) -> list[DatabaseJob]:
        rows = session.run(self.sql.take, queue=queue, now=now, limit=limit).fetchall()
        if rows:
            until = self.lease_until(now, HOLD)
            session.run_many(
                self.sql.hold, [{"id": row[0], "lease": lease, **until} for row in rows]
            )
        return [DatabaseJob(self, queue, row, lease) for row in rows]

    def lease_until(self, now: int, seconds: float) -> dict[str, int]:
        """Give a lease's end, and the `reserved_at` that lets Laravel's rule end it no earlier."""
        until = now + int(seconds * 1000)
        return {"until": until, "reserved_at": -(-until // 1000) - int(self.retry_after)}

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        if not isinstance(job, DatabaseJob):
            raise TypeError(f"{job!r} is not a job of {self.name!r}")
        database = self.database
        alone = finished is None and job.tracking is None and job.lock is None
        with database.session() if alone else database.transaction() as session:
            deleted = self._delete(session, finished)
            now = database.now(session)
            number = job.attempts() + 1
            history = job.history.started(number, host.NAME, host.pid(), now / 1000)
            cursor = session.run(
                self.sql.start,
                history=history.to_json(),
                **job.fence,
                **self.lease_until(now, self.retry_after),
            )
            started = bool(cursor.rowcount)
            if started and job.lock_at_start is not None:
                job.lock_at_start.free(self._store)
            if deleted:
                self._count_finished(session, finished)
        self.finish(finished, deleted=deleted)
        if started:
            job.has_started(number, history)
        else:
            job.mark("lost")
        return started

    def take_up(self, ticket: bytes) -> Job | None:
        identity, lease = ticket.decode().split(" ", 1)
        fence: dict[str, int | str] = {"id": int(identity), "lease": lease}
        with self.database.session() as session:
            row = session.run(self.sql.own, **fence).fetchone()
        if row is None:
            return None
        *values, queue = row
        job = DatabaseJob(self, queue, tuple(values), lease)
        job.started = True
        return job

    def _delete(self, session: Session, finished: Job | None) -> bool:
        if not isinstance(finished, DatabaseJob):
            return False
        deleted = bool(session.run(self.sql.delete, **finished.fence).rowcount)
        note = finished.deletion_note() if deleted else None
        if note is not None:
            self.statuses.take(session, note, self.database.now(session))
        if deleted and finished.lock_at_end is not None:
            finished.lock_at_end.free(self._store)
        return deleted

    def _count_finished(self, session: Session, finished: Job | None) -> None:
        """Count the job that was removed with this step."""
        if isinstance(finished, DatabaseJob):
            self.count(session, finished, failed=finished.ends_in_failure)

    def count(self, session: Session, job: BaseJob, *, failed: bool) -> None:
        """Count a member of a batch in the transaction that removes it, and push what is due."""
        member = job.member_at_end
        if member is None:
            return
        teller = self.batches.take(session, *member, job.uuid, failed=failed)
        if teller is not None:
            self._insert(session, [(teller.raw, teller.uuid)], teller.queue, 0)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        """Watch for a commit by another connection: SQLite can tell of one, but wakes nobody."""
        self.database.follow_file()
        end = time.monotonic() + timeout
        writes = self.database.writes()
        version, due = self._outlook(queues)
        while self._committed(version, min(end, due), wake, writes):
            version, due = self._outlook(queues)
            # Commits may be about other queues, thousands a second: do not follow each.
            left = min(end, due) - time.monotonic()
            if left <= 0 or _readable(
                [] if wake is None else [wake], min(self.database.look, left)
            ):
                return

    def _committed(
        self, version: object, until: float, wake: int | None, writes: FileWatch | None
    ) -> bool:
        """Wait for a commit; false when the time is up or `wake` can be read before one."""
        written = None if writes is None else writes.fileno()
        watched = [fd for fd in (wake, written) if fd is not None]
        suspicious = 0.0
        while (left := until - time.monotonic()) > 0:
            # A write whose commit is not seen yet may be waiting for the disk: look on for a while.
            patient = writes is not None and time.monotonic() > suspicious
            pause = left if patient else min(left, self.database.look)
            ready = _readable(watched, pause)
            if wake in ready:
                return False
            looks = 1
            if writes is not None and written in ready:
                writes.forget()
                suspicious = time.monotonic() + _SUSPICION
                looks = _LOOKS_PER_WRITE
            if self._version_changes(version, looks):
                return True
        return False

    def _version_changes(self, version: object, looks: int) -> bool:
        """Look whether there was a commit; a few times after a write, which comes before it."""
        for look in range(looks):
            if look:
                time.sleep(_BETWEEN_LOOKS)
            with self.database.session() as session:
                if self.database.version(session) != version:
                    return True
        return False

    def _outlook(self, queues: Sequence[str]) -> tuple[object, float]:
        """Give the version of the data, and by our clock when a row is due or expires in it."""
        with self.database.session() as session:
            version = self.database.version(session)
            due = self._next(session, queues) - self.database.now(session)
        return version, time.monotonic() + due / 1000

    def _next(self, session: Session, queues: Sequence[str]) -> int:
        """Give when the next row of these queues is due or expires, in milliseconds."""
        moments = [NEVER]
        for queue in queues:
            due = session.run(self.sql.next_due, queue=queue).fetchone()
            expiry = session.run(
                self.sql.next_expiry, queue=queue, ms=int(self.retry_after * 1000)
            ).fetchone()
            if due is not None:
                moments.append(due[0] or 0)  # a row PHP wrote has no exact time yet: look at once
            if expiry[0] is not None:
                moments.append(expiry[0])
        return min(moments)

    def sizes(self, queue: str | None = None) -> Sizes:
        name = queue_name(queue or self.default_queue)
        with self.database.session() as session:
            now = self.database.now(session)
            waiting, delayed, buried, reserved = session.run(
                self.sql.count, queue=name, now=now
            ).fetchone()
        delayed, buried = int(delayed or 0), int(buried or 0)
        return Sizes(waiting - delayed - buried, delayed, reserved, buried)

    def queues(self) -> list[str]:
        with self.database.session() as session:
            return [name for (name,) in session.run(self.sql.names).fetchall()]

    def clear(self, queue: str | None = None) -> int:
        name = queue_name(queue or self.default_queue)
        with self.database.transaction() as session:
            now = self.database.now(session)
            times = {"now": now, "reserved_before": int(now / 1000 - self.retry_after)}
            gone = session.run(self.sql.locked, queue=name, like='%"unique"%', **times).fetchall()
            count = int(session.run(self.sql.clear, queue=name, **times).rowcount)
            for (text,) in gone:
                self.free_lock_of(text.encode() if isinstance(text, str) else bytes(text))
        return count

    def kick(self, queue: str | None = None) -> int:
        with self.database.session() as session:
            name = queue_name(queue or self.default_queue)
            due = due_at(self.database.now(session), 0)
            return int(session.run(self.sql.kick, queue=name, **due).rowcount)

    # -- failed jobs, store, operation ------------------------------------------------------------

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        with self.database.transaction() as session:
            now = self.database.now(session)
            times = {"now": now, "reserved_before": int(now / 1000 - self.retry_after)}
            ms = int(self.retry_after * 1000)
            found = session.run(
                self.sql.find, like=f"%{uuid}%", queue=queue, ms=ms, **times
            ).fetchall()
            for identity, text, name, attempts, left in found:
                raw = text.encode() if isinstance(text, str) else bytes(text)
                if uuid_of(raw) != uuid:
                    continue
                if left is not None:
                    return Cancelling.HELD if left <= HOLD * 1000 else Cancelling.RUNNING
                if not session.run(self.sql.remove, id=identity, **times).rowcount:
                    return Cancelling.HELD  # just now
                for note in self.cancelled_note(raw, name, attempts):
                    self.statuses.take(session, note, now)
                self.free_lock_of(raw)
                self.count_removed(raw)
                return Cancelling.REMOVED
        return Cancelling.ABSENT

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        if not self.shares(store):
            return super().requeue(record, payload, store)
        with self.database.transaction() as session:
            if not store.forget(record.uuid):
                return False
            if unique.of_raw(payload) is not None:
                self.push_again(record, payload)
            else:
                self._insert(session, [(payload, record.uuid)], record.queue, 0)
        return True

    def shares(self, store: FailedStore) -> bool:
        """Whether the failed jobs are kept in this very database."""
        return isinstance(store, DatabaseFailedStore) and store.database is self.database

    def own_store(self) -> DatabaseStore:
        return self._store

    def own_failed_store(self) -> FailedStore:
        return self._failed

    def own_statuses(self) -> StatusStore:
        return self.statuses

    def seal_batch(self, store: BatchStore, identity: str) -> None:
        if store is not self.own_batches():
            super().seal_batch(store, identity)
            return
        with self.database.transaction():
            super().seal_batch(store, identity)

    def own_batches(self) -> BatchStore:
        return self.batches

    def described(self) -> str:
        return self.database.shown()

    def ping(self) -> str:
        with self.database.session():
            return self.database.version_text()

    def warnings(self) -> list[str]:
        return self.database.warnings()

    def close(self) -> None:
        self.database.close()


def _readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Give those that can be read in time; `select` would refuse one of 1,024 or more."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(max(0.0, seconds) * 1000)
    if any(event & select.POLLNVAL for _, event in ready):
        raise OSError(errno.EBADF, "a descriptor that is waited on was closed by somebody")
    return [descriptor for descriptor, _ in ready]
