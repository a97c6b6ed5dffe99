"""BrokerBackend: a backend over a broker that delivers, takes acknowledgements, and little else.

What the broker lacks is made of facts: counted attempts and notes, delays, released and buried
messages. A plain job needs none of them: it is published, received and acknowledged.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from qframe import forks
from qframe.config import ConnectionSettings
from qframe.contracts import step as op
from qframe.contracts.backend import Backend, Capability, Timing
from qframe.contracts.queue import Sizes
from qframe.contracts.step import APPLIED, LOST, Push, Reservation, Result, Step
from qframe.drivers.attempt_log import AttemptEntry, AttemptLog
from qframe.drivers.broker.kept import KeptMessages
from qframe.drivers.broker.message import BrokerJob, BrokerMessage
from qframe.drivers.guard import guarded
from qframe.drivers.parts import in_parts
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable

log = logging.getLogger("qframe")

_PAUSE = 1.0
"""Seconds until delayed messages are looked for again if their facts did not answer."""
_SURE = 1 / 3
"""The part of a lease for which it is certain."""


class _Stash(threading.local):
    """Messages that a thread received while it waited."""

    jobs: Sequence[BrokerJob] = ()


class BrokerBackend(Backend):
    """Derive this for a broker: `publish`, `receive` and `acknowledge` are enough.

    `extend`, `give_back` with `longest_release`, `acknowledge_all`, `await_messages`, `counted`,
    `listed` and `purged` add what the broker can. The constructor gets, third, the opener of the
    facts' backend.
    """

    capabilities = Capability.RESERVE | Capability.UNCOUNT | Capability.NOTES | Capability.BURY
    needs_facts = True
    longest_delay: ClassVar[float] = 0.0
    """The longest delay in seconds with which the broker takes a message; the others are kept."""
    longest_release: ClassVar[float | None] = None
    """The longest delay with which `give_back` works; None: a released message is published anew.

    Choose that if the broker puts what is given back before all others, or drops it after a while.
    """
    longest_lease: ClassVar[float] = math.inf
    """Seconds from its delivery for which the broker leases a message at most, however extended."""

    def __init__(
        self,
        name: str,
        settings: ConnectionSettings,
        facts: Callable[[], Backend],
        timing: Timing | None = None,
    ) -> None:
        self.name = name
        self.lease = float(settings.retry_after)
        """Seconds of the lease with which messages are received."""
        self.timing = timing or Timing()
        self._facts = facts
        self._log = AttemptLog(f"attempts:{name[:100]}", facts)
        self._kept = KeptMessages(name, facts, self.timing, self.look_every)
        self._stash = _Stash()
        self._ending = forks.lock()

    # -- what a driver adds -----------------------------------------------------------------------

    @abstractmethod
    def publish(self, messages: Sequence[BrokerMessage]) -> None:
        """Publish messages with their headers; returns once the broker has them for certain.

        It may be repeated with the same ids. Raises `BackendUnavailable`.
        """

    @abstractmethod
    def receive(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        """Receive what is there, strictly in the order of the queues. Never waits.

        Makes the jobs with `received`. Raises `BackendUnavailable`.
        """

    @abstractmethod
    def acknowledge(self, job: BrokerJob) -> bool:
        """Remove the delivered message for good. False if the delivery is no longer valid.

        Raises `BackendUnavailable`.
        """

    def acknowledge_all(self, jobs: Sequence[BrokerJob]) -> list[bool]:
        """Do `acknowledge` for several at once, if the broker can.

        If some of them fail, the others are done all the same: mark these as `is_deleted`, and
        raise.
        """
        return [self.acknowledge(each) for each in jobs]

    def delay_limit(self, queue: str) -> float:
        """Return the longest delay in seconds with which the broker takes a message of a queue."""
        return self.longest_delay

    def extend(self, job: BrokerJob, seconds: float) -> bool:
        """Let the delivery's lease end that many seconds from now. False if it has ended.

        By default it lasts as long as it is wanted, for brokers whose lease is a connection.
        """
        return True

    def note_first_starts(self, jobs: Sequence[BrokerJob]) -> None:
        """Note that messages are about to be started at their first delivery.

        For brokers that count deliveries which nobody got; by default each delivery is a start.
        """

    def starts_before(self, job: BrokerJob, entry: AttemptEntry | None) -> int:
        """Return how often a message was started before this delivery; `entry` is the log's."""
        if entry is None:
            return job.attempts
        return entry.attempts_before(job.deliveries)

    def give_back(self, job: BrokerJob, delay: float) -> bool:
        """Make the delivered message ready again, `delay` seconds from now.

        False if the delivery is no longer valid. Called only with a delay up to `longest_release`.
        """
        raise NotImplementedError

    def await_messages(
        self, queues: Sequence[str], timeout: float, wake: int | None
    ) -> Sequence[BrokerJob]:
        """Wait for messages and receive them, until `timeout`, or until `wake` is readable.

        May return nothing when `receive` may find something. By default it only waits.
        """
        Backend.wait(self, queues, timeout, wake)
        return ()

    def counted(self, queue: str) -> Sizes:
        """Count the messages of a queue in the broker; for `Capability.SIZE`."""
        raise NotImplementedError

    def listed(self) -> Iterable[str]:
        """List the queues with messages in the broker; for `Capability.LIST`."""
        raise NotImplementedError

    def purged(self, queue: str) -> int:
        """Delete the messages of a queue that nobody has; for `Capability.PURGE`."""
        raise NotImplementedError

    def received(
        self,
        queue: str,
        raw: bytes,
        headers: Mapping[str, Any],
        *,
        id: str,  # noqa: A002 (the broker's)
        deliveries: int,
        delivery: Any,  # noqa: ANN401 (whatever the driver acknowledges it by)
        asked_at: float,
        lease: float | None = None,
    ) -> BrokerJob:
        """Return the job of a delivery.

        `id` is the broker's, for messages of others. `asked_at` is when it was asked for, by
        `clock`; `lease` counts from then (default: `retry_after`; `math.inf`: as the connection).
        """
        message = BrokerMessage.received(queue, raw, headers, id)
        job = BrokerJob(message, max(1, deliveries), delivery, 0.0)
        seconds = self.lease if lease is None else lease
        job.lasts(asked_at + seconds, asked_at + min(seconds, self.timing.hold) * _SURE)
        job.ends_at = asked_at + self.longest_lease
        return job

    # -- steps ------------------------------------------------------------------------------------

    def apply(self, *steps: Step) -> list[Result]:
        results: list[Result] = []
        with guarded, in_parts(results):
            for way, group in groupby(steps, self._way):
                some = [*group]
                try:
                    results += way(some)
                except BackendUnavailable as error:
                    if way != self._apply_pushes:
                        self._delete_behind(error, steps[len(results) + len(some) :])
                    raise
        return results

    def _delete_behind(self, error: BackendUnavailable, steps: Sequence[Step]) -> None:
        """Delete what comes behind a step that failed: that may fail until their leases end."""
        deletes = [step for step in steps if self._way(step) == self._apply_deletes]
        if not deletes:
            return
        try:
            results = self._apply_deletes(deletes)
        except BackendUnavailable as another:
            error.in_doubt = error.in_doubt or another.in_doubt
            return
        for step, result in zip(deletes, results, strict=True):
            step.reservation.is_deleted = result is APPLIED  # type: ignore[union-attr] # as `_way` says

    def _way(self, step: Step) -> Callable[[Sequence[Step]], list[Result]]:
        """Return the function that applies consecutive steps like this one."""
        if step.reservation is None:
            return self._apply_pushes
        if not isinstance(step.reservation, BrokerJob):
            raise TypeError(f"{step.reservation!r} is not of this backend")
        return self._apply_deletes if type(step.operations[0]) is op.Delete else self._apply_each

    def _apply_pushes(self, steps: Sequence[Step]) -> list[Result]:
        self._push([each for step in steps for each in step.operations])  # type: ignore[misc] # it gets no others
        return [APPLIED] * len(steps)

    def _apply_each(self, steps: Sequence[Step]) -> list[Result]:
        results: list[Result] = []
        self._note_first_starts(steps)
        for step in steps:
            with in_parts(results):
                result = self._operate(step.reservation, *step.operations)  # type: ignore[arg-type] # as well
            results.append(result)
        return results

    def _note_first_starts(self, steps: Sequence[Step]) -> None:
        starting: list[BrokerJob] = [
            step.reservation  # type: ignore[misc] # as `_way` says
            for step in steps
            if type(step.operations[0]) is op.Start
        ]
        now = self.clock()
        first = [job for job in starting if not (job.started or job.logged) and now < job.until]
        if first:
            self.note_first_starts(first)

    def _push(self, pushes: Sequence[Push]) -> None:
        late, now = list[BrokerMessage](), list[BrokerMessage]()
        for each in map(BrokerMessage.of, pushes):
            (late if each.delay > self.delay_limit(each.queue) else now).append(each)
        if now:
            self.publish(now)
        if late:
            with in_parts(now):
                self._kept.delay(late)

    def _operate(self, job: BrokerJob, operation: op.OfReservation) -> Result:
        if self.clock() >= job.until:
            return LOST
        if not self._is_done(job, operation):
            job.end()
            return LOST
        return APPLIED

    def _is_done(self, job: BrokerJob, operation: op.OfReservation) -> bool:
        match operation:
            case op.Start(lease, notes):
                return self._start(job, lease, notes)
            case op.Renew(lease):
                return self._renew(job, lease)
            case op.Release(delay, _, counted, notes, priority):
                attempts = job.attempts - (job.started and not counted)
                return self._release(job, delay, attempts, notes, priority)
            case op.Bury(notes):
                return self._replace(job, job.attempts, notes)
            case _:
                raise TypeError(f"{operation!r} is not applied alone")

    def _start(self, job: BrokerJob, lease: float, notes: bytes) -> bool:
        """Take the full lease, and log the attempt unless the broker's count is enough."""
        left = job.until - self.clock()
        is_fresh = lease * (1 - _SURE) <= left <= lease or left == math.inf
        if job.started or not is_fresh:
            if not self._renew(job, lease):
                return False
        elif left < math.inf:
            job.sure_until = max(job.sure_until, job.until - lease * (1 - _SURE))
        if not job.started:
            if job.logged and not self._note(job, job.attempts + 1, notes):
                self._drop_duplicate(job)
                return False
            job.started, job.attempts = True, job.attempts + 1
        job.lease, job.notes = lease, notes
        return True

    def _renew(self, job: BrokerJob, lease: float) -> bool:
        asked_at = self.clock()
        if asked_at + lease > job.ends_at:
            lease = job.ends_at - asked_at
            if job.until < job.ends_at:
                self._say_it_is_the_last(job, lease)
        if lease <= 0 or not self.extend(job, lease):
            return False
        job.lasts(max(asked_at + lease, _connected(job)), asked_at + lease * _SURE)
        if job.started and not job.logged:  # a long job: its worker may die
            self._note(job, job.attempts, job.notes)
        return True

    def _say_it_is_the_last(self, job: BrokerJob, lease: float) -> None:
        log.error(
            "%s: the lease of the job %s (queue %s) ends in %d seconds for good, as the broker "
            "leases a message for %d seconds at most: it runs on, but then another worker gets it, "
            "and its end does not count; make such jobs shorter",
            *(self.name, job.id, job.queue, lease, self.longest_lease),
        )

    def _apply_deletes(self, steps: Sequence[Step]) -> list[Result]:
        jobs: list[BrokerJob] = [step.reservation for step in steps]  # type: ignore[misc] # as `_way` says
        mine = [self._may_end(job) for job in jobs]
        held = [job for job, is_mine in zip(jobs, mine, strict=True) if is_mine]
        try:
            answers = iter(self.acknowledge_all(held))
        except BaseException:
            for job in held:
                job.is_ending = False
            raise
        done = [
            job.is_deleted or (is_mine and next(answers))
            for job, is_mine in zip(jobs, mine, strict=True)
        ]
        ended = [job for job, is_done in zip(jobs, done, strict=True) if is_done]
        for job in held:
            job.end()
        for job in ended:
            if job.message.kept:
                self._note(job, job.attempts, b"", ended=True)
        self._log.forget(job.id for job in ended if job.logged and not job.message.kept)
        return [APPLIED if is_done else LOST for is_done in done]

    def _may_end(self, job: BrokerJob) -> bool:
        """Whether the lease of a job is valid, and nobody else is about to end it."""
        with self._ending:
            if job.is_deleted or job.is_ending or self.clock() >= job.until:
                return False
            job.is_ending = True
            return True

    def _release(
        self, job: BrokerJob, delay: float, attempts: int, notes: bytes | None, priority: int | None
    ) -> bool:
        if not self._can_go_back(job, delay) or priority is not None:
            return self._replace(job, attempts, notes, delay, priority)
        if not self._note(job, attempts, job.notes if notes is None else notes):
            return False
        done = self.give_back(job, delay)
        job.end()
        return done

    def _can_go_back(self, job: BrokerJob, delay: float) -> bool:
        longest = -math.inf if self.longest_release is None else self.longest_release
        return delay <= min(longest, job.ends_at - self.clock())

    def replace_released(self, job: BrokerJob, delay: float) -> bool:
        """Keep a copy of a message that could not be given back, as the broker has it no more.

        False if another worker has started the message since its attempt was noted.
        """
        known = job.known
        return known is not None and self._replace(job, known.attempts, known.notes, delay)

    def _replace(
        self,
        job: BrokerJob,
        attempts: int,
        notes: bytes | None,
        delay: float | None = None,
        priority: int | None = None,
    ) -> bool:
        """Keep a copy, delayed or (without a delay) buried, and remove the message.

        The copy, and that the message has ended, are written in one step. What follows may fail:
        whoever gets the message again drops it, and whoever looks publishes the copy.
        """
        notes = job.notes if notes is None else notes
        copy = job.message.copy(delay or 0.0, attempts, notes, priority)
        ended = AttemptEntry(attempts, job.deliveries, ended=True, by=job.mark)
        kept = None
        if delay is None:
            keeping = self._kept.burying(copy)
        elif delay > self.delay_limit(copy.queue):
            _, keeping = self._kept.delaying(copy)
        else:
            kept, keeping = self._kept.delaying(copy, claim=True)
        if not self._end_for_copy(job, ended, keeping):
            self._drop_duplicate(job)
            return False
        try:
            self.acknowledge(job)
            if kept is not None:  # the broker can delay it by itself
                self.publish([replace(kept.message, delay=copy.delay)])
                self._kept.published([kept])
        except BackendUnavailable as error:
            log.debug("%s: a released job will be published later: %s", self.name, error)
        finally:
            job.end()
        return True

    def _end_for_copy(
        self, job: BrokerJob, ended: AttemptEntry, keeping: Sequence[op.Operation]
    ) -> bool:
        """Keep a copy, and write that the message has ended. False if another delivery has it."""

        def is_applied() -> bool:
            ending = self._log.replacing(job.id, job.known, ended)
            (result,) = self._facts().apply(Step(None, *ending, *keeping))
            return result.applied

        return is_applied() or (self._catches_up(job) and is_applied())

    # -- the log of attempts ----------------------------------------------------------------------

    def _recall(self, job: BrokerJob) -> bool:
        """Read what is known of a message that may have been started before.

        Returns False if it has ended: its acknowledgement was lost, or a copy of it has been begun.
        """
        seen = self._log.look(job.id)
        job.is_unsure = not seen
        job.known = entry = seen[0] if seen else None
        if entry is None:
            if seen:
                job.attempts = self.starts_before(job, None)
            return True
        if entry.ended or (job.message.kept and entry.deliveries >= job.deliveries):
            return False
        job.attempts = self.starts_before(job, entry)
        job.notes = entry.notes
        return True

    def _note(self, job: BrokerJob, attempts: int, notes: bytes, *, ended: bool = False) -> bool:
        """Write the entry of a job unless another delivery has written one."""
        entry = AttemptEntry(attempts, job.deliveries, notes, ended, job.mark)
        done = self._log.replace(job.id, job.known, entry)
        if done is False and self._catches_up(job):
            done = self._log.replace(job.id, job.known, entry)
        if done is False:
            return False
        job.known, job.logged, job.is_unsure = entry, True, done is None
        return True

    def _catches_up(self, job: BrokerJob) -> bool:
        """Look again at the entry of a job, which is not the one that was known.

        Returns False if another delivery has written or removed it. Of a message that was published
        twice, both may have been delivered as often: its mark says who has written it.
        """
        seen = self._log.look(job.id)
        entry = seen[0] if seen else job.known
        if (entry is None or job.message.kept) and not job.is_unsure:
            return False
        if entry is not None and (entry.ended or entry.deliveries > job.deliveries):
            return False
        if entry is not None and entry.deliveries == job.deliveries and entry.by != job.mark:
            return False
        job.known = entry
        return True

    def _drop_duplicate(self, job: BrokerJob) -> None:
        """Remove a message that has ended, or was published twice and the other one was started."""
        entry = self._log.read(job.id)
        if entry is None:
            return
        if entry.ended or (job.message.kept and entry.deliveries <= job.deliveries):
            self._acknowledge_quietly(job)

    def _acknowledge_quietly(self, job: BrokerJob) -> None:
        with suppress(BackendUnavailable):  # it comes again, and is dropped then
            self.acknowledge(job)

    # -- reserving --------------------------------------------------------------------------------

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        with guarded:
            results = self.apply(*first)
            self._look()
            with in_parts(first):
                return [*self._reserved(queues, limit)], results

    def _reserved(self, queues: Sequence[str], limit: int) -> list[BrokerJob]:
        """Return what this thread received while it waited, and receive more."""
        known = self._known(self._stashed(queues))
        found = known[:limit]
        self.give_back_all(known[limit:])
        while len(found) < limit:
            try:
                received = self.receive(queues, limit - len(found))
                known = self._known(received)
            except BackendUnavailable:
                self._stash.jobs = [*found, *self._stash.jobs]
                raise
            found += known
            if len(known) == len(received):
                break
        return found

    def _stashed(self, queues: Sequence[str]) -> list[BrokerJob]:
        """Take what this thread received while it waited; what is of other queues is given back."""
        jobs, self._stash.jobs = self._stash.jobs, ()
        self.give_back_all([job for job in jobs if job.queue not in queues])
        return [job for job in jobs if job.queue in queues]

    def _look(self) -> None:
        """Publish what is due, if it is time to look for that."""
        if self._kept.now() >= self._kept.look_at:
            self._publish_due()

    def _publish_due(self) -> int:
        try:
            return self._kept.publish_due(self.publish)
        except BackendUnavailable as error:
            self._kept.look_at = self._kept.now() + _PAUSE
            log.warning("%s: delayed jobs wait: %s", self.name, error)
            return 0

    def _known(self, jobs: Sequence[BrokerJob]) -> list[BrokerJob]:
        """Read the log for those that may have been started; drop those that have ended.

        Those that are not due are released until then. If the facts do not answer for that, all
        stay held for the next call.
        """
        found = list[BrokerJob]()
        for n, job in enumerate(jobs):
            if self.clock() >= job.until:
                continue
            if job.logged and not self._recall(job):
                self._acknowledge_quietly(job)
            elif not job.due or (delay := job.due - self.clock()) <= 0:
                found.append(job)
            else:
                try:
                    self._postpone(job, delay)
                except BackendUnavailable:
                    self._stash.jobs = [*self._stash.jobs, *found, *jobs[n:]]
                    raise
        return found

    def _postpone(self, job: BrokerJob, delay: float) -> None:
        """Release a message that others delayed, whose delay their broker does not know."""
        if not self._replace(job, job.attempts, job.notes, delay, job.message.priority):
            job.logged = True
            if not self._recall(job):  # it was published twice
                self._acknowledge_quietly(job)

    def give_back_all(self, jobs: Iterable[BrokerJob]) -> None:
        """Release messages that nobody started, without counting them.

        Those that cannot be released are held for the next call.
        """
        jobs, found = [*jobs], list[BrokerJob]()
        if not jobs:
            return
        with suppress(BackendUnavailable):
            found = self._known(jobs)
        for job in found:
            try:
                self.apply(job.release())
            except BackendUnavailable:
                job.logged = True  # a copy of it may have been begun
                self._stash.jobs = [*self._stash.jobs, job]

    def wait(self, queues: Sequence[str], timeout: float, wake: int | None = None) -> None:
        with guarded:
            held = self._stashed(queues)
            self._stash.jobs = [*self._stash.jobs, *held]
            ends = self.clock() + timeout
            while not any(job.queue in queues for job in self._stash.jobs):
                left = ends - self.clock()
                seconds = max(0.0, min(left, self._kept.look_at - self._kept.now()))
                arrived = self.await_messages(queues, seconds, wake)
                self._stash.jobs = [*arrived, *self._stash.jobs]
                if seconds >= left or _is_readable(wake):
                    return
                if self._kept.now() >= self._kept.look_at and self._publish_due():
                    return

    # -- messages that wait -----------------------------------------------------------------------

    def sizes(self, queue: str) -> Sizes:
        with guarded:
            self._look()
            there = self.counted(queue)
            delayed, buried = self._kept.counts(queue)
        return replace(there, delayed=there.delayed + delayed, buried=there.buried + buried)

    def queues(self) -> list[str]:
        with guarded:
            return sorted({*self.listed(), *self._kept.queues()})

    def purge(self, queue: str) -> int:
        with guarded:
            return self._kept.purge(queue) + self.purged(queue)

    def kick(self, queue: str) -> int:
        with guarded:
            count = self._kept.kick(queue)
            self._publish_due()
            return count

    def close(self) -> None:
        with guarded:
            self._stashed(())


def _is_readable(wake: int | None) -> bool:
    return wake is not None and bool(readable([wake], 0.0))


def _connected(job: BrokerJob) -> float:
    """Return `until` of a lease that lasts as long as its connection; 0 for others."""
    return job.until if job.until == math.inf else 0.0
