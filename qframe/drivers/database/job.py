"""One reserved row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.base import BaseJob
from qframe.drivers.database.schema import LATEST, NEVER

if TYPE_CHECKING:
    from qframe.drivers.database.queue import DatabaseQueue
    from qframe.drivers.database.sql import Statement


class DatabaseJob(BaseJob):
    """A row this process holds the lease of (Laravel's DatabaseJob)."""

    connection: DatabaseQueue

    def __init__(
        self,
        connection: DatabaseQueue,
        queue: str,
        row: tuple[int, str | bytes, int, str | None],
        lease: str,
    ) -> None:
        identity, payload, attempts, history = row
        raw = payload.encode("utf-8", "surrogateescape") if isinstance(payload, str) else payload
        super().__init__(connection, queue, str(identity), raw, attempts)
        self.fence = {"id": identity, "lease": lease}
        self._history_text = history
        self._history: History | None = None

    @property
    def history(self) -> History:
        if self._history is None:
            self._history = History.from_json(self._history_text)
        return self._history

    def has_started(self, number: int, history: History) -> None:
        """Note a start the database has counted."""
        self.started = True
        self._attempts = number
        self._history = history

    def _delete(self) -> bool:
        return self._apply(self.connection.sql.delete)

    def _release(self, delay: float, history: History) -> bool:
        return self._apply(self.connection.sql.release, delay=delay, history=history.to_json())

    def _give_back(self, delay: float, history: History) -> bool:
        attempts = self._attempts - 1 if self.started else self._attempts
        sql = self.connection.sql
        if not delay:
            return self._apply(sql.give_back, attempts=attempts, history=history.to_json())
        return self._apply(
            sql.give_back_later, delay=delay, attempts=attempts, history=history.to_json()
        )

    def _bury(self) -> bool:
        return self._apply(self.connection.sql.release, history=self.history.to_json(), bury=True)

    def _renew(self) -> bool:
        connection = self.connection
        with connection.database.session() as session:
            until = connection.lease_until(connection.database.now(session), connection.retry_after)
            return bool(session.run(connection.sql.renew, **until, **self.fence).rowcount)

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        if not self.connection.shares(store):
            return super()._fail(record, store)
        with self.connection.database.transaction() as session:
            removed = bool(session.run(self.connection.sql.delete, **self.fence).rowcount)
            if removed:
                store.add(record)
        return removed

    def _apply(
        self,
        statement: Statement,
        delay: float | None = None,
        *,
        bury: bool = False,
        **values: str | int,
    ) -> bool:
        database = self.connection.database
        with database.session() as session:
            if bury:
                values |= {"due_at": NEVER, "available_at": LATEST}
            elif delay is not None:
                values |= due_at(database.now(session), delay)
            return bool(session.run(statement, **values, **self.fence).rowcount)


def due_at(now: int, delay: float) -> dict[str, int]:
    """Give when a row is due, exactly for us and in seconds for PHP."""
    due = now + int(delay * 1000)
    seconds = -(-due // 1000) if delay else due // 1000
    return {"due_at": due, "available_at": min(seconds, LATEST - 1)}


def stored(raw: bytes) -> str | bytes:
    """Give a payload as the text column takes it; SQLite takes any bytes there."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
