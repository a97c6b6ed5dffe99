"""NatsBackend: jobs in a JetStream stream; delays, released and buried jobs are facts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.queue import Sizes
from qframe.drivers.broker import BrokerBackend, BrokerJob, BrokerMessage
from qframe.exceptions import BackendUnavailable

from .connection import NatsConnection, Request
from .settings import NatsSettings

T = TypeVar("T")

_TOGETHER = 500
"""Messages that are published before their confirms are awaited."""
_HEADERS = 65_536
"""Bytes left for headers; notes of failed attempts are among them."""
_NO_WAIT = json.dumps({"batch": 1, "no_wait": True}).encode()
_PATIENCE = 1.0
"""Seconds for an answer: NATS 2.9 gives none if another worker's request was a moment quicker."""
_NANO = 1_000_000_000
_NO_RESPONDERS = "503"
_FRESH = 1 / 3
"""The part of a lease for which one request waits: when it is answered, the lease is as young."""


class NatsBackend(BrokerBackend):
    """Messages in a work queue stream: one subject, and one pull consumer, for each queue."""

    settings_model = NatsSettings
    capabilities = (
        BrokerBackend.capabilities
        | Capability.WAIT
        | Capability.SIZE
        | Capability.LIST
        | Capability.PURGE
        | Capability.DURABLE
    )

    def __init__(
        self,
        name: str,
        settings: NatsSettings,
        facts: Callable[[], Backend],
        timing: Timing | None = None,
    ) -> None:
        super().__init__(name, settings, facts, timing)
        self.settings = settings
        self._connection = NatsConnection(settings)
        self._declared: set[str] = set()

    # -- what every broker's driver needs ---------------------------------------------------------

    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        self._declare(each.queue for each in messages)

        async def publish(client: Client) -> None:
            stream = self._jetstream(client)
            for start in range(0, len(messages), _TOGETHER):
                part = messages[start : start + _TOGETHER]
                await asyncio.gather(*(self._publish(stream, each) for each in part))

        self._ask(publish)

    async def _publish(self, stream: JetStreamContext, message: BrokerMessage) -> None:
        """Publish a message. The server drops another one of the same id."""
        headers = {**message.headers, "Nats-Msg-Id": message.id}
        await stream.publish(self._subject(message.queue), message.raw, headers=headers)

    def receive(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        self._declare(queues)
        found: list[BrokerJob] = []  # also what came before a connection was lost: it is hidden

        async def receive(client: Client) -> None:
            for queue in queues:
                while len(found) < limit:
                    asked_at = self.clock()
                    messages = await self._pulled(client, [queue], _NO_WAIT, _PATIENCE)
                    if not messages:
                        break
                    found.extend(self._job(each, asked_at) for each in messages)

        try:
            self._ask(receive)
        except BackendUnavailable:
            if not found:
                raise
        return found

    def acknowledge(self, job: BrokerJob) -> bool:
        return self._answer(job, b"+ACK")

    # -- what NATS can besides --------------------------------------------------------------------

    def extend(self, job: BrokerJob, seconds: float) -> bool:
        """Begin the lease anew: it is the consumer's `ack_wait`, which is `retry_after`."""
        return self._answer(job, b"+WPI")

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        self._declare(queues)
        asked_at, seconds = self.clock(), min(timeout, self.lease * _FRESH)
        wanted = json.dumps({"batch": 1, "expires": int(max(0.001, seconds) * _NANO)}).encode()
        found = self._ask(lambda client: self._pulled(client, queues, wanted, seconds, wake))
        jobs = [self._job(each, asked_at) for each in found]
        self.give_back_all(jobs[1:])
        return jobs[:1]

    async def _pulled(
        self,
        client: Client,
        queues: Sequence[str],
        wanted: bytes,
        seconds: float,
        wake: int | None = None,
    ) -> list[Msg]:
        """Ask for a message of each queue, and wait for the first answer."""
        answers: list[Msg] = []
        answered = asyncio.Event()

        async def take(message: Msg) -> None:
            answers.append(message)
            answered.set()

        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=take)
        try:
            for queue in queues:
                await client.publish(self._next(queue), wanted, reply=inbox)
            with _woken(wake, answered.set), suppress(asyncio.TimeoutError):
                await asyncio.wait_for(answered.wait(), seconds)
        finally:
            with suppress(Error):  # the connection is lost
                if len(answers) < len(queues):
                    await subscription.drain()  # takes what is on its way
                else:
                    await subscription.unsubscribe()
        if any(_status(each) == _NO_RESPONDERS for each in answers):
            self._declared.clear()  # somebody has deleted a consumer
        return [each for each in answers if each.reply]

    def counted(self, queue: str) -> Sizes:
        self._declare([queue])

        async def count(client: Client) -> Sizes:
            stream = self._jetstream(client)
            info = await stream.consumer_info(self.settings.stream, _token(queue))
            return Sizes(info.num_pending or 0, 0, info.num_ack_pending or 0)

        return self._ask(count)

    def listed(self) -> Iterable[str]:
        self._declare([])

        async def names(client: Client) -> Iterable[str]:
            stream = self._jetstream(client)
            info = await stream.stream_info(self.settings.stream, subjects_filter=">")
            return map(self._queue, info.state.subjects or ())

        return self._ask(names)

    def purged(self, queue: str) -> int:
        """Take what is ready and acknowledge it: a purge of NATS would remove running jobs, too."""
        count = 0
        while jobs := self.receive([queue], _TOGETHER):
            count += sum(map(self.acknowledge, jobs))
        return count

    def longest_message(self) -> int | None:
        async def longest(client: Client) -> int:
            return int(client.max_payload)

        return self._ask(longest) - _HEADERS

    def described(self) -> str:
        return self.settings.shown()

    def check(self) -> Health:
        self._declare([])

        async def look(client: Client) -> Health:
            stream = self._jetstream(client)
            found = (await stream.stream_info(self.settings.stream)).config
            version = client.connected_server_version
            numbers = f"{version.major}.{version.minor}.{version.patch}"
            return Health(f"NATS {numbers}", tuple(_warnings(found)))

        return self._ask(look)

    def close(self) -> None:
        super().close()
        self._connection.close()

    def leave(self) -> None:
        super().close()  # threads have no connections of their own

    # -- requests ---------------------------------------------------------------------------------

    def _job(self, message: Msg, asked_at: float) -> BrokerJob:
        delivered = message.metadata
        return self.received(
            self._queue(message.subject),
            message.data,
            message.headers or {},
            id=str(delivered.sequence.stream),
            deliveries=delivered.num_delivered,
            delivery=message.reply,
            asked_at=asked_at,
        )

    def _answer(self, job: BrokerJob, answer: bytes) -> bool:
        """Answer a delivery. NATS takes that also after the lease: `BrokerBackend` does not."""

        async def send(client: Client) -> bool:
            try:
                await client.request(job.delivery, answer, self.settings.timeout)
            except NoRespondersError:  # somebody has deleted the consumer
                return False
            return True

        return self._ask(send)

    def _declare(self, queues: Iterable[str]) -> None:
        """Make the stream, and the consumers of queues, unless they are known to exist."""
        missing = {"", *queues} - self._declared
        if not missing:
            return
        settings = self.settings

        async def make(client: Client) -> None:
            stream = self._jetstream(client)
            try:
                await stream.stream_info(settings.stream)
            except NotFoundError:
                await stream.add_stream(
                    name=settings.stream,
                    subjects=[self._subject("*")],
                    retention=RetentionPolicy.WORK_QUEUE,
                    discard=DiscardPolicy.NEW,
                    num_replicas=settings.replicas,
                )
            for queue in missing - {""}:
                consumer = ConsumerConfig(
                    durable_name=_token(queue),
                    filter_subject=self._subject(queue),
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self.lease,
                    max_ack_pending=-1,
                )
                await stream.add_consumer(settings.stream, consumer)

        self._ask(make)
        self._declared |= missing

    def _ask(self, request: Request[T]) -> T:
        try:
            return self._connection.ask(request)
        except BackendUnavailable:
            self._declared.clear()  # somebody may have deleted the stream
            raise

    def _jetstream(self, client: Client) -> JetStreamContext:
        return client.jetstream(timeout=self.settings.timeout)

    def _subject(self, queue: str) -> str:
        return f"{self.settings.stream}.{_token(queue)}"

    def _queue(self, subject: str) -> str:
        return subject.partition(".")[2].replace("=", ".")

    def _next(self, queue: str) -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.settings.stream}.{_token(queue)}"


def _token(queue: str) -> str:
    """Return the name of a queue as one part of a subject, which dots divide."""
    return queue.replace(".", "=")


def _status(message: Msg) -> str:
    """Return the status that the server answers with instead of a message."""
    return "" if message.reply else str((message.headers or {}).get("Status", ""))


@contextmanager
def _woken(descriptor: int | None, wake: Callable[[], object]) -> Iterator[None]:
    """Call `wake` in the loop while a descriptor is readable."""
    if descriptor is None:
        yield
        return
    own = os.dup(descriptor)  # several threads may wait for the same
    loop = asyncio.get_running_loop()
    loop.add_reader(own, wake)
    try:
        yield
    finally:
        loop.remove_reader(own)
        os.close(own)


def _warnings(stream: StreamConfig) -> Iterator[str]:
    """Describe what could lose jobs, a sentence each."""
    name = f"the stream {stream.name}"
    if stream.storage == StorageType.MEMORY:
        yield f"{name} is in memory: its jobs are lost when the server ends"
    if stream.retention != RetentionPolicy.WORK_QUEUE:
        yield f"{name} is no work queue: it keeps jobs that are done"
    if stream.max_age:
        yield f"{name} drops jobs that wait longer than {stream.max_age:g} s"
    has_limits = (
        max(stream.max_msgs or 0, stream.max_bytes or 0, stream.max_msgs_per_subject or 0) > 0
    )
    if has_limits and stream.discard != DiscardPolicy.NEW:
        yield f"{name} drops its oldest jobs when it is full: its discard policy must be new"
