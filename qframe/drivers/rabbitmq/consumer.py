"""Consumer: gets messages, waits for them, and acknowledges them, on a connection of its own.

Only the channel that delivered a message can acknowledge it. If that is lost, all leases of its
messages are: the server has made them ready for others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from qframe import forks
from qframe.drivers import heartbeat
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.rabbitmq.connection import RabbitmqConnection
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

_BEATS = 4
"""How often in the agreed time a sign of life is sent."""
_SILENCE = 2.5
"""After how many of the agreed times without a frame a server is taken for gone."""
_DELIVERIES = "x-delivery-count"


class Delivery(NamedTuple):
    """A delivered message, by its queue's name in the broker."""

    name: str
    raw: bytes
    headers: dict[str, Any]
    id: str
    times: int
    """How often it has been delivered, this time included."""
    tag: int
    kind: str
    """The type of its content; "" if its publisher did not say."""


class Consumer(RabbitmqConnection):
    """One connection with one channel. One thread receives; others may settle and renew."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings, settings.heartbeat)
        self.held: dict[int, BrokerJob] = {}
        """The jobs that it has delivered, by their tags."""
        self._arrived: list[Delivery] = []
        self._agreed = settings.heartbeat
        self._is_waiting = False
        """Whether a thread waits for input, and so nobody else may read it."""
        self._window = 0
        """How many messages a consumer gets, as the channel was told; 0: not told, any number."""
        self._long: set[str] = set()
        """The queues of which several messages came the last time several were asked for."""
        self._is_unproved = False
        """Whether the server has answered nothing since the last acknowledgement."""
        self._proves_later = 0
        """The thread whose acknowledgements are followed by another request."""
        self._heard = (0, 0.0)
        """How many frames had come, and when that was noted."""
        self._beats: tuple[heartbeat.Heartbeat, heartbeat.Beat] | None = None

    def prepare(self, channel: Any) -> None:  # noqa: ANN401 (the client has no types)
        self._window = 0
        pace = heartbeat.current()
        self._agreed = self._amqp.heartbeat or self.settings.heartbeat
        self._heard = 0, time.monotonic()
        beat = pace.add(self._agreed / _BEATS, partial(_beat, weakref.ref(self)))
        self._beats = pace, beat

    def _forget(self) -> None:
        super()._forget()
        beats, self._beats = getattr(self, "_beats", None), None
        if beats is not None:
            beats[0].drop(beats[1])
        held, self.held = getattr(self, "held", {}), {}
        for job in held.values():
            job.end()
        self._arrived = []

    def beat(self) -> None:
        """Send a sign of life, and look whether the server has closed the connection."""
        with self.lock:
            if self._amqp is None:
                return
            try:
                self._amqp.send_heartbeat()
            except FAULTS as error:
                if not self._is_waiting:  # else whoever waits learns it from the socket
                    self.lost(error)
                return
            if not self._is_waiting:
                with suppress(BackendUnavailable):
                    self.read_pending()
                    self._look_for_silence()

    def _look_for_silence(self) -> None:
        """Close the connection to a server that sends no sign of life."""
        if self._amqp is None:
            return
        frames, now = self._amqp.bytes_recv, time.monotonic()
        if frames != self._heard[0]:
            self._heard = frames, now
        elif now - self._heard[1] > _SILENCE * self._agreed:
            raise self.lost(TimeoutError())

    def has(self, job: BrokerJob) -> bool:
        """Whether the channel that delivered the job is open, as far as the server has told."""
        with self.lock:
            if job.delivery[1] in self.held and not self._is_waiting:
                with suppress(BackendUnavailable):
                    self.read_pending()
            return self.held.get(job.delivery[1]) is job

    # -- receiving --------------------------------------------------------------------------------

    def get(self, name: str) -> Delivery | None:
        """Get the first message of a queue; None if it has none ready."""
        with self.lock:
            channel = self._open()
            try:
                found = channel.basic_get(name)
            except FAULTS as error:
                raise self.lost(error) from error
            self._spoke = time.monotonic()
            self._is_unproved = False
            return None if found is None else _delivery(name, found)

    def take(self, name: str, limit: int) -> list[Delivery]:
        """Get up to so many messages of a queue, all that are ready if there are fewer.

        A quorum queue writes to its disk for each `get`, but once for all that it delivers to a
        consumer together.
        """
        found: list[Delivery] = []
        if limit == 1 or name not in self._long:
            first = self.get(name)
            if first is None or limit == 1:
                return [] if first is None else [first]
            found.append(first)
        with self.lock:
            channel = self._open()
            try:
                self._prefetch(channel, limit - len(found))
                tag = self._consume(channel, name)
            except FAULTS as error:
                raise self.lost(error) from error
            found += self._cancel(channel, [tag])
            self._is_unproved = False
        (self._long.add if len(found) > 1 else self._long.discard)(name)
        return found

    def wait(self, names: Sequence[str], timeout: float, wake: int | None) -> list[Delivery]:
        """Wait for a message of one of the queues, and take it.

        Of several queues each may have sent one at the same time.
        """
        ends = time.monotonic() + timeout
        with self.lock:
            channel = self.open()
            try:
                self._prefetch(channel, 1)
                tags = [self._consume(channel, name) for name in names]
            except FAULTS as error:
                raise self.lost(error) from error
            self._is_waiting = True
        try:
            descriptors = [self.fileno(), *([] if wake is None else [wake])]
            while not self._arrived and (left := ends - time.monotonic()) > 0:
                found = readable(descriptors, left)
                self.read_pending()
                if wake in found:
                    break
        finally:
            self._is_waiting = False
        return self._cancel(channel, tags)

    def _prefetch(self, channel: Any, count: int) -> None:  # noqa: ANN401 (as above)
        """Let a consumer from now on get so many messages."""
        if self._window != count:
            channel.basic_qos(0, count, a_global=False)
            self._window = count

    def _consume(self, channel: Any, name: str) -> str:  # noqa: ANN401 (as above)
        def take(message: Any) -> None:  # noqa: ANN401 (as above)
            self._arrived.append(_delivery(name, message))

        return str(channel.basic_consume(name, callback=take, on_cancel=_ignore))

    def _cancel(self, channel: Any, tags: Sequence[str]) -> list[Delivery]:  # noqa: ANN401 (as above)
        """End the deliveries; returns what has come by then."""
        with self.lock:
            try:
                for tag in tags:
                    channel.basic_cancel(tag)
            except FAULTS as error:
                raise self.lost(error) from error
            self._spoke = time.monotonic()
            found, self._arrived = self._arrived, []
            return found

    # -- settling ---------------------------------------------------------------------------------

    def hold(self, job: BrokerJob) -> None:
        """Note that this connection has the job's lease."""
        self.held[job.delivery[1]] = job

    def acknowledge(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        """Remove the messages of jobs. False for those whose channel is lost.

        The server answers no acknowledgement. So a request that it answers follows.
        """
        with self.lock:
            done = [self.held.get(each.delivery[1]) is each for each in jobs]
            ours = [each for each, is_ours in zip(jobs, done, strict=True) if is_ours]
            if not ours:
                return done
            try:
                for each in ours:
                    self._channel.basic_ack(each.delivery[1])
                self._is_unproved = not self._is_waiting
                is_plain = not any(each.logged for each in ours)
                if not (is_plain and self._proves_later == threading.get_ident()):
                    self._prove()
            except FAULTS as error:
                raise self.lost(error) from error
            for each in ours:
                del self.held[each.delivery[1]]
            return done

    @contextmanager
    def proved_together(self) -> Iterator[None]:
        """Let this thread's acknowledgements in the block be answered by the requests after them.

        What was noted of a job is forgotten only behind an answer: such a job is not among them.
        """
        self._proves_later = threading.get_ident()
        try:
            yield
        finally:
            self._proves_later = 0
        with self.lock:
            try:
                self._prove()
            except FAULTS as error:
                raise self.lost(error) from error

    def _prove(self) -> None:
        """Wait for an answer, unless there was one since the last acknowledgement."""
        if self._is_unproved:
            self._open().basic_qos(0, self._window, a_global=False)
            self._is_unproved = False

    def _open(self) -> Any:  # noqa: ANN401 (as above)
        """Return the channel; as long as acknowledgements are unproved, no other than theirs."""
        if not self._is_unproved:
            return self.open()
        if self._channel is None:
            self._is_unproved = False
            raise BackendUnavailable(f"{self.where}: the connection was lost")
        return self._channel


def _delivery(name: str, message: Any) -> Delivery:  # noqa: ANN401 (as above)
    headers = dict(message.properties.get("application_headers") or {})
    counted = headers.get(_DELIVERIES, 0)
    counted = counted if isinstance(counted, int) else 0
    before = max(counted, int(bool(message.delivery_info["redelivered"])))
    body = message.body
    raw = body.encode() if isinstance(body, str) else bytes(body)
    tag = int(message.delivery_info["delivery_tag"])
    said = message.properties
    id_, kind = str(said.get("message_id", "")), str(said.get("content_type", ""))
    return Delivery(name, raw, headers, id_, before + 1, tag, kind)


def _beat(consumer: weakref.ref[Consumer]) -> None:
    there = consumer()
    if there is not None:
        there.beat()


def _ignore(_: str) -> None:
    """Take note of a queue that was deleted: the next `get` finds it missing."""


class Consumers(forks.PerThread):
    """The consumer of one thread; a forked child opens its own."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        self._make: Callable[[], Consumer] = partial(Consumer, settings)
        super().__init__()

    def begin(self) -> None:
        parents: Consumer | None = getattr(self, "mine", None)
        if parents is not None:
            parents.abandon()
        self.mine = self._make()
