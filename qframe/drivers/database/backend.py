"""DatabaseBackend: every exchange is one transaction on Laravel's tables and our own."""

from __future__ import annotations

from collections.abc import Sequence

from qframe.config import DatabaseSettings
from qframe.contracts.backend import Backend, Capability, Found, Health, Latch, Timing
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers.database.apply import DatabaseSteps, Tables, needs_transaction
from qframe.drivers.database.connection import Database
from qframe.drivers.database.engine import shown, version_of, warnings_of
from qframe.drivers.database.schema import NEVER
from qframe.drivers.database.wait import Watch


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
        return self._exchange(steps)[1]

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
        """Apply steps and hold messages, all in one transaction."""
        sent = self.clock()
        jobs: Sequence[Reservation] = []
        with self.database.session() as session:
            alone = not queues and not needs_transaction(steps)
            if not alone:
                session.begin()
            exchange = DatabaseSteps(self._tables, session)
            results = exchange.apply(steps)
            if queues:
                jobs = self._tables.messages.reserve(session, queues, limit, sent)
            if not alone:
                session.commit()
            exchange.note(sent)
        return list(jobs), results

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self._watch.wait(lambda: self._next_moment(queues), timeout, wake)

    def _next_moment(self, queues: Sequence[str]) -> float:
        """Give in how many seconds the next row of these queues is due, or its lease ends."""
        messages = self._tables.messages
        with self.database.session() as session:
            moments = [messages.next_moment(session, queue) for queue in queues]
            # The clocks differ a little: not a moment too early.
            return (min(moments, default=NEVER) - session.now) / 1_000_000 + 0.001

    def adopt(self, fence: bytes) -> Reservation | None:
        row, token = fence.decode().split(" ", 1)
        with self.database.session() as session:
            return self._tables.messages.adopt(session, int(row), token)

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        with self.database.session() as session:
            return self._tables.messages.sizes(session, queue)

    def queues(self) -> list[str]:
        with self.database.session() as session:
            return self._tables.messages.queues(session)

    def purge(self, queue: str) -> int:
        with self.database.session() as session:
            return self._tables.messages.purge(session, queue)

    def kick(self, queue: str) -> int:
        with self.database.session() as session:
            session.begin()
            kicked = self._tables.messages.kick(session, queue)
            session.commit()
        return kicked

    def search(self, queue: str, text: bytes, limit: int = 100) -> list[Found]:
        with self.database.session() as session:
            return self._tables.messages.search(session, queue, text, limit)

    def take(self, found: Found) -> Reservation | None:
        sent = self.clock()
        with self.database.session() as session:
            session.begin()
            job = self._tables.messages.take(session, found.queue, found.handle, sent)
            session.commit()
        return job

    # -- facts ------------------------------------------------------------------------------------

    def read(self, *keys: str) -> list[str | None]:
        with self.database.session() as session:
            return [self._tables.facts.value(session, key) for key in keys]

    def scan(self, prefix: str, limit: int = 1000, after: str = "") -> list[tuple[str, str]]:
        with self.database.session() as session:
            return self._tables.facts.scan(session, prefix, limit, after)

    def latch(self, key: str, labels: int = 0) -> Latch | None:
        with self.database.session() as session:
            return self._tables.latches.read(session, key, labels)

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
        session = self.database.session()
        if session.is_open:
            session.close()
