"""RabbitmqBackend: jobs in quorum queues; delays, attempts and notes are facts."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.queue import Sizes
from qframe.contracts.step import LOST, Reservation, Result, Step
from qframe.drivers.attempt_log import AttemptEntry
from qframe.drivers.broker.backend import BrokerBackend
from qframe.drivers.broker.message import BrokerJob, BrokerMessage
from qframe.drivers.broker.start_log import StartLog
from qframe.drivers.guard import guarded
from qframe.drivers.rabbitmq import celery, checks
from qframe.drivers.rabbitmq.consumer import Consumer, Consumers
from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.drivers.rabbitmq.proof import Proof
from qframe.drivers.rabbitmq.publisher import Publishers
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import prepare_names
from qframe.exceptions import BackendUnavailable, InvalidQueueName
from qframe.payload.text import is_queue_name

if TYPE_CHECKING:
    from qframe.drivers.rabbitmq.management import Management, QueueReport

log = logging.getLogger("qframe")

_RESERVED = "amq."
_UNNOTED = 10
"""Deliveries up to which a message counts as started only by what was noted."""


class _Unanswered(threading.local):
    """The results of a thread that the server has yet to confirm."""

    def __init__(self) -> None:
        self.calls: list[tuple[Consumer, Proof, list[Result], Callable[[list[Result]], None]]] = []


class RabbitmqBackend(BrokerBackend):
    """Messages in the queues of a RabbitMQ, each published with a confirm.

    A message's lease is the channel that delivered it: it lasts until that is closed.
    """

    settings_model = RabbitmqSettings
    wires = frozenset({"celery"})
    capabilities = (
        BrokerBackend.capabilities
        | Capability.WAIT
        | Capability.SIZE
        | Capability.PURGE
        | Capability.DURABLE
    )

    def __init__(
        self,
        name: str,
        settings: RabbitmqSettings,
        facts: Callable[[], Backend],
        timing: Timing | None = None,
    ) -> None:
        super().__init__(name, settings, facts, timing)
        prepare_names()
        self.settings = settings
        self._publishers = Publishers(settings)
        self._consumers = Consumers(settings)
        self._unanswered = _Unanswered()
        self._starts = StartLog(f"started:{name[:100]}", facts)
        self._management: Management | None = None
        if settings.management is not None:
            from qframe.drivers.rabbitmq.management import Management  # noqa: PLC0415 (an HTTP client)

            self._management = Management(settings)
            self.capabilities = type(self).capabilities | Capability.LIST

    # -- messages ---------------------------------------------------------------------------------

    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        with self._publishers.one() as publisher:
            publisher.publish(messages)

    def receive(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        """Get messages, one queue after the other: the order is strict."""
        self._declare(queues)
        self._leave_others(queues)
        consumer, found = self._consumers.mine, list[BrokerJob]()
        try:
            for queue in queues:
                name, asked_at = self.settings.name_of(queue), self.clock()
                while len(found) < limit:
                    more = consumer.take(name, limit - len(found), flows=len(queues) == 1)
                    found += [self._job(consumer, each, asked_at) for each in more]
                    if not more or consumer.flows:
                        break
        except BackendUnavailable:
            self._publishers.declared.clear()  # a queue may have been deleted
            raise
        self.give_back_all(found[limit:])
        return found[:limit]

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        self._declare(queues)
        self._leave_others(queues)
        consumer = self._consumers.mine
        asked_at = self.clock()
        names = [self.settings.name_of(queue) for queue in queues]
        found = consumer.wait(names, timeout, wake)
        found.sort(key=lambda each: [*names, each.name].index(each.name))
        jobs = [self._job(consumer, each, asked_at) for each in found]
        self.give_back_all(jobs[1:])
        return jobs[:1]

    def _leave_others(self, queues: Sequence[str]) -> None:
        """Let messages come only from these queues; what nobody has taken of others is released."""
        consumer, asked_at = self._consumers.mine, self.clock()
        left = consumer.leave_others([self.settings.name_of(each) for each in queues])
        self.give_back_all([self._job(consumer, each, asked_at) for each in left])

    def _job(self, consumer: Consumer, delivery: Delivery, asked_at: float) -> BrokerJob:
        settings, call = self.settings, None
        if "task" in delivery.headers:
            call = celery.translated(delivery, settings.celery_tasks, settings.max_payload)
        job = self.received(
            settings.queue_of(delivery.name),
            delivery.raw if call is None else call.raw,
            delivery.headers if call is None else {},
            id=delivery.id if call is None else call.id,
            deliveries=delivery.times,
            delivery=(consumer, delivery.tag),
            asked_at=asked_at,
            lease=math.inf,
        )
        if call is not None:
            due = self.clock() + call.delay if call.delay > 0 else 0.0
            job.comes_from_others(call.attempts, due)
        job.worker_died = delivery.times > 1
        consumer.hold(job)
        return job

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        consumer = self._consumers.mine
        with guarded:
            with consumer.proved_later():
                found = super().reserve(queues, limit, first=first)
            consumer.prove()
            self.read_replies()
            return found

    def apply(self, *steps: Step) -> list[Result]:
        results = super().apply(*steps)
        if self._unanswered.calls and not self._consumers.mine.is_proved_later:
            self.read_replies()
        return results

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        """Apply steps. Whether their acknowledgements have arrived shows with the next request."""
        self.read_replies()
        consumer = self._consumers.mine
        with guarded, consumer.proved_later():
            results = super().apply(*steps)
        if not consumer.is_unproved:
            on_result(results)
            return
        self._unanswered.calls.append((consumer, consumer.proof, results, on_result))
        if not all(each.applied for each in results):  # a job that is lost must not run meanwhile
            self.read_replies()

    def read_replies(self) -> None:
        calls, self._unanswered.calls = self._unanswered.calls, []
        for consumer, proof, results, on_result in calls:
            with guarded, suppress(BackendUnavailable):
                consumer.prove()
            on_result(results if proof.is_given else [LOST] * len(results))

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        self.read_replies()
        super().wait(queues, timeout, wake)

    def note_first_starts(self, jobs: Sequence[BrokerJob]) -> None:
        for consumer, group in groupby(jobs, lambda each: each.delivery[0]):
            if ids := [each.id for each in group if each.id]:
                self._starts.note(consumer.started, ids)

    def starts_before(self, job: BrokerJob, entry: AttemptEntry | None) -> int:
        """Count by what was noted: of some deliveries, no worker has got the message.

        The server's count is the net for a message without an id, and for one that comes again and
        again, perhaps as its starts cannot be noted.
        """
        if not job.id or job.deliveries > _UNNOTED:
            return super().starts_before(job, entry)
        before = entry.attempts if entry is not None else job.message.attempts
        if entry is None:
            try:
                before += self._starts.has(job.id)
            except BackendUnavailable:
                return super().starts_before(job, entry)
        job.worker_died = before > job.message.attempts
        return before

    def extend(self, job: BrokerJob, seconds: float) -> bool:
        consumer: Consumer = job.delivery[0]
        return consumer.has(job)

    def acknowledge(self, job: BrokerJob) -> bool:
        (done,) = self.acknowledge_all([job])
        return done

    def acknowledge_all(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        done: list[bool] = []
        for consumer, group in groupby(jobs, lambda each: each.delivery[0]):
            done += consumer.acknowledge([*group])
        return done

    def _declare(self, queues: Sequence[str]) -> None:
        if any(self.settings.name_of(each) not in self._publishers.declared for each in queues):
            with self._publishers.one() as publisher:
                publisher.declare(queues)

    # -- messages that wait -----------------------------------------------------------------------

    def counted(self, queue: str) -> Sizes:
        self.read_replies()
        with self._publishers.one() as publisher:
            sizes = Sizes(publisher.count(queue), unknown=frozenset({"reserved"}))
        reserved = None
        if self._management is not None:
            try:
                reserved = self._management.reserved(self.settings.name_of(queue))
            except BackendUnavailable as error:
                log.debug("%s: reserved jobs are not counted: %s", self.name, error)
        if reserved is None:
            return sizes
        return replace(sizes, reserved=reserved, approximate=True, unknown=frozenset())

    def listed(self) -> list[str]:
        """List the queues with messages.

        The management API learns some seconds late of messages, but not of queues. So those that
        it takes for empty are counted.
        """
        self.read_replies()
        reports = self._reports()
        empty = [each.name for each in reports if not each.messages]
        with self._publishers.one() as publisher:
            counts = publisher.count_all(empty)
        there = (each.name for each in reports if each.messages or counts.get(each.name))
        return [*map(self.settings.queue_of, there)]

    def _reports(self) -> list[QueueReport]:
        """Return the reports of the queues that may be ours."""
        if self._management is None:
            return []
        settings = self.settings
        return [
            each
            for each in self._management.queues()
            if each.name.startswith(settings.prefix) and is_queue_name(settings.queue_of(each.name))
        ]

    def purged(self, queue: str) -> int:
        self.read_replies()
        with self._publishers.one() as publisher:
            return publisher.purge(queue)

    def kick(self, queue: str) -> int:
        self.read_replies()
        return super().kick(queue)

    # -- other calls ------------------------------------------------------------------------------

    def check_queue(self, name: str) -> None:
        if self.settings.name_of(name).startswith(_RESERVED):
            raise InvalidQueueName(f"RabbitMQ keeps names with {_RESERVED} for itself: {name}")

    def described(self) -> str:
        return self.settings.shown()

    def check(self) -> Health:
        with self._publishers.one() as publisher:
            found = checks.warnings(publisher, self.settings)
            version = f"RabbitMQ {publisher.version}"
        try:
            reports = self._reports()
        except BackendUnavailable as error:
            found.append(f"the management API cannot be asked about the queues: {error}")
            reports = []
        found += checks.of_queues(reports, self.settings)
        longest = checks.longest_job(reports, self.settings)
        return Health(version, tuple(found), longest)

    def close(self) -> None:
        with guarded:
            self.leave()
            self._publishers.close()

    def leave(self) -> None:
        with guarded:
            with suppress(BackendUnavailable):
                self._leave_others(())
                super().close()
                self._starts.leave(self._consumers.mine.started)
            self._consumers.mine.close()
