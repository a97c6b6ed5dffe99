"""A child as its worker sees it: heard while it runs, told what it waits for, ended when late.

Nothing here waits. What takes time is a generator: whoever drives it lets it go on.
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
"""What has to wait: it yields until when at most, by the monotonic clock, and goes on as soon as a
process may have said something, or ended, or can be told more."""

STACKS = 0.2
"""Seconds a process that is about to be killed has to show where it is stuck."""
KILLED = 2.0
"""Seconds in which a killed process is gone, unless it is stuck in the system."""
_PATIENCE = 10.0
"""Seconds in which a process that waits for a message has to take it."""
_PART = 16384
_MOST = 64 * _PART
"""Bytes that are heard of one process before it is the turn of the others."""
_LONGEST = 64 * 1024 * 1024
"""Bytes of the longest message."""
_REPLACING = {"progress", "renew"}
"""What a process may say as often as it likes: of what has come together the last is heard."""
_ENDINGS = {JobGivenBack: child.GIVE_BACK, JobCancelled: child.CANCEL}
"""How the job's process is told that it is ended, where it is not interrupted."""


class SupervisedChild:
    """A forked process and the socket to it. `exit` says how it ended, once it has.

    `ended` is asked for that; the selector, where the socket is registered, tells of it as
    `owner`'s.
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
        """Whether its time was up."""
        self.is_stuck = False
        """Whether not even SIGKILL has ended it."""
        self.is_closed = False
        self._socket = sock
        self._ended = ended
        self.selector = selector
        self._owner = owner
        self._hears = True
        self._begun = bytearray()
        self._ends_at = math.inf
        self._ordered_end = math.inf
        """When a job that was told to end is killed, whatever its timeout is."""
        self._is_killed = False

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now, but no longer than `end_by` did; 0 is no limit."""
        if not self._is_killed:
            limit = time.monotonic() + seconds if seconds else math.inf
            self._ends_at = min(limit, self._ordered_end)

    def waiting(
        self, hear: Callable[[Message], bool], look: Callable[[], object] = lambda: None
    ) -> Steps[bool]:
        """Wait until it says what `hear` waits for; false where it ends, or is stuck, before.

        `look` is called now and then meanwhile.
        """
        while True:
            self.exit = self.exit or self._ended(self.pid)
            if any(hear(message) for message in self.hear()):
                return True
            if self.exit is not None or self.is_stuck:
                return False
            look()
            yield self.deadline()

    def ending(self, seconds: float) -> Steps[None]:
        """Tell and hear it no more, and wait for its end; it has so many seconds, 0: no limit."""
        self.close()
        self._ordered_end = math.inf
        self.allow(seconds)
        while (found := self.exit or self._ended(self.pid)) is None:
            yield math.inf if self.is_stuck else self.deadline()
        self.exit = found

    def close(self) -> None:
        """Hear it no more."""
        self._stop_hearing()
        self._socket.close()
        self.is_closed = True

    def forget(self) -> None:
        """Have nothing to do with it: this is the process of another job."""
        self._socket.close()

    # -- what is said -----------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Say a word or two to a process that waits for it; one that is gone hears nothing."""
        with suppress(OSError):
            self._socket.send(line(message), socket.MSG_DONTWAIT)

    def telling(self, message: Message) -> Steps[None]:
        """Say something to a process that waits for it; one that is gone hears nothing."""
        left, until = memoryview(line(message)), time.monotonic() + _PATIENCE
        while left and self._hears and time.monotonic() < until:
            try:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self.selector.modify(self._socket, selectors.EVENT_WRITE, self._owner)
                yield until
                self.selector.modify(self._socket, selectors.EVENT_READ, self._owner)
            except OSError:
                return

    def hear(self) -> list[Message]:
        """Give the messages that have come; what is none ends it all."""
        heard, most = 0, _MOST if self.exit is None else _LONGEST
        try:
            while self._hears and heard < most:
                part = self._socket.recv(_PART, socket.MSG_DONTWAIT)
                self._begun += part
                heard += len(part)
                if not part:
                    self._stop_hearing()
        except BlockingIOError:
            pass
        except OSError:
            self._stop_hearing()
        *lines, self._begun = self._begun.split(b"\n")
        try:
            messages = [dict(json.loads(each)) for each in lines]
        except (ValueError, TypeError):
            messages = []
            self.close()
        if len(self._begun) > _LONGEST:
            self.close()
        return _without_replaced(messages)

    def is_saying(self, what: str) -> bool:
        """Whether that is among what it has said and nobody has heard yet; it stays unheard."""
        try:
            said = self._begun + self._socket.recv(_MOST, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except OSError:
            return False
        with suppress(ValueError):
            return any(json.loads(each).get("say") == what for each in said.split(b"\n")[:-1])
        return False

    def _stop_hearing(self) -> None:
        if self._hears:
            self._hears = False
            self.selector.unregister(self._socket)

    # -- its end ----------------------------------------------------------------------------------

    def end_by(self, error: Interruption, grace: float) -> None:
        """Tell it what its job is to end by; it has so many seconds for that."""
        process_tree.send(self.pid, _ENDINGS.get(type(error), child.INTERRUPT))
        self._ordered_end = time.monotonic() + grace
        self._ends_at = min(self._ends_at, self._ordered_end)

    def kill(self) -> None:
        """End it at once."""
        if self._is_killed:
            return
        self._is_killed = True
        self._ends_at = time.monotonic() + KILLED
        process_tree.kill_group(self.pid)
        process_tree.send(self.pid, signal.SIGKILL)  # it may have left its group

    def deadline(self) -> float:
        """End it if its time is up; gives when to look again at the latest."""
        now = time.monotonic()
        if now >= self._ends_at and self.exit is None:
            if self._is_killed:
                self.is_stuck = True
                self._ends_at = now
            elif self.was_late:
                self.kill()
            else:  # let it show where it is stuck
                self.was_late = True
                process_tree.send(self.pid, child.SHOW_STACKS)
                self._ends_at = now + STACKS
        return self._ends_at


def _without_replaced(messages: list[Message]) -> list[Message]:
    kept: list[Message] = []
    replaced: set[str] = set()
    for message in reversed(messages):
        kind = message.get("say")
        if kind not in _REPLACING:
            replaced.clear()
        elif kind in replaced:
            continue
        else:
            replaced.add(kind)
        kept.append(message)
    return kept[::-1]
