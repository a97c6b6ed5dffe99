"""What the connections of every driver share: how a job becomes bytes, and what each can do."""

from __future__ import annotations

import contextlib
import logging
import math
import select
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from qframe import events, membership, payload, tail, timing, tracking, unique
from qframe.config import ConnectionSettings
from qframe.contracts import (
    BatchStore,
    Cancelling,
    Capability,
    FailedJob,
    FailedStore,
    Job,
    Note,
    Queue,
    Sizes,
    State,
    StatusStore,
    Store,
    Teller,
)
from qframe.drivers import beginning, following
from qframe.drivers.beginning import BatchPlan, ChainPlan
from qframe.drivers.reservation import BaseJob, made_up_uuid, uuid_of
from qframe.exceptions import (
    DuplicateJob,
    InvalidSignature,
    PayloadTooLarge,
    QframeError,
    Unsupported,
)
from qframe.foreign import Dispatchable
from qframe.names import queue_name
from qframe.payload import Envelope
from qframe.queueable import Queueable
from qframe.sealing import Keyring
from qframe.signing import OVERHEAD, Signer, without_signature
from qframe.tail import Link
from qframe.unique import Lock

log = logging.getLogger("qframe")

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
        self.keyring = Keyring()
        self.signer: Signer | None = None
        """Signs what is pushed here and checks what is worked; None where no key is configured."""
        self.failed_store: FailedStore | None = None
        self.shared_store: Callable[[], Store] | None = None
        """Gives the store of the connection, for what the backend itself cannot keep of a job."""
        self.find_statuses: Callable[[], StatusStore | None] = self.own_statuses
        self.find_batches: Callable[[], BatchStore | None] = self.own_batches
        self.find_middleware: Callable[[], Sequence[Any]] = tuple
        self._refused: deque[Job] = deque()

    @abstractmethod
    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Store messages (bytes and uuid each), ready after `delay` seconds: all or none.

        Gives the backend's own id of a single message.
        """

    def middleware(self) -> Sequence[Any]:
        return self.find_middleware()

    # -- pushing --------------------------------------------------------------------------------

    def push(self, job: Dispatchable, queue: str | None = None) -> str:
        return self.later(0, job, queue)

    def later(self, delay: timing.When, job: Dispatchable, queue: str | None = None) -> str:
        return self.push_envelope(job, self.envelope(job), queue, timing.seconds_until(delay))

    def envelope(self, job: Dispatchable) -> Envelope:
        """Build the payload of a job for this connection; raises `InvalidJob`."""
        job.check_reachable()
        envelope = Envelope.of(job, self.keyring)
        self._check_envelope(envelope)
        return envelope

    def track(self, envelope: Envelope, seconds: float) -> None:
        """Have the status of a job kept that is about to be pushed."""
        payload.track(envelope.payload, seconds)
        envelope.encode()
        self._check_envelope(envelope)

    def push_envelope(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        """Push a payload built before, telling the listeners.

        Gives its id, or that of the job which is there already where it is unique.
        """
        if stand_in is not None and (other := stand_in(self, job)) is not None:
            return other.push_envelope(job, envelope, queue, delay)
        if job.unique_rule is not None:
            return self._push_unique(job, envelope, queue, max(delay, job.unique_rule.delay))
        name = self._announce(job, envelope, queue, delay)
        self._put([(self.signed(envelope.raw, name), envelope.uuid)], name, delay)
        self._announced(job, envelope, name, delay)
        return envelope.uuid

    def _push_unique(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        name = self._announce(job, envelope, queue, delay)
        lock = Lock.of(envelope)
        raw = self.signed(envelope.raw, name)
        holder = "" if lock is None else self.put_unique(raw, name, delay, lock)
        if holder:
            events.fire(events.JobDuplicate, self.name, name, job, holder)
            return holder
        self._announced(job, envelope, name, delay)
        return envelope.uuid

    def put_unique(self, raw: bytes, queue: str, delay: float, lock: Lock) -> str:
        """Store a message with its lock; gives the uuid of the job that has it, and stores nothing.

        Here, where both are apart: the lock first, freed where the push fails; a token last, since
        it names a job that must be there.
        """
        message = [(raw, lock.uuid)]
        store = self.lock_store()
        if store is None:
            self._put(message, queue, delay)
            return ""
        holder = "" if lock.is_token else lock.take(store, delay)
        if holder not in {"", lock.uuid}:
            return holder
        try:
            self._put(message, queue, delay)
            if lock.is_token:
                store.set(lock.key, lock.uuid, lock.seconds + delay)
        except BaseException:
            if not lock.is_token:
                self.free(lock)
            raise
        return ""

    def free(self, lock: Lock) -> None:
        """Free the lock of a job that is gone; one that cannot be freed ends by itself."""
        try:
            store = self.lock_store()
            if store is not None and not lock.is_token:
                lock.free(store)
        except QframeError as error:
            log.warning("%s ends by itself, it cannot be freed: %s", lock.key, error)

    def free_lock_of(self, raw: bytes) -> None:
        """Free the lock that a payload names whose job was removed."""
        lock = unique.of_raw(raw)
        if lock is not None:
            self.free(lock)

    def link(
        self, job: Dispatchable, queue: str | None, delay: float, more: Mapping[str, Any]
    ) -> Link:
        """Build the payload of a job that is to be pushed later, `more` keys in it.

        The listeners are told now that it will be. Raises `InvalidJob`.
        """
        self.learn_limits()
        envelope = self.envelope(job)
        if more:
            envelope.add(more)
            self._check_envelope(envelope)
        if job.unique_rule is not None:
            delay = max(delay, job.unique_rule.delay)
        name = self._announce(job, envelope, queue, delay)
        self.check_queue(name)
        raw = self.signed(envelope.raw, name)
        return Link(envelope.uuid, raw, name, delay, job.relative_deadlines() or None)

    def due(self, link: Link) -> bytes:
        """Give the payload of a job made before as it is pushed: its deadlines count from now."""
        if not link.within:
            return link.raw
        message, now = payload.parse(link.raw), time.time()
        message["createdAt"] = int(now)
        for key, seconds in link.within.items():
            whole = isinstance(message.get(key), int)  # as Laravel has it
            message[key] = math.ceil(now + seconds) if whole else now + seconds
        return self._anew(link, message).raw

    def changed(self, link: Link, more: Mapping[str, Any]) -> Link:
        """Give a job made before with these keys in its payload."""
        message = payload.parse(link.raw)
        payload.add(message, more)
        return self._anew(link, message)

    def _anew(self, link: Link, message: dict[str, Any]) -> Link:
        """Give a job made before with another payload, signed anew where it was signed right.

        One that was signed wrong stays as it is, and one that was signed is not where there is no
        key: who requires signatures refuses both.
        """
        if self.signer is None:
            return link._replace(raw=payload.encode(without_signature(message)))
        with contextlib.suppress(InvalidSignature):
            raw = self.signer.renewed(link.raw, payload.encode(message), link.queue)
            return link._replace(raw=raw)
        return link

    def check_queue(self, name: str) -> None:
        """Raise `InvalidQueueName` for a queue this backend cannot have: its push comes later."""

    def learn_limits(self) -> None:
        """Learn from the server how large a payload may be, where only it knows."""

    def put_link(self, link: Link) -> str:
        """Push a job whose payload was made before: the next of a chain, or a callback.

        Gives "", or the uuid of the job that has the lock of a unique one, which is not pushed.
        """
        return self.put_links([link]).get(link.uuid, "")

    def put_links(self, links: Sequence[Link]) -> dict[str, str]:
        """Push such jobs, those that are not unique together.

        Gives who has the locks of unique ones that were not pushed.
        """
        groups: dict[tuple[str, float], list[tuple[bytes, str]]] = {}
        holders = {}
        for link in links:
            raw = self.due(link)
            lock = unique.of_raw(raw)
            if lock is None:
                groups.setdefault((link.queue, link.delay), []).append((raw, link.uuid))
            elif holder := self.put_unique(raw, link.queue, link.delay, lock):
                holders[link.uuid] = holder
        if groups:
            self._put_groups([(made, name, delay) for (name, delay), made in groups.items()])
        return {uuid: holder for uuid, holder in holders.items() if uuid != holder}

    def put_plans(self, plans: Sequence[ChainPlan]) -> dict[str, str]:
        """Keep what follows in the chains among these, and push the first job of each.

        Gives who has the locks of unique ones that were not pushed.
        """
        for plan in plans:
            if plan.id:
                beginning.keep(self, plan)
        return self.put_links([plan.links[0] for plan in plans])

    def link_pushed(self, link: Link, job: Dispatchable | None = None) -> None:
        """Tell the listeners of a link that was pushed."""
        if events.listeners_of(events.JobQueued):
            message = payload.parse(link.raw)
            events.fire(
                events.JobQueued, self.name, link.queue, link.uuid, job, message, link.delay
            )

    def begin_chain(self, plan: ChainPlan) -> None:
        """Keep a chain and push its first link."""
        beginning.chain(self, plan)

    def begin_batch(self, plan: BatchPlan) -> None:
        """Keep a batch and push its members."""
        beginning.batch(self, plan)

    def extend_chain(self, running: Job, link: Link, *, first: bool) -> bool:
        """Put a link behind the one that runs, or at the end; false where the chain is gone."""
        store, chain = self.lock_store(), tail.chain_of(running.payload)
        if store is None or chain is None:
            return False
        return tail.add(store, chain, running.uuid, link, first=first)

    def put_teller(self, teller: Teller) -> None:
        """Push the job that tells what has happened in a batch; it is stored as it is pushed."""
        self.put([(teller.raw, teller.uuid)], teller.queue, 0)

    def seal_batch(self, store: BatchStore, identity: str) -> None:
        """Say that all first members of a batch are there, and push the teller if it is due."""
        teller = store.seal(identity)
        if teller is not None:
            self.put_teller(teller)

    def own_batches(self) -> BatchStore | None:
        """Give the backend's own place for batches."""
        return None

    def batch_store(self) -> BatchStore | None:
        """Give where the batches of this connection are kept; None where no job waits."""
        return self.find_batches() if Capability.RESERVE in self.capabilities else None

    def count_removed(self, raw: bytes) -> None:
        """Count as failed a member of a batch that was removed while it waited."""
        if b'"batch"' not in raw:
            return
        message = payload.parse(raw)
        member = membership.member_of(message)
        if member is not None:
            following.count_in(self, member, str(message.get("uuid")), failed=True)

    def lock_store(self) -> Store | None:
        """Give where the locks of unique jobs are; None where no job waits."""
        if self.noting:
            return self.own_store()
        if Capability.RESERVE not in self.capabilities or self.shared_store is None:
            return None
        return self.shared_store()

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        if stand_in is not None and (other := stand_in(self, payload)) is not None:
            return other.push_raw(payload, queue, delay)
        raw = payload.encode() if isinstance(payload, str) else payload
        self._check_size(raw)
        uuid = uuid_of(raw)
        delay = timing.seconds_until(delay)
        name = queue_name(queue or self.default_queue)
        identity = self._put([(raw, uuid)], name, delay)
        return uuid or made_up_uuid(self.name, name, identity)

    def bulk(self, jobs: Iterable[Dispatchable], queue: str | None = None) -> list[str]:
        return self.push_envelopes([(job, self.envelope(job)) for job in jobs], queue)

    def push_envelopes(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None
    ) -> list[str]:
        """Push payloads built before, together, telling the listeners; gives their ids in order.

        Unique and debounced ones each for itself, after the others.
        """
        if stand_in is not None and any(stand_in(self, job) is not None for job, _ in made):
            return self._push_parted(made, queue)
        uuids = [envelope.uuid for _, envelope in made]
        if any(job.unique_rule is not None for job, _ in made):
            return self._push_mixed(made, queue, uuids)
        groups: dict[tuple[str, float], list[tuple[Dispatchable, Envelope]]] = {}
        for job, envelope in made:
            delay = timing.seconds_until(job.delay)
            name = self._announce(job, envelope, queue, delay)
            groups.setdefault((name, delay), []).append((job, envelope))
        self._put_groups(
            [
                (
                    [(self.signed(envelope.raw, name), envelope.uuid) for _, envelope in group],
                    name,
                    delay,
                )
                for (name, delay), group in groups.items()
            ]
        )
        for (name, delay), group in groups.items():
            for job, envelope in group:
                self._announced(job, envelope, name, delay)
        return uuids

    def _push_parted(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None
    ) -> list[str]:
        """Push each where it is taken: in place of this connection, or here."""
        parts: dict[BaseQueue, list[tuple[Dispatchable, Envelope]]] = {}
        for job, envelope in made:
            other = stand_in(self, job) if stand_in is not None else None
            parts.setdefault(other or self, []).append((job, envelope))
        given: dict[str, str] = {}
        for place, part in parts.items():
            uuids = (envelope.uuid for _, envelope in part)
            given.update(zip(uuids, place.push_envelopes(part, queue), strict=True))
        return [given[envelope.uuid] for _, envelope in made]

    def _push_mixed(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None, uuids: list[str]
    ) -> list[str]:
        self.push_envelopes([each for each in made if each[0].unique_rule is None], queue)
        given = {
            envelope.uuid: self.push_envelope(job, envelope, queue, timing.seconds_until(job.delay))
            for job, envelope in made
            if job.unique_rule is not None
        }
        return [given.get(uuid, uuid) for uuid in uuids]

    def put_groups(self, groups: Sequence[tuple[list[tuple[bytes, str]], str, float]]) -> None:
        """Store messages for several queues; a backend with transactions does all or none."""
        for messages, queue, delay in groups:
            self.put(messages, queue, delay)

    def _put(self, messages: list[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Store messages, the statuses of tracked ones before them where they are elsewhere."""
        one = len(messages) == 1 and b'"track"' not in messages[0][0]
        if one or self.noting or not any(b'"track"' in raw for raw, _ in messages):
            return self.put(messages, queue, delay)
        with _Noted(self, [(messages, queue, delay)]):
            return self.put(messages, queue, delay)

    def _put_groups(self, groups: Sequence[tuple[list[tuple[bytes, str]], str, float]]) -> None:
        if self.noting:
            self.put_groups(groups)
            return
        with _Noted(self, groups):
            self.put_groups(groups)

    def queued_notes(
        self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float
    ) -> list[Note]:
        """Give what is to be noted of the tracked ones among messages about to be stored."""
        found = [
            tracking.of_push(raw, self.name, queue) for raw, _ in messages if b'"track"' in raw
        ]
        return [each.waiting(delay) for each in found if each is not None]

    def note_queued(self, raw: bytes, uuid: str, queue: str) -> None:
        """Note that a job waits, where the step that made it wait has not."""
        store = self.status_store()
        if store is not None:
            for note in self.queued_notes([(raw, uuid)], queue, 0):
                store.write(note)

    def cancelled_note(self, raw: bytes, queue: str, attempts: int) -> list[Note]:
        """Give what the step that removes a waiting job is to note, if this is `noting`."""
        tracked = tracking.of_push(raw, self.name, queue) if self.noting else None
        if tracked is None:
            return []
        tracked.ends_as(State.CANCELLED, tracking.WHILE_IT_WAITED)
        return [tracked.ended(attempts, State.CANCELLED)]

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
            self._check_envelope(envelope)
        return name

    def _announced(self, job: Dispatchable, envelope: Envelope, queue: str, delay: float) -> None:
        if events.listeners_of(events.JobQueued):
            uuid, message = envelope.uuid, envelope.payload
            events.fire(events.JobQueued, self.name, queue, uuid, job, message, delay)

    def signed(self, raw: bytes, queue: str) -> bytes:
        """Give a payload made by this program as it is pushed to a queue: signed, with a key.

        `push_raw` pushes bytes as they are: sign what you vouch for with this first.
        """
        return raw if self.signer is None else self.signer.signed(raw, queue)

    def _check_envelope(self, envelope: Envelope) -> None:
        self._check_size(envelope.raw, 0 if self.signer is None else OVERHEAD)

    def _check_size(self, raw: bytes, more: int = 0) -> None:
        size = len(raw) + more
        if size > self.max_payload:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes, the connection {self.name!r} takes "
                f"{self.max_payload:,} (max_payload); queue a reference to the data instead"
            )

    # -- working --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, finished: Job | None = None
    ) -> list[Job]:
        raise self.cannot(Capability.RESERVE)

    def start(self, job: Job, *, finished: Job | None = None) -> bool:
        raise self.cannot(Capability.RESERVE)

    def take_up(self, ticket: bytes) -> Job | None:
        raise self.cannot(Capability.TAKE_UP)

    def finish(self, finished: Job | None, *, deleted: bool) -> None:
        """Note what became of a finished job in an exchange."""
        if isinstance(finished, BaseJob):
            finished.mark("deleted" if deleted else "lost")
            if not self.noting:
                finished.note_end()
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

    def let_go(self) -> None:
        return

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

    def cancel(self, uuid: str, queue: str | None = None) -> Cancelling:
        raise self.cannot(Capability.CANCEL)

    def requeue(self, record: FailedJob, payload: bytes, store: FailedStore) -> bool:
        self.push_again(record, payload)
        return store.forget(record.uuid)

    def push_again(self, record: FailedJob, payload: bytes) -> None:
        """Push a failed job anew; raises `DuplicateJob` where another one has its lock."""
        lock = unique.of_raw(payload)
        if lock is None:
            self.push_raw(payload, record.queue)
            return
        self._check_size(payload)
        queue, store = queue_name(record.queue), self.lock_store()
        if not lock.is_token or store is None:
            self.check_holder(lock, self.put_unique(payload, queue, 0, lock))
            return
        holder = lock.take(store)
        self.check_holder(lock, "" if holder == lock.uuid else holder)
        self._put([(payload, lock.uuid)], queue, 0)
        lock.prolong(store)

    def check_holder(self, lock: Lock, holder: str) -> None:
        """Raise `DuplicateJob` where another job has the lock of one to be queued again."""
        if holder and lock.is_token:
            raise DuplicateJob(
                f"{lock.uuid} is debounced and {holder}, dispatched later, has taken its place"
            )
        if holder:
            raise DuplicateJob(
                f"{lock.uuid} is unique and {holder}, which waits or runs, has its lock; retry it "
                "when that one has ended"
            )

    def own_store(self) -> Store | None:
        return None

    def own_failed_store(self) -> FailedStore | None:
        return None

    def own_statuses(self) -> StatusStore | None:
        return None

    def status_store(self) -> StatusStore | None:
        """Give where the statuses of this connection's jobs are kept; None where no job waits."""
        return self.find_statuses() if Capability.RESERVE in self.capabilities else None

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


stand_in: Callable[[BaseQueue, Dispatchable | str | bytes], BaseQueue | None] | None = None
"""Names what takes a job, or a raw payload, in place of a connection: in tests, a fake."""


class _Noted:
    """Notes what is about to be pushed, and takes it back where the push fails."""

    __slots__ = ("_store", "_uuids")

    def __init__(
        self, queue: BaseQueue, groups: Sequence[tuple[list[tuple[bytes, str]], str, float]]
    ) -> None:
        self._uuids: list[str] = []
        self._store: StatusStore | None = None
        for group in groups:
            for note in queue.queued_notes(*group):
                self._store = self._store or queue.status_store()
                if self._store is not None and self._store.write(note):
                    self._uuids.append(note.uuid)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._store is not None:
            for uuid in self._uuids:
                with contextlib.suppress(QframeError):
                    self._store.withdraw(uuid)
