"""Consumer: gets messages, waits for them, and acknowledges them, on a connection of its own.

Only the channel that delivered a message can acknowledge it. If that is lost, all leases of its
messages are: the server has made them ready for others.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from qframe import forks
from qframe.drivers import heartbeat
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.broker.start_log import StartedHere
from qframe.drivers.rabbitmq.connection import RabbitmqConnection
from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.frames import IncomingFrames, acknowledgements, qos
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

_BEATS = 4
"""How often in the agreed time a sign of life is sent."""
_SILENCE = 2.5
"""After how many of the agreed times without a frame a server is taken for gone."""
_BRIEF = 1.0
"""Seconds after which a job is too long for messages to be delivered beside it unasked."""
_SPARE = 1.0
"""Seconds for which a flow may have more messages than are wanted: slots are being left."""
_SOON = 0.01
"""Seconds in which more messages come of a flow when all have been acknowledged."""
_TAGS = 100
"""How many consumers are remembered: messages may come behind the answer to their cancel."""


class _MessageFlow(NamedTuple):
    """A consumer that stays, so that the server delivers as soon as something is acknowledged."""

    name: str
    """The queue's name in the broker."""
    tag: str
    window: int
    """How many of its messages may be unacknowledged."""


class Proof:
    """Whether the server has got acknowledgements; never, if the connection is lost before."""

    is_given = False
    is_asked = False
    """Whether the server has been asked something after them."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        """Those of the messages."""


class Consumer(RabbitmqConnection):
    """One connection with one channel. One thread receives; others may settle and renew.

    While a worker fills many slots with brief jobs of one queue, messages flow: as many are
    unacknowledged as there are slots. Else it asks for each message, or for some at once.
    """

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings, settings.heartbeat)
        self.held: dict[int, BrokerJob] = {}
        """The jobs that it has delivered, by their tags."""
        self._arrived: list[Delivery] = []
        self._queue_of: dict[str, str] = {}
        """The queues of the last consumers, by their tags."""
        self._flow: _MessageFlow | None = None
        self._fitted = 0.0
        """When the flow had no more than was wanted."""
        self._oldest = (0, 0.0)
        """The tag of a job that is held, and since when it was known to be."""
        self._agreed = settings.heartbeat
        self._is_waiting = False
        """Whether a thread waits for input, and so nobody else may read it."""
        self._window = 0
        """How many messages a consumer gets, as the channel was told; 0: not told, any number."""
        self._long: set[str] = set()
        """The queues of which several messages came the last time several were asked for."""
        self.is_unproved = False
        """Whether the server has answered nothing since the last acknowledgement."""
        self.started = StartedHere()
        """What this connection has started, and not ended for certain."""
        self.proof = Proof()
        """Of the last acknowledgements."""
        self._asked = deque[Proof]()
        """Those that come with the next answers."""
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

    def takes_frames(self) -> Callable[..., Any]:
        return partial(IncomingFrames, weakref.ref(self))

    def _forget(self) -> None:
        super()._forget()
        beats, self._beats = getattr(self, "_beats", None), None
        if beats is not None:
            beats[0].drop(beats[1])
        held, self.held = getattr(self, "held", {}), {}
        for job in held.values():
            job.end()
        self._arrived, self._flow, self._queue_of = [], None, {}
        self.started, self.proof, self._asked = StartedHere(), Proof(), deque()

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
            self._note_answer()
            return None if found is None else Delivery.gotten(name, found)

    def take(self, name: str, limit: int, *, flows: bool = False) -> list[Delivery]:
        """Get up to so many messages of a queue, all that are ready if there are fewer.

        A quorum queue writes to its disk for each `get`, but once for all that it delivers to a
        consumer together. `flows` lets that consumer stay. One that ends may have delivered more.
        A flow that begins while jobs run counts these in its window, though they are of another
        consumer: until they end, it may bring as many more as they are.
        """
        with self.lock:
            self._open()
            if self._flow is not None:
                return self._flowing(name, limit)
            found = self._late([name])
            if found:
                return found
        if limit == 1 or name not in self._long:
            first = self.get(name)
            if first is None or limit == 1:
                return [] if first is None else [first]
            found.append(first)
        with self.lock:
            channel = self._open()
            window = limit - len(found)
            begins = flows and name in self._long and self._are_brief()
            if begins:
                window += len(self.held)
            try:
                self._prefetch(window)
                tag = self._consume(channel, name)
            except FAULTS as error:
                raise self.lost(error) from error
            if begins:
                self._flow = _MessageFlow(name, tag, window)
                self._fitted = time.monotonic()
                return self._flowing(name, limit)
            found += self._cancel([tag], window)
        (self._long.add if len(found) > 1 else self._long.discard)(name)
        return found

    # -- while messages flow ----------------------------------------------------------------------

    def _flowing(self, name: str, limit: int) -> list[Delivery]:
        """Return what has come of a flow.

        While jobs are held, more may be on the way. With none, nothing is proof that the queue has
        nothing ready: then the flow ends, so that a `get` can tell.
        """
        assert self._flow is not None  # noqa: S101 (the caller has looked)
        self.read_pending()
        if not self._arrived and self._channel is not None:
            self._catch_up()
        if not (self._arrived or self.held or self._channel is None):
            self._has_input(_SOON)
            self.read_pending()
        if self._flow is None:
            raise BackendUnavailable(f"{self.where}: the connection was lost")
        now = time.monotonic()
        if limit + len(self.held) >= self._flow.window:
            self._fitted = now
        is_over = not (self._arrived or self.held)
        if is_over or now - self._fitted > _SPARE or not self._are_brief():
            found = self.end_flow()
            if not found and (one := self.get(name)) is not None:
                found.append(one)
            return found
        found, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return found

    @property
    def flows(self) -> bool:
        """Whether messages come unasked."""
        return self._flow is not None

    def _are_brief(self) -> bool:
        """Whether no job is known to be held for long."""
        tag, since = self._oldest
        now = time.monotonic()
        if tag in self.held:
            return now - since <= _BRIEF
        self._oldest = next(iter(self.held), 0), now
        return True

    def leave_others(self, names: Sequence[str]) -> list[Delivery]:
        """Get messages only of these queues. Returns those of others that nobody has taken."""
        with self.lock:
            if self._flow is not None and [self._flow.name] == [*names]:
                return []
            found = self.end_flow()
            return found + self._late({each.name for each in self._arrived} - {*names})

    def end_flow(self) -> list[Delivery]:
        """Let no more messages come unasked. Returns those that nobody has taken."""
        with self.lock:
            flow, self._flow = self._flow, None
            if flow is None:
                return []
            self._long.discard(flow.name)
            return self._cancel([flow.tag], flow.window)

    # -- waiting ----------------------------------------------------------------------------------

    def wait(self, names: Sequence[str], timeout: float, wake: int | None) -> list[Delivery]:
        """Wait for a message of one of the queues, and take it.

        Of several queues each may have sent one at the same time; so has a flow that ends.
        """
        ends = time.monotonic() + timeout
        with self.lock:
            channel = self.open()
            tags = list[str]()
            if flows := self._flow is not None:
                self.read_pending()
            else:
                try:
                    self._prefetch(1)
                    tags += [self._consume(channel, name) for name in names]
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
        if not flows:
            return self._cancel(tags, 1)
        with self.lock:
            if not self._arrived:  # an idle worker gets one at a time
                return self.end_flow()
            return [self._arrived.pop(0)]

    def _prefetch(self, count: int) -> None:
        """Let a consumer from now on get so many messages."""
        if self._window != count:
            self._window = count
            self._await_answer(self._ask())

    def _consume(self, channel: Any, name: str) -> str:  # noqa: ANN401 (as above)
        tag = str(channel.basic_consume(name, on_cancel=_ignore))
        self._queue_of[tag] = name
        if len(self._queue_of) > _TAGS:
            del self._queue_of[next(iter(self._queue_of))]
        return tag

    def arrive(self, tag: str, delivery: Delivery) -> None:
        """Take a message that a consumer of ours was sent, also one that has ended."""
        self._arrived.append(delivery._replace(name=self._queue_of.get(tag, delivery.name)))

    def _cancel(self, tags: Sequence[str], window: int) -> list[Delivery]:
        """End the deliveries; returns what has come by then."""
        with self.lock:
            try:
                for tag in tags:
                    self._channel.basic_cancel(tag)
            except FAULTS as error:
                raise self.lost(error) from error
            if len(self._arrived) < window * len(tags):
                self._catch_up()
            self._spoke = time.monotonic()
            found, self._arrived = self._arrived, []
            return found

    def _catch_up(self) -> None:
        """Read what the server had delivered when it answered.

        It answers a `consume` or a `cancel` before it sends what the queue gave it meanwhile. A
        node that is not the queue's leader may have learned of that still later.
        """
        try:
            self._await_answer(self._ask())
        except FAULTS as error:
            raise self.lost(error) from error

    def _late(self, names: Collection[str]) -> list[Delivery]:
        """Take the messages of queues that have come behind the end of their consumer."""
        if not self._arrived:
            return []
        found = [each for each in self._arrived if each.name in names]
        self._arrived = [each for each in self._arrived if each.name not in names]
        return found

    # -- settling ---------------------------------------------------------------------------------

    def hold(self, job: BrokerJob) -> None:
        """Note that this connection has the job's lease."""
        self.held[job.delivery[1]] = job

    def acknowledge(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        """Remove the messages of jobs. False for those whose channel is lost.

        The server answers no acknowledgement. So a request that it answers follows: while messages
        flow at once, so that the answer comes while the worker does something else.
        """
        with self.lock:
            done = [self.held.get(each.delivery[1]) is each for each in jobs]
            ours = [each for each, is_ours in zip(jobs, done, strict=True) if is_ours]
            if not ours:
                return done
            if self.proof.is_asked or self.proof.is_given:
                self.proof = Proof()
            self.proof.ids += [each.id for each in ours]
            self.is_unproved = not self._is_waiting
            is_plain = not any(each.logged for each in ours)
            try:
                frames = self._acknowledgements([each.delivery[1] for each in ours])
                if self.is_unproved and self._flow is not None:
                    self._ask(frames)
                else:
                    self.write(frames)
                if not (is_plain and self.is_proved_later):
                    self._prove()
            except FAULTS as error:
                raise self.lost(error) from error
            for each in ours:
                del self.held[each.delivery[1]]
            return done

    def _acknowledgements(self, tags: Sequence[int]) -> bytes:
        """Return what acknowledges: one frame for all messages before the first that is held."""
        wanted = set(tags)
        left = [tag for tag in self.held if tag not in wanted]
        first = min([*left, *(each.tag for each in self._arrived)], default=math.inf)
        return acknowledgements(self._channel.channel_id, tags, first)

    @contextmanager
    def proved_later(self) -> Iterator[None]:
        """Let this thread's acknowledgements in the block be answered by the requests after them.

        What was noted of a job is forgotten only behind an answer: such a job is not among them.
        """
        self._proves_later = threading.get_ident()
        try:
            yield
        finally:
            self._proves_later = 0

    @property
    def is_proved_later(self) -> bool:
        """Whether this thread is in such a block."""
        return self._proves_later == threading.get_ident()

    def prove(self) -> None:
        """Wait for an answer, unless there was one since the last acknowledgement."""
        with self.lock:
            try:
                self._prove()
            except FAULTS as error:
                raise self.lost(error) from error

    def _prove(self) -> None:
        if self.is_unproved:
            self._open()
            self._await_answer(self.proof if self.proof.is_asked else self._ask())

    def _ask(self, before: bytes = b"") -> Proof:
        """Ask the server for an answer, behind these frames. Returns what that proves."""
        self.write(before + qos(self._channel.channel_id, self._window))
        proof = self.proof
        proof.is_asked = True
        self._asked.append(proof)
        return proof

    def _await_answer(self, proof: Proof) -> None:
        """Read until the server has answered the last of those that were asked for that proof."""
        while proof in self._asked:
            self._read_frames()
        self._spoke = time.monotonic()

    def answered(self) -> None:
        """Note the answer to what was asked first."""
        proof = self._asked.popleft()
        self._give(proof)
        if proof is self.proof and proof not in self._asked:
            self.is_unproved = False

    def _note_answer(self) -> None:
        """Note that the server has got all acknowledgements."""
        self.is_unproved = False
        self._give(self.proof)

    def _give(self, proof: Proof) -> None:
        proof.is_given = True
        ids, proof.ids = proof.ids, []
        if ids:
            self.started.end(ids)

    def _open(self) -> Any:  # noqa: ANN401 (as above)
        """Return the channel; as long as acknowledgements are unproved, no other than theirs."""
        if not self.is_unproved:
            return self.open()
        if self._channel is None:
            self.is_unproved = False
            raise BackendUnavailable(f"{self.where}: the connection was lost")
        return self._channel


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
