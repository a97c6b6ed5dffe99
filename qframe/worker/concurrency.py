"""Concurrency limits: how many jobs of a queue or class run at once, in this worker and over all.

A full queue is left out of reserving and waiting, and so delays no other.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from qframe.config import QueueSettings
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Result, Step
from qframe.exceptions import BackendUnavailable
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.worker import slot_leases
from qframe.worker.slot_leases import ConcurrencyLimit, SlotLeases

log = logging.getLogger("qframe")

_KEPT = 100
"""So many more queues than are worked are remembered."""
_A_LOOK = 0.5
"""Seconds within which a job is noticed once its delay is over."""


class _QueueLimits(NamedTuple):
    here: float
    everywhere: ConcurrencyLimit | None


class ConcurrencyLimits:
    """The limits that one worker keeps to.

    `here` are the limits of queues in this worker alone, by name or pattern; `configured` are the
    queues' limits in the configuration. Of several limits the least counts.
    """

    def __init__(
        self,
        connection: Connection,
        here: Mapping[str, int],
        configured: Mapping[str, QueueSettings],
    ) -> None:
        self._connection = connection
        self._here = [*here.items(), *_per_worker(configured)]
        self._configured = configured
        self.are_over_all = any(of.concurrency for of in configured.values())
        """Whether queues have limits over all workers."""
        self.of_queues = bool(self._here or self.are_over_all)
        """Whether any queue has a limit."""
        self.slot_leases = SlotLeases(connection.backend, connection.retry_after)
        self._queues: dict[str, _QueueLimits] = {}
        self._classes: dict[str, ConcurrencyLimit] = {}
        self._learned: dict[str, ConcurrencyLimit] = {}
        """Limits of classes that this process has not imported, by the names in payloads."""
        self._back_until = 0.0
        self._silent = False

    # -- queues -----------------------------------------------------------------------------------

    def reserve_after(
        self,
        first: Sequence[Step],
        queues: Sequence[str],
        limit: int,
        jobs: Collection[ReservedJob],
    ) -> tuple[list[ReservedJob], list[Result]]:
        """Applies steps, then holds up to `limit` jobs, within the limits of each queue.

        `jobs` are those held and running already. The order of the queues is kept: a queue whose
        room is smaller than its neighbours' is asked alone. The steps go with the first request.
        """
        connection, steps = self._connection, first
        ahead = Capability.AHEAD in connection.capabilities
        limit, size = limit if ahead else min(limit, 1), 0
        found: list[ReservedJob] = []
        results: list[Result] = []
        self._look(queues)
        while limit > len(found) and size < connection.backend.timing.most_bytes:
            part, most, queues = self._part(queues, limit - len(found), [*jobs, *found])
            if not part:
                break
            try:
                more, replies = connection.reserve_after(steps, part, most)
            except BackendUnavailable:
                if steps or not (found or results):
                    raise
                break  # the jobs found are held; the next request raises
            results += replies
            found += more
            steps = ()
            size += sum(len(job.raw_body) for job in more)
            if len(more) >= most:  # the queues before the last one asked have no more
                queues = [*part[part.index(more[-1].queue) :], *queues]
        if steps:
            results = connection.backend.apply(*steps)
        return found, results

    def _part(
        self, queues: Sequence[str], limit: int, jobs: Collection[ReservedJob]
    ) -> tuple[list[str], int, Sequence[str]]:
        """Returns the queues to ask together, the limit for them, and the remaining queues.

        That is a run of queues with room for all, or a run of queues without: the limit is then the
        smallest room among them.
        """
        rooms = self._rooms(queues, jobs)
        part: list[str] = []
        most = limit
        for place, queue in enumerate(queues):
            room = rooms[queue]
            if room <= 0:
                continue
            if part and (room < limit) != (most < limit):
                return part, most, queues[place:]
            part.append(queue)
            most = int(min(most, room))
        return part, most, ()

    def _rooms(self, queues: Iterable[str], jobs: Collection[ReservedJob]) -> dict[str, float]:
        """Returns how many more jobs of each queue may be held beside these."""
        here = Counter(job.queue for job in jobs)
        unstarted = Counter(job.queue for job in jobs if job not in self.slot_leases)
        rooms: dict[str, float] = {}
        for queue in queues:
            limit = self._limits_of(queue)
            rooms[queue] = limit.here - here[queue]
            if limit.everywhere is not None:
                rooms[queue] = min(rooms[queue], limit.everywhere.room - unstarted[queue])
        return rooms

    def open(self, queues: Sequence[str], jobs: Collection[ReservedJob]) -> Sequence[str]:
        """Returns the queues of which one more job may be held beside these."""
        if not self.of_queues:
            return queues
        rooms = self._rooms(queues, jobs)
        return tuple(queue for queue in queues if rooms[queue] > 0)

    def seconds(self, queues: Sequence[str]) -> float:
        """Returns the seconds until full queues are checked again."""
        if not self.are_over_all:
            return math.inf
        full = [each for each in self._over_all(queues) if not each.room]
        return min((each.looks_at() for each in full), default=math.inf) - time.monotonic()

    def keeps_waiting(self, queues: Sequence[str], jobs: Collection[ReservedJob]) -> bool:
        """Whether jobs are ready, or soon will be, that may not run yet."""
        if time.monotonic() < self._back_until:
            return True
        full = {*queues}.difference(self.open(queues, jobs))
        counts = Capability.SIZE in self._connection.capabilities
        return any(not counts or self._connection.sizes(queue).ready for queue in full)

    def _look(self, queues: Sequence[str]) -> None:
        if not self.are_over_all:
            return
        if len(self._queues) > len(queues) + _KEPT:  # names come and go
            self._queues = {queue: self._limits_of(queue) for queue in queues}
        try:
            self.slot_leases.look(self._over_all(queues))
            self._silent = False
        except BackendUnavailable as error:
            if Capability.JOINT in self._connection.capabilities:
                raise
            if not self._silent:  # jobs are in another backend: other queues run
                log.warning("queues with a bound are left alone: %s", error)
            self._silent = True
            for limit in self._over_all(queues):
                limit.unknown()

    def _over_all(self, queues: Iterable[str]) -> list[ConcurrencyLimit]:
        found = (self._limits_of(queue).everywhere for queue in queues)
        return [each for each in found if each is not None]

    def _limits_of(self, queue: str) -> _QueueLimits:
        found = self._queues.get(queue)
        if found is None:
            here, most = least(self._here, queue), over_all(self._configured, queue)
            name = slot_leases.queue_name(self._connection.name, queue)
            found = self._queues[queue] = _QueueLimits(
                math.inf if here is None else here,
                None if most is None else ConcurrencyLimit(slot_leases.QUEUE, name, most),
            )
        return found

    # -- jobs -------------------------------------------------------------------------------------

    def of(
        self, job: ReservedJob, name: str, job_class: type[JobDefinition] | None
    ) -> Sequence[ConcurrencyLimit]:
        """Returns a job's limits over all workers; `name` is its class in the payload."""
        most = None if job_class is None else job_class.concurrency
        if most is None and not self.are_over_all and not self._learned:
            return ()
        limits = self._over_all([job.queue]) if self.are_over_all else []
        if job_class is None:
            limits += [self._learned[name]] if name in self._learned else []
        elif most is not None:
            limits.append(self._class(job_class.own_name(), most))
        return limits

    def admit(self, job: ReservedJob, name: str, own_name: str, concurrency: int) -> float | None:
        """Takes a slot lease for a job that was started before its class was imported.

        The class is called `name` in payloads: the next start takes the slot lease itself.
        Returns the seconds until it is worth trying again if none is free.
        """
        limit = self._learned[name] = self._class(own_name, concurrency)
        return None if self.slot_leases.take(job, limit) else self.delay(limit)

    def _class(self, name: str, concurrency: int) -> ConcurrencyLimit:
        limit = self._classes.get(name)
        if limit is None or limit.most != concurrency:
            limit = self._classes[name] = ConcurrencyLimit(slot_leases.CLASS, name, concurrency)
        return limit

    def delay(self, limit: ConcurrencyLimit) -> float:
        """Returns the seconds until a job without a slot lease is tried again.

        A job of a full queue need not wait: its queue does.
        """
        if limit.kind == slot_leases.QUEUE:
            return 0.0
        seconds = limit.delay()
        self._back_until = max(self._back_until, time.monotonic() + seconds + _A_LOOK)
        return seconds


def least(limits: Iterable[tuple[str, int]], queue: str) -> int | None:
    """Returns the least of the limits whose names or patterns match a queue."""
    return min((most for text, most in limits if fnmatchcase(queue, text)), default=None)


def in_each(configured: Mapping[str, QueueSettings], queue: str) -> int | None:
    """Returns a queue's configured limit in each worker."""
    return least(_per_worker(configured), queue)


def _per_worker(configured: Mapping[str, QueueSettings]) -> list[tuple[str, int]]:
    return [(text, of.per_worker) for text, of in configured.items() if of.per_worker]


def over_all(configured: Mapping[str, QueueSettings], queue: str) -> int | None:
    """Returns a queue's configured limit over all workers."""
    limits = ((text, of.concurrency) for text, of in configured.items())
    return least(((text, most) for text, most in limits if most is not None), queue)
