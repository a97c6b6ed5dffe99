"""Keeps the lease of the running job: one thread that looks every third of `retry_after`."""

from __future__ import annotations

import logging
import signal
import threading
import time

from qframe import tracebacks
from qframe.contracts import Job, Queue
from qframe.exceptions import BackendUnavailable, SettleError

log = logging.getLogger("qframe")

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
        self._job: Job | None = None
        self._until = float("inf")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="qframe-leases", daemon=True)

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
        self._job = job

    def drop(self) -> None:
        """Renew no more; returns when a renewal under way has ended."""
        with self._lock:
            self._job = None

    def _keep(self) -> None:
        # A signal that the system hands to this thread would not wake the main thread's job.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause = self._every
        while not self._ended.wait(pause):
            pause = self._every
            with self._lock:
                if self._job is not None and time.monotonic() < self._until:
                    pause = self._renew(self._job)
        self._queue.close()

    def _renew(self, job: Job) -> float:
        try:
            job.renew()
        except BackendUnavailable as error:
            log.warning("the lease of %s could not be renewed: %s", job.name, error)
            return min(_SOONER, self._every)
        except SettleError:
            if not (job.is_deleted or job.is_released):
                # The event comes with the settle, which will be refused.
                log.warning("%s %s: its lease has passed to another worker", job.name, job.uuid)
            self._job = None
        except Exception as error:  # noqa: BLE001 (the thread must outlive whatever a driver raises)
            log.warning("the lease of %s: %s", job.name, tracebacks.brief(error))
        return self._every
