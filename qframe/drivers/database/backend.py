"""DatabaseBackend: one transaction for each exchange, on Laravel's tables and qframe's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import select

from qframe import config
from qframe.contracts.backend import Backend, Capability, Health, Standing, Timing
from qframe.contracts.browsing import Found, Page, Place, Span
from qframe.contracts.facts import FactCopy, Latch, LatchCopy
from qframe.contracts.failed import FailedJob
from qframe.contracts.outbox import Outbox
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step, plain_start
from qframe.contracts.tables import Change
from qframe.drivers.database import direct
from qframe.drivers.database.apply import Tables
from qframe.drivers.database.checks import health
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.engine import shown
from qframe.drivers.database.errors import ConnectionLost
from qframe.drivers.database.in_flight import DatabaseStartInFlight
from qframe.drivers.database.listen import Notifier
from qframe.drivers.database.messages import DatabaseJob
from qframe.drivers.database.outbox import DatabaseOutbox
from qframe.drivers.database.request import Request, insisting
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.database.statements import SECOND
from qframe.drivers.database.wait import watch_of
from qframe.drivers.database.within import CallerDatabase
from qframe.exceptions import BackendUnavailable

T = TypeVar("T")


class DatabaseBackend(Backend):
    """Messages are rows of Laravel's `jobs` table, which PHP's workers may share (DatabaseQueue).

    One index each finds ready, delayed and expired rows, so the cost of a message does not grow
    with the length of the queue. A row keeps its id from push to removal.
    """

    settings_model = DatabaseSettings
    capabilities = ~Capability.NONE

    def __init__(self, name: str, settings: DatabaseSettings, timing: Timing | None = None) -> None:
        self.name = name
        self.settings = settings
        self.timing = timing or Timing()
        self.database = Database(settings, self.timing)
        self._tables = Tables(self.database, settings.retry_after, settings.aging)
        self._watch = watch_of(self.database, settings)
        self._notifier = Notifier(self.database, settings)
        self._lazy = self.database.is_postgresql and settings.synchronous == "normal"
        """Whether a crash of the server may lose the end of a reservation.

        Then the job runs again.
        """
        self._is_direct = self.has_one_writer = self.database.is_sqlite

    def read_replies(self) -> None:
        session = self.database.session()
        if session.is_open:
            with session:
                pass

    def within(self, transaction: object) -> Backend:
        view = copy.copy(self)
        view.database = CallerDatabase(self.database, transaction)
        view._is_direct = False  # noqa: SLF001 (of this class)
        return view

    def standing(self, reservation: Reservation) -> Standing:
        if not isinstance(reservation, DatabaseJob):
            raise TypeError(f"{reservation!r} is not of this backend")
        return self._ask(lambda session: self._standing(session, reservation))

    def _standing(self, session: Session, reservation: DatabaseJob) -> Standing:
        if not session.begin_at_once():
            return Standing.LOCKED
        found = self._tables.messages.standing(session, reservation)
        session.commit()
        return found

    def outbox(self) -> Outbox:
        return DatabaseOutbox(self.settings, self.timing)

    # -- steps and reservations -------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        push = direct.pushed(steps) if self._is_direct else None
        if push is None:
            return self._exchange(steps)[1]
        with self.database.session() as session:
            return direct.push(self._tables.messages, session, push)

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        plain = plain_start(steps, DatabaseJob)
        if plain is None or not (self._is_direct or self._lazy):
            return on_result(self.apply(*steps))
        now = self.clock()
        if self._is_direct:
            with self.database.session() as session:
                results = direct.start(self._tables.messages, session, *plain, now)
            return on_result(results)
        done, job, start = plain
        if now >= job.sure_until or not self.database.session().is_whole:
            return on_result(self.apply(*steps))
        sent = DatabaseStartInFlight(done, job, partial(self.apply, *steps), on_result)
        try:
            with self.database.session() as session:
                if not session.is_whole:
                    raise ConnectionLost("the connection is another one")
                session.lazy = True
                starting = self._tables.messages.starting
                session.send(sent, *starting(session, job, start, done))
        except ConnectionLost:
            return sent.resend()
        job.begin(start, now)
        return None

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        jobs, results = self._exchange(first, queues, limit)
        if jobs:
            self._watch.note_message()
        return jobs, results

    def _exchange(
        self, steps: Sequence[Step], queues: Sequence[str] = (), limit: int = 0
    ) -> tuple[list[Reservation], list[Result]]:
        sent = self.clock()
        if self._is_direct or not self.database.commits:
            return self._exchange_once(steps, queues, limit, sent)
        request = Request(self._tables, steps, queues, limit, sent)
        request.done(self.database, lazy=self._lazy)
        if request.exchange.filled:
            self._notifier.notify(request.exchange.filled)
        return list(request.jobs), request.results

    def _exchange_once(
        self, steps: Sequence[Step], queues: Sequence[str], limit: int, sent: float
    ) -> tuple[list[Reservation], list[Result]]:
        """Do the exchange without retries, maybe in the caller's transaction."""
        with self.database.session() as session:
            done, jobs, results = direct.exchange(self._tables, session, steps, queues, limit, sent)
            if done.filled:
                self._notifier.notify_with(session, done.filled)
        if not self.database.commits and any(result.lost for result in results):
            self.database.session().spoil()
        return jobs, results

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self._watch.wait(queues, timeout, wake)

    def adopt(self, fence: bytes) -> Reservation | None:
        row, token = fence.decode().split(" ", 1)
        return self._ask(lambda session: self._tables.messages.adopt(session, int(row), token))

    def _ask(self, question: Callable[[Session], T]) -> T:
        """Run a read-only query; once more if the connection had ended."""
        if not self.database.commits:
            with self.database.session() as session:
                return question(session)
        try:
            with self.database.session() as session:
                return question(session)
        except ConnectionLost:
            with self.database.session() as session:
                return question(session)

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        return self._ask(lambda session: self._tables.messages.sizes(session, queue))

    def queues(self) -> list[str]:
        return self._ask(self._tables.messages.queues)

    def purge(self, queue: str) -> int:
        return insisting(lambda: self._purge(queue))

    def _purge(self, queue: str) -> int:
        with self.database.session() as session:
            return self._tables.messages.purge(session, queue)

    def kick(self, queue: str) -> int:
        kicked = insisting(lambda: self._kick(queue))
        self._notifier.notify([queue] if kicked else [])
        return kicked

    def _kick(self, queue: str) -> int:
        with self.database.session() as session:
            session.begin()
            kicked = self._tables.messages.kick(session, queue)
            session.commit()
        return kicked

    def wake(self, queue: str, handle: str) -> bool:
        woken = insisting(lambda: self._wake(queue, int(handle)))
        self._notifier.notify([queue] if woken else [])
        return woken

    def _wake(self, queue: str, row: int) -> bool:
        with self.database.session() as session:
            return self._tables.messages.wake(session, queue, row)

    def search(
        self, queue: str, text: bytes, limit: int = 100, within: Span | None = None
    ) -> list[Found]:
        return self._ask(
            lambda session: self._tables.messages.search(session, queue, text, limit, within)
        )

    def spans(self, queue: str) -> list[Span]:
        return self._ask(self._tables.messages.spans)

    def peek(self, queue: str, within: Span, limit: int) -> list[tuple[int, bytes]]:
        return self._ask(lambda session: self._tables.messages.peek(session, within, limit))

    def due_by_step(self, queue: str, since: float, step: float, steps: int) -> list[int]:
        return self._ask(
            lambda session: self._tables.messages.due_by_step(session, queue, since, step, steps)
        )

    def browse(self, queue: str, place: Place, limit: int = 50, after: str = "") -> Page:
        return self._ask(
            lambda session: self._tables.messages.browse(session, queue, place, limit, after)
        )

    def count_before(self, found: Found) -> int | None:
        if found.at is None or found.place is not Place.READY:
            return None
        row, due, count = found.handle, round(found.at * SECOND), self._tables.messages.count_before
        return self._ask(lambda session: count(session, found.queue, row, due))

    def notes_of(self, found: Found) -> bytes:
        return self._ask(lambda session: self._tables.messages.notes(session, found.handle))

    def take(self, found: Found) -> Reservation | None:
        return insisting(lambda: self._take(found))

    def _take(self, found: Found) -> Reservation | None:
        sent = self.clock()
        with self.database.session() as session:
            session.begin()
            job = self._tables.messages.take(session, found.queue, found.handle, sent)
            session.commit()
        return job

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        return self._ask(lambda session: self._tables.facts.values(session, keys))

    def scan(
        self, prefix: str, limit: int = 1000, after: str = "", *, last_first: bool = False
    ) -> list[tuple[str, str]]:
        return self._ask(
            lambda session: self._tables.facts.scan(
                session, prefix, limit, after, last_first=last_first
            )
        )

    def remove_expired(self, prefix: str) -> None:
        # Asked first: a removal takes SQLite's write lock also where there is nothing to remove.
        if self._ask(lambda session: self._tables.facts.has_expired(session, prefix)):
            insisting(lambda: self._remove_expired(prefix))

    def _remove_expired(self, prefix: str) -> None:
        with self.database.session() as session:
            self._tables.facts.remove_expired(session, prefix)

    def copy(self, *keys: str) -> list[FactCopy | None]:
        return self._ask(lambda session: self._tables.facts.copy(session, keys))

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        return self._ask(lambda session: self._tables.latches.read(session, key, labels))

    def copy_latch(self, key: str) -> LatchCopy | None:
        return self._ask(lambda session: self._tables.latches.copy(session, key))

    def find_failed(self, uuid: str) -> FailedJob | None:
        return self._ask(lambda session: self._tables.failed.find(session, uuid))

    def list_failed(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        return self._ask(lambda session: self._tables.failed.page(session, limit, after, queue))

    def count_failed(self) -> int:
        return self._ask(self._tables.failed.count)

    # -- other calls ------------------------------------------------------------------------------

    def described(self) -> str:
        return shown(self.database.url)

    def path(self) -> Path | None:
        return self.database.path

    def check(self) -> Health:
        database, due = self.database, []
        with database.session() as session:
            for table in database.schema.tables:
                session.run(database.statement(select(table).limit(0)))
            found = health(database, session, self.settings)
        if database.missing():
            shows = f"`{config.framework.command_line} migrate --sql` shows what it does"
            due = [f"its tables are to be upgraded: run `{database.migrate_command}`; {shows}"]
        return Health(found.version, (*found.warnings, *due))

    def migrate(self) -> list[Change]:
        return self.database.migrate()

    def migration(self, *, ask: bool = True) -> list[Change]:
        return self.database.missing() if ask else self.database.all_changes()

    def tables(self) -> list[str]:
        return [table.name for table in self.database.schema.tables]

    def leave(self) -> None:
        session = self.database.session()
        if session.is_open:
            with suppress(BackendUnavailable), session:
                pass  # closing reads the last answer
            session.close()

    def close(self) -> None:
        self.leave()
        self.database.pool.close()
