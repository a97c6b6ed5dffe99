"""The links of a connection: each thread has its own, and a forked child none of its parent's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from qframe import host
from qframe.config import BeanstalkdSettings
from qframe.drivers.beanstalkd.link import Link


class _Thread(threading.local):
    """What one thread has."""

    def __init__(self) -> None:
        self.pid = host.pid()
        self.work: Link | None = None
        self.talk: Link | None = None


class Links:
    """Gives a thread's two links.

    Jobs are reserved and settled on one, everything else is said on the other: what a job
    dispatches, or a listener asks, has nothing to do with the job's lease.
    """

    def __init__(self, settings: BeanstalkdSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._thread = _Thread()

    def work(self) -> Link:
        """Give the link on which this thread reserves jobs."""
        thread = self._mine()
        if thread.work is None:
            thread.work = self._link()
        return thread.work

    def talk(self) -> Link:
        """Give the link on which this thread says everything else."""
        thread = self._mine()
        if thread.talk is None:
            thread.talk = self._link()
        return thread.talk

    def opened(self) -> Link | None:
        """Give the link on which this thread has reserved jobs, if it has."""
        return self._mine().work

    def close(self) -> None:
        """Close this thread's links."""
        thread = self._mine()
        for link in (thread.work, thread.talk):
            if link is not None:
                link.drop()
        thread.work = thread.talk = None

    def shown(self) -> str:
        """Say where the server is."""
        settings = self._settings
        if settings.host.startswith("/"):
            return f"beanstalkd at {settings.host}"
        host_name = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"beanstalkd://{host_name}:{settings.port}"

    def _link(self) -> Link:
        return Link(self._settings, self.shown(), self._clock)

    def _mine(self) -> _Thread:
        if self._thread.pid != host.pid():
            self._thread = _Thread()  # the sockets are the parent's, which goes on to use them
        return self._thread
