"""Publisher: publishes with confirms, declares queues and counts them, on a connection of its own.

Publishers wait for their next use in a pool, so that each call has one alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import amqp

from qframe import forks
from qframe.drivers.broker.message import BrokerMessage
from qframe.drivers.guard import guarded
from qframe.drivers.rabbitmq import celery
from qframe.drivers.rabbitmq.connection import RabbitmqConnection
from qframe.drivers.rabbitmq.errors import FAULTS, NotConfirmed, Unroutable
from qframe.drivers.rabbitmq.frames import publishing
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import limited
from qframe.exceptions import BackendUnavailable

_TOGETHER = 500
"""Messages that are sent before their confirms are awaited."""
_PAUSE = 0.05
"""Seconds until a refused message is sent again."""
_UNLIMITED_SINCE = 4
"""The major version of RabbitMQ since which a queue has a delivery limit unless told otherwise."""


class Publisher(RabbitmqConnection):
    """One connection, for one thread at a time."""

    def __init__(self, settings: RabbitmqSettings, declared: set[str]) -> None:
        super().__init__(settings, heartbeat=0)
        self._declared = declared
        """The queues that are known to exist, by their names in the broker."""
        self._published = 0
        self._unconfirmed: dict[int, BrokerMessage] = {}
        """What was sent, by its number on the channel."""
        self._taken = 0
        """How many messages of those being published the server has for certain."""
        self._refused: list[BrokerMessage] = []
        self._returned: set[str] = set()
        """The ids of messages without a queue."""
        self._of_celery: dict[str, Any] = {}
        """The messages for Celery's workers among those being published, as it has them, by id."""

    def prepare(self, channel: Any) -> None:  # noqa: ANN401 (the client has no types)
        channel.confirm_select()
        channel.events["basic_ack"].add(self._confirmed)
        channel.events["basic_nack"].add(self._not_confirmed)
        channel.events["basic_return"].add(self._came_back)
        self._published = 0

    def _forget(self) -> None:
        super()._forget()
        self._unconfirmed = {}

    def _confirmed(self, number: int, multiple: bool) -> list[BrokerMessage]:
        there = self._unconfirmed
        numbers = [each for each in there if each <= number] if multiple else [number]
        found = [there.pop(each) for each in numbers if each in there]
        self._taken += len(found)
        return found

    def _not_confirmed(self, number: int, multiple: bool) -> None:
        refused = self._confirmed(number, multiple)
        self._refused += refused
        self._taken -= len(refused)

    def _came_back(self, _: object, __: str, ___: str, message: Any) -> None:  # noqa: ANN401 (as above)
        self._returned.add(str(message.properties.get("message_id", "")))
        self._taken -= 1  # its confirm follows

    # -- publishing -------------------------------------------------------------------------------

    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        """Publish messages; returns once the server has confirmed each.

        Declares the queues that are missing.
        """
        self._taken = 0
        try:
            self._publish_all(messages)
        except BackendUnavailable as error:
            error.in_doubt = error.in_doubt or self._taken > 0
            raise

    def _publish_all(self, messages: Sequence[BrokerMessage]) -> None:
        found = ((each.id, celery.for_celery(each)) for each in messages)
        self._of_celery = {id_: made for id_, made in found if made is not None}
        self._declare_for(messages)
        back = self._publish(messages)
        if back:  # somebody has deleted their queue since it was declared
            again = [each for each in messages if each.id in back]
            self._declared -= {self.settings.name_of(each.queue) for each in again}
            self._declare_for(again)
            if self._publish(again):
                raise Unroutable(f"{self.where} has no queue {again[0].queue}")

    def _declare_for(self, messages: Sequence[BrokerMessage]) -> None:
        """Declare missing queues, but one of Celery's workers only for what has waited for it.

        A worker of Celery ends if its queue is there, and not as it would have declared it.
        """
        theirs = self._of_celery
        for each in messages:
            name = self.settings.name_of(each.queue)
            if each.id not in theirs or name in self._declared:
                continue
            if self._count(name) is None:
                if not each.kept:
                    text = "its worker, Celery's, declares it; start that first"
                    raise Unroutable(f"{self.where} has no queue {each.queue}: {text}")
                with self._channel_apart() as channel:
                    channel.queue_declare(name, durable=True, auto_delete=False)
            self._declared.add(name)
        self.declare(each.queue for each in messages if each.id not in theirs)

    def _publish(self, messages: Sequence[BrokerMessage]) -> set[str]:
        """Publish messages to queues that exist. Returns the ids of those that came back."""
        self._returned = set()
        for start in range(0, len(messages), _TOGETHER):
            self._send(messages[start : start + _TOGETHER])
        return self._returned

    def _send(self, messages: Sequence[BrokerMessage]) -> None:
        """Send messages and await their confirms; those refused are sent again.

        A queue that is just being declared, or is choosing its leader, refuses for a moment. An old
        channel goes on asking the old leader, so another one is opened.
        """
        ends = time.monotonic() + limited(self.settings.timeout)
        while messages:
            self._refused = []
            self._send_once(messages, ends)
            messages = self._refused
            if messages and time.monotonic() + _PAUSE > ends:
                raise NotConfirmed(f"{self.where} refused to keep a message (basic.nack)")
            if messages:
                self.drop()
                time.sleep(_PAUSE)

    def _send_once(self, messages: Sequence[BrokerMessage], ends: float) -> None:
        channel = self.open()
        self._wait_until_free(ends)
        try:
            for each in messages:
                self._published += 1
                self._unconfirmed[self._published] = each
                name, theirs = self.settings.name_of(each.queue), self._of_celery.get(each.id)
                if theirs is None:
                    number, longest = channel.channel_id, self._amqp.frame_max
                    headers = each.headers
                    self.write(publishing(number, name, each.raw, each.id, headers, longest))
                else:
                    arguments = (0, "", name, True, False)
                    channel.send_method(amqp.spec.Basic.Publish, "Bssbb", arguments, theirs)
            while self._unconfirmed:
                self.read(ends)
        except FAULTS as error:
            is_blocked = self._is_blocked
            found = self.lost(error)
            if is_blocked:
                raise NotConfirmed(f"{found}; {_BLOCKED}") from error
            raise found from error
        except BaseException:
            self.drop()
            raise

    def _wait_until_free(self, ends: float) -> None:
        """Wait while the server takes no messages, since what was sent then would be in doubt."""
        while self._is_blocked:
            try:
                self.read(ends)
            except FAULTS as error:
                raised = self.lost(error)
                if isinstance(error, TimeoutError):
                    raised = BackendUnavailable(f"{self.where} {_BLOCKED}")
                raised.in_doubt = False
                raise raised from error

    # -- queues -----------------------------------------------------------------------------------

    def declare(self, queues: Iterable[str]) -> None:
        """Declare the queues that do not exist: durable quorum queues without a delivery limit."""
        missing = {self.settings.name_of(each) for each in queues} - self._declared
        for name in sorted(missing):
            if self._count(name) is None:
                self._declare(name)
            self._declared.add(name)

    def _declare(self, name: str) -> None:
        with self._channel_apart() as channel:
            self._declare_on(channel, name)

    def count(self, queue: str) -> int:
        """Return how many messages of a queue are ready; 0 if there is no such queue."""
        return self._count(self.settings.name_of(queue)) or 0

    def _count(self, name: str) -> int | None:
        """Return how many messages of a queue are ready; None if there is no such queue."""
        return self.count_all([name]).get(name)

    def count_all(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many messages are ready in each queue that exists, by its broker's name."""
        left, counts = [*names], dict[str, int]()
        while left:
            with self._channel_apart() as channel:
                try:
                    while left:
                        found = channel.queue_declare(left[-1], passive=True)
                        counts[left.pop()] = int(found.message_count)
                except amqp.NotFound:
                    left.pop()
        return counts

    def purge(self, queue: str) -> int:
        """Delete the messages of a queue that are ready. Returns how many there were."""
        if self._count(self.settings.name_of(queue)) is None:
            return 0
        try:
            channel = self.new_channel()
            found = channel.queue_purge(self.settings.name_of(queue))
            channel.close()
            return int(found)
        except FAULTS as error:
            raise self.lost(error) from error

    def difference(self, queue: str) -> str:
        """Return what the server says of a queue that is not as qframe declares it; "": it is."""
        name = self.settings.name_of(queue)
        if self._count(name) is None:
            return ""
        with self._channel_apart() as channel:
            try:
                self._declare_on(channel, name)
            except amqp.PreconditionFailed as error:
                return str(error.reply_text)
            except amqp.AccessRefused:  # it may be used, but not declared
                return ""
            return ""

    def _declare_on(self, channel: Any, name: str) -> None:  # noqa: ANN401 (as above)
        channel.queue_declare(
            name, durable=True, auto_delete=False, arguments=arguments_of(self.version)
        )

    @contextmanager
    def _channel_apart(self) -> Iterator[Any]:
        """Give a channel for a request without effect on messages: a refusal closes it."""
        self.open()
        try:
            channel = self.new_channel()
            try:
                yield channel
            finally:
                channel.close()
        except FAULTS as error:
            found = self.lost(error)
            found.in_doubt = False
            raise found from error


_BLOCKED = "takes no messages (connection.blocked): its memory or disk runs short"


def arguments_of(version: str) -> dict[str, Any]:
    """Return the arguments with which a server of this version is to declare a queue."""
    major = version.partition(".")[0]
    is_limited = major.isdecimal() and int(major) >= _UNLIMITED_SINCE
    return {"x-queue-type": "quorum", **({"x-delivery-limit": -1} if is_limited else {})}


class Publishers:
    """The publishers of a backend that nobody uses now; a forked child has none of its parent's."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        self._settings = settings
        self._lock = forks.lock()
        self._idle: list[Publisher] = []
        self.declared: set[str] = set()
        forks.in_child_of(self, Publishers.forget)

    def forget(self) -> None:
        idle, self._idle = self._idle, []
        for each in idle:
            each.abandon()

    @contextmanager
    def one(self) -> Iterator[Publisher]:
        """Give a publisher that no other thread has."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        publisher = found or Publisher(self._settings, self.declared)
        with guarded:
            try:
                yield publisher
            finally:
                with self._lock:
                    self._idle.append(publisher)

    def close(self) -> None:
        """Close those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()
