"""A driver of a third party: jobs wait in the memory of one process.

All there is to a backend is here: its settings, its Queue, its Job, its Store, its FailedStore.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qframe.config import ConnectionSettings
from qframe.contracts import (
    Cancelling,
    Capability,
    FailedJob,
    FailedStore,
    History,
    Job,
    Sizes,
    Store,
)
from qframe.drivers.base import HOLD, BaseQueue
from qframe.drivers.reservation import BaseJob, uuid_of
from qframe.names import queue_name


class MemorySettings(ConnectionSettings):
    """Connections of one process with the same `space` share their jobs."""

    driver: Literal["memory"] = "memory"
    space: str = "main"


@dataclass
class Row:
    """One job. `lease` is the fence: a value new at each reservation, None while it waits."""

    number: int
    queue: str
    raw: bytes
    due: float
    order: int
    attempts: int = 0
    history: History = field(default_factory=History)
    lease: int | None = None
    lease_until: float = 0
    buried: bool = False

    def free(self) -> None:
        self.lease = None


class Memory:
    """What a server would be: rows, records and values under one lock, with a clock of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock: Callable[[], float] = time.time
        self.count = itertools.count(1)
        self.rows: dict[int, Row] = {}
        self.failed: dict[str, FailedJob] = {}
        self.values: dict[str, tuple[str, float | None]] = {}
        self._waiting: list[socket.socket] = []

    def held_by(self, number: int, lease: int) -> Row | None:
        """Give a row if this lease still holds it."""
        row = self.rows.get(number)
        return row if row is not None and row.lease == lease else None

    def changed(self) -> None:
        """Wake everybody who waits."""
        with self.lock:
            for sock in self._waiting:
                with contextlib.suppress(BlockingIOError):
                    sock.send(b"!")

    @contextlib.contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """Give a socket that can be read after the next change."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with self.lock:
            self._waiting.append(theirs)
        try:
            yield ours
        finally:
            with self.lock:
                self._waiting.remove(theirs)
            ours.close()
            theirs.close()


spaces: dict[str, Memory] = {}


class MemoryQueue(BaseQueue):
    """Jobs in this process: everything a backend can do, but survive it."""

    capabilities = ~Capability.DURABLE
    settings_model = MemorySettings

    def __init__(self, name: str, settings: MemorySettings) -> None:
        super().__init__(name, settings)
        self.memory = spaces.setdefault(settings.space, Memory())

    # -- pushing --------------------------------------------------------------------------------

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        memory = self.memory
        with memory.lock:
            due = memory.clock() + delay
            number = 0
            for raw, _ in messages:
                number = next(memory.count)
                memory.rows[number] = Row(number, queue, raw, due, number)
            memory.changed()
        return str(number)

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        memory = self.memory
        jobs: list[Job] = []
        with memory.lock:
            self._delete(finished)
            now = memory.clock()
            for queue in queues:
                ready = self._ready(queue, now)
                for row in ready[: limit - len(jobs)]:
                    row.lease = next(memory.count)
                    row.lease_until = now + HOLD
                    jobs.append(MemoryJob(self, row))
        return jobs

    def _ready(self, queue: str, now: float) -> list[Row]:
        """Give the rows that may be taken, first come first, ending the leases that ran out."""
        ready = []
        for row in self._rows(queue):
            if row.lease is not None and row.lease_until <= now:
                row.free()
            if row.lease is None and not row.buried and row.due <= now:
                ready.append(row)
        return sorted(ready, key=lambda row: (row.due, row.order))

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        assert isinstance(job, MemoryJob)
        memory = self.memory
        with memory.lock:
            self._delete(finished)
            row = memory.held_by(job.number, job.lease)
            if row is None:
                job.mark("lost")
                return False
            now = memory.clock()
            row.attempts += 1
            row.lease_until = now + self.retry_after
            row.history = row.history.started(row.attempts, socket.gethostname(), os.getpid(), now)
            job.has_started(row)
        return True

    def take_up(self, ticket: bytes) -> Job | None:
        number, lease = map(int, ticket.split())
        with self.memory.lock:
            row = self.memory.held_by(number, lease)
            if row is None:
                return None
            job = MemoryJob(self, row)
            job.has_started(row)
            return job

    def _delete(self, finished: Job | None) -> None:
        if isinstance(finished, MemoryJob):
            self.finish(finished, deleted=finished._delete())

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        end = time.monotonic() + timeout
        with self.memory.listening() as changes:
            while True:
                with self.memory.lock:
                    next_at = self._next(queues) - self.memory.clock()
                pause = min(next_at, end - time.monotonic())
                if pause <= 0:
                    return
                watched = [fd for fd in (wake, changes.fileno()) if fd is not None]
                readable = select.select(watched, [], [], min(pause, 3600))[0]
                if wake in readable:
                    return
                if readable:
                    changes.recv(4096)

    def _next(self, queues: Sequence[str]) -> float:
        """Give when a row of these queues is due, or its lease ends."""
        moments = [
            row.due if row.lease is None else row.lease_until
            for queue in queues
            for row in self._rows(queue)
            if not row.buried
        ]
        return min(moments, default=float("inf"))

    # -- looking after it -----------------------------------------------------------------------

    def _rows(self, queue: str | None) -> list[Row]:
        name = queue_name(queue or self.default_queue)
        return [row for row in self.memory.rows.values() if row.queue == name]

    def sizes(self, queue: str | None = None) -> Sizes:
        with self.memory.lock:
            now = self.memory.clock()
            rows = self._rows(queue)
            buried = sum(row.buried for row in rows)
            reserved = sum(row.lease is not None for row in rows)
            waiting = [row for row in rows if row.lease is None and not row.buried]
            delayed = sum(row.due > now for row in waiting)
            return Sizes(len(waiting) - delayed, delayed, reserved, buried)

    def queues(self) -> list[str]:
        with self.memory.lock:
            return sorted({row.queue for row in self.memory.rows.values()})

    def clear(self, queue: str | None = None) -> int:
        with self.memory.lock:
            now = self.memory.clock()
            rows = [row for row in self._rows(queue) if not row.buried]
            gone = [row for row in rows if row.lease is None or row.lease_until <= now]
            for row in gone:
                del self.memory.rows[row.number]
        for row in gone:
            self.free_lock_of(row.raw)
        return len(gone)

    def kick(self, queue: str | None = None) -> int:
        with self.memory.lock:
            rows = [row for row in self._rows(queue) if row.buried]
            for row in rows:
                row.buried, row.due = False, self.memory.clock()
                row.order = next(self.memory.count)
            self.memory.changed()
            return len(rows)

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        with self.memory.lock:
            now = self.memory.clock()
            for row in [*self.memory.rows.values()]:
                if uuid_of(row.raw) != uuid or (queue and row.queue != queue):
                    continue
                if row.lease is None or row.lease_until <= now:
                    del self.memory.rows[row.number]
                    self.free_lock_of(row.raw)
                    self.count_removed(row.raw)
                    return Cancelling.REMOVED
                held = row.lease_until - now <= HOLD
                return Cancelling.HELD if held else Cancelling.RUNNING
        return Cancelling.ABSENT

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        if not self.shares(store):
            return super().requeue(record, payload, store)
        with self.memory.lock:
            if store.find(record.uuid) is None:
                return False
            self.push_again(record, payload)
            store.forget(record.uuid)
        return True

    def shares(self, store: FailedStore) -> bool:
        """Whether the failed jobs are kept in this very memory."""
        return isinstance(store, MemoryFailedStore) and store.memory is self.memory

    def own_store(self) -> Store:
        return MemoryStore(self.memory)

    def own_failed_store(self) -> FailedStore:
        return MemoryFailedStore(self.memory)

    def ping(self) -> str:
        return "the memory of this process"

    def warnings(self) -> list[str]:
        return ["jobs are gone when this process ends"]


class MemoryJob(BaseJob):
    """A row this process holds the lease of."""

    connection: MemoryQueue

    def __init__(self, connection: MemoryQueue, row: Row) -> None:
        super().__init__(connection, row.queue, str(row.number), row.raw, row.attempts)
        assert row.lease is not None
        self.number, self.lease = row.number, row.lease
        self._history = row.history

    @property
    def history(self) -> History:
        return self._history

    def has_started(self, row: Row) -> None:
        """Note a start the memory has counted."""
        self.started = True
        self._attempts, self._history = row.attempts, row.history

    def ticket(self) -> bytes | None:
        return b"%d %d" % (self.number, self.lease)

    @contextlib.contextmanager
    def _ours(self) -> Iterator[list[Row]]:
        """Give the row under the lock, or none if the lease was lost."""
        memory = self.connection.memory
        with memory.lock:
            row = memory.held_by(self.number, self.lease)
            yield [] if row is None else [row]
            memory.changed()

    def _delete(self) -> bool:
        with self._ours() as rows:
            for row in rows:
                del self.connection.memory.rows[row.number]
        return bool(rows)

    def _release(self, delay: float, history: History) -> bool:
        memory = self.connection.memory
        with self._ours() as rows:
            for row in rows:
                row.free()
                row.due, row.order, row.history = (
                    memory.clock() + delay,
                    next(memory.count),
                    history,
                )
        return bool(rows)

    def _recover(self, history: History) -> bool:
        with self._ours() as rows:
            for row in rows:
                row.free()
                row.history = history
        return bool(rows)

    def _give_back(self, delay: float, history: History) -> bool:
        with self._ours() as rows:
            for row in rows:
                row.free()
                row.attempts -= self.started
                row.history = history
                if delay:
                    row.due = self.connection.memory.clock() + delay
        return bool(rows)

    def _bury(self) -> bool:
        with self._ours() as rows:
            for row in rows:
                row.free()
                row.buried = True
        return bool(rows)

    def _renew(self) -> bool:
        with self._ours() as rows:
            for row in rows:
                row.lease_until = self.connection.memory.clock() + self.connection.retry_after
        return bool(rows)

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        if not self.connection.shares(store):
            return super()._fail(record, store)
        with self._ours() as rows:
            if rows:
                store.add(record)
                self._delete()
        return bool(rows)


class MemoryStore(Store):
    """Keys and values beside the jobs."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def get(self, *keys: str) -> list[str | None]:
        with self.memory.lock:
            return [self._alive(key) for key in keys]

    def _alive(self, key: str) -> str | None:
        value, expires = self.memory.values.get(key, ("", 0))
        return value if expires is None or expires > self.memory.clock() else None

    def set(self, key: str, value: str, ttl: float | None = None) -> None:
        with self.memory.lock:
            expires = None if ttl is None else self.memory.clock() + ttl
            self.memory.values[key] = (value, expires)

    def add(self, key: str, value: str, ttl: float | None = None) -> bool:
        with self.memory.lock:
            if self._alive(key) is not None:
                return False
            self.set(key, value, ttl)
            return True

    def delete(self, key: str, value: str | None = None) -> bool:
        with self.memory.lock:
            found = self._alive(key)
            if found is None or (value is not None and found != value):
                return False
            del self.memory.values[key]
            return True

    def keys(self, prefix: str) -> Sequence[str]:
        with self.memory.lock:
            return sorted(
                key
                for key in self.memory.values
                if key.startswith(prefix) and self._alive(key) is not None
            )

    def increment(self, amounts: Mapping[str, int], marker: str, step: str) -> bool:
        with self.memory.lock:
            if self._alive(marker) == step:
                return False
            self.set(marker, step, 3600)
            for key, amount in amounts.items():
                self.set(key, str(int(self._alive(key) or 0) + amount))
            return True

    def swap(
        self, changes: Mapping[str, tuple[str | None, str | None]], ttl: float | None = None
    ) -> bool:
        with self.memory.lock:
            if any(self._alive(key) != expected for key, (expected, _) in changes.items()):
                return False
            for key, (_, wanted) in changes.items():
                if wanted is None:
                    self.memory.values.pop(key, None)
                else:
                    self.set(key, wanted, ttl)
            return True


class MemoryFailedStore(FailedStore):
    """Failed jobs beside the queues; the dict keeps them in the order in which they came."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def add(self, record: FailedJob) -> None:
        with self.memory.lock:
            self.memory.failed.pop(record.uuid, None)
            self.memory.failed[record.uuid] = dataclasses.replace(record)

    def find(self, uuid: str) -> FailedJob | None:
        return self.memory.failed.get(uuid)

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> Sequence[FailedJob]:
        with self.memory.lock:
            records: Iterable[FailedJob] = list(reversed(self.memory.failed.values()))
        if after is not None and after in self.memory.failed:
            records = itertools.dropwhile(lambda record: record.uuid != after, records)
            next(iter(records), None)
        wanted = (record for record in records if queue is None or record.queue == queue)
        return list(itertools.islice(wanted, limit))

    def count(self) -> int:
        return len(self.memory.failed)

    def forget(self, uuid: str) -> bool:
        with self.memory.lock:
            return self.memory.failed.pop(uuid, None) is not None

    def flush(self, before: float | None = None) -> int:
        with self.memory.lock:
            gone = [
                record.uuid
                for record in self.memory.failed.values()
                if before is None or record.failed_at < before
            ]
            for uuid in gone:
                del self.memory.failed[uuid]
            return len(gone)
