"""A child as its worker sees it: heard while it runs, its lease kept, ended when its time is up."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from qframe.drivers.heartbeat import Heartbeat
from qframe.features.reserved import ReservedJob
from qframe.worker.isolation import child
from qframe.worker.isolation.channel import ParentChannel
from qframe.worker.isolation.errors import Message
from qframe.worker.isolation.spawn import ChildExit, ChildProcess
from qframe.worker.runner import Runner

STACKS = 0.2
"""Seconds a process that is about to be killed has to show where it is stuck."""
_BEAT = 1.0
"""Seconds between two looks, at most."""


class SupervisedChild:
    """A forked process and the channel to it. `exit` says how it ended, once it has."""

    def __init__(
        self, runner: Runner, heartbeat: Heartbeat, process: ChildProcess, channel: ParentChannel
    ) -> None:
        self.exit: ChildExit | None = None
        self.was_late = False
        """Whether its time was up."""
        self._runner = runner
        self._heartbeat = heartbeat
        self._process = process
        self._channel = channel
        self._every = min(runner.leases.every, _BEAT)
        self._looks_at = time.monotonic() + self._every
        self._ends_at = float("inf")

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now; 0 is no limit."""
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")

    def tell(self, message: Message) -> None:
        """Say something to it; it has to wait for that."""
        self._channel.tell(message)

    def wait(self, hear: Callable[[Message], bool], job: ReservedJob | None = None) -> bool:
        """Wait until it says what `hear` waits for; false where it ends before.

        `job` is what runs: its child is ended with its lease, and when the worker is told so.
        """
        interrupted = False
        poll = self._poll()
        try:
            while True:
                ready = {number for number, _ in poll.poll(self._pause() * 1000)}
                ended = self._has_ended(ready)
                heard = [hear(message) for message in self._channel.hear()]
                if any(heard):
                    return True
                if ended:
                    return False
                if not self._channel.is_open:
                    poll = self._poll()
                self._runner.signals.drain()
                self._look_after(job)
                fired = self._runner.signals.fired
                if job is not None and fired is not None and not interrupted:
                    interrupted = True
                    self._process.send(child.ENDINGS.get(type(fired), child.INTERRUPT))
                    limit = time.monotonic() + self._runner.options.grace
                    self._ends_at = min(self._ends_at, limit)
        except BaseException:
            self._process.kill()
            self.exit = self._process.wait()
            raise

    def end(self, seconds: float) -> ChildExit:
        """Say that it is not needed any more, and wait for its end; it has so many seconds."""
        self._channel.close()
        self.allow(seconds)
        while self.exit is None:
            self.wait(lambda _: False)
        return self.exit

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._runner.signals.fileno(), select.POLLIN)
        if self._channel.is_open:
            poll.register(self._channel.fileno(), select.POLLIN)
        if self._process.fileno() >= 0:
            poll.register(self._process.fileno(), select.POLLIN)
        return poll

    def _has_ended(self, ready: set[int]) -> bool:
        if self._process.fileno() < 0:
            self.exit = self._process.wait(at_once=True)
        elif self._process.fileno() in ready:
            self.exit = self._process.wait()
        return self.exit is not None

    def _pause(self) -> float:
        """Give the seconds until there is something to look after."""
        return max(0.0, min(self._ends_at, self._looks_at) - time.monotonic())

    def _look_after(self, job: ReservedJob | None) -> None:
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + self._every
            self._heartbeat.beat()
            if job is not None and job.is_lost:
                self._kill()
        if now >= self._ends_at:
            self._end_late()

    def _end_late(self) -> None:
        """Its time is up: let it show where it is stuck, then kill it."""
        if self.was_late:
            self._kill()
        else:
            self.was_late = True
            self._process.send(child.SHOW_STACKS)
            self._ends_at = time.monotonic() + STACKS

    def _kill(self) -> None:
        self._ends_at = float("inf")
        self._process.kill()
