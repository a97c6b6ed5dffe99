"""Consumer: gets the messages that are wanted, waits for them, and acknowledges them.

It has a connection of its own, as only the channel that delivered a message can acknowledge it. If
that is lost, all leases of its messages are: the server has made them ready for others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from qframe import forks
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.drivers.rabbitmq.errors import FAULTS
from qframe.drivers.rabbitmq.flow import MessageFlow
from qframe.drivers.rabbitmq.frames import acknowledgements
from qframe.drivers.rabbitmq.receiving import ReceivingConnection
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

_IN_A_ROW = 8
"""Messages that a worker with one slot gets one after the other until they flow."""
_BRIEF = 1.0
"""Seconds after which a job is too long for messages to be delivered beside it unasked."""
_SOON = 0.01
"""Seconds without a message of a flow after which the server is asked whether there are more."""
_STILL = 1.0
"""Seconds of silence in which a process may have stood still, and lost its jobs.

What it sent to a closed channel could not be told from what the server got just before.
"""
_PATIENCE = 1.0
"""Seconds after which a flow ends that brings nothing, though its queue has messages."""


class Consumer(ReceivingConnection):
    """One connection with one channel. One thread receives; others may settle and renew.

    While a worker fills many slots with brief jobs of one queue, or one slot again and again,
    messages flow: as many are unacknowledged as there are slots, and no more. Else it asks for each
    message, or for some at once.
    """

    def __init__(self, settings: RabbitmqSettings) -> None:
        super().__init__(settings)
        self.held: dict[int, BrokerJob] = {}
        """The jobs that it has delivered, by their tags."""
        self._flow: MessageFlow | None = None
        self._oldest = (0, 0.0)
        """The tag of a job that is held, and since when it was known to be."""
        self._in_a_row = 0
        """How many messages it has got one by one since a queue had none."""
        self._long: set[str] = set()
        """The queues of which several messages came the last time several were asked for."""

    def _forget(self) -> None:
        super()._forget()
        self._flow = None
        held, self.held = self.held, {}
        for job in held.values():
            job.end()

    # -- some at once -----------------------------------------------------------------------------

    def take(self, name: str, limit: int, *, flows: bool = False) -> list[Delivery]:
        """Get up to so many messages of a queue, all that are ready if there are fewer.

        A quorum queue writes to its disk for each `get`, but once for all that it delivers to a
        consumer together. `flows` lets that consumer stay. One that ends may have delivered more.
        """
        with self.lock:
            self._open()
            if self._flow is not None:
                return self._flowing(name, limit)
            found = self._late([name])
            if found:
                return found
            if flows and limit == 1 and self._in_a_row >= _IN_A_ROW and not self.held:
                return self._begin_flow(name, limit)
        if limit == 1 or name not in self._long:
            first = self.get(name)
            self._in_a_row = 0 if first is None else self._in_a_row + 1
            if first is None or limit == 1:
                return [] if first is None else [first]
            found.append(first)
        with self.lock:
            self._open()
            window = limit - len(found)
            if flows and name in self._long and self._are_brief():
                return self._begin_flow(name, window)
            found += self._cancel(self._consume([name], window), window)
        (self._long.add if len(found) > 1 else self._long.discard)(name)
        return found

    # -- while messages flow ----------------------------------------------------------------------

    def _begin_flow(self, name: str, window: int) -> list[Delivery]:
        self._flow = MessageFlow(name, window + len(self.held), self.held)
        self._widen(self._flow, window)
        return self._flowing(name, window)

    def _flowing(self, name: str, limit: int) -> list[Delivery]:
        """Return what has come of a flow.

        While jobs are held, more may be on the way. With none, the flow ends when the server has
        nothing more. What was on its way then would come again behind all others.
        """
        self.read_pending()
        flow = self._flow
        if flow is not None and flow.others and (freed := flow.freed(self.held)):
            self._widen(flow, freed)
        if not self._arrived and self._channel is not None:
            self._catch_up()
        if not (self._arrived or self.held):
            self._await_more(name)
        if self._flow is None:
            raise BackendUnavailable(f"{self.where}: the connection was lost")
        fits = self._flow.fits(limit + len(self.held))
        is_over = not (self._arrived or self.held)
        if is_over or not fits or not self._are_brief():
            found = self.end_flow()
            if not found and (one := self.get(name)) is not None:
                found.append(one)
            return found
        found, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return found

    def _await_more(self, name: str) -> None:
        """Wait until a message has come, or the queue has none."""
        ends = time.monotonic() + _PATIENCE
        while not (self._arrived or self._channel is None) and time.monotonic() < ends:
            if not (self._has_input(_SOON) or self._has_ready(name)):
                return
            self.read_pending()

    def _widen(self, flow: MessageFlow, window: int) -> None:
        """Let a flow have so many more messages."""
        flow.add(self._consume([flow.name], window), window)

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
            self._in_a_row = 0
            return self._cancel(flow.tags, flow.window)

    # -- waiting ----------------------------------------------------------------------------------

    def wait(self, names: Sequence[str], timeout: float, wake: int | None) -> list[Delivery]:
        """Wait for a message of one of the queues, and take it.

        Of several queues each may have sent one at the same time; so has a flow that ends.
        """
        ends = time.monotonic() + timeout
        with self.lock:
            self.open()
            tags = list[str]()
            if flows := self._flow is not None:
                self.read_pending()
            else:
                tags = self._consume(names, 1)
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
            return self._cancel(tags, len(tags))
        with self.lock:
            if self._arrived:
                return [self._arrived.pop(0)]
            if self.held:  # more may be on the way, or a further consumer is to begin
                return []
            return self.end_flow()  # an idle worker gets one at a time

    # -- settling ---------------------------------------------------------------------------------

    def hold(self, job: BrokerJob) -> None:
        """Note that this connection has the job's lease."""
        self.held[job.delivery[1]] = job

    def has(self, job: BrokerJob) -> bool:
        """Whether the channel that delivered the job is open, as far as the server has told."""
        with self.lock:
            if job.delivery[1] in self.held and not self._is_waiting:
                with suppress(BackendUnavailable):
                    self.read_pending()
            return self.held.get(job.delivery[1]) is job

    def acknowledge(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        """Remove the messages of jobs. False for those whose channel is lost.

        While messages flow, a request follows at once, whose answer the worker need not await.
        """
        with self.lock:
            if not self._is_waiting:  # whoever waits learns it from the socket
                self._look_after(_STILL)
            done = [self.held.get(each.delivery[1]) is each for each in jobs]
            ours = [each for each, is_ours in zip(jobs, done, strict=True) if is_ours]
            if not ours:
                return done
            try:
                self._send(
                    self._acknowledgements([each.delivery[1] for each in ours]),
                    [each.id for each in ours],
                    asks=self._flow is not None,
                    waits=True in [each.logged for each in ours],
                )
            except FAULTS as error:
                raise self.lost(error) from error
            for each in ours:
                del self.held[each.delivery[1]]
            return done

    def _acknowledgements(self, tags: Sequence[int]) -> bytes:
        """Return what acknowledges: one frame for all messages before the first that is held."""
        wanted = set(tags)
        left = [tag for tag in self.held if tag not in wanted]
        first = min(left + [each.tag for each in self._arrived], default=math.inf)
        return acknowledgements(self._channel.channel_id, tags, first)


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
