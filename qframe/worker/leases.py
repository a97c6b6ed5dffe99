"""Keeps the lease of the running job: one thread that looks every third of `retry_after`.

Where starts are not waited for, it looks more often, and confirms that of a job which runs on.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable

from qframe import tracebacks
from qframe.contracts import Job, Queue
from qframe.exceptions import BackendUnavailable, SettleError

log = logging.getLogger("qframe")

_LOOK = 1.0
"""Seconds between two looks at most: how long a wish to cancel the job waits for."""
_SOONER = 1.0
"""Seconds until a renewal that did not reach the backend is tried again, at most."""


class LeaseKeeper:
    """Renews the lease of the job that runs, until its time is up.

    A short job is never seen by it. A job that holds the interpreter lock for longer than
    `retry_after` starves it; its lease then runs out while it runs.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._every = queue.retry_after / 3
        longest = min(queue.confirm_within or _LOOK, _LOOK)
        # A whole number of them to a renewal, so that none comes late for want of a look.
        self.every = self._every / math.ceil(self._every / longest)
        """Seconds between two looks."""
        self.watch: Callable[[Job], None] | None = None
        """Looks at a job that runs on, too."""
        self.lost: Callable[[Job], None] | None = None
        """Hears that the lease of a job that runs was lost."""
        self.kept: Job | None = None
        """The last job there was."""
        self._job: Job | None = None
        self._seen: Job | None = None
        self._due = 0.0
        self._until = float("inf")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="qframe-leases", daemon=True)

    @property
    def job(self) -> Job | None:
        """The job that runs."""
        return self._job

    def begin(self) -> None:
        """Start looking."""
        self._thread.start()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def keep(self, job: Job, seconds: float) -> None:
        """Renew this job's lease for at most `seconds` from now; 0 is as long as it runs."""
        self._until = time.monotonic() + seconds if seconds else float("inf")
        self._job = self.kept = job

    def drop(self) -> None:
        """Renew no more; returns when a renewal under way has ended."""
        if self._job is not None:
            with self._lock:
                self._job = None

    def _keep(self) -> None:
        # A signal that the system hands to this thread would not wake the main thread's job.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._ended.wait(self.every):
            self.look()
        self._queue.close()

    def look(self) -> None:
        """Renew or confirm the lease of the job that runs, if it is time to."""
        with self._lock:
            if self._job is not None and time.monotonic() < self._until:
                self._look_at(self._job)

    def _look_at(self, job: Job) -> None:
        now = time.monotonic()
        first = job is not self._seen
        if first:
            self._seen = job
            self._due = now + self._every - self.every  # it may have begun a whole look ago
        if now >= self._due - self.every / 2:
            self._due = now + self._keep_up(job, job.renew)
        elif not first:
            self._keep_up(job, job.confirm)
        if not first:
            self._besides(job)

    def _besides(self, job: Job) -> None:
        """Do for a job that runs on what has nothing to do with its lease."""
        try:
            job.catch_up()
            if self.watch is not None:
                self.watch(job)
        except Exception as error:  # noqa: BLE001 (as below)
            log.warning("%s: %s", job.name, tracebacks.brief(error))

    def _keep_up(self, job: Job, step: Callable[[], None]) -> float:
        """Renew or confirm; gives the seconds until the next renewal is due."""
        try:
            step()
        except BackendUnavailable as error:
            log.warning("the lease of %s could not be renewed: %s", job.name, error)
            return min(_SOONER, self._every)
        except SettleError:
            if not (job.is_deleted or job.is_released):
                log.warning("%s %s: its lease has passed to another worker", job.name, job.uuid)
                if self.lost is not None:
                    self.lost(job)
            self._job = None
        except Exception as error:  # noqa: BLE001 (the thread must outlive whatever a driver raises)
            log.warning("the lease of %s: %s", job.name, tracebacks.brief(error))
        return self._every
