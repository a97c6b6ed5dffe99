"""Cancellation: knows within about a second which running or waiting jobs are to be cancelled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Step, Unset
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.features.reserved import ReservedJob
from qframe.features.status import cancel_key, cancelled_key, last_cancelled_key

_EVERY = 0.9


class Cancellation:
    """Reads the fact that `qframe cancel --running` leaves, and ends the job.

    A short job is never checked. A backend that does not answer changes nothing. Once a job that
    was checked has ended, its fact is removed, so that `qframe cancel` need not wait longer.
    """

    def __init__(
        self, connection: str, backend: Backend, cancel: Callable[[ReservedJob], None]
    ) -> None:
        self.lists = Capability.SEARCH not in backend.capabilities
        """Whether cancelled jobs come here, because none that waits can be searched for."""
        self.key = last_cancelled_key(connection)
        """The fact that tells `heard` of another note."""
        self.waiting: set[str] = set()
        """The uuids of those that are not to be started."""
        self._latest: str | None = None
        self._prefix = cancelled_key(connection)
        self._backend = backend
        self._cancel = cancel
        self.looked: dict[ReservedJob, float] = {}
        """The jobs that were checked, and when last."""
        self._over: deque[str] = deque()

    def heard(self, latest: str | None) -> None:
        """Lists the notes of jobs not to be started, if `latest` tells that there is another."""
        if latest == self._latest:
            return
        with suppress(BackendUnavailable):  # the next look tells it again
            keys = Store(self._backend).keys(self._prefix)
            self.waiting = {key[len(self._prefix) :] for key in keys}
            self._latest = latest

    def is_cancelled(self, uuid: str) -> bool:
        """Whether a job that waited is not to be started; the note may have been taken back."""
        if uuid not in self.waiting:
            return False
        with suppress(BackendUnavailable):
            return self._backend.read(f"{self._prefix}{uuid}") != [None]
        return True

    def look(self, job: ReservedJob) -> None:
        """Checks whether this running job is to be cancelled; called by the lease keeper."""
        now = time.monotonic()
        if now - self.looked.get(job, 0.0) < _EVERY:
            return
        self.looked[job] = now
        with suppress(BackendUnavailable):
            (asked,) = self._backend.read(cancel_key(job.uuid))
            if asked is not None:
                self._cancel(job)

    def asked(self, jobs: Sequence[ReservedJob]) -> set[str]:
        """Returns the uuids of those running jobs that are to be cancelled by now."""
        with suppress(BackendUnavailable):
            found = self._backend.read(*(cancel_key(job.uuid) for job in jobs))
            pairs = zip(jobs, found, strict=True)
            return {job.uuid for job, asked in pairs if asked is not None}
        return set()

    def ended(self, job: ReservedJob) -> None:
        if self.looked.pop(job, None) is not None:
            self._over.append(cancel_key(job.uuid))

    def dropped(self, uuid: str) -> None:
        """Notes that a job that was not to be started has ended."""
        self.waiting.discard(uuid)
        self._over.append(f"{self._prefix}{uuid}")

    def tidy(self) -> None:
        """Removes the facts of jobs that have ended; called by the heartbeat, and at the end."""
        over: list[str] = []
        with suppress(IndexError):  # another thread may be popping, too
            while True:
                over.append(self._over.popleft())
        if over:
            with suppress(BackendUnavailable):
                self._backend.apply(Step(None, *map(Unset, over)))
