"""The sync connection: a job runs at once, in the caller (Laravel's SyncQueue)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from qframe import events, execution, payload
from qframe.config import ConnectionSettings, SyncSettings
from qframe.contracts import History
from qframe.drivers.base import BaseJob, BaseQueue
from qframe.exceptions import JobFailedByHand, Unsupported
from qframe.foreign import Dispatchable, Foreign
from qframe.payload import Envelope
from qframe.queueable import Queueable

log = logging.getLogger("qframe")


class SyncQueue(BaseQueue):
    """Runs each job inside the push: one attempt, its exception reaches the caller of `send()`.

    A delay is ignored, with one warning. Nothing is recorded.
    """

    settings_model = SyncSettings

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        super().__init__(name, settings)
        self._warned = False

    def envelope(self, job: Dispatchable) -> Envelope:
        """Build the payload; here a class need not be one that another process can find."""
        envelope = Envelope(payload.create(job))
        self._check_size(envelope.raw)
        return envelope

    def push_envelope(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        self.run(job, envelope, queue, delay)
        return envelope.uuid

    def run(self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job as it would arrive, and give what `handle` returned.

        Raises `Unsupported` for a foreign job.
        """
        if isinstance(job, Foreign):
            raise self._cannot_run(job)
        if delay and not self._warned:
            self._warned = True
            log.warning("the connection %r runs jobs at once: a delay is ignored", self.name)
        name = self._announce(job, envelope, queue, delay)
        self._announced(job, envelope, name, delay)
        reserved = SyncJob(self, name, envelope.uuid, envelope.raw, 1)
        arrived = type(job).from_data(reserved.payload["data"])
        object.__setattr__(arrived, "_reserved", reserved)  # also on a frozen job
        return _attempt(arrived, reserved)

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Refuse bytes: only a job object can be run here."""
        del messages, queue, delay
        raise Unsupported(f"the connection {self.name!r} (sync) runs jobs, not raw payloads")

    def push_envelopes(
        self, made: Sequence[tuple[Dispatchable, Envelope]], queue: str | None
    ) -> list[str]:
        for job, _ in made:
            if isinstance(job, Foreign):
                raise self._cannot_run(job)
        return [self.push_envelope(job, envelope, queue, 0) for job, envelope in made]

    def _cannot_run(self, job: Foreign) -> Unsupported:
        return Unsupported(
            f"the connection {self.name!r} (sync) runs jobs in this process and {job.name} is a "
            "job of another program: dispatch it on a connection that it works"
        )

    def ping(self) -> str:
        return "runs each job in the process that dispatches it"


class SyncJob(BaseJob):
    """The one attempt of a job on a sync connection."""

    def _delete(self) -> bool:
        return True

    def _release(self, delay: float, history: History) -> bool:
        raise Unsupported("a job on the sync connection cannot be released: it runs only once")

    def _give_back(self, delay: float, history: History) -> bool:
        raise Unsupported("a job on the sync connection cannot be given back: it runs only once")

    def _renew(self) -> bool:
        return True

    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        del ran
        self._settle("failed", lambda: True)
        self.failed_with = error or JobFailedByHand(f"{self.name} failed itself")


def _attempt(job: Queueable, reserved: SyncJob) -> Any:  # noqa: ANN401 (what the job returns)
    began = time.monotonic()
    events.fire(events.JobProcessing, reserved)
    try:
        result = execution.perform(job)
    except BaseException as error:
        if execution.skipped(error):
            reserved.delete()
            events.fire(events.JobSkipped, reserved, str(error) or "DontHandle")
            return None
        events.fire(events.JobExceptionOccurred, reserved, error)
        _failed(job, reserved, error, began)
        events.fire(events.JobAttempted, reserved, error)
        raise
    if reserved.failed_with is not None:
        _failed(job, reserved, reserved.failed_with, began)
        events.fire(events.JobAttempted, reserved, reserved.failed_with)
        raise reserved.failed_with
    if not reserved.is_settled:
        reserved.delete()
    execution.tell(job, "succeeded")
    events.fire(events.JobProcessed, reserved, time.monotonic() - began)
    events.fire(events.JobAttempted, reserved, None)
    return result


def _failed(job: Queueable, reserved: SyncJob, error: BaseException, began: float) -> None:
    if not reserved.has_failed:
        reserved.fail(error)
    execution.tell(job, "failed", error)
    events.fire(events.JobFailed, reserved, error, time.monotonic() - began)
