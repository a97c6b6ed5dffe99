"""BlockingReceive: waits in a client's blocking call, and returns as soon as it is woken.

For clients that can neither be selected nor interrupted. The call runs in a thread; if the waiting
thread leaves early, what arrives afterwards is given back at once, so no message stays hidden.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from qframe import forks
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.heartbeat import start_thread
from qframe.drivers.sockets import readable

Receive = Callable[[Sequence[str], float], Sequence[BrokerJob]]
"""Waits for messages of queues for so many seconds."""
GiveBack = Callable[[Sequence[BrokerJob]], None]


class PendingReceive:
    """One blocking call in its thread; a descriptor is readable once it has returned."""

    def __init__(
        self, receive: Receive, give_back: GiveBack, queues: Sequence[str], timeout: float
    ) -> None:
        self._receive, self._give_back = receive, give_back
        self._queues, self._timeout = queues, timeout
        self._lock = forks.lock()
        self._is_left = False
        self._jobs: Sequence[BrokerJob] = ()
        self._error: Exception | None = None
        with forks.undisturbed():
            self.reader, self._writer = os.pipe()
        self.thread = start_thread("qframe receive", self._run)

    def _run(self) -> None:
        try:
            self._jobs = self._receive(self._queues, self._timeout)
        except Exception as error:  # noqa: BLE001 (raised where it is waited for)
            self._error = error
        with self._lock:
            is_left = self._is_left
            os.close(self._writer)  # which makes the other end readable
        if is_left:
            os.close(self.reader)
            self._give_back(self._jobs)

    def take(self) -> Sequence[BrokerJob]:
        """Return what the call returned, or raise what it raised. Only once it has returned."""
        os.close(self.reader)
        if self._error is not None:
            raise self._error
        return self._jobs

    def leave(self) -> Sequence[BrokerJob]:
        """Give up waiting. Returns what has come by now; what comes later is given back."""
        with self._lock:
            self._is_left = not readable([self.reader], 0.0)
        return () if self._is_left else self.take()


class BlockingReceive:
    """Waits in `receive`, which blocks; `give_back` gets what comes after a wait has ended.

    `give_back` is called in another thread, and so needs a client that may be used there.
    """

    def __init__(self, receive: Receive, give_back: GiveBack) -> None:
        self._receive, self._give_back = receive, give_back
        self._left: list[threading.Thread] = []

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> Sequence[BrokerJob]:
        """Wait until messages come, `timeout` is over, or `wake` is readable."""
        pending = PendingReceive(self._receive, self._give_back, queues, timeout)
        readable([pending.reader, *([] if wake is None else [wake])], timeout)
        jobs = pending.leave()
        if pending.thread.is_alive():
            self._left = [each for each in self._left if each.is_alive()]
            self._left.append(pending.thread)
        return jobs

    def end(self, seconds: float) -> None:
        """Wait until calls that were left have returned, so that they hide no message."""
        for each in self._left:
            each.join(seconds)
