"""Steps that are told to the server, not waited for: any, or the start of a job as most begin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from qframe.contracts.step import APPLIED, LOST, Delete, Result, Start, Step
from qframe.drivers.redis import message
from qframe.drivers.redis.commands import Command, Word, call
from qframe.drivers.redis.connection import Connection, Reply, Told
from qframe.drivers.redis.exchange import Exchange
from qframe.drivers.redis.job import RedisJob
from qframe.drivers.redis.keys import Keys

Heard = Callable[[list[Result]], None]


class ToldSteps(Told):
    """Steps about `jobs`: these hold what was told until it is answered."""

    __slots__ = ("_asked_at", "_heard", "connection", "jobs")

    def __init__(
        self,
        command: Command,
        connection: Connection,
        jobs: Sequence[RedisJob],
        asked_at: float,
        heard: Heard,
    ) -> None:
        super().__init__(command)
        self.connection = connection
        self.jobs = jobs
        self._asked_at = asked_at
        self._heard = heard

    def sure_until(self) -> float:
        """Give until when all leases are certain to be ours without asking."""
        return min([job.sure_until for job in self.jobs], default=0.0)

    def hold(self) -> None:
        """Note in the jobs that this was told."""
        for job in self.jobs:
            job.told = self

    def let_go(self) -> None:
        """Note that it is answered, or was not told."""
        for job in self.jobs:
            if job.told is self:
                job.told = None

    def hear(self, reply: Reply) -> None:
        self.let_go()
        self._heard(self.results(reply))

    @abstractmethod
    def begin(self) -> None:
        """Take it that all is applied: what is not is taken back when it is heard."""

    @abstractmethod
    def results(self, reply: Reply) -> list[Result]:
        """Give the result of each step."""


class ToldExchange(ToldSteps):
    """Any steps."""

    __slots__ = ("_exchange",)

    def __init__(
        self,
        exchange: Exchange,
        connection: Connection,
        skew: float,
        asked_at: float,
        heard: Heard,
    ) -> None:
        command = exchange.command_for(connection, skew)
        super().__init__(command, connection, exchange.jobs, asked_at, heard)
        self._exchange = exchange

    def begin(self) -> None:
        self._exchange.begin(self._asked_at)

    def results(self, reply: Reply) -> list[Result]:
        return self._exchange.results(reply, self._asked_at, twice=self.twice)


class ToldStart(ToldSteps):
    """The start of a held job, and the deletion of the one done before: so most jobs move.

    As an exchange the two take 10 us more a job, of some 50 that a worker needs in all.
    """

    __slots__ = ("_before", "_done", "_job", "_note", "_start")

    def __init__(
        self,
        move: tuple[RedisJob | None, RedisJob, Start],
        keys: Keys,
        connection: Connection,
        skew: float,
        asked_at: float,
        heard: Heard,
    ) -> None:
        done, job, start = self._done, self._job, self._start = move
        words: tuple[Word, ...] = ()
        if done is not None:
            reserved = done.keys.reserved
            words = (8, "fence", reserved, done.stored, done.score, "", "delete", done.note)
        stored, tag = job.begun()
        notes = message.noted(job.beside + (job.at < 0), start.notes)
        self._note = job.keys.notes + tag if notes else b""
        reserved = job.keys.reserved
        command = call(
            "apply", (job.keys.ready,), repr(skew), "", "", keys.names, keys.facts, reserved,
            *words, 11, "fence", reserved, job.stored, job.score, stored,
            "start", repr(start.lease), job.note, self._note, notes,
        )  # fmt: skip
        jobs = (job,) if done is None else (done, job)
        super().__init__(command, connection, jobs, asked_at, heard)

    @staticmethod
    def move(steps: Sequence[Step]) -> tuple[RedisJob | None, RedisJob, Start] | None:
        """Give the job that is done, the one to start and its start; None where it is not that."""
        if len(steps) not in {1, 2} or len(steps[0].operations) != 1:
            return None
        if len(steps[-1].operations) != 1:
            return None
        job, (start,) = steps[-1].reservation, steps[-1].operations
        if not isinstance(job, RedisJob) or not isinstance(start, Start) or not job.score:
            return None
        if len(steps) == 1:
            return None, job, start
        done, (delete,) = steps[0].reservation, steps[0].operations
        if not isinstance(done, RedisJob) or done is job or not isinstance(delete, Delete):
            return None
        return done, job, start

    def begin(self) -> None:
        job = self._job
        self._before = job.state()
        job.sure_until = self._asked_at + self._start.lease / 3
        job.start(self._note, self._start.notes, self._start.lease)

    def results(self, reply: Reply) -> list[Result]:
        done, said = self._done, reply if isinstance(reply, list) else [int(reply == 1)] * 2
        if said[-1] != 1:
            self._job.restore(self._before)
        results = [APPLIED if said[-1] == 1 else LOST]
        if done is not None:
            # Said twice, the second time finds it gone.
            is_over = said[0] == 1 or self.twice or done.in_doubt
            if is_over:
                done.sure_until, done.in_doubt = 0.0, False
            results.insert(0, APPLIED if is_over else LOST)
        return results
