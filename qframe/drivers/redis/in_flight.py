"""Steps sent without waiting: the worker's handler runs while the server applies them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from qframe.contracts.step import APPLIED, LOST, UNKNOWN, Delete, Operation, Result, Start, Step
from qframe.drivers.redis import message
from qframe.drivers.redis.commands import RedisCommand, Word, call
from qframe.drivers.redis.connection import RedisConnection, RedisInFlight, Reply
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.keys import Keys
from qframe.drivers.redis.steps import RedisSteps, besides

OnResult = Callable[[list[Result]], None]


class StepsInFlight(RedisInFlight):
    """Steps about jobs; each job refers to them until the answer is read."""

    __slots__ = ("_asked_at", "_on_result", "connection", "jobs")

    def __init__(
        self,
        command: RedisCommand,
        jobs: Sequence[RedisJob],
        connection: RedisConnection,
        asked_at: float,
        on_result: OnResult,
    ) -> None:
        self.command, self.was_repeated = command, False
        self.jobs = jobs
        self.connection = connection
        self._asked_at = asked_at
        self._on_result = on_result
        for job in jobs:
            job.in_flight = self

    @abstractmethod
    def begin(self) -> None:
        """Assume that all steps are applied; `results` takes back what was not."""

    @abstractmethod
    def results(self, reply: Reply) -> list[Result]: ...

    def refused(self) -> None:
        """Note that the steps could not be sent."""
        for job in self.jobs:
            if job.in_flight is self:
                job.in_flight = None

    def on_reply(self, reply: Reply) -> None:
        for job in self.jobs:
            if job.in_flight is self:
                job.in_flight = None
        self._on_result(self.results(reply))


class ApplyInFlight(StepsInFlight):
    """Any steps."""

    __slots__ = ("_exchange",)

    def __init__(
        self,
        exchange: RedisSteps,
        connection: RedisConnection,
        skew: float,
        asked_at: float,
        on_result: OnResult,
    ) -> None:
        sent = exchange.command_for(connection, skew)
        super().__init__(sent, exchange.jobs, connection, asked_at, on_result)
        self._exchange = exchange

    def begin(self) -> None:
        self._exchange.begin(self._asked_at)

    def results(self, reply: Reply) -> list[Result]:
        return self._exchange.results(reply, self._asked_at, is_repeat=self.was_repeated)


class RedisStartInFlight(StepsInFlight):
    """The start of a held job, and the deletion of the job done before: what most jobs need.

    `more` has additional operations of their features. As an exchange of its own it would take 20
    us more of about 80 us a job.
    """

    __slots__ = ("_before", "_done", "_job", "_note", "_start")

    def __init__(
        self,
        done: RedisJob | None,
        job: RedisJob,
        start: Start,
        more: Sequence[Word],
        connection: RedisConnection,
        skew: float,
        asked_at: float,
        on_result: OnResult,
    ) -> None:
        self._done, self._job, self._start = done, job, start
        stored, tag = job.begun()
        notes = message.noted(job.beside + (job.at < 0), start.notes)
        self._note = job.keys.notes + tag if notes else b""
        reserved = job.keys.reserved
        jobs: tuple[RedisJob, ...]
        if done is None:
            jobs, place, gone, note = (job,), reserved, b"", b""
        else:
            jobs, place, gone, note = (done, job), done.keys.reserved, done.stored, done.note
        sent = call(
            "start", (reserved, place), skew, "start", job.stored, job.score, stored, start.lease,
            job.note, self._note, notes, gone, note, *more,
        )  # fmt: skip
        super().__init__(sent, jobs, connection, asked_at, on_result)

    def begin(self) -> None:
        job, start = self._job, self._start
        self._before = job.state()
        job.sure_until = self._asked_at + start.lease / 3
        job.start(self._note, start.notes, start.lease)

    def results(self, reply: Reply) -> list[Result]:
        done = self._done
        begun, deleted = (1, 1) if reply == 1 else reply if isinstance(reply, list) else (0, 0)
        if not begun:
            self._job.restore(self._before)
        result = APPLIED if begun else LOST
        if done is None:
            return [result]
        if deleted or self.was_repeated:
            done.sure_until = 0.0
        gone = UNKNOWN if self.was_repeated else LOST
        return [APPLIED if deleted else gone, result]


def start_of(
    steps: Sequence[Step], keys: Keys
) -> tuple[RedisJob | None, RedisJob, Start, Sequence[Word]] | None:
    """Return the arguments of `RedisStartInFlight`; None if the steps are something else."""
    job, operations = steps[-1].reservation, steps[-1].operations
    start = operations[-1] if operations else None
    if type(start) is not Start or not isinstance(job, RedisJob) or not job.score:
        return None
    if len(steps) == 1:
        more = () if len(operations) == 1 else _more((), operations, keys)
        return None if more is None else (None, job, start, more)
    done, ended = steps[0].reservation, steps[0].operations
    if len(steps) > 2 or not ended or type(ended[-1]) is not Delete:  # noqa: PLR2004 (a pair)
        return None
    if not isinstance(done, RedisJob) or done is job or done.score:
        return None
    is_plain = len(ended) == 1 and len(operations) == 1
    more = () if is_plain else _more(ended, operations, keys)
    return None if more is None else (done, job, start, more)


_BEHIND = 16
"""Index of the first additional operation in `lua/start.lua`."""


def _more(
    ended: Sequence[Operation], started: Sequence[Operation], keys: Keys
) -> Sequence[Word] | None:
    """Encode all but the last operation of each; None if one cannot go with a start."""
    ends, starts = besides(ended[:-1]), besides(started[:-1])
    if ends is None or starts is None:
        return None
    words = ends + starts
    tag = message.new_tag() if "arrive" in words else b""  # the latch may push a message
    return tag, keys.names, keys.facts, _BEHIND + len(ends), *words
