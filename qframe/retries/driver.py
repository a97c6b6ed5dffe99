"""RetryDriver: drives all watched retries, when it has the turn: one of all workers at a time.

A turn retries some jobs, each in the step that removes its failed record, and then stores how far
it got. A driver that is killed in between has retried jobs that are not noted: the next one finds
them by their status, and counts them as retried.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from qframe.connection import Connection
from qframe.contracts.backend import Capability, suspending_clock
from qframe.contracts.failed import FailedJob
from qframe.contracts.status import JobStatus, State
from qframe.drivers import process
from qframe.drivers.failed_store import FailedStore, each_place
from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidPayload, QframeError
from qframe.failed.retry import Anew, destination, retry
from qframe.features import status
from qframe.manager import QueueManager
from qframe.payload import envelope
from qframe.retries.kept import TURN, RetryRuns
from qframe.retries.watched import PATIENCE, ChosenJob, OpenJob, WatchedRetry

log = logging.getLogger("qframe")

IDLE = 5.0
"""Seconds between two looks if there is nothing to drive."""
EVERY = 0.5
"""Seconds between two turns, and for which a turn retries jobs."""
TRACKED = 2 * PATIENCE
"""Seconds for which the status of a retried job is kept, at least."""
_UNSEEN = 60.0
"""Seconds after which a retried job without any status is given up: somebody removed it."""


class RetryDriver:
    """One thread calls `turn` again and again, with the pause that it returns."""

    def __init__(self, queues: QueueManager, clock: Callable[[], float] = time.time) -> None:
        self._queues = queues
        self._runs = RetryRuns(queues)
        self._clock = clock
        self._who = f"{process.NAME}:{process.pid()}:{secrets.token_hex(8)}"
        self._sure_until = 0.0
        """Until when nobody else can have the turn, by a clock that counts suspension."""
        self._parts: dict[tuple[str, int], list[ChosenJob] | None] = {}

    def turn(self) -> float:
        """Drive what is due. Returns the seconds until the next turn.

        Raises `BackendUnavailable`.
        """
        mark = self._runs.mark()
        if mark is None:
            return IDLE
        if not self._has_turn():
            return IDLE
        active = self._runs.active()
        if not active:
            self._parts.clear()
            self._runs.unmark(mark)
            self._runs.leave(self._who)
            return IDLE
        for text, run in active:
            if not self._has_turn():
                break
            (stopped_by,) = self._runs.stopped_by([run])
            self._drive(text, run, stopped_by)
        return EVERY

    def _has_turn(self) -> bool:
        """Take or keep the turn. Returns whether it has it."""
        asked = suspending_clock()
        has_it = self._runs.takes_turn(self._who)
        self._sure_until = asked + TURN / 2 if has_it else 0.0
        return has_it

    def leave(self) -> None:
        """Free the turn, for another worker."""
        self._runs.leave(self._who)

    def _drive(self, text: str, run: WatchedRetry, stopped_by: str | None) -> None:
        before, now = run.model_copy(deep=True), self._clock()
        try:
            if stopped_by is not None:
                run.stop(f"stopped by {stopped_by}", now)
            else:
                self._go_on(run)
        except BackendUnavailable as error:  # what was retried so far counts
            run.tell(str(error))
        except ConfigurationError as error:  # of a version with other terms
            run.stop(str(error), now)
        if run == before or suspending_clock() > self._sure_until:
            return
        if self._runs.write(text, run, self._who) is not None and not run.is_active:
            _log_end(run)

    def _go_on(self, run: WatchedRetry) -> None:
        run.learned(self._outcomes(run))
        run.judge(self._clock())
        ends = time.monotonic() + EVERY
        while run.may_retry(self._clock()) and time.monotonic() < ends:
            if suspending_clock() > self._sure_until:
                return  # this process was stopped: another may have the turn
            job = self._next(run)
            if job is None:
                run.stop("the list of its jobs has expired", self._clock())
                return
            self._retry(run, job)
        if run.is_active:
            run.judge(self._clock())

    def _next(self, run: WatchedRetry) -> ChosenJob | None:
        number, index = divmod(run.at, RetryRuns.PART)
        key = (run.id, number)
        if key not in self._parts:
            self._parts = {each: part for each, part in self._parts.items() if each[0] != run.id}
            self._parts[key] = self._runs.part(run, number)
        part = self._parts[key]
        return None if part is None or index >= len(part) else part[index]

    # -- one job ----------------------------------------------------------------------------------

    def _retry(self, run: WatchedRetry, job: ChosenJob) -> None:
        """Retry one job, and note that. Raises `BackendUnavailable`."""
        store, record = self._record(job)
        try:
            if store is None or record is None:
                self._meet(run, job)
                return
            connection, _ = destination(self._queues, record)
            if (why := _cannot_be_watched(connection, record)) is not None:
                run.left(f"{job.uuid}: {why}")
                return
            if _is_of(self._status(connection, job.uuid), job.life):
                store.drop(record)  # a driver was killed between the push and this
            elif not retry(
                self._queues, store, record, Anew(run.fresh, run.from_step), track=TRACKED
            ):
                run.left()
                return
        except BackendUnavailable:
            raise
        except QframeError as error:
            run.left(f"{job.uuid}: {error}")
            return
        now = self._clock()
        run.opened(OpenJob(job.uuid, connection.name, job.life, now), now)

    def _record(self, job: ChosenJob) -> tuple[FailedStore | None, FailedJob | None]:
        """Return the failure, if it is still there, and its store."""
        for store in self._stores():
            record = store.find(job.uuid)
            if record is not None and record.is_of(job.failed_at):
                return store, record
        return None, None

    def _stores(self) -> Sequence[FailedStore]:
        found: list[FailedStore] = []
        for each in self._queues.holding_jobs():
            with suppress(ConfigurationError):  # it keeps none
                found.append(self._queues.failed_store(each.name))
        return each_place(found)

    def _meet(self, run: WatchedRetry, job: ChosenJob) -> None:
        """Note a job whose record is gone: retried by a driver before this one, or removed."""
        for each in self._queues.holding_jobs():
            if _is_of(self._status(each, job.uuid), job.life):
                now = self._clock()
                run.opened(OpenJob(job.uuid, each.name, job.life, now), now)
                return
        run.left()

    def _status(self, connection: Connection, uuid: str) -> JobStatus | None:
        if Capability.FACTS not in connection.capabilities:
            return None
        return status.read(connection.backend, uuid)

    # -- outcomes ---------------------------------------------------------------------------------

    def _outcomes(self, run: WatchedRetry) -> dict[OpenJob, bool | None]:
        """Return the outcomes that are known by now. Raises `BackendUnavailable`."""
        now = self._clock()
        ended: dict[OpenJob, bool | None] = dict.fromkeys(run.overdue(now))
        by_connection: defaultdict[str, list[OpenJob]] = defaultdict(list)
        for each in run.open:
            by_connection[each.connection].append(each)
        for name, jobs in by_connection.items():
            store = self._queues.connection(name).store
            texts = store.get(*(f"status:{each.uuid}" for each in jobs))
            for each, text in zip(jobs, texts, strict=True):
                seen = status.read_as(each.uuid, text)
                if _is_of(seen, each.life):
                    if (well := _went_well(seen)) is not None:
                        ended[each] = well
                    elif seen is not None and seen.state is State.CANCELLED:
                        ended[each] = None
                elif now - each.since > _UNSEEN:
                    ended[each] = None
        return ended


def _is_of(seen: JobStatus | None, life: int) -> bool:
    """Whether a status is of a job that was retried so often."""
    return seen is not None and seen.retries >= life


def _went_well(seen: JobStatus | None) -> bool | None:
    """Return whether the first attempt did well; None if it has not ended."""
    if seen is None:
        return None
    if seen.state in {State.COMPLETE, State.SKIPPED}:
        return True
    if seen.state in {State.FAILED, State.BURIED}:
        return False
    return False if seen.state is State.RELEASED and seen.exception is not None else None


def _cannot_be_watched(connection: Connection, record: FailedJob) -> str | None:
    """Return why nobody could know the outcome of a job; None if it can be known."""
    if (Capability.FACTS | Capability.RESERVE) not in connection.capabilities:
        return f"the connection {connection.name!r} keeps no statuses of waiting jobs"
    try:
        message = envelope.parse(record.payload)
        if envelope.WIRE in message or "\\" in envelope.job_name(message):
            return "another program runs it, which keeps no status of it"
    except InvalidPayload as error:
        return str(error)
    if envelope.uuid(message) is None or status.key_of(record.uuid) is None:
        return "it has no id under which a status could be kept"
    return None


def life_after(record: FailedJob) -> int:
    """Return how often a failed job will have been retried by hand, after one more."""
    try:
        return status.life_of(envelope.parse(record.payload)) + 1
    except InvalidPayload:
        return 1


def _log_end(run: WatchedRetry) -> None:
    told = f"{run.retried:,} of {run.total:,} jobs retried, {run.failed:,} failed again"
    if run.why:
        log.warning("the retry %s of %s was stopped: %s; %s", run.id, run.of, run.why, told)
    else:
        log.info("the retry %s of %s is done: %s", run.id, run.of, told)
