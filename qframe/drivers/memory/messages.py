"""The messages of one queue, by their places, and the reservation of one."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict

from qframe.contracts.backend import Place
from qframe.contracts.step import Reservation


class Message:
    """A message, and where it is."""

    __slots__ = (
        "attempts", "fence", "id", "notes", "place", "queue", "raw", "turn", "until",
    )  # fmt: skip

    def __init__(self, number: int, queue: str, raw: bytes) -> None:
        self.id = number
        self.queue = queue
        self.raw = raw
        self.attempts = 0
        self.notes = b""
        self.place: Place | None = None
        """None before it is pushed, and when it is gone."""
        self.until = 0.0
        """The end of its delay, or of its lease."""
        self.turn = number
        """Orders those of one end."""
        self.fence = 0
        """New at each reservation; 0 once that is settled."""


class MessageQueue:
    """The messages of one queue, by their places."""

    def __init__(self) -> None:
        self.ready: OrderedDict[int, Message] = OrderedDict()
        self.timed: list[tuple[float, int, Message]] = []
        """Those delayed and those under a lease, the next to end first."""
        self.buried: dict[int, Message] = {}

    def all(self) -> list[Message]:
        timed = (message for _, _, message in self.timed)
        return [*self.ready.values(), *timed, *self.buried.values()]

    def add(self, message: Message, *, front: bool = False) -> None:
        if message.place is Place.READY:
            self.ready[message.id] = message
            if front:
                self.ready.move_to_end(message.id, last=False)
        elif message.place is Place.BURIED:
            self.buried[message.id] = message
        else:
            insort(self.timed, (message.until, message.turn, message))

    def remove(self, message: Message) -> None:
        if message.place is Place.READY:
            del self.ready[message.id]
        elif message.place is Place.BURIED:
            del self.buried[message.id]
        elif message.place is not None:
            del self.timed[bisect_left(self.timed, (message.until, message.turn))]
        message.place = None

    def look_at_clock(self, now: float) -> None:
        """Make ready what is due, at the tail, and what nobody renewed, at the head."""
        ended = [message for *_, message in self.timed[: bisect_left(self.timed, (now, math.inf))]]
        del self.timed[: len(ended)]
        due = [message for message in ended if message.place is Place.DELAYED]
        expired = [message for message in ended if message.place is not Place.DELAYED]
        for message in (*due, *reversed(expired)):
            front = message.place is not Place.DELAYED
            message.place = Place.READY
            self.add(message, front=front)


class MemoryJob(Reservation):
    """A message this process holds the lease of."""

    __slots__ = ("message", "number")

    def __init__(self, message: Message) -> None:
        super().__init__(
            message.queue, str(message.id), message.raw, message.attempts, message.notes
        )
        self.message = message
        self.number = message.fence

    @property
    def fence(self) -> bytes:
        return b"%d" % self.number
