"""DatabaseBackend: every exchange is one transaction on Laravel's tables and our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from qframe.config import DatabaseSettings
from qframe.contracts.backend import Backend, Capability, Found, Health, Latch, Place, Timing
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers import process
from qframe.drivers.database.apply import Exchange, Tables, needs_transaction
from qframe.drivers.database.connection import Database
from qframe.drivers.database.engine import shown, version_of, warnings_of
from qframe.drivers.database.job import DatabaseJob
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.session import Session
from qframe.drivers.database.statements import due_at
from qframe.drivers.database.wait import Watch
from qframe.drivers.guard import guarded

_T = TypeVar("_T")
_reservations = itertools.count()


class DatabaseBackend(Backend):
    """Messages are rows of Laravel's `jobs` table, which PHP's workers may share.

    Ready, delayed and expired rows are found by one index each, so the cost of a message does not
    grow with what waits. A row keeps its id from push to removal.
    """

    capabilities = ~Capability.NONE & ~Capability.PRIORITY

    def __init__(self, name: str, settings: DatabaseSettings, timing: Timing | None = None) -> None:
        self.name = name
        self.settings = settings
        self.timing = timing or Timing()
        self.database = Database(settings, self.timing)
        self._tables = Tables(self.database, settings.retry_after)
        self._watch = Watch(self.database)

    # -- steps and reservations -------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        return self._exchange(steps, _nothing, alone=not needs_transaction(steps))[0]

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        def take(session: Session) -> list[Reservation]:
            return self._take(session, queues, limit, sent)

        sent = self.clock()
        results, jobs = self._exchange(first, take)
        if jobs:
            self._watch.note_message()
        return jobs, results

    def _exchange(
        self, steps: Sequence[Step], then: Callable[[Session], _T], *, alone: bool = False
    ) -> tuple[list[Result], _T]:
        """Apply steps and do what follows, all in one transaction."""
        sent = self.clock()
        exchange: Exchange | None = None
        with guarded():  # what interrupts comes when it is known whether this was done
            try:
                call = self.database.session() if alone else self.database.transaction()
                with call as session:
                    exchange = Exchange(self._tables, session, sent)
                    return exchange.apply(steps), then(session)
            except BaseException:
                if exchange is not None:
                    exchange.undo()
                raise

    def _take(
        self, session: Session, queues: Sequence[str], limit: int, sent: float
    ) -> list[Reservation]:
        sql, timing = self._tables.messages, self.timing
        token = f"{process.token()}{next(_reservations):x}"
        jobs: list[Reservation] = []
        held = []
        size = 0
        now = self.database.now(session)
        for queue in queues:
            if len(jobs) >= limit or size >= timing.most_bytes:
                break
            self._tables.make_ready(session, queue, now)
            for row in session.run(sql.ready, queue=queue, now=now, limit=limit - len(jobs)):
                job = _job(queue, token, *row)
                size += len(job.raw_body)
                seconds = timing.hold + len(job.raw_body) / timing.bytes_a_second
                job.sure_until = sent + seconds
                lease = self._tables.lease(now, seconds)
                held.append({"id": job.row, "lease": token, **lease})
                jobs.append(job)
                if size >= timing.most_bytes:
                    break
        if held:
            session.run_many(sql.hold, held)
        return jobs

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self._watch.wait(lambda: self._next_moment(queues), timeout, wake)

    def _next_moment(self, queues: Sequence[str]) -> float:
        """Give in how many seconds the next row of these queues is due, or its lease ends."""
        sql = self._tables.messages
        moments = [NEVER]
        with self.database.session() as session:
            for queue in queues:
                due = session.run(sql.first_due, queue=queue).fetchone()
                (end,) = session.run(sql.next_end, queue=queue).fetchone()
                if due is not None:
                    moments.append(due[0] or 0)  # a row PHP wrote has no exact time yet
                if end is not None:
                    moments.append(end)
            # The clocks differ a little: not a moment too early.
            return (min(moments) - self.database.now(session)) / 1_000_000 + 0.001

    def adopt(self, fence: bytes) -> Reservation | None:
        row, token = fence.decode().split(" ", 1)
        with self.database.session() as session:
            found = session.run(self._tables.messages.adopted, id=int(row), lease=token).fetchone()
        if found is None:
            return None
        queue, *rest = found
        job = _job(queue, token, int(row), *rest)
        job.started = True
        return job

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        with self.database.session() as session:
            now = self.database.now(session)
            waiting, delayed, buried, reserved, running = session.run(
                self._tables.messages.sizes, queue=queue, now=now
            ).fetchone()
        delayed, buried = int(delayed or 0), int(buried or 0)
        ready = waiting - delayed - buried + reserved - running
        return Sizes(ready, delayed, running, buried)

    def queues(self) -> list[str]:
        with self.database.session() as session:
            return [name for (name,) in session.run(self._tables.messages.names).fetchall()]

    def purge(self, queue: str) -> int:
        with self.database.session() as session:
            now = self.database.now(session)
            return int(session.run(self._tables.messages.purge, queue=queue, now=now).rowcount)

    def kick(self, queue: str) -> int:
        sql = self._tables.messages
        with self.database.transaction() as session:
            rows = session.run(sql.buried, queue=queue).fetchall()
            now = self.database.now(session)
            ready = [{"id": row, **due_at(now + n)} for n, (row,) in enumerate(rows)]
            if ready:
                session.run_many(sql.make_ready, ready)
        return len(ready)

    def search(self, queue: str, text: bytes, limit: int = 100) -> list[Found]:
        wanted = text.decode() if self.database.kind == "postgresql" else text
        with self.database.session() as session:
            now = self.database.now(session)
            rows = session.run(
                self._tables.messages.search, queue=queue, text=wanted, limit=limit
            ).fetchall()
        return [
            Found(queue, _bytes(raw), _place(due, end, bool(held), now), row)
            for row, raw, due, end, held in rows
        ]

    def take(self, found: Found) -> Reservation | None:
        token = f"{process.token()}{next(_reservations):x}"
        with self.database.transaction() as session:
            now = self.database.now(session)
            sql = self._tables.messages
            row = session.run(sql.waiting, id=found.handle, now=now).fetchone()
            if row is None:
                return None
            job = _job(found.queue, token, *row)
            seconds = self.timing.hold + len(job.raw_body) / self.timing.bytes_a_second
            lease = self._tables.lease(now, seconds)
            session.run(sql.hold, id=job.row, lease=token, **lease)
        return job

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        with self.database.session() as session:
            now = self.database.now(session)
            return [self._tables.facts.value(session, key, now) for key in keys]

    def scan(self, prefix: str, limit: int = 1000, after: str = "") -> list[tuple[str, str]]:
        with self.database.session() as session:
            now = self.database.now(session)
            return self._tables.facts.scan(session, prefix, limit, after, now)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        with self.database.session() as session:
            now = self.database.now(session)
            return self._tables.latches.read(session, key, labels, now)

    def find_failed(self, uuid: str) -> FailedJob | None:
        with self.database.session() as session:
            return self._tables.failed.find(session, uuid)

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        with self.database.session() as session:
            return self._tables.failed.page(session, limit, after, queue)

    def count_failed(self) -> int:
        with self.database.session() as session:
            return self._tables.failed.count(session)

    # -- the rest ---------------------------------------------------------------------------------

    def described(self) -> str:
        return shown(self.database.url)

    def check(self) -> Health:
        with self.database.session():
            version = version_of(self.database.engine)
        return Health(version, tuple(warnings_of(self.database.url, self.settings)))

    def close(self) -> None:
        self.database.close()


def _nothing(_session: Session) -> None:
    pass


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _job(
    queue: str, token: str, row: int, raw: str | bytes, attempts: int, notes: str | bytes | None
) -> DatabaseJob:
    return DatabaseJob(queue, row, token, _bytes(raw), attempts, _bytes(notes or b""))


def _place(due: int, end: int | None, held: bool, now: int) -> Place:
    """Tell where a row is: `end` is that of its lease, where it is reserved."""
    if end is not None:
        running = Place.HELD if held else Place.RUNNING
        return running if end > now else Place.READY
    if due >= NEVER:
        return Place.BURIED
    return Place.DELAYED if due > now else Place.READY
