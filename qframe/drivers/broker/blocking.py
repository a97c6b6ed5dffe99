"""BlockingReceive: waits in a client's blocking call, and returns as soon as it is woken.

For clients that can neither be selected nor interrupted. The call runs in a thread. If the waiting
thread leaves early, the next wait goes on with the call; what arrives in between is given back at
once, so no message stays hidden.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from qframe import forks
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.heartbeat import start_thread
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

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
        self._is_over = False
        self._jobs: Sequence[BrokerJob] = ()
        self._error: Exception | None = None
        with forks.undisturbed():
            self.reader, self._writer = os.pipe()
        try:
            self.thread = start_thread("qframe receive", self._run)
        except RuntimeError:
            self.forget()
            raise

    def _run(self) -> None:
        try:
            self._jobs = self._receive(self._queues, self._timeout)
        except Exception as error:  # noqa: BLE001 (raised where it is waited for)
            self._error = error
        with self._lock:
            is_left, self._is_over = self._is_left, True
            os.write(self._writer, b".")  # a forked child may have the descriptor, too
            os.close(self._writer)
        if is_left:
            os.close(self.reader)
            self._give_back(self._jobs)

    def take(self) -> Sequence[BrokerJob]:
        """Return what the call returned, or raise what it raised. Only once it has returned."""
        os.close(self.reader)
        if self._error is not None:
            raise self._error
        return self._jobs

    def leave(self) -> bool:
        """Give up waiting unless the call has returned. Returns whether it goes on."""
        with self._lock:
            self._is_left = not self._is_over
            return self._is_left

    def join(self) -> bool:
        """Wait for it again. False if it has returned, and what it had was given back."""
        with self._lock:
            if not self._is_over:
                self._is_left = False
            return not self._is_over

    def forget(self) -> None:
        """Close the descriptors in a forked child, which has no such thread."""
        for each in (self.reader, self._writer):
            with suppress(OSError):
                os.close(each)


class BlockingReceive:
    """Waits in `receive`, which blocks; `give_back` gets what comes after a wait has ended.

    `give_back` is called in another thread, and so needs a client that may be used there. With
    `apart`, each queue is waited for by a call of its own.
    """

    def __init__(self, receive: Receive, give_back: GiveBack, *, apart: bool = False) -> None:
        self._receive, self._give_back = receive, give_back
        self._apart = apart
        self._lock = forks.lock()
        self._left: dict[tuple[str, ...], list[PendingReceive]] = {}
        """Calls that go on though nobody waits for them, by their queues."""
        forks.in_child_of(self, BlockingReceive.forget)

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None) -> Sequence[BrokerJob]:
        """Wait until messages come, `timeout` is over, or `wake` is readable.

        Raises `BackendUnavailable` if the process may have no more descriptors or threads.
        """
        groups = [(each,) for each in queues] if self._apart else [tuple(queues)]
        calls: list[tuple[tuple[str, ...], PendingReceive]] = []
        errors: list[Exception] = []
        try:
            for group in groups:
                calls.append((group, self._joined(group, timeout)))  # noqa: PERF401 (it may raise)
            wakes = [] if wake is None else [wake]
            readable([*(call.reader for _, call in calls), *wakes], timeout)
        except (OSError, RuntimeError) as error:  # what the calls before it get is not dropped
            errors.append(_cannot_wait(error))
        jobs: list[BrokerJob] = []
        for group, call in calls:
            if call.leave():
                with self._lock:
                    self._left.setdefault(group, []).append(call)
                continue
            try:
                jobs += call.take()
            except Exception as error:  # noqa: BLE001 (raised below)
                errors.append(error)
        if errors and not jobs:
            raise errors[0]
        return jobs

    def _joined(self, queues: tuple[str, ...], timeout: float) -> PendingReceive:
        """Return the call that goes on for these queues, or a new one."""
        while True:
            with self._lock:
                left = self._left.get(queues)
                call = left.pop() if left else None
            if call is None:
                return PendingReceive(self._receive, self._give_back, queues, timeout)
            if call.join():
                return call

    def forget(self) -> None:
        """Forget the calls of the parent in a forked child."""
        left, self._left = self._left, {}
        for calls in left.values():
            for each in calls:
                each.forget()

    def end(self, seconds: float) -> None:
        """Wait until calls that were left have returned, so that they hide no message."""
        with self._lock:
            left, self._left = self._left, {}
        for calls in left.values():
            for each in calls:
                each.thread.join(seconds)


def _cannot_wait(error: Exception) -> BackendUnavailable:
    unavailable = BackendUnavailable(f"this process cannot wait for messages: {error}")
    unavailable.in_doubt = False
    return unavailable
