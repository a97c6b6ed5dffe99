"""Waiting for a job: one blocking reserve on all tubes, which takes the job it ends with."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from qframe.config import BeanstalkdSettings
from qframe.drivers.beanstalkd.job import BeanstalkdJob
from qframe.drivers.beanstalkd.link import Link, Reply
from qframe.drivers.beanstalkd.links import Links
from qframe.drivers.beanstalkd.wire import tube_of
from qframe.exceptions import BackendUnavailable, JobAlreadySettled, LeaseLost
from qframe.guard import guarded

RESERVE = b"reserve-with-timeout 0\r\n"
"""Asks for a job that is there, and waits for none."""

_LOOK = 0.05
"""Seconds between two looks of a wait on a connection that holds jobs: nothing may block it."""
_TRIES = 20
_MOMENT = 0.005


class Waits:
    """The waits of a connection, one at a time in each thread, on the link that reserves.

    A wait whose time is up goes on: it is also the answer that there is no job.
    """

    def __init__(
        self,
        links: Links,
        settings: BeanstalkdSettings,
        made: Callable[[Link, Reply, float | None], BeanstalkdJob | None],
    ) -> None:
        self.links = links
        self.settings = settings
        self._made = made

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        """Wait until there may be a job, or `wake` can be read, for at most `timeout` seconds."""
        until = time.monotonic() + timeout
        with guarded():
            link = self.links.work()
            if link.taken is not None:
                return
            if link.held:
                link.open()
            if not link.held:
                tubes = tuple(tube_of(queue) for queue in queues)
                if link.waits_for != tubes:
                    self._end_wait(link)
                    link.begin_to_wait(tubes, math.ceil(self.settings.block_for))
        if not link.held:
            if link.fileno() in _readable([link.fileno()], wake, until - time.monotonic()):
                with guarded():
                    link.hear()
            return
        while (left := until - time.monotonic()) > 0 and not _readable([], wake, min(left, _LOOK)):
            with guarded(), link.lock:
                for queue in queues:
                    watch, count = link.watch((tube_of(queue),))
                    *_, reply = link.exchange(watch + RESERVE, count + 1)
                    if reply[0] == b"RESERVED":
                        link.taken = reply
                        return

    def outcome(self, link: Link, queues: Sequence[str]) -> tuple[bool, BeanstalkdJob | None]:
        """Give the job a wait took; says too whether that is all there can be."""
        if link.waits_for:
            if link.waits_for != tuple(tube_of(queue) for queue in queues):
                self._end_wait(link)
                return False, None
            if not self._is_answered(link):
                return True, None
            try:
                link.hear()
            except BackendUnavailable:
                return False, None
        taken, link.taken = link.taken, None
        if taken is None:
            return False, None
        job = self._made(link, taken, None)
        if job is not None and job.queue not in queues:
            job.give_back()
            job = None
        return False, job

    def _is_answered(self, link: Link) -> bool:
        """Whether a wait has ended; surely so when a job was pushed before, and that answered."""
        if not link.readable():
            self.links.talk().exchange(b"list-tube-used\r\n", 1)  # answered after what came before
        return link.readable()

    def let_go(self) -> None:
        """End a wait of this thread; a job it has taken goes back, uncounted."""
        link = self.links.opened()
        if link is None or not (link.waits_for or link.taken):
            return
        with guarded():
            self._end_wait(link)

    def _end_wait(self, link: Link) -> None:
        """End a wait at once; a job it took all the same goes back, uncounted."""
        if link.waits_for and self._is_answered(link):
            link.hear()
        if link.waits_for:
            came = link.break_off()
            job = None if came is None else self._reserved_again(came)
        else:
            taken, link.taken = link.taken, None
            job = None if taken is None else self._made(link, taken, None)
        if job is not None:
            with suppress(JobAlreadySettled, LeaseLost):
                job.give_back()

    def _reserved_again(self, came: Reply) -> BeanstalkdJob | None:
        """Reserve a job that went back with its connection, counted, to say it was no attempt."""
        link = self.links.talk()
        for _ in range(_TRIES):
            (reply,) = link.exchange(b"reserve-job %s\r\n" % came[1][1], 1)
            if reply[0] == b"RESERVED":
                job = self._made(link, reply, None)
                if job is not None:
                    job.uncount(1)
                return job
            time.sleep(_MOMENT)  # the server may not have seen the end of the connection yet
        return None


def _readable(descriptors: Sequence[int], wake: int | None, seconds: float) -> list[int]:
    poll = select.poll()
    for descriptor in (*descriptors, *([] if wake is None else [wake])):
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
