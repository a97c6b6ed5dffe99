"""A driver of a third party: messages in lists of this process, and nothing else.

Facts and failed jobs are kept where qframe keeps them for a backend that cannot, and whatever a job
can have besides running works all the same.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Literal

from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    LOST,
    Delete,
    Push,
    Release,
    Renew,
    Reservation,
    Result,
    Start,
    Step,
)


class ListSettings(ConnectionSettings):
    """Connections that name the same `space` share their messages."""

    driver: Literal["list"] = "list"
    space: str = ""


class Message:
    def __init__(self, number: int, push: Push, due: float) -> None:
        self.number = number
        self.queue = push.queue
        self.raw = push.raw
        self.attempts = 0
        self.due = due
        """When it is ready, or its lease ends."""
        self.fence = 0
        """New at each reservation; 0 where there is none."""


class Space:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.messages: list[Message] = []


spaces: dict[str, Space] = {}


class ListJob(Reservation):
    """A message this process holds the lease of."""

    __slots__ = ("message", "number")

    def __init__(self, message: Message) -> None:
        super().__init__(message.queue, str(message.number), message.raw, message.attempts)
        self.message = message
        self.number = message.fence

    @property
    def fence(self) -> bytes:
        return b"%d" % self.number

    def counted(self, attempts: int) -> None:
        """Hear that the attempt was counted."""
        self.started, self.attempts = True, attempts


class ListBackend(Backend):
    """Messages in the order in which they became ready."""

    capabilities = (
        Capability.RESERVE
        | Capability.AHEAD
        | Capability.COUNTS
        | Capability.ORDER
        | Capability.UNCOUNT
        | Capability.SIZE
        | Capability.LIST
    )
    settings_model = ListSettings

    def __init__(self, name: str, settings: ListSettings, timing: Timing | None = None) -> None:
        self.name = name
        self.timing = timing or Timing()
        self._space = spaces.setdefault(settings.space, Space())

    def apply(self, *steps: Step) -> list[Result]:
        with self._space.lock:
            return [self._apply(step) for step in steps]

    def _apply(self, step: Step) -> Result:
        job, now = step.reservation, self._now()
        if job is None:
            for push in step.operations:
                assert isinstance(push, Push)  # a backend without facts gets no other step
                number = next(self._space.numbers)
                self._space.messages.append(Message(number, push, now + push.delay))
            return APPLIED
        assert isinstance(job, ListJob)
        if job.message.fence != job.number:
            return LOST
        self._settle(step, job, job.message, now)
        return APPLIED

    def _settle(self, step: Step, job: ListJob, message: Message, now: float) -> None:
        (operation,) = step.operations
        match operation:
            case Start(lease):
                message.attempts += not job.started
                message.due, job.lease = now + lease, lease
                job.counted(message.attempts)
            case Renew(lease):
                message.due = now + lease
            case Delete():
                message.fence = 0
                self._space.messages.remove(message)
            case Release(delay, front, counted):
                message.fence = 0
                message.attempts -= job.started and not counted
                message.due = now + delay
                if front and not delay:
                    message.due = -float(next(self._space.numbers))
                self._space.messages.remove(message)
                self._space.messages.append(message)

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        with self._space.lock:
            results, now = self.apply(*first), self._now()
            found: list[Reservation] = []
            room = self.timing.most_bytes
            for queue in queues:
                ready = [m for m in self._space.messages if m.queue == queue and m.due <= now]
                ready.sort(key=lambda message: (message.fence == 0, message.fence or message.due))
                for message in ready[: limit - len(found)]:
                    if room <= 0:
                        break
                    room -= len(message.raw)
                    message.fence = next(self._space.numbers)
                    message.due = now + self.timing.hold
                    message.due += len(message.raw) / self.timing.bytes_a_second
                    found.append(ListJob(message))
            return found, results

    def sizes(self, queue: str) -> Sizes:
        with self._space.lock:
            now = self._now()
            here = [message for message in self._space.messages if message.queue == queue]
            waiting = [message for message in here if message.due > now]
            delayed = sum(message.fence == 0 for message in waiting)
            return Sizes(len(here) - len(waiting), delayed, len(waiting) - delayed)

    def queues(self) -> list[str]:
        with self._space.lock:
            return sorted({message.queue for message in self._space.messages})

    def described(self) -> str:
        return "lists of this process"

    def check(self) -> Health:
        return Health("lists of this process", ("jobs are gone when this process ends",))

    def _now(self) -> float:
        return time.time() + self.timing.skew
