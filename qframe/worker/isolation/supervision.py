"""SupervisedChild: a child as its worker sees it; reads its messages, and ends it when late.

Nothing here blocks. What takes time is a generator, which its caller advances.
"""

from __future__ import annotations

import json
import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeVar

from qframe.exceptions import Interruption, JobCancelled, JobGivenBack
from qframe.worker import process_tree
from qframe.worker.isolation import child
from qframe.worker.isolation.messages import Message, line
from qframe.worker.isolation.spawn import ChildExit

T = TypeVar("T")

Steps = Generator[float, None, T]
"""A generator that waits: it yields until when at most, by the monotonic clock, and is advanced
once a process may have written, or ended, or can read more."""

STACKS = 1.0
"""Seconds a process that is about to be killed has to show where it is stuck."""
KILLED = 2.0
"""Seconds in which a killed process is gone, unless it is stuck in the system."""
_PATIENCE = 10.0
"""Seconds in which a process has to read a message that it waits for."""
_PART = 16384
_MOST = 64 * _PART
"""Bytes read from one process before the others' turn."""
_LONGEST = 64 * 1024 * 1024
_REPLACING = {"progress", "renew"}
"""What a process may send as often as it likes: of pending ones the last is read."""
_ENDINGS = {JobGivenBack: child.GIVE_BACK, JobCancelled: child.CANCEL}
"""The signals that end a job without an interrupt."""


class SupervisedChild:
    """A forked process and the socket to it. `exit` is how it ended, once it has.

    `ended` returns how a process ended; the selector reports the socket as `owner`'s.
    """

    def __init__(
        self,
        pid: int,
        sock: socket.socket,
        ended: Callable[[int], ChildExit | None],
        selector: selectors.BaseSelector,
        owner: object,
    ) -> None:
        self.pid = pid
        self.exit: ChildExit | None = None
        self.was_late = False
        self.is_stuck = False
        """Whether not even SIGKILL has ended it."""
        self.is_closed = False
        self.on_late: Callable[[], object] = lambda: None
        """Called before it is killed for being late."""
        self._socket = sock
        self._ended = ended
        self.selector = selector
        self._owner = owner
        self._reads = True
        self._begun = bytearray()
        self._ends_at = math.inf
        self._ordered_end = math.inf
        """When a job that was told to end is killed, whatever its timeout is."""
        self._is_killed = False

    def allow(self, seconds: float) -> None:
        """Gives it so many seconds from now, but no longer than `end_by` did; 0 is no limit."""
        if not self._is_killed:
            limit = time.monotonic() + seconds if seconds else math.inf
            self._ends_at = min(limit, self._ordered_end)

    def waiting(
        self, handle: Callable[[Message], bool], look: Callable[[], float] = lambda: math.inf
    ) -> Steps[bool]:
        """Waits until `handle` returns true; false if the process ends, or is stuck, before.

        `look` is called now and then meanwhile, and returns until when again at the latest.
        """
        while True:
            self.exit = self.exit or self._ended(self.pid)
            if any(handle(message) for message in self.receive()):
                return True
            if self.exit is not None or self.is_stuck:
                return False
            due = look()
            yield min(self.deadline(), due)

    def ending(self, seconds: float) -> Steps[None]:
        """Closes the socket, and waits for the end; it has so many seconds, 0: no limit."""
        self.close()
        self._ordered_end = math.inf
        self.allow(seconds)
        while (found := self.exit or self._ended(self.pid)) is None:
            yield math.inf if self.is_stuck else self.deadline()
        self.exit = found

    def close(self) -> None:
        self._stop_reading()
        self._socket.close()
        self.is_closed = True

    def forget(self) -> None:
        """Drops it: this is the process of another job."""
        self._socket.close()

    # -- messages ---------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Sends a short message to a process that waits for it and may be gone."""
        with suppress(OSError):
            self._socket.send(line(message), socket.MSG_DONTWAIT)

    def sending(self, message: Message) -> Steps[None]:
        """Sends a message to a process that waits for it and may be gone."""
        left, until = memoryview(line(message)), time.monotonic() + _PATIENCE
        while left and self._reads and time.monotonic() < until:
            try:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self.selector.modify(self._socket, selectors.EVENT_WRITE, self._owner)
                yield until
                self.selector.modify(self._socket, selectors.EVENT_READ, self._owner)
            except OSError:
                return

    def receive(self) -> list[Message]:
        """Returns the messages that have come; anything malformed ends the process."""
        received, most = 0, _MOST if self.exit is None else _LONGEST
        try:
            while self._reads and received < most:
                part = self._socket.recv(_PART, socket.MSG_DONTWAIT)
                self._begun += part
                received += len(part)
                if not part:
                    self._stop_reading()
        except BlockingIOError:
            pass
        except OSError:
            self._stop_reading()
        *lines, self._begun = self._begun.split(b"\n")
        try:
            messages = [dict(json.loads(each)) for each in lines]
        except (ValueError, TypeError):
            messages = []
            self.close()
        if len(self._begun) > _LONGEST:
            self.close()
        return _without_replaced(messages)

    def has_unread(self, what: str) -> bool:
        """Whether that is among the messages not yet read; it stays unread."""
        try:
            peeked = self._begun + self._socket.recv(_MOST, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except OSError:
            return False
        with suppress(ValueError):
            return any(json.loads(each).get("kind") == what for each in peeked.split(b"\n")[:-1])
        return False

    def _stop_reading(self) -> None:
        if self._reads:
            self._reads = False
            self.selector.unregister(self._socket)

    # -- its end ----------------------------------------------------------------------------------

    def end_by(self, error: Interruption, grace: float) -> None:
        """Ends its job by `error`; it has so many seconds for that."""
        process_tree.send(self.pid, _ENDINGS.get(type(error), child.INTERRUPT))
        self._ordered_end = time.monotonic() + grace
        self._ends_at = min(self._ends_at, self._ordered_end)

    def announce_stop(self) -> None:
        """Informs its job that the worker stops, and waits for it."""
        process_tree.send(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self._is_killed:
            return
        self._is_killed = True
        self._ends_at = time.monotonic() + KILLED
        process_tree.kill_group(self.pid)
        process_tree.send(self.pid, signal.SIGKILL)  # it may have left its group

    def deadline(self) -> float:
        """Ends it if its time is up; returns when to look again at the latest."""
        now = time.monotonic()
        if now >= self._ends_at and self.exit is None:
            if self._is_killed:
                self.is_stuck = True
                self._ends_at = now
            elif self.was_late:
                self.kill()
            else:  # it shows where it is stuck
                self.was_late = True
                self.on_late()
                process_tree.send(self.pid, child.SHOW_STACKS)
                self._ends_at = now + STACKS
        return self._ends_at


def _without_replaced(messages: list[Message]) -> list[Message]:
    kept: list[Message] = []
    replaced: set[str] = set()
    for message in reversed(messages):
        kind = message.get("kind")
        if kind not in _REPLACING:
            replaced.clear()
        elif kind in replaced:
            continue
        else:
            replaced.add(kind)
        kept.append(message)
    return kept[::-1]
