"""Pushes: counts what this process pushes, by queue and class, and writes it each second."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from qframe import forks
from qframe.drivers import heartbeat, process, sockets
from qframe.drivers.guard import guarded
from qframe.drivers.heartbeat import Beat, Heartbeat
from qframe.exceptions import InvalidPayload
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.payload import envelope, tracebacks

log = logging.getLogger("qframe")

EVERY = 1.0
"""Seconds between two writes while a process pushes."""
KEPT = 86400.0
"""Seconds that a producer's unmerged part is kept, if no worker runs."""
_MOST = 10_000
_PARTING = 2.0
"""Seconds to wait for an answer when the process ends."""

_all: weakref.WeakSet[Pushes] = weakref.WeakSet()


class Pushes:
    """The pushes of this process to one connection. Thread-safe, also in a forked child.

    A heartbeat writes them: the worker's, or the process's own, whose thread ends after a second
    without pushes. What the store cannot accept is written later.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begin_anew()
        forks.in_child_of(self, Pushes._begin_anew)  # the counts are the parent's
        _all.add(self)

    def _begin_anew(self) -> None:
        self._recorder = Recorder()
        self._pushed: deque[tuple[str, object, int]] = deque()
        """Pushes not counted yet: counting each at its push was a twentieth of a dispatch."""
        self._heart: Heartbeat | None = None
        self._beat: Beat | None = None
        self._mutex = forks.lock()
        self._writing = forks.lock()
        self._is_at_the_end = False
        """Whether it is written when a `multiprocessing` process ends."""

    def count(self, queue: str, message: Mapping[str, Any], times: int = 1) -> None:
        """Count pushes of jobs with this payload to a queue."""
        self._pushed.append((queue, message.get("job"), times))
        if self._heart is None or self._heart.is_over:
            with guarded, self._mutex:  # no signal may interrupt the start of a thread
                self._begin()
        if len(self._pushed) >= _MOST:
            with guarded:
                self._take_in()

    def _take_in(self) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        with suppress(IndexError):
            while True:
                queue, job, times = self._pushed.popleft()
                counts[queue, _name(job)] += times
        for (queue, name), times in counts.items():
            self._recorder.pushed(name, queue, times)

    @property
    def _is_written(self) -> bool:
        return not self._pushed and not self._recorder.has_unwritten()

    def _begin(self) -> None:
        """Register with a heartbeat, unless it is registered."""
        heart = heartbeat.current()
        if self._heart is not None and not self._heart.is_over:
            return
        if not self._is_at_the_end:
            self._is_at_the_end = True
            process.before_a_child_ends(write_all)
        with suppress(RuntimeError):  # no thread can be started: the next push tries again
            self._beat = heart.add(EVERY, self._look)
            self._heart = heart

    def write(self) -> bool:
        """Write what is unwritten. Returns whether there was anything. Never raises."""
        if self._is_written:
            return False
        try:
            with self._writing, guarded:
                self._take_in()
                self._metrics.write(self._recorder, KEPT)
        except Exception as error:  # noqa: BLE001 (metrics must not disturb jobs)
            log.debug("what was pushed cannot be written: %s", tracebacks.brief(error))
        return True

    def write_at_the_end(self) -> None:
        """Write before this thread's connections are closed; waits only briefly."""
        with sockets.waits_limited(_PARTING):
            self.write()

    def _look(self) -> None:
        """Write; unregister if there was nothing to write."""
        if self.write():
            return
        with self._mutex:
            heart, beat = self._heart, self._beat
            if heart is None or beat is None:
                return
            self._heart = None  # a later push registers again
            if not self._is_written:
                self._heart = heart
                return
        heart.drop(beat)
        if heart.ends_without_beats:
            self._metrics.store.backend.leave()


def write_all() -> None:
    """Write all unwritten pushes of this process, for every connection."""
    for each in list(_all):
        each.write_at_the_end()


def _name(job: object) -> str:
    if isinstance(job, str) and "@" not in job:
        return job
    try:
        return envelope.job_name({"job": job})
    except InvalidPayload:
        return ""


atexit.register(write_all)
