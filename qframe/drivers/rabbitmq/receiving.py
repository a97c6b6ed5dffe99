"""ReceivingConnection: asks for messages, singly or by consumers, and keeps what has arrived."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.frames import IncomingFrames
from qframe.drivers.rabbitmq.proof import ProvingConnection
from qframe.drivers.rabbitmq.settings import RabbitmqSettings

_TAGS = 100
"""How many consumers are remembered: messages may come behind the answer to their cancel."""


class ReceivingConnection(ProvingConnection):
    """A connection whose channel receives messages of several queues."""

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings)
        self._arrived: list[Delivery] = []
        self._queue_of: dict[str, str] = {}
        """The queues of the last consumers, by their tags."""

    def takes_frames(self) -> Callable[..., Any]:
        return partial(IncomingFrames, weakref.ref(self))

    def _forget(self) -> None:
        super()._forget()
        self._arrived, self._queue_of = [], {}

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

    # -- consumers --------------------------------------------------------------------------------

    def _consume(self, names: Sequence[str], window: int) -> list[str]:
        """Begin a consumer of each queue, of which so many messages may be unacknowledged.

        Returns their tags. The windows of earlier consumers stay as they are.
        """
        try:
            if self._window != window:
                self._window = window
                self._await_answer(self._ask())
            return [self._begin(name) for name in names]
        except FAULTS as error:
            raise self.lost(error) from error

    def _begin(self, name: str) -> str:
        tag = str(self._channel.basic_consume(name, on_cancel=_ignore))
        self._queue_of[tag] = name
        if len(self._queue_of) > _TAGS:
            del self._queue_of[next(iter(self._queue_of))]
        return tag

    def arrive(self, tag: str, delivery: Delivery) -> None:
        """Take a message that a consumer of ours was sent, also one that has ended."""
        self._arrived.append(delivery._replace(name=self._queue_of.get(tag, delivery.name)))

    def _cancel(self, tags: Sequence[str], window: int) -> list[Delivery]:
        """End consumers that together have that window; returns what has come by then."""
        with self.lock:
            try:
                for tag in tags:
                    self._channel.basic_cancel(tag)
            except FAULTS as error:
                raise self.lost(error) from error
            if len(self._arrived) < window:
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

    def _has_ready(self, name: str) -> bool:
        """Whether a queue has messages that no consumer has; reads those that ours have."""
        try:
            found = self._channel.queue_declare(name, passive=True)
            self._await_answer(self._ask())
        except FAULTS as error:
            raise self.lost(error) from error
        return int(found.message_count) > 0

    def _late(self, names: Collection[str]) -> list[Delivery]:
        """Take the messages of queues that have come behind the end of their consumer."""
        if not self._arrived:
            return []
        found = [each for each in self._arrived if each.name in names]
        self._arrived = [each for each in self._arrived if each.name not in names]
        return found


def _ignore(_: str) -> None:
    """Take note of a queue that was deleted: the next `get` finds it missing."""
