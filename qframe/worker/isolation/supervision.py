"""A child as its worker sees it: heard while it runs, its lease kept, ended when its time is up."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from qframe.exceptions import JobCancelled, JobGivenBack
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
_ENDINGS = {JobGivenBack: child.GIVE_BACK, JobCancelled: child.CANCEL}
"""How the job's process is told that it is ended, where it is not interrupted."""


class SupervisedChild:
    """A forked process and the channel to it. `exit` says how it ended, once it has."""

    def __init__(self, runner: Runner, process: ChildProcess, channel: ParentChannel) -> None:
        self.exit: ChildExit | None = None
        self.was_late = False
        """Whether its time was up."""
        self.tell = channel.tell
        self._runner = runner
        self._process = process
        self._channel = channel
        self._every = min(runner.leases.every, _BEAT)
        self._looks_at = time.monotonic() + self._every
        self._ends_at = float("inf")
        self._interrupted = False

    def allow(self, seconds: float) -> None:
        """Give it so many seconds from now; 0 is no limit."""
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")

    def wait(self, hear: Callable[[Message], bool], job: ReservedJob | None = None) -> bool:
        """Wait until it says what `hear` waits for; false where it ends before.

        `job` is what runs: its child is ended with its lease, and when the worker is told so.
        """
        signals = self._runner.signals
        try:
            while True:
                signals.drain()  # first: what comes from here on ends the wait below
                self.exit = self._process.ended()
                if any(hear(message) for message in self._channel.hear()):
                    return True
                if self.exit is not None:
                    self._channel.close()
                    return False
                self._look_after(job)
                heard = [signals.fileno()]
                if self._channel.is_open:
                    heard.append(self._channel.fileno())
                moment = min(self._ends_at, self._looks_at)
                select.select(heard, [], [], max(0.0, moment - time.monotonic()))
        except BaseException:
            self._process.kill()
            self.exit = self._process.ended(at_once=False)
            raise

    def end(self, seconds: float, hear: Callable[[Message], bool]) -> ChildExit:
        """Tell it no more, and wait for its end; it has so many seconds."""
        self._channel.say_no_more()
        self.allow(seconds)
        while self.exit is None:
            self.wait(hear)
        return self.exit

    def _look_after(self, job: ReservedJob | None) -> None:
        now, fired = time.monotonic(), self._runner.signals.fired
        if now >= self._looks_at:
            self._looks_at = now + self._every
            self._runner.heartbeat.beat()
            if job is not None and job.is_lost:
                self._kill()
        if now >= self._ends_at:
            self._end_late()
        if job is not None and fired is not None and not self._interrupted:
            self._interrupted = True
            self._process.send(_ENDINGS.get(type(fired), child.INTERRUPT))
            self._ends_at = min(self._ends_at, now + self._runner.options.grace)

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
