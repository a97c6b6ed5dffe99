"""One scenario's place: a backend, a project, workers on it, and all that was done to them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import psutil

from faults import jobs
from faults.backends import (
    Backend,
    BeanstalkdBackend,
    Failover,
    MembersBackend,
    RabbitmqBackend,
    RabbitmqClusterBackend,
    RedisBackend,
    ServerBackend,
    SqlBackend,
    StrictSqsBackend,
)
from qframe import QueueManager, config
from qframe.connection import Connection
from qframe.contracts import FailedJob
from qframe.contracts.step import Push, Step
from qframe.exceptions import BackendUnavailable, QframeError
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.ledger import Fault, Ledger
from tests.support.process import Process, Project
from tests.support.proxy import Proxy
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.sqs_server import SqsServer

ROOT = Path(__file__).resolve().parents[1]
HERE = "here"
"""The name of the connection."""

_BACKLOG = 60

T = TypeVar("T")


class Site(Project):
    """A project on a backend.

    Workers reach the backend through the proxy where there is one, this process when told to.
    `begin` starts workers; whoever waits by `pause` replaces those that ended. What is done to
    workers is kept in `faults`, by which `faults.verdict` explains what it finds in the ledger.
    """

    concurrency: ClassVar[int] = 1
    """How many jobs each worker runs at once."""
    wanted: ClassVar[int] = 0
    """About how many jobs a scenario is to have whose number can be chosen; 0: its own."""

    def __init__(
        self,
        root: Path,
        backend: Backend,
        seed: int,
        *,
        through_proxy: bool = False,
        quick: bool = False,
        lease: float = 1.0,
    ) -> None:
        self.backend = backend
        self.proxy: Proxy | None = backend.proxy() if through_proxy else None
        self.seed = seed
        self.chance = random.Random(seed)  # noqa: S311 (repeatable, on purpose)
        self.quick = quick
        self.lease = lease
        self.faults: list[Fault] = []
        self.remarks: list[str] = []
        self.violations: list[str] = []
        self.workers: list[Process] = []
        self.queue_names = {"default"}
        self.expected_codes = {0}
        """What workers may exit with."""
        self.may_fail: set[int] | None = set()
        """Jobs that may be in the failed store in the end; None is any."""
        self.may_be_gone: set[int] = set()
        """Jobs that were lost together with the backend's data."""
        self.may_repeat_attempts = False
        """Whether starts are uncounted, so that an attempt's number comes twice."""
        self.at_least_once: set[int] = set()
        """Jobs that are pushed once more when a fault hits the worker, not theirs, that did it."""
        self.limit: float | None = lease + self.patience(3)
        """Seconds a job may wait to be run again after a fault; None where nobody takes over."""
        self.ended_at: dict[int, float] = {}
        """When a worker was found to have ended by itself."""
        self._also_here = False
        self._arguments: tuple[object, ...] = ()
        self._environment: dict[str, str] = {}
        self._numbers = itertools.count(1)
        super().__init__(root)
        self.writing = Ledger(self.ledger)

    def patience(self, seconds: float) -> float:
        """Give a limit of time: a quick run is one of the tests, which share their machine."""
        return 3 * seconds if self.quick else seconds

    def count(self, full: int, quick: int) -> int:
        """Give a number that depends on how thorough the run is."""
        return quick if self.quick else full

    def as_many(self, full: int, quick: int) -> int:
        """Give about how many jobs there are to be, which can be asked for."""
        return self.wanted or self.count(full, quick)

    # -- the project ----------------------------------------------------------------------------

    def configure(self, toml: str = "", **connection: object) -> None:
        """Write the workers' configuration; keyword arguments are of the connection."""
        self.close()
        values = self._settings(self.proxy) | connection
        store = self.backend.store
        keeps = f'store.driver = "{store}"\nfailed.driver = "{store}"\n' if store else ""
        lines = [f'default = "{HERE}"\njobs = ["faults.jobs"]\nunknown_job_delays = [0.2, 0.4]\n']
        lines += [keeps, toml, "\n"]
        for name, each in {HERE: values, **self.backend.others(self.proxy)}.items():
            lines.append(f"[connections.{name}]\n")
            lines += (f"{key} = {json.dumps(value)}\n" for key, value in each.items())
        (self.root / "qframe.toml").write_text("".join(lines))

    def _settings(self, proxy: Proxy | None) -> dict[str, Any]:
        return {"retry_after": self.lease, **self.backend.connection(proxy)}

    def use_proxy_here_too(self) -> None:
        """Let this process's connections go through the proxy as well."""
        self.close()
        self._also_here = True

    @property
    def manager(self) -> QueueManager:
        """The project's manager in this process."""
        if self._manager is None:
            settings = config.load(self.root / "qframe.toml")
            if not self._also_here:
                direct = {HERE: self._settings(None), **self.backend.others()}
                for name, values in direct.items():
                    settings.connections[name] |= values
            settings.listeners = {}
            self._manager = QueueManager(settings)
        return self._manager

    @property
    def server(self) -> ServerBackend:
        """The backend, where it is a server."""
        assert isinstance(self.backend, ServerBackend)  # noqa: S101 (a scenario says it needs one)
        return self.backend

    @property
    def group(self) -> Failover:
        """The backend, where it is several servers."""
        assert isinstance(self.backend, Failover)  # noqa: S101 (a scenario says it needs one)
        return self.backend

    @property
    def redis(self) -> RedisServer:
        """The Redis, where it is one."""
        assert isinstance(self.backend, RedisBackend)  # noqa: S101 (a scenario says it needs one)
        return self.backend.server

    @property
    def sql(self) -> SqlBackend:
        """The backend, where it is a server of SQL."""
        assert isinstance(self.backend, SqlBackend)  # noqa: S101 (a scenario says it needs one)
        return self.backend

    @property
    def beanstalkd(self) -> BeanstalkdServer:
        """The beanstalkd, where it is one."""
        backend = self.backend
        assert isinstance(backend, BeanstalkdBackend)  # noqa: S101 (a scenario says it needs one)
        return backend.server

    @property
    def rabbitmq(self) -> RabbitmqServer:
        """The RabbitMQ, where it is one node."""
        backend = self.backend
        assert isinstance(backend, RabbitmqBackend)  # noqa: S101 (a scenario says it needs one)
        return backend.server

    @property
    def cluster(self) -> RabbitmqClusterBackend:
        """The RabbitMQ, where it is several nodes."""
        backend = self.backend
        assert isinstance(backend, RabbitmqClusterBackend)  # noqa: S101 (as above)
        return backend

    @property
    def members(self) -> MembersBackend:
        """The backend, where it is a failover."""
        backend = self.backend
        assert isinstance(backend, MembersBackend)  # noqa: S101 (a scenario says it needs one)
        return backend

    @property
    def sqs(self) -> SqsServer:
        """The SQS, where it is one."""
        backend = self.backend
        assert isinstance(backend, StrictSqsBackend)  # noqa: S101 (as above)
        return backend.sqs

    @property
    def bad_network(self) -> Proxy:
        """The proxy, where there is one."""
        assert self.proxy is not None  # noqa: S101 (a scenario asks for one)
        return self.proxy

    @property
    def queue(self) -> Connection:
        """The connection in this process."""
        return self.manager.connection(HERE)

    # -- jobs -----------------------------------------------------------------------------------

    def number(self) -> int:
        """Give a number no job has yet."""
        return next(self._numbers)

    def send(
        self,
        kind: type[jobs.Noted] = jobs.Work,
        *,
        queue: str = "default",
        delay: float = 0,
        **fields: Any,
    ) -> int:
        """Push a job, with its lines in the ledger, and give its number."""
        number = self.number()
        self.queue_names.add(queue)
        self.writing.note("P", number)
        self.queue.later(delay, kind(number=number, **fields), queue)
        self.writing.note("E", number)
        return number

    def refused(self, count: int, error: type[QframeError] = QframeError) -> list[str]:
        """Push so many jobs, and give what was said to those that were refused by such an error."""
        said = []
        for _ in range(count):
            try:
                self.send()
            except error as refusal:
                said.append(str(refusal))
        return said

    def send_many(
        self, count: int, delay: float = 0, queue: str = "default", *, seconds: float = 0
    ) -> list[int]:
        """Push many jobs in one step, due at the same moment, and give their numbers."""
        numbers = [self.number() for _ in range(count)]
        self.queue_names.add(queue)
        work = [jobs.Work(number=number, seconds=seconds) for number in numbers]
        made = [*map(self.queue.envelope, work)]
        for number in numbers:
            self.writing.note("P", number)
        self.queue.backend.apply(Step(None, *(Push(queue, each.raw, delay) for each in made)))
        for number in numbers:
            self.writing.note("E", number)
        return numbers

    def left(self) -> int:
        """Count the jobs that wait, are delayed or are reserved, in all queues used."""
        return sum(self.sizes(name).total for name in self.queue_names)

    def failed(self) -> list[FailedJob]:
        """List the failed jobs, the first one first."""
        return list(self.manager.failed_store(HERE).page(100_000))[::-1]

    def dead(self) -> dict[int, FailedJob]:
        """Give the failed jobs that have a number, by it."""
        found = {}
        for record in self.failed():
            with suppress(ValueError, KeyError, TypeError):
                found[int(json.loads(record.payload)["data"]["number"])] = record
        return found

    # -- workers --------------------------------------------------------------------------------

    def begin(self, count: int, *arguments: object, **environment: str) -> list[Process]:
        """Start workers that are replaced when they end, and wait until they are up."""
        self._arguments = arguments
        self._environment = environment
        self.workers += [self.worker() for _ in range(count)]
        self.wait_for(lambda: all(self.is_up(worker) for worker in self.workers))
        return self.workers

    def is_up(self, worker: Process) -> bool:
        """Whether a worker has entered its loop: from then on it has handlers for signals."""
        return any(words[1] == str(worker.pid) for words in self.notes("U"))

    def worker(self, *arguments: object, **environment: str) -> Process:
        """Start one worker."""
        everything = ["--quiet", *(arguments or self._arguments)]
        if self.concurrency > 1 and {"--isolate", "--concurrency"}.isdisjoint(everything):
            everything += ["--concurrency", self.concurrency]
        environment = {**self._environment, **environment}
        return self.start("work", HERE, *everything, environment=environment)

    def start(
        self,
        *arguments: object,
        limit: tuple[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command of `qframe`, with what notes the ends of reservations."""
        command = [sys.executable, "-m", "faults.worker", *map(str, arguments)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return self.run(
            command, limit=limit, environment={"PYTHONPATH": path, **(environment or {})}
        )

    def tend(self) -> None:
        """Replace the workers that ended by themselves."""
        for place, worker in enumerate(self.workers):
            if not worker.alive():
                self.ended_at[worker.pid] = time.monotonic()
                self._ended(worker)
                self.workers[place] = self.worker()

    def _ended(self, worker: Process) -> None:
        code = worker.wait()
        if code == -signal.SIGTERM and not self.is_up(worker):
            return
        if code not in self.expected_codes:
            self.violate(f"pid {worker.pid} exited {code}: {worker.err[-400:].strip()}")

    def pause(self, seconds: float) -> None:
        """Let things happen for a while."""
        self.wait_for(lambda: False, seconds)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60) -> bool:
        """Let things happen until something is true; says whether it came true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.ask(condition, default=False):
                return True
            self.tend()
            time.sleep(max(0.0, min(0.02, end - time.monotonic())))
        return False

    def ask(self, question: Callable[[], T], *, default: T) -> T:
        """Ask the backend something; where it does not answer, give the default."""
        try:
            return question()
        except BackendUnavailable:
            return default

    def finish(self, seconds: float = 60) -> None:
        """Wait until nothing is left for longer than two leases, then end all workers."""
        quiet = self.lease * (1.2 if self.quick else 2.2)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.wait_for(lambda: self.left() == 0, deadline - time.monotonic()):
                break
            if not self.wait_for(lambda: self.left() > 0, quiet):
                break
        left = self.ask(self.left, default=-1)
        self.check(left == 0, f"{left} jobs are left after {seconds:g} s")
        self.end_workers()

    def end_workers(self) -> None:
        """Ask all to stop: each has to within its time, with exit code 0."""
        for worker in self.workers:
            if worker.alive():
                worker.signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                self._ended(worker)
            except AssertionError as stuck:
                self.violate(str(stuck))
        self.workers.clear()

    def has_begun(self, count: int) -> bool:
        """Whether the ledger has that many starts."""
        return self.starts() >= count

    def starts(self, *numbers: int) -> int:
        """Count the starts of these jobs, or of all."""
        wanted = {str(number) for number in numbers}
        return sum(not wanted or words[1] in wanted for words in self.notes("S"))

    def sent(self) -> set[int]:
        """Give the jobs that were sent, or may have been."""
        return {int(words[1]) for words in self.notes("P")}

    def not_done(self, numbers: set[int]) -> set[int]:
        """Give those of some jobs that did not reach their last line."""
        return numbers - {int(words[1]) for words in self.notes("D")}

    def ends(self, number: int) -> int:
        """Count how often a job reached its last line."""
        return sum(words[1] == str(number) for words in self.notes("D"))

    def was_taken_over(self, pid: int) -> bool:
        """Whether the last job of a worker was begun by another after it."""
        begun = [words for words in self.notes("S") if words[3] == str(pid)]
        _, number, attempt, *_ = begun[-1]
        return any(words[1] == number and int(words[2]) > int(attempt) for words in self.notes("S"))

    def was_refused(self, pid: int) -> bool:
        """Whether a worker was told that it had lost a job."""
        return any(words[2] == "lost" and words[4] == str(pid) for words in self.notes("A"))

    # -- faults ---------------------------------------------------------------------------------

    def victim(self, *, within: float | None = None) -> Process:
        """Choose a worker that is up, and that began a job `within` so many seconds where given.

        The last worker is never chosen: it takes over what the others leave.
        """
        chosen: list[Process] = []

        def found() -> bool:
            if within is None:
                up = {int(words[1]) for words in self.notes("U")}
            else:
                since = time.monotonic() - within
                up = {int(words[3]) for words in self.notes("S") if float(words[-1]) >= since}
            fit = [each for each in self.workers[:-1] if each.pid in up and each.alive()]
            chosen[:] = [self.chance.choice(fit)] if fit else []
            return bool(chosen)

        if not self.wait_for(found):
            raise AssertionError("no worker began a job in a minute")
        return chosen[0]

    def kill(self, worker: Process) -> None:
        """Kill a worker with signal 9, and start another in its place."""
        with self.fault("killed", worker.pid):
            worker.popen.kill()
            worker.popen.wait()
        self._replace(worker)

    def cpu(self) -> float:
        """Give the processor seconds that the workers have used."""
        used = 0.0
        for worker in self.workers:
            with suppress(psutil.Error):
                times = psutil.Process(worker.pid).cpu_times()
                used += times.user + times.system
        return used

    def resumed(self, since: float) -> float:
        """Wait until a job begins after `since`, and give how long that took."""
        begun: list[float] = []

        def one() -> bool:
            begun[:] = [float(w[-1]) for w in self.notes("S") if float(w[-1]) > since]
            return bool(begun)

        if not self.wait_for(one, 30):
            self.violate("no job began in 30 s after the fault")
            return 30.0
        return min(begun) - since

    def stop_for(self, worker: Process, seconds: float) -> None:
        """Let a worker stand still for a while."""
        with self.fault("stopped", worker.pid):
            worker.signal(signal.SIGSTOP)
            self.pause(seconds)
            worker.signal(signal.SIGCONT)

    def terminate(self, worker: Process, *numbers: signal.Signals) -> float:
        """Tell a worker to stop by signals; gives how long it took, and starts another."""
        began = time.monotonic()
        for number in numbers or (signal.SIGTERM,):
            worker.signal(number)
        worker.wait()
        took = time.monotonic() - began
        self._ended(worker)
        self._replace(worker)
        return took

    def terminate_twice(self, worker: Process) -> float:
        """Tell a worker twice to stop, which gives its job back at once, be it at its last line."""
        with self.fault("told twice", worker.pid):
            worker.signal(signal.SIGTERM)
            time.sleep(self.chance.uniform(0, 0.02))
            return self.terminate(worker)

    def _replace(self, worker: Process) -> None:
        if worker in self.workers:
            self.workers[self.workers.index(worker)] = self.worker()

    @contextmanager
    def fault(self, kind: str, pid: int | None = None) -> Iterator[None]:
        """Note what is done in the block: it explains what it causes."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.faults.append(Fault(kind, begin, time.monotonic(), pid))

    # -- what is found --------------------------------------------------------------------------

    def report(self, process: Process) -> None:
        """Show nothing: where anything was wrong all output is kept."""

    def check(self, holds: object, what: str) -> None:
        """Take for a violation what does not hold."""
        if not holds:
            self.violate(what)

    def violate(self, what: str) -> None:
        """Note what must not be."""
        self.violations.append(what)

    def remark(self, what: str) -> None:
        """Add a few words to the verdict."""
        self.remarks.append(what)

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        if self.proxy is not None:
            self.proxy.close()


class Producer:
    """Pushes `Work` from a thread of its own until it is stopped; what is refused is counted.

    `seconds` are the least and the most that a job takes. It waits while some are not done.
    """

    def __init__(self, site: Site, every: float, seconds: tuple[float, float]) -> None:
        self._site = site
        self._every = every
        self._seconds = seconds
        self._kinds: list[tuple[type[jobs.Noted], dict[str, Any]]] = []
        self._chance = random.Random(site.seed)  # noqa: S311 (repeatable, on purpose)
        self._stop = threading.Event()
        self._read = self._done = 0
        self.accepted = 0
        self.refused = 0
        self.longest = 0.0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Start pushing."""
        self._thread.start()

    def also(self, kind: type[jobs.Noted], **fields: Any) -> None:
        """Push jobs of this kind in between."""
        self._kinds.append((kind, fields))

    def __enter__(self) -> Self:
        if not self._thread.is_alive():
            self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            if self._backlog() > _BACKLOG:
                continue
            began = time.monotonic()
            try:
                self._site.send(seconds=self._chance.uniform(*self._seconds))
                self.accepted += 1
                for kind, fields in self._kinds:
                    self._site.send(kind, **fields)
            except BackendUnavailable as error:
                self.refused += 1
                self.errors.append(str(error))
            except Exception as error:  # noqa: BLE001 (the scenario's to judge)
                self._site.violate(f"a push raised {error!r}")
            self.longest = max(self.longest, time.monotonic() - began)
        self._site.queue.close()

    def _backlog(self) -> int:
        """Count the jobs pushed here that have not reached their last line."""
        with self._site.ledger.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self._done += sum(line.startswith(b"D ") for line in new.splitlines())
        return self.accepted - self._done
