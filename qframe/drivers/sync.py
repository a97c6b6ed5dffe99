"""The drivers that run a job without a worker: at once, deferred, or in the background."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qframe.config import ConnectionSettings
from qframe.contracts.backend import Backend, Capability, Health, Timing
from qframe.contracts.step import APPLIED, Bury, Push, Release, Reservation, Result, Start, Step
from qframe.exceptions import Unsupported


class SyncBackend(Backend):
    """Passes each pushed message to `run`; its exceptions reach the caller of the push.

    Keeps no messages and ignores delays (Laravel's SyncQueue).
    """

    capabilities = Capability.NONE

    def __init__(self, name: str = "sync", settings: ConnectionSettings | None = None) -> None:
        del name, settings
        self.timing = Timing()
        self.run: Callable[[Push], object] = _nobody

    def apply(self, *steps: Step) -> list[Result]:
        return [self._apply(step) for step in steps]

    def _apply(self, step: Step) -> Result:
        job = step.reservation
        for each in step.operations:
            if isinstance(each, Push):
                self.run(each)
            elif isinstance(each, Release | Bury):
                raise cannot_come_back()
            elif isinstance(each, Start) and isinstance(job, SyncJob):
                job.start()
        return APPLIED

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        del queues, limit
        return [], self.apply(*first)

    def described(self) -> str:
        return "sync"

    def check(self) -> Health:
        return Health("runs each job in the process that dispatches it")


class DeferredBackend(SyncBackend):
    """As `sync`, but the job runs after the response, or at the end of the process."""

    keeps_failed = True

    def described(self) -> str:
        return "deferred"

    def check(self) -> Health:
        return Health("runs each job in this process, after the response or at its end")


class BackgroundBackend(SyncBackend):
    """As `sync`, but the job runs in a process of its own."""

    keeps_failed = True

    def described(self) -> str:
        return "background"

    def check(self) -> Health:
        return Health("runs each job in a process of its own")


class SyncJob(Reservation):
    """The single attempt of a job."""

    __slots__ = ()

    def __init__(self, push: Push) -> None:
        super().__init__(push.queue, "", push.raw, 0)
        self.sure_until = math.inf

    def start(self) -> None:
        self.started, self.attempts = True, 1

    @property
    def fence(self) -> bytes:
        return b""


def cannot_come_back() -> Unsupported:
    """Return the error for a job that asks to run again."""
    return Unsupported("a job on the sync connection cannot be released: it runs only once")


def _nobody(push: Push) -> None:
    raise Unsupported(f"nobody runs what is pushed to {push.queue}")
