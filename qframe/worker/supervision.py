"""Supervision: waits for the end of a job's process, and sees to it that it comes."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from qframe.contracts import Capability, Job
from qframe.worker import child
from qframe.worker.channel import Message, ParentChannel
from qframe.worker.process import Exit, Process
from qframe.worker.runner import Runner

STACKS = 0.2
"""Seconds a process that is about to be killed has to show where it is stuck."""
_BEAT = 1.0
"""Seconds a worker waits at most before it shows that it is alive."""


class Watch:
    """Waits for a process's end: hears it, keeps the lease, and ends it when its time is up."""

    def __init__(
        self,
        runner: Runner,
        process: Process,
        channel: ParentChannel,
        hear: Callable[[Message], object],
        job: Job | None = None,
    ) -> None:
        self._runner = runner
        self._process = process
        self._channel = channel
        self._hear = hear
        self._job = job
        self._renews = Capability.RENEW in runner.queue.capabilities
        self._every = min(runner.leases.every, _BEAT)
        self._looks_at = time.monotonic() + self._every
        self._ends_at = float("inf")
        self._killed = False
        self._interrupted = False
        self.was_late = False
        """Whether its time was up."""

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now; 0 is no limit."""
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")

    def hurry(self, seconds: float) -> None:
        """Give it so many seconds from now at most."""
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)

    def until_end(self) -> Exit:
        """Wait until it has ended, and all it has said was heard."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._runner.signals.fileno(), select.POLLIN)
        if self._process.fileno() >= 0:
            poll.register(self._process.fileno(), select.POLLIN)
        try:
            end = None
            while end is None:
                ready = {number for number, _ in poll.poll(self._pause() * 1000)}
                end = self._turn(poll, ready)
            self._listen()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._channel.close()
        return end

    def _turn(self, poll: select.poll, ready: set[int]) -> Exit | None:
        if self._channel.fileno() in ready:
            self._listen()
            if not self._channel.is_open:
                poll.unregister(self._channel.fileno())
        if self._runner.signals.fileno() in ready:
            self._runner.signals.drain()
        if self._process.fileno() < 0:
            end = self._process.wait(at_once=True)
        else:
            end = self._process.wait() if self._process.fileno() in ready else None
        if end is None:
            self._look_after()
        return end

    def _listen(self) -> None:
        for message in self._channel.hear():
            answer = self._hear(message)
            if isinstance(answer, dict):
                self._channel.answer(answer)

    def _pause(self) -> float:
        """Give the seconds until there is something to look after."""
        return max(0.0, min(self._ends_at, self._looks_at) - time.monotonic())

    def _look_after(self) -> None:
        now = time.monotonic()
        job, fired = self._job, self._runner.signals.fired
        if now >= self._looks_at:
            self._looks_at = now + self._every
            self._runner.beat()
            if job is not None and self._renews and not self._killed:
                self._runner.leases.look()
                if job.is_lost:
                    self._kill()
        if job is not None and fired is not None and not self._interrupted:
            self._interrupted = True
            self._process.send(child.ENDINGS.get(type(fired), child.INTERRUPT))
            self.hurry(self._runner.options.grace)
        if now >= self._ends_at:
            self._end()

    def _end(self) -> None:
        """Its time is up: let it show where it is stuck, then kill it."""
        if not self.was_late:
            self.was_late = True
            self._process.send(child.SHOW_STACKS)
            self._ends_at = time.monotonic() + STACKS
        else:
            self._kill()

    def _kill(self) -> None:
        self._killed = True
        self._ends_at = float("inf")
        self._process.kill()
