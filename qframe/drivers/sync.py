"""The sync connection: a job runs at once, in the caller (Laravel's SyncQueue)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from qframe import events, execution, payload, tail, tracebacks, unique
from qframe.config import ConnectionSettings, SyncSettings
from qframe.contracts import BatchStore, History, Job, Teller
from qframe.drivers import base, following
from qframe.drivers.base import BaseQueue
from qframe.drivers.beginning import ChainPlan
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import JobFailedByHand, UnknownJob, Unsupported
from qframe.foreign import Dispatchable, Foreign
from qframe.names import queue_name
from qframe.payload import Envelope
from qframe.queueable import Queueable, index
from qframe.registry import defined_in_main, own_job
from qframe.tail import Link
from qframe.unique import STARTED, Lock

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
        envelope = Envelope(payload.create(job, self.keyring))
        self._check_size(envelope.raw)
        return envelope

    def push_envelope(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        if base.stand_in is not None and not isinstance(job, Foreign):
            other = base.stand_in(self, job)
            if other is not None:
                return other.push_envelope(job, envelope, queue, delay)
        if job.unique_rule is not None:
            return self._run_unique(job, envelope, queue, delay)
        self.run(job, envelope, queue, delay)
        return envelope.uuid

    def _run_unique(
        self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float
    ) -> str:
        """Run a unique job unless another one runs, or waits on a connection with this store."""
        with self._locked(Lock.of(envelope)) as holder:
            if not holder:
                self.run(job, envelope, queue, delay)
                return envelope.uuid
        name = queue_name(queue or job.queue or self.default_queue)
        events.fire(events.JobDuplicate, self.name, name, job, holder)
        return holder

    @contextlib.contextmanager
    def _locked(self, lock: Lock | None) -> Iterator[str]:
        """Hold the lock of a unique job while it runs; gives who holds it where another one does.

        One that is to be free once its job has started is taken for a moment only.
        """
        store = None if self.shared_store is None else self.shared_store()
        if lock is None or lock.is_token or store is None:
            yield ""
            return
        holder = lock.take(store)
        if holder:
            yield holder
            return
        try:
            if lock.until == STARTED:
                lock.free(store)
            yield ""
        finally:
            lock.free(store)

    def run(self, job: Dispatchable, envelope: Envelope, queue: str | None, delay: float) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job as it would arrive, and give what `handle` returned.

        Raises `Unsupported` for a foreign job.
        """
        if isinstance(job, Foreign):
            raise self._cannot_run(job)
        if delay and not self._warned:
            self._warned = True
            log.warning("the connection %r runs jobs at once: a delay is ignored", self.name)
        if base.stand_in is not None and (other := base.stand_in(self, job)) is not None:
            other.push_envelope(job, envelope, queue, delay)
            return None
        name = self._announce(job, envelope, queue, delay)
        self._announced(job, envelope, name, delay)
        return self._arrive(type(job), Link(envelope.uuid, envelope.raw, name, 0))

    def _arrive(self, job_class: type[Queueable], link: Link, behind: Sequence[Link] = ()) -> Any:  # noqa: ANN401 (what the job returns)
        """Run a job as it arrives; of a member of a batch, the last link of its chain counts."""
        reserved = SyncJob(self, link.queue, link.uuid, link.raw, 1)
        reserved.behind = behind
        arrived = job_class.from_data(reserved.data_for(job_class))
        object.__setattr__(arrived, "_reserved", reserved)  # also on a frozen job
        return _attempt(arrived, reserved, self.middleware())

    # -- chains and batches ---------------------------------------------------------------------

    def batch_store(self) -> BatchStore | None:
        return self.find_batches()

    def put_link(self, link: Link) -> str:
        return self._run_link(link, ())

    def _run_link(self, link: Link, behind: Sequence[Link]) -> str:
        """Run a job whose payload was made before; a unique one unless another one runs."""
        with self._locked(unique.of_raw(link.raw)) as holder:
            if not holder:
                name = payload.job_name(payload.parse(link.raw))
                job_class = index.get(name) or defined_in_main(name) or own_job(name)
                if job_class is None:
                    raise UnknownJob(f"{name} is not defined in this process")
                self._arrive(job_class, link, behind)
        return holder

    def put_links(self, links: Sequence[Link]) -> dict[str, str]:
        """Run them in turn; one that fails is told by its batch and its events."""
        holders = {}
        for link in links:
            try:
                holder = self.put_link(link)
            except Exception as error:  # noqa: BLE001 (its failure is counted, the others still run)
                log.warning("%s failed: %s", link.uuid, tracebacks.brief(error))
            else:
                if holder:
                    holders[link.uuid] = holder
        return holders

    def put_plans(self, plans: Sequence[ChainPlan]) -> dict[str, str]:
        holders: dict[str, str] = {}
        for plan in plans:
            if not plan.id:
                holders |= self.put_links(plan.links)
                continue
            try:
                self.begin_chain(plan)
            except Exception as error:  # noqa: BLE001 (its failure is counted, the others still run)
                log.warning("%s failed: %s", plan.id, tracebacks.brief(error))
        return holders

    def put_teller(self, teller: Teller) -> None:
        self.put_link(Link(teller.uuid, teller.raw, teller.queue, 0))

    def begin_chain(self, plan: ChainPlan) -> None:
        """Run the links in turn; raises what one raised, which ends the chain."""
        waiting = deque(plan.links)
        with _chaining(plan.id, waiting):
            while waiting:
                link = waiting.popleft()
                try:
                    self._run_link(link, waiting)
                except BaseException as error:
                    name = payload.display_name(payload.parse(link.raw))
                    words = tracebacks.brief(error, 500)
                    cause = link.uuid, name, words
                    following.put(self, [following.caused(self, x, *cause) for x in plan.catch])
                    raise

    def extend_chain(self, running: Job, link: Link, *, first: bool) -> bool:
        waiting = _chains.get().get(tail.chain_of(running.payload) or "")
        if waiting is None:
            return False
        if first:
            waiting.appendleft(link)
        else:
            waiting.append(link)
        return True

    def put(self, messages: Sequence[tuple[bytes, str]], queue: str, delay: float) -> str:
        """Refuse bytes: only a job object can be run here."""
        del messages, queue, delay
        raise Unsupported(f"the connection {self.name!r} (sync) runs jobs, not raw payloads")

    def push_raw(self, payload: str | bytes, queue: str | None = None, delay: float = 0) -> str:
        """Refuse bytes, as `put` does, also where a fake would take them."""
        self._check_size(payload.encode() if isinstance(payload, str) else payload)
        return self.put([], queue or self.default_queue, delay)

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

    behind: Sequence[Link] = ()
    """The links of its chain that wait."""

    def _delete(self) -> bool:
        return True

    def _count_failure(self) -> bool:
        following.count(self, failed=True)
        return True

    def _release(self, delay: float, history: History) -> bool:
        raise Unsupported("a job on the sync connection cannot be released: it runs only once")

    def _give_back(self, delay: float, history: History) -> bool:
        raise Unsupported("a job on the sync connection cannot be given back: it runs only once")

    def _renew(self) -> bool:
        return True

    def fail(self, error: BaseException | None = None, *, ran: bool = True) -> None:
        del ran
        self._settle("failed", self._count_failure)
        self.failed_with = error or JobFailedByHand(f"{self.name} failed itself")


_chains: ContextVar[dict[str, deque[Link]]] = ContextVar("qframe_chains", default={})  # noqa: B039 (never changed in place)
"""The links that wait in the chains that run here, by the chain's id."""


@contextlib.contextmanager
def _chaining(chain: str, waiting: deque[Link]) -> Iterator[None]:
    token = _chains.set({**_chains.get(), chain: waiting})
    try:
        yield
    finally:
        _chains.reset(token)


def _attempt(job: Queueable, reserved: SyncJob, outer: Sequence[Any]) -> Any:  # noqa: ANN401 (what the job returns)
    began = time.monotonic()
    events.fire(events.JobProcessing, reserved)
    try:
        result = execution.perform(job, outer)
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
        reserved.uncounted = bool(reserved.behind)
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
