"""One reserved row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe.contracts import FailedJob, FailedStore, History
from qframe.drivers.database.schema import LATEST, NEVER
from qframe.drivers.reservation import BaseJob

if TYPE_CHECKING:
    from qframe.drivers.database.queue import DatabaseQueue
    from qframe.drivers.database.session import Session
    from qframe.drivers.database.sql import Statement
    from qframe.tail import Step


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

    def ticket(self) -> bytes | None:
        return f"{self.fence['id']} {self.fence['lease']}".encode()

    def _recover(self, history: History) -> bool:
        statement = self.connection.sql.give_back
        return self._apply(statement, attempts=self._attempts, history=history.to_json())

    def _delete(self) -> bool:
        if self.lock_at_end is None and self.member_at_end is None:
            return self._apply(self.connection.sql.delete)
        with self.connection.database.transaction() as session:
            removed = self._free_if(self._apply(self.connection.sql.delete))
            if removed:
                self.connection.count(session, self, failed=self.ends_in_failure)
        return removed

    def hand_over(self, step: Step) -> bool | None:
        connection = self.connection
        if not connection.noting:
            return super().hand_over(step)
        with connection.database.transaction() as session:
            store = connection.own_store()
            held = store.held(session, [change.key for change in step.changes])
            if any(held[change.key] != change.expected for change in step.changes):
                return None
            if not self._apply(connection.sql.delete):
                return False
            store.write(session, held, [(c.key, c.wanted, c.seconds) for c in step.changes])
            self._free_if(removed=True)  # unless the next link has taken it over just now
            if step.push is not None:
                connection.insert_link(session, step.push)
        return True

    def _free_if(self, removed: bool) -> bool:
        lock = self.lock_at_end
        if removed and lock is not None:
            lock.free(self.connection.own_store())
        return removed

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
            self.ends_in_failure = True
            return super()._fail(record, store)
        with self.connection.database.transaction() as session:
            removed = bool(session.run(self.connection.sql.delete, **self.fence).rowcount)
            if removed:
                store.add(record)
                self._take_note(session)
                self._free_if(removed)
                self.connection.count(session, self, failed=True)
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
        with database.session() if self.noted is None else database.transaction() as session:
            if bury:
                values |= {"due_at": NEVER, "available_at": LATEST}
            elif delay is not None:
                values |= due_at(database.now(session), delay)
            applied = bool(session.run(statement, **values, **self.fence).rowcount)
            if applied:
                self._take_note(session)
            return applied

    def _take_note(self, session: Session) -> None:
        if self.noted is not None:
            connection = self.connection
            connection.statuses.take(session, self.noted, connection.database.now(session))


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
