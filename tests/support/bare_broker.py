"""Brokers in this process: one that only delivers, one that can what SQS can."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.queue import Sizes
from qframe.drivers.broker.backend import BrokerBackend
from qframe.drivers.broker.blocking import BlockingReceive
from qframe.drivers.broker.message import BrokerJob, BrokerMessage


@dataclass
class Published:
    """One message in the broker."""

    queue: str
    raw: bytes
    headers: dict[str, str]
    due: float
    """When it is ready, or its lease ends."""
    deliveries: int = 0
    receipt: int = 0
    """New at each delivery; 0 while it is not delivered."""


@dataclass
class BrokerServer:
    """Forgets nothing, and takes late receipts: whoever deletes by one deletes."""

    timing: Timing
    on_call: Callable[[], None] = lambda: None
    """Called before and after each request."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    messages: list[Published] = field(default_factory=list)
    receipts: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def now(self) -> float:
        return time.time() + self.timing.skew

    def find(self, receipt: int) -> Published | None:
        return next((each for each in self.messages if each.receipt == receipt), None)


class BareBroker(BrokerBackend):
    """Publishes, delivers under a lease, counts deliveries, and removes; nothing else."""

    look_every = 0.0

    def __init__(
        self, name: str, server: BrokerServer, facts: Callable[[], Backend], timing: Timing
    ) -> None:
        super().__init__(name, ConnectionSettings(driver="bare"), facts, timing)
        self.server = server

    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        self.server.on_call()
        with self.server.lock:
            for each in messages:
                assert 0 <= each.delay <= self.longest_delay
                due = self.server.now() + each.delay
                self.server.messages.append(Published(each.queue, each.raw, each.headers, due))
        self.server.on_call()

    def receive(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        self.server.on_call()
        found: list[BrokerJob] = []
        with self.server.lock:
            asked_at, now = self.clock(), self.server.now()
            for queue in queues:
                ready = [m for m in self.server.messages if m.queue == queue and m.due <= now]
                ready.sort(key=lambda message: message.due)
                found += [self._deliver(each, asked_at) for each in ready[: limit - len(found)]]
        self.server.on_call()
        return found

    def _deliver(self, message: Published, asked_at: float) -> BrokerJob:
        message.receipt = next(self.server.receipts)
        message.deliveries += 1
        message.due = self.server.now() + self.timing.hold
        return self.received(
            message.queue,
            message.raw,
            message.headers,
            id=str(random.random()),
            deliveries=message.deliveries,
            delivery=message.receipt,
            asked_at=asked_at,
            lease=self.timing.hold,
        )

    def acknowledge(self, job: BrokerJob) -> bool:
        self.server.on_call()
        with self.server.lock:
            if (message := self.server.find(job.delivery)) is not None:
                self.server.messages.remove(message)
        self.server.on_call()
        return True

    def extend(self, job: BrokerJob, seconds: float) -> bool:
        return self._set_due(job, seconds)

    def _set_due(self, job: BrokerJob, seconds: float) -> bool:
        self.server.on_call()
        with self.server.lock:
            message = self.server.find(job.delivery)
            if message is not None:
                message.due = self.server.now() + seconds
        self.server.on_call()
        return message is not None

    def described(self) -> str:
        return "a broker in this process"

    def check(self) -> Health:
        return Health("bare broker")


class VisibleBroker(BareBroker):
    """Delays, takes back, and counts, as SQS does."""

    capabilities = (
        BrokerBackend.capabilities
        | Capability.AHEAD
        | Capability.WAIT
        | Capability.SIZE
        | Capability.LIST
        | Capability.PURGE
    )
    longest_delay = 20.0
    longest_release = 40.0

    def __init__(
        self, name: str, server: BrokerServer, facts: Callable[[], Backend], timing: Timing
    ) -> None:
        super().__init__(name, server, facts, timing)
        self._blocking = BlockingReceive(self._poll, self.give_back_all)

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        return self._blocking.wait(queues, timeout, wake)

    def _poll(self, queues: Sequence[str], timeout: float) -> Sequence[BrokerJob]:
        ends = time.monotonic() + timeout
        while not (found := self.receive(queues, 1)) and time.monotonic() < ends:
            time.sleep(0.005)
        return found

    def close(self) -> None:
        super().close()
        self._blocking.end(10)

    def give_back(self, job: BrokerJob, delay: float) -> bool:
        with self.server.lock:
            message = self.server.find(job.delivery)
            is_there = self._set_due(job, delay)
            if message is not None:
                message.receipt = 0
        return is_there

    def counted(self, queue: str) -> Sizes:
        with self.server.lock:
            here = [each for each in self.server.messages if each.queue == queue]
            waiting = [each for each in here if each.due > self.server.now()]
            reserved = sum(each.receipt > 0 for each in waiting)
            return Sizes(len(here) - len(waiting), len(waiting) - reserved, reserved)

    def listed(self) -> list[str]:
        with self.server.lock:
            return [each.queue for each in self.server.messages]

    def purged(self, queue: str) -> int:
        with self.server.lock:
            free = [
                each
                for each in self.server.messages
                if each.queue == queue and (not each.receipt or each.due <= self.server.now())
            ]
            for each in free:
                self.server.messages.remove(each)
            return len(free)
