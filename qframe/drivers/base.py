"""What every driver shares: how a job becomes bytes, and how a reservation is settled once."""

from __future__ import annotations

import select
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from qframe import events, payload, timing, tracebacks
from qframe.config import ConnectionSettings
from qframe.contracts import Capability, FailedJob, FailedStore, History, Job, Queue, Sizes, Store
from qframe.exceptions import (
    InvalidPayload,
    JobAlreadySettled,
    JobFailedByHand,
    LeaseLost,
    PayloadTooLarge,
    QframeError,
    Unsupported,
)
from qframe.foreign import Dispatchable
from qframe.names import queue_name
from qframe.payload import Envelope
from qframe.queueable import Queueable

HOLD = 1.0
"""Seconds a held job's lease lasts: long enough for its turn, short enough to lose to others."""


class BaseQueue(Queue):
    """A connection: what it pushes, checked and announced; what it cannot do, refused by type.

    A driver derives from it, declares its `capabilities` and overrides what they promise; `put`
    and `ping` are the only methods all of them need.
    """

    capabilities = Capability.NONE
    settings_model: ClassVar[type[ConnectionSettings]] = ConnectionSettings

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self.name = name
        self.settings = settings
        self.default_queue = settings.queue
        self.retry_after = settings.retry_after
        self.max_payload = settings.max_payload
        self.failed_store: FailedStore | None = None
        self._refused: deque[Job] = deque()

    @abstractmethod
    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Store messages (bytes and uuid each), ready after `delay` seconds: all or none.

        Gives the backend's own id of a single message.
        """

    # -- pushing --------------------------------------------------------------------------------

    def push(self, job: Dispatchable, queue: str | None = None) -> str:
        return self.later(0, job, queue)

    def later(self, delay: timing.When, job: Dispatchable, queue: str | None = None) -> str:
        return self.push_envelope(job, self.envelope(job), queue, timing.seconds_until(delay))

    def envelope(self, job: Dispatchable) -> Envelope:
        """Build the payload of a job for this connection; raises `InvalidJob`."""
        job.check_reachable()
        envelope = Envelope(payload.create(job))
        self._check_size(envelope.raw)
        return envelope

    def push_envelope(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        """Push a payload built before, telling the listeners."""
        name = self._announce(job, envelope, queue, delay)
        self.put([(envelope.raw, envelope.uuid)], name, delay)
        self._announced(job, envelope, name, delay)
        return envelope.uuid

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        raw = payload.encode() if isinstance(payload, str) else payload
        self._check_size(raw)
        uuid = _uuid_of(raw)
        delay = timing.seconds_until(delay)
        name = queue_name(queue or self.default_queue)
        identity = self.put([(raw, uuid)], name, delay)
        return uuid or _made_up_uuid(self.name, name, identity)

    def bulk(self, jobs: Iterable[Dispatchable], queue: str | None = None) -> list[str]:
        return self.push_envelopes([(job, self.envelope(job)) for job in jobs], queue)

    def push_envelopes(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None
    ) -> list[str]:
        """Push payloads built before, together, telling the listeners; gives their ids in order."""
        groups: dict[tuple[str, float], list[tuple[Dispatchable, Envelope]]] = {}
        for job, envelope in made:
            delay = timing.seconds_until(job.delay)
            name = self._announce(job, envelope, queue, delay)
            groups.setdefault((name, delay), []).append((job, envelope))
        self.put_groups(
            [
                ([(envelope.raw, envelope.uuid) for _, envelope in group], name, delay)
                for (name, delay), group in groups.items()
            ]
        )
        for (name, delay), group in groups.items():
            for job, envelope in group:
                self._announced(job, envelope, name, delay)
        return [envelope.uuid for _, envelope in made]

    def put_groups(self, groups: Sequence[tuple[list[tuple[bytes, str]], str, float]]) -> None:
        """Store messages for several queues; a backend with transactions does all or none."""
        for messages, queue, delay in groups:
            self.put(messages, queue, delay)

    def _announce(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        """Tell the listeners, who may add keys, and give the name of the queue."""
        name = queue_name(queue or job.queue or self.default_queue)
        if delay and isinstance(job, Queueable):  # Laravel would take it for the backoff
            envelope.payload["delay"] = int(delay) if delay == int(delay) else delay
        if delay or events.listeners_of(events.JobQueueing):
            events.fire(events.JobQueueing, self.name, name, job, envelope.payload, delay)
            envelope.encode()
            self._check_size(envelope.raw)
        return name

    def _announced(self, job: Dispatchable, envelope: Envelope, queue: str, delay: float) -> None:
        uuid, message = envelope.uuid, envelope.payload
        events.fire(events.JobQueued, self.name, queue, uuid, job, message, delay)

    def _check_size(self, raw: bytes) -> None:
        if len(raw) > self.max_payload:
            raise PayloadTooLarge(
                f"the payload has {len(raw):,} bytes, the connection {self.name!r} takes "
                f"{self.max_payload:,} (max_payload); queue a reference to the data instead"
            )

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        raise self.cannot(Capability.RESERVE)

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        raise self.cannot(Capability.RESERVE)

    def finish(self, finished: Job | None, *, deleted: bool) -> None:
        """Note what became of a finished job in an exchange."""
        if isinstance(finished, BaseJob):
            finished.mark("deleted" if deleted else "lost")
            if not deleted:
                self._refused.append(finished)

    def refused(self) -> list[Job]:
        if not self._refused:
            return []
        return [self._refused.popleft() for _ in range(len(self._refused))]

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        del queues
        if wake is None:
            time.sleep(max(0.0, timeout))
        else:
            select.select([wake], [], [], max(0.0, timeout))

    def sizes(self, queue: str | None = None) -> Sizes:
        raise self.cannot(Capability.SIZE)

    def size(self, queue: str | None = None) -> int:
        return self.sizes(queue).total

    def queues(self) -> list[str]:
        raise self.cannot(Capability.LIST)

    def clear(self, queue: str | None = None) -> int:
        raise self.cannot(Capability.CLEAR)

    def kick(self, queue: str | None = None) -> int:
        raise self.cannot(Capability.BURY)

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        self.push_raw(payload, record.queue)
        return store.forget(record.uuid)

    def own_store(self) -> Store | None:
        return None

    def own_failed_store(self) -> FailedStore | None:
        return None

    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        return

    def described(self) -> str:
        """Say in a word where the jobs are, never with a password."""
        return self.settings.driver

    def cannot(self, capability: Capability) -> Unsupported:
        """Give the error for something this backend cannot do."""
        what = (capability.name or "").lower().replace("_", " ")
        return Unsupported(f"the connection {self.name!r} ({self.settings.driver}) cannot {what}")


class BaseJob(Job):
    """A reservation: settled once, fenced by the driver's steps, each saying whether it applied."""

    def __init__(
        self, connection: BaseQueue, queue: str, identity: str | None, raw: bytes, attempts: int
    ) -> None:
        self.connection = connection
        self.connection_name = connection.name
        self.queue = queue
        if identity is not None:  # else the driver makes it when asked for
            self.id = identity
        self.raw_body = raw
        self.started = False
        self.failed_with = None
        self._attempts = attempts
        self._state = ""
        # A renewal comes from another thread and must not overtake a settle.
        self._moving = threading.Lock()
        self._payload: dict[str, Any] | None = None

    # -- the driver's steps: each gives False, and changes nothing, when the lease was lost -------

    @abstractmethod
    def _delete(self) -> bool: ...

    @abstractmethod
    def _release(self, delay: float, history: History) -> bool: ...

    @abstractmethod
    def _give_back(self, delay: float, history: History) -> bool: ...

    @abstractmethod
    def _renew(self) -> bool: ...

    def _bury(self) -> bool:
        raise self.connection.cannot(Capability.BURY)

    def _fail(self, record: FailedJob, store: FailedStore) -> bool:
        store.add(record)
        return self._delete()

    # -- what it is -----------------------------------------------------------------------------

    @property
    def payload(self) -> dict[str, Any]:
        if self._payload is None:
            self._payload = payload.parse(self.raw_body)
        return self._payload

    @property
    def uuid(self) -> str:  # type: ignore[override] # read from the payload when asked for
        try:
            uuid = self.payload.get("uuid")
        except InvalidPayload:
            uuid = None
        if isinstance(uuid, str) and uuid:
            return uuid
        return _made_up_uuid(self.connection_name, self.queue, self.id)

    @property
    def name(self) -> str:  # type: ignore[override] # read from the payload when asked for
        try:
            return payload.display_name(self.payload)
        except InvalidPayload:
            return "(not a payload)"

    @property
    def history(self) -> History:
        return History()

    def attempts(self) -> int:
        return self._attempts

    # -- settling -------------------------------------------------------------------------------

    def delete(self) -> None:
        self._settle("deleted", self._delete)

    def release(self, delay: float = 0) -> None:
        delay = timing.seconds_until(delay)
        self._settle("released", lambda: self._release(delay, self.history.ended("released")))

    def retry(self, delay: float, how: str, error: str) -> None:
        history = self.history.ended(how, error)
        self._settle("released", lambda: self._release(delay, history))

    def give_back(self, delay: float = 0, *, refused: bool = False) -> None:
        if self.started and Capability.UNCOUNTED not in self.connection.capabilities:
            raise self.connection.cannot(Capability.UNCOUNTED)
        history = self.history.without_last() if self.started else self.history
        if refused:
            history = history.refused()
        self._settle("given back", lambda: self._give_back(delay, history))

    def bury(self) -> None:
        self._settle("buried", self._bury)

    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        store = self.connection.failed_store
        if store is None:
            raise QframeError(f"the connection {self.connection_name!r} has no failed store")
        error = error or JobFailedByHand(f"{self.name} failed itself")
        record = self.failure(error, counted=ran or not self.started)
        self._settle("failed", lambda: self._fail(record, store))
        self.failed_with = error

    def failure(self, error: BaseException, *, counted: bool) -> FailedJob:
        """Build what the failed store keeps."""
        history = self.history
        if not counted:
            history = history.without_last()
        elif self.started:
            history = history.ended("error", tracebacks.brief(error, 500))
        return FailedJob(
            uuid=self.uuid,
            connection=self.connection_name,
            queue=self.queue,
            payload=self.raw_body,
            exception=tracebacks.full(error),
            name=self.name,
            attempts=self._attempts if counted else self._attempts - 1,
            history=history,
            failed_at=time.time(),
        )

    def renew(self) -> None:
        with self._moving:
            if not self._state and not self._renew():
                self.mark("lost")
            if self._state:
                raise self._unsettleable()

    def confirm(self) -> None:
        return

    def mark(self, state: str) -> None:
        """Note how the reservation ended, for a driver that settled it in an exchange."""
        self._state = state

    def _settle(self, state: str, step: Callable[[], bool]) -> None:
        with self._moving:
            if self._state:
                raise self._unsettleable()
            applied = step()
            self.mark(state if applied else "lost")
            if not applied:
                raise self._unsettleable()

    def _unsettleable(self) -> JobAlreadySettled | LeaseLost:
        if self._state == "lost":
            return LeaseLost(f"{self.name} {self.uuid}: its lease had passed to another worker")
        return JobAlreadySettled(f"{self.name} {self.uuid} was already {self._state}")

    @property
    def is_deleted(self) -> bool:
        return self._state in {"deleted", "failed"}

    @property
    def is_released(self) -> bool:
        return self._state in {"released", "given back"}

    @property
    def has_failed(self) -> bool:
        return self._state == "failed"

    @property
    def is_lost(self) -> bool:
        return self._state == "lost"

    @property
    def is_settled(self) -> bool:
        return bool(self._state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.uuid} {self._state or 'reserved'}>"


def _uuid_of(raw: bytes) -> str:
    try:
        uuid = payload.parse(raw).get("uuid")
    except InvalidPayload:
        return ""
    return uuid if isinstance(uuid, str) else ""


def _made_up_uuid(connection: str, queue: str, identity: str) -> str:
    """Name a job whose payload has no uuid."""
    return f"{connection}:{queue}:{identity}"
