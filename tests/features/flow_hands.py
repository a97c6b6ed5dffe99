"""Hands: works the jobs of flows in one thread, call by call, and dies when told to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from qframe import DontHandle, FlowRun
from qframe.connection import Connection
from qframe.contracts.flow import NodeState
from qframe.contracts.status import State
from qframe.contracts.step import Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.ordered import OrderedBackend
from qframe.features.base import End
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import index
from qframe.jobs.registry import own_job


class Died(BaseException):
    """The worker was killed."""


class Hands:
    """Works the jobs of a connection, in any order of its queues, and dies when told to."""

    def __init__(self, connection: Connection, seed: int = 0) -> None:
        self.connection = connection
        self.random = random.Random(seed)
        backend = connection.backend
        parts = [backend]
        if isinstance(backend, OrderedBackend):
            parts = [backend.messages, backend.facts, backend.failed]
        self.parts = [part for part in {*parts} if isinstance(part, MemoryBackend)]
        self.largest = 0
        """Operations of the largest step."""

    def drain(self, deaths: Iterable[int] = ()) -> None:
        """Work until nothing is left; each number is after how many calls a worker dies."""
        left = iter(deaths)
        while True:
            names = self.connection.queues()
            if not names:
                return
            with self.dying(next(left, 0)):
                queue = self.random.choice(names)
                jobs = self.connection.reserve([queue])
                if jobs:
                    self.run(jobs[0])
                else:  # what a dead worker held, and what waits for its backoff
                    self.let_pass(100)

    def let_pass(self, seconds: float) -> None:
        for part in self.parts:
            part.timing.skew += seconds

    def run(self, job: ReservedJob) -> None:
        plan = job.start_plan()
        (result,) = self.connection.backend.apply(plan)
        if not result.applied:
            return
        reason = job.skip_reason()
        if reason is not None:
            job.settle(End(State.SKIPPED, remark=reason))
            return
        name = job.payload["job"]
        job_class = own_job(name) or index[name]
        try:
            instance = job_class.from_data(job.data_for(job_class))
            object.__setattr__(instance, "_reserved", job)
            result = instance.handle()
        except DontHandle:
            job.settle(End(State.SKIPPED))
        except Exception as error:
            if own_job(name) and job_class.tries == 0:
                raise
            job.settle(End(State.FAILED, error=error))
        else:
            if not job.is_settled:
                job.settle(End(State.COMPLETE, result=result))

    @contextmanager
    def interrupted(self, calls: int, others: Callable[[], object]) -> Iterator[None]:
        """Let `others` go on before one call of a backend that changes something; 0: do not."""
        left, kept = [calls], [(part, part.apply) for part in self.parts]

        def restore() -> None:
            for part, _ in kept:
                vars(part).pop("apply", None)

        def counted(apply: Callable[..., Any]) -> Callable[..., Any]:
            def call(*steps: Step) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    restore()
                    others()
                return apply(*steps)

            return call

        for part, apply in kept:
            part.apply = counted(apply)  # type: ignore[method-assign] # until the end of the block
        try:
            yield
        finally:
            restore()

    @contextmanager
    def dying(self, calls: int) -> Iterator[None]:
        """Die after so many calls of a backend that change something; 0: do not."""
        left = [calls]
        kept = [(part, part.apply) for part in self.parts]

        def counted(apply: Callable[..., Any]) -> Callable[..., Any]:
            def call(*steps: Step) -> Any:
                self.largest = max([self.largest, *(len(each.operations) for each in steps)])
                if left[0] == 1:
                    raise Died
                left[0] -= 1
                return apply(*steps)

            return call

        for part, apply in kept:
            part.apply = counted(apply)  # type: ignore[method-assign] # until the end of the block
        try:
            yield
        except Died:
            self.let_pass(100)
        finally:
            for part, _ in kept:
                del part.apply  # the class's own is back


def states(run: FlowRun) -> list[NodeState]:
    return [node.state for node in run.nodes()]
