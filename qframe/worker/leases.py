"""Leases: renews the leases of running jobs every third of `retry_after`.

It looks more often than that, to resend unanswered starts and to do what else a long job needs. A
job that is over before the second look costs nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from qframe.exceptions import BackendUnavailable, LeaseLost, SettleError
from qframe.features.reserved import ReservedJob
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

_LOOKS = 0.25
"""Seconds between two looks, at most: the second look resends an unanswered start."""
_SOONER = 1.0
"""Seconds until a failed renewal is tried again, at most."""


class LeaseKeeper:
    """Renews the lease of each running job until its time is up.

    A job that holds the interpreter lock for longer than `retry_after` starves it; its lease then
    expires while it runs. `confirm` resends an unanswered start, and returns whether it did;
    `watch` looks at a job that runs on; `lost` is called when a lease was lost.
    """

    def __init__(
        self,
        retry_after: float,
        confirm: Callable[[ReservedJob], bool],
        watch: Callable[[ReservedJob], None],
        lost: Callable[[ReservedJob], None],
    ) -> None:
        self._renew_every = retry_after / 3
        # A whole number of looks to a renewal, so that none comes late for want of a look.
        self.every = self._renew_every / math.ceil(self._renew_every / _LOOKS)
        self._confirm = confirm
        self._watch = watch
        self._lost = lost
        self._kept: dict[ReservedJob, float] = {}
        """The jobs whose leases are kept, and when their time is up."""
        self._due: dict[ReservedJob, float] = {}
        """When jobs that earlier looks saw are to be renewed; only the heartbeat uses it."""

    def keep(self, job: ReservedJob, seconds: float) -> None:
        """Renews this job's lease for at most `seconds` from now; 0 is as long as it runs."""
        self._kept[job] = time.monotonic() + seconds if seconds else math.inf

    def drop(self, job: ReservedJob) -> None:
        """Stops renewing. A renewal under way goes on, and finds the job settled."""
        self._kept.pop(job, None)

    def look(self) -> None:
        """Renews what is due, and looks at jobs that run on; never raises.

        The earliest due comes first. A slow backend gets no more requests than fit between two
        looks: the caller may have other things to do.
        """
        kept = self._kept.copy()
        began = time.monotonic()
        # A job seen for the first time may have begun just after the last look.
        first = began + self._renew_every - self.every
        seen, self._due = self._due, {job: self._due.get(job, first) for job in kept}
        for act in (self._look_after, self._besides):
            for job in sorted(kept, key=self._due.__getitem__):
                now = time.monotonic()
                if now - began > self.every:
                    return
                if now < kept[job]:
                    act(job, now, is_new=job not in seen)

    def _look_after(self, job: ReservedJob, now: float, *, is_new: bool) -> None:
        """Renews the lease if that is due, or resends the start."""
        if now >= self._due[job] - self.every / 2:
            self._due[job] = now + self._keep_up(job, self._renew)
        elif not is_new:
            self._keep_up(job, self._confirm)

    def _renew(self, job: ReservedJob) -> bool:
        """Renews; first resends an unanswered start, which renews, too."""
        if not self._confirm(job):
            job.renew()
        return True

    def _besides(self, job: ReservedJob, _now: float, *, is_new: bool) -> None:
        """Does what a job that runs on needs beside its lease."""
        if is_new:
            return
        try:
            job.look()
            if job in self._kept:
                self._watch(job)
        except Exception as error:  # noqa: BLE001 (as below)
            log.warning("%s: %s", job.name, tracebacks.brief(error))

    def _keep_up(self, job: ReservedJob, step: Callable[[ReservedJob], bool]) -> float:
        """Renews or confirms; returns the seconds until the next renewal is due."""
        try:
            step(job)
        except BackendUnavailable as error:
            log.warning("the lease of %s could not be renewed: %s", job.name, error)
            return min(_SOONER, self._renew_every)
        except LeaseLost:
            log.warning(
                "%s %s: its lease has passed to another worker, or it was removed",
                job.name,
                job.uuid,
            )
            self.drop(job)
            self._lost(job)
        except SettleError:
            self.drop(job)  # its time is up
        except Exception as error:  # noqa: BLE001 (whatever a driver raises)
            log.warning("the lease of %s: %s", job.name, tracebacks.brief(error))
        return self._renew_every
