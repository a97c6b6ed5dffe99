"""A worker's parts on the memory backend, in this process: a connection, a registry, a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qframe import Queueable, events
from qframe.config import ConnectionSettings
from qframe.connection import Connection
from qframe.contracts.step import Reservation, Result, Step
from qframe.drivers.memory.backend import MemoryBackend
from qframe.exceptions import BackendUnavailable, UnknownJob
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.features.status import StatusFeature
from qframe.features.unique import UniqueFeature
from qframe.jobs.registry import Registry
from qframe.payload import envelope
from qframe.payload.encryption import Keyring
from qframe.payload.signature import Signer
from qframe.worker.limits import JobFacts
from qframe.worker.options import WorkerOptions
from qframe.worker.runner import Runner
from qframe.worker.signals import Signals


class Telling(MemoryBackend):
    """A memory backend whose answers to what it is told come when it is asked for more.

    Each step said is written down in `said`; `down` calls from now fail, `cut` ones after the step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.down = 0
        self.cut = 0
        self._inside = False
        self.unsent = False
        """Whether what is told does not arrive, and is said again when something is asked."""
        self._unheard: list[Callable[[], None]] = []

    def apply(self, *steps: Step) -> list[Result]:
        if self._inside:
            return super().apply(*steps)
        self._catch_up()
        self._note("apply", steps)
        return self._done(steps)

    def apply_async(self, steps: Sequence[Step], on_result: Callable[[list[Result]], None]) -> None:
        if any(each.reservation.sure_until <= self.clock() for each in steps if each.reservation):
            on_result(self.apply(*steps))
            return
        self._catch_up()
        self._note("apply_async", steps)
        self._may_fail("down")
        if self.unsent:
            self._unheard.append(lambda: on_result(super(Telling, self).apply(*steps)))
            return
        results = super().apply(*steps)
        self._unheard.append(lambda: on_result(results))

    def reserve(
        self, queues: Sequence[str], limit: int = 1, *, first: Sequence[Step] = ()
    ) -> tuple[list[Reservation], list[Result]]:
        self._catch_up()
        self._note("reserve", first)
        self._may_fail("down")
        self._inside = True
        jobs, results = super().reserve(queues, limit, first=first)
        self._inside = False
        self._may_fail("cut")
        for job in jobs:
            job.sure_until = self.clock() + 0.3
        return jobs, results

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Be another thread: what was told by this one stays unheard."""
        self._unheard, unheard = [], self._unheard
        try:
            yield
        finally:
            self._unheard = unheard

    def lose(self, job: ReservedJob) -> ReservedJob:
        """Let the lease of a job run out, and another worker take it."""
        self.timing.skew += 1000
        self._inside = True
        (taken,), _ = super().reserve([job.queue])
        self._inside = False
        self.timing.skew -= 1000
        return ReservedJob(job.context, taken)

    def _done(self, steps: Sequence[Step]) -> list[Result]:
        self._may_fail("down")
        results = super().apply(*steps)
        self._may_fail("cut")
        for step in steps:
            job = step.reservation
            if job is not None and job.started:
                job.sure_until = self.clock() + job.lease / 3
        return results

    def _may_fail(self, how: str) -> None:
        if getattr(self, how):
            setattr(self, how, getattr(self, how) - 1)
            raise BackendUnavailable(how)

    def _note(self, how: str, steps: Sequence[Step]) -> None:
        names = [type(each).__name__ for step in steps for each in step.operations]
        self.said.append(" ".join([how, *names]))

    def _catch_up(self) -> None:
        unheard, self._unheard = self._unheard, []
        for hear in unheard:
            hear()


class FakeRegistry(Registry):
    """The jobs it was given, some of them only once they were looked for."""

    def __init__(self, *jobs: type[Queueable], late: Sequence[type[Queueable]] = ()) -> None:
        super().__init__()
        self.jobs = {each.__name__: each for each in jobs}
        self.late = {each.__name__: each for each in late}

    def known(self, name: str) -> type[Queueable] | None:
        return self.jobs.get(name)

    def find(self, name: str) -> type[Queueable]:
        if name in self.late:
            return self.late[name]
        if name not in self.jobs:
            raise UnknownJob(f"no job {name}")
        return self.jobs[name]


SIGNALS = Signals(handled=False)


class Bench:
    """All a runner needs, and what it did."""

    def __init__(
        self,
        *jobs: type[Queueable],
        late: Sequence[type[Queueable]] = (),
        options: WorkerOptions | None = None,
        signer: Signer | None = None,
        features: Sequence[Feature] = (),
        unknown_delays: Sequence[float] = (),
    ) -> None:
        self.backend = Telling()
        features = features or (UniqueFeature(), StatusFeature())
        self.context = Context("memory", self.backend, features, Keyring(), signer, 60, 1 << 20)
        self.connection = Connection(self.context, ConnectionSettings(driver="memory"))
        self.registry = FakeRegistry(*jobs, late=late)
        self.signals = SIGNALS
        self.signals.fired = None
        self.runner = Runner(
            self.connection, self.registry, options or WorkerOptions(), self.signals, unknown_delays
        )

    def push(self, name: str, data: dict[str, Any] | None = None, **keys: Any) -> None:
        """Push a job."""
        message = {"uuid": name.lower(), "job": name, "data": data or {}, **keys}
        self.backend.said.clear()
        self.connection.push_raw(self.connection.signed(envelope.encode(message), "q"), "q")
        self.backend.said.clear()

    def held(self) -> ReservedJob:
        """Hold the next job."""
        (job,) = self.runner.settler.reserve(["q"], 1)
        return job

    def run(self, name: str, data: dict[str, Any] | None = None, **keys: Any) -> str:
        """Push a job and run it; gives its outcome."""
        self.push(name, data, **keys)
        return self.runner.run(self.held()).outcome.value

    def again(self) -> str:
        """Run the next job, whenever it is ready."""
        self.backend.timing.skew += 1000
        return self.runner.run(self.held()).outcome.value

    @property
    def left(self) -> int:
        """How many jobs there are."""
        return self.backend.sizes("q").total


@contextmanager
def heard() -> Iterator[list[str]]:
    """Write down the events of jobs, by name."""
    names: list[str] = []

    def hear(event: events.JobEvent) -> None:
        names.append(type(event).__name__)

    events.listen(events.JobEvent)(hear)
    try:
        yield names
    finally:
        events.forget(hear)


def facts(attempts: int = 1, history: Any = None) -> JobFacts:
    """Give what is known of a job."""
    from qframe.contracts.history import History

    return JobFacts("a job", attempts, history or History())
