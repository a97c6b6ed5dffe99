"""Looks whether the running job is to be cancelled, about once a second."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from qframe.contracts import Job, Store
from qframe.exceptions import BackendUnavailable
from qframe.tracking import cancel_key

if TYPE_CHECKING:
    from qframe.worker.leases import LeaseKeeper
    from qframe.worker.signals import Signals

_EVERY = 0.9


class Cancellation:
    """Reads the wish `qframe cancel --running` leaves in the store, and has the job end.

    A short job is never looked at. A store that does not answer changes nothing.
    """

    def __init__(self, store: Store, signals: Signals, leases: LeaseKeeper) -> None:
        self._store = store
        self._signals = signals
        self._leases = leases
        self._next = 0.0

    def look(self, job: Job) -> None:
        """Look whether this job, which runs, is to be cancelled; called by the lease keeper."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        with suppress(BackendUnavailable):
            (asked,) = self._store.get(cancel_key(job.uuid))
            if asked is not None:
                self._signals.cancel(lambda: self._leases.job is job)

    def done(self, job: Job) -> None:
        """Take the wish back: it was granted."""
        with suppress(BackendUnavailable):
            self._store.delete(cancel_key(job.uuid))
