"""Board: the state of a program's queues, each part read at most so often for all viewers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from qframe import forks
from qframe.alerts.checker import alerts_on
from qframe.alerts.life import Alert
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.batch import BatchRecord
from qframe.contracts.failed import FailedJob
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.failed.causes import first_noted
from qframe.features.batches import BatchStore
from qframe.manager import QueueManager
from qframe.metrics.by_tag import metrics_of
from qframe.metrics.deploys import Deploy, Deploys, put_together
from qframe.metrics.kept import Metrics
from qframe.metrics.series import Fields
from qframe.operations import activity, queues, schedules, unsafe, workers
from qframe.operations.activity import Activity, ClassState, Trend
from qframe.operations.bulk import BulkActions
from qframe.operations.deploys import DeployState
from qframe.operations.failures import CauseState, FailureIndex
from qframe.operations.outages import Outages
from qframe.operations.queues import QueueState
from qframe.operations.reading import KNOWN, NotYetError, Reading
from qframe.operations.schedules import ScheduleState
from qframe.operations.unsafe import Unsafe
from qframe.operations.workers import SupervisorState, WorkerState
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import iso, lasting
from qframe.worker import roster
from qframe.worker.alerting import place

LONG_WAIT = 60.0
"""Seconds a job may be ready before that counts as a long wait."""
_MUTED = "silenced:"
_MUTED_FOR = 30 * 86400.0
_THREADS = 2
"""How many threads read in the background, each with its own database connection."""
_REST = 0.005
"""Seconds at least between two parts of the failed jobs that are read in the background."""
_AT_A_LOOK = 0.02
"""Seconds a request itself reads failed jobs; the rest is read in the background."""
_MOST_FINDINGS = 50
_MOST_BATCHES = 500

T = TypeVar("T")


class Finding(BaseModel):
    """A problem. `level`: `bad` or `warn`; `page` shows more of it."""

    level: str
    text: str
    page: str


class Failed(BaseModel):
    """The failed jobs in numbers."""

    total: int
    counted: int
    """How many of them are counted by cause so far."""
    is_complete: bool
    kept_by: dict[str, int]
    """How many are kept by each connection that keeps some: its own, and those of others."""
    causes: list[CauseState]


class AlertState(BaseModel):
    """An active alert: a rule of the configuration that is broken."""

    id: str
    rule: str
    connection: str
    subject: str
    """Its queue, class or worker; "" for a whole connection."""
    value: float
    text: str
    since: str
    seconds: float
    is_ending: bool
    """Whether the rule has held again of late."""

    @classmethod
    def of(cls, alert: Alert) -> AlertState:
        return cls(
            id=alert.id,
            rule=alert.rule,
            connection=alert.connection,
            subject=alert.what,
            value=alert.value,
            text=alert.text,
            since=iso(alert.since),
            seconds=max(0.0, time.time() - alert.since),
            is_ending=bool(alert.quiet),
        )


class Overview(BaseModel):
    """The problems, and the totals."""

    alerts: list[AlertState]
    findings: list[Finding]
    ready: int | None
    """None if it is not counted yet; so is `delayed`."""
    delayed: int | None
    running: int
    failed: int
    workers: int
    slots: int
    trend: Trend | None
    pending: list[str] = []
    """The parts that were not known in time."""
    deploys: list[DeployState]
    """The deploys within the trend, latest first."""


class KnownBatch(NamedTuple):
    """A batch, and its connection."""

    connection: Connection
    kept: BatchStore
    record: BatchRecord


class Board:
    """The state of all connections of a manager. Thread-safe.

    A reading is used for a second or more, and for five times as long as it took: so viewers cost a
    slow backend no more than a sixth of its time. A connection that does not answer is in `silent`,
    and everything else is shown.
    """

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.bulks = BulkActions()
        self.outages = Outages()
        self._kept: dict[str, Reading] = {}
        self._behind = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-board")
        self._indexes: dict[int, tuple[str, FailureIndex]] = {}
        """By store of failed jobs, a connection that uses it, and its index."""
        self._filling: set[FailureIndex] = set()
        self._lock = forks.lock()
        forks.in_child_of(self, Board._begin_anew)

    def _begin_anew(self) -> None:
        """Drops readings under way in a fork: the threads that read are the parent's."""
        self._behind = ThreadPoolExecutor(_THREADS, thread_name_prefix="qframe-board")
        self._kept, self._indexes, self._filling = {}, {}, set()

    # -- reading ----------------------------------------------------------------------------------

    def connections(self) -> list[Connection]:
        return list(self.manager.holding_jobs())

    @property
    def silent(self) -> dict[str, str]:
        """Why each connection that does not answer does not."""
        return dict(self.outages.why)

    def connection(self, name: str) -> Connection:
        """Returns the connection of a name. Raises `ConfigurationError` for another name."""
        for each in self.connections():
            if each.name == name:
                return each
        raise ConfigurationError(f"there is no connection {one_line(name, 60)!r} that holds jobs")

    def queues(self, patience: float | None = None, late: float = KNOWN) -> list[QueueState]:
        """Returns all queues. Raises `NotYetError` if that takes longer than `patience`.

        If counting takes long, the counts may be up to `late` seconds old.
        """

        def listed() -> list[QueueState]:
            active = self.activity()
            return self._all(lambda each: queues.states(each, active.get(each.name)))

        return self._read("queues", 1.5, listed, patience, late)

    def named_queues(self) -> list[QueueState]:
        """Returns all queues without their sizes, which may take long to count."""
        return self._read("queue names", 1.5, lambda: self._all(queues.named))

    def workers(self) -> list[WorkerState]:
        """Returns all workers, dead ones first."""
        return self._read("workers", 1.0, lambda: workers.states(self._rostered(roster.listed)))

    def supervisors(self) -> list[SupervisorState]:
        """Returns the supervisors, and how many processes each queue has of them."""

        def listed() -> list[SupervisorState]:
            return workers.supervisors(self._rostered(roster.pools))

        return self._read("supervisors", 1.0, listed)

    def _rostered(self, entries: Callable[[Store], list[roster.L]]) -> list[roster.L]:
        """Returns the entries in the stores, each once: connections may share a store."""

        def read(connection: Connection) -> list[roster.L]:
            return entries(connection.store)

        names = {each.name for each in self.connections()}
        known = self._all(read, _keeps_facts)
        found = {entry.id: entry for entry in known if entry.connection in names}
        return [*found.values()]

    def activity(self, hours: float = 1.0) -> dict[str, Activity]:
        """Returns the counts of the last hours, by connection."""

        def read(connection: Connection) -> list[tuple[str, Activity]]:
            found = Activity.of(connection, hours)
            return [] if found is None else [(connection.name, found)]

        return self._read(f"activity {hours}", 5.0, lambda: dict(self._all(read, _is_measured)))

    def totals(self) -> list[tuple[str, str, str, Fields]]:
        """Returns the counts since the beginning: connection, queue, class, and counts."""

        def read(connection: Connection) -> list[tuple[str, str, str, Fields]]:
            found = Metrics(connection.store, connection.name).totals()
            return [(connection.name, *pair, fields) for pair, fields in found.items()]

        return self._read("totals", 1.0, lambda: self._all(read, _is_measured))

    def classes(self, hours: float = 1.0) -> list[ClassState]:
        """Returns the state of each class in the last hours."""
        found = [
            state for name, each in self.activity(hours).items() for state in each.classes(name)
        ]
        return sorted(found, key=lambda each: (-each.started, each.job))

    def tags(self, hours: float = 1.0) -> list[ClassState]:
        """Returns the state of each counted tag in the last hours."""

        def read(connection: Connection) -> list[ClassState]:
            found = Activity.of(connection, hours, by_tag=True)
            return [] if found is None else found.classes(connection.name)

        if not self.manager.settings.metric_tags:
            return []
        return self._read(f"tags {hours}", 5.0, lambda: self._all(read, _is_measured))

    def tag_totals(self) -> list[tuple[str, str, str, Fields]]:
        """Returns the counts since the beginning: connection, queue, tag, and counts."""

        def read(connection: Connection) -> list[tuple[str, str, str, Fields]]:
            found = metrics_of(connection.store, connection.name).totals()
            return [(connection.name, *pair, fields) for pair, fields in found.items()]

        if not self.manager.settings.metric_tags:
            return []
        return self._read("tag totals", 1.0, lambda: self._all(read, _is_measured))

    def trend(
        self, hours: float = 1.0, connection: str = "", queue: str = "", job: str = ""
    ) -> Trend | None:
        """Returns the counts step by step: of all, or of one connection, queue or class."""
        return activity.put_together(
            each.trend(queue, job)
            for name, each in self.activity(hours).items()
            if connection in {"", name}
        )

    def deploys(self, hours: float = 1.0) -> list[DeployState]:
        """Returns the deploys of the last hours, latest first."""

        def read(connection: Connection) -> list[list[Deploy]]:
            return [Deploys(connection.store).read()]

        marks = self._read("deploys", 5.0, lambda: put_together(self._all(read, _keeps_facts)))
        now = time.time()
        return [
            DeployState.of(each, now) for each in reversed(marks) if now - each.at < hours * 3600
        ]

    def batches(self, limit: int = 100) -> list[BatchRecord]:
        def read(connection: Connection) -> list[BatchRecord]:
            kept = connection.batches()
            return [] if kept is None else list(islice(kept.all(), _MOST_BATCHES))

        def listed() -> list[BatchRecord]:
            found = {each.id: each for each in self._all(read, _keeps_facts)}
            return sorted(found.values(), key=lambda each: -each.created_at)

        return self._read("batches", 2.0, listed)[:limit]

    def find_batch(self, identity: str) -> KnownBatch | None:
        """Returns a batch and its connection: its own, if that is one of ours."""
        other: KnownBatch | None = None
        for connection in filter(_keeps_facts, self.connections()):
            kept = connection.batches()
            if kept is None:
                continue
            with suppress(BackendUnavailable):
                record = self.ask(connection, partial(kept.read, identity))
                if record is not None:
                    found = KnownBatch(connection, kept, record)
                    if record.connection == connection.name:
                        return found
                    other = other or found
        return other

    def schedules(self) -> list[ScheduleState]:
        """Returns the schedules, the next one first."""

        def read(connection: Connection) -> list[ScheduleState]:
            return schedules.states(self.manager, connection)

        def listed() -> list[ScheduleState]:
            found = self._all(read, _keeps_facts)
            return sorted(found, key=lambda each: (each.next_at or "9999", each.name))

        return self._read("schedules", 2.0, listed)

    def unsafe(self, patience: float | None = None) -> list[Unsafe]:
        """Returns what is unsafe, as `qframe check` reports it.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(connection: Connection) -> list[Unsafe]:
            return unsafe.of_connection(self.manager, connection, connection.backend.check())

        def planned(connection: Connection) -> list[Unsafe]:
            return unsafe.of_told_schedules(self.manager, connection)

        def found() -> list[Unsafe]:
            every = unsafe.of_signing(self.manager) + self._all(read)
            outbox = self.manager.settings.outbox.connection
            if outbox and outbox not in {each.name for each in self.connections()}:
                with suppress(QframeError):
                    keeper = self.manager.connection(outbox)
                    every += self.ask(keeper, partial(read, keeper))
            return every + self._all(planned, _keeps_facts)

        return self._read("unsafe", 60.0, found, patience)

    # -- failed jobs ------------------------------------------------------------------------------

    def stores(self) -> list[FailedStore]:
        found: list[FailedStore] = []
        for name, index in self._places():
            with suppress(BackendUnavailable):
                self.outages.ask(name, index.store.place, index.store.count)
                found.append(index.store)
        return found

    def find_failed(self, uuid: str) -> tuple[FailedStore, FailedJob] | None:
        for name, index in self._places():
            with suppress(BackendUnavailable):
                record = self.outages.ask(name, index.store.place, partial(index.store.find, uuid))
                if record is not None:
                    return index.store, record
        return None

    def indexes(self) -> list[FailureIndex]:
        return [index for _, index in self._places()]

    def ask_failed(self, index: FailureIndex, read: Callable[[], T]) -> T:
        """Reads from a store of failed jobs. Raises `BackendUnavailable`, as `ask`."""
        name = next(name for name, each in self._places() if each is index)
        return self.outages.ask(name, index.store.place, read)

    def _places(self) -> list[tuple[str, FailureIndex]]:
        with self._lock:
            for connection in self.connections():
                with suppress(ConfigurationError):
                    store = self.manager.failed_store(connection.name)
                    known = self._indexes.get(id(store.place))
                    if known is None or store.place is connection.backend:
                        index = FailureIndex(store) if known is None else known[1]
                        self._indexes[id(store.place)] = (connection.name, index)
            return list(self._indexes.values())

    def failed(self) -> Failed:
        """Returns the failed jobs by cause, as far as they were read."""

        def read() -> Failed:
            now = time.time()
            indexes, kept = [], dict[str, int]()
            for name, index in self._places():
                with suppress(BackendUnavailable):
                    refresh = partial(index.refresh, _AT_A_LOOK)
                    self.outages.ask(name, index.store.place, refresh)
                    indexes.append(index)
                    kept[name] = index.total
            found: dict[str, CauseState] = {}
            seen = self.causes_seen()
            for each in (failures for index in indexes for failures in index.causes()):
                state = CauseState.of(each, now, seen)
                other = found.get(state.cause)
                found[state.cause] = state if other is None else other.and_also(state)
            for index in indexes:  # not before: the request would wait for it
                self._read_on(index)
            muted = self.muted()
            for state in found.values():
                state.silenced = state.cause in muted
            causes = sorted(found.values(), key=lambda each: (each.silenced, -each.count))
            return Failed(
                total=sum(kept.values()),
                counted=sum(each.counted for each in indexes),
                is_complete=all(each.is_complete for each in indexes),
                kept_by=kept,
                causes=causes,
            )

        return self._read("failed", 3.0, read)

    def _read_on(self, index: FailureIndex) -> None:
        """Reads an index to its end in the background, in at most a third of a processor's time.

        The parts are so small that a page hardly waits for the interpreter meanwhile.
        """
        if index.is_complete or index in self._filling:
            return
        self._filling.add(index)

        def fill() -> None:
            try:
                while not index.is_complete:
                    began = time.thread_time()
                    index.read_on()
                    time.sleep(max(_REST, 2 * (time.thread_time() - began)))
            except BackendUnavailable:
                pass  # the next request goes on
            finally:
                self._filling.discard(index)

        threading.Thread(target=fill, name="qframe-failures", daemon=True).start()

    def muted(self) -> set[str]:
        def read(connection: Connection) -> list[str]:
            return connection.store.keys(_MUTED)

        def listed() -> set[str]:
            return {key.removeprefix(_MUTED) for key in self._all(read, _keeps_facts)}

        return self._read("muted", 10.0, listed)

    def causes_seen(self) -> dict[str, float]:
        """Returns when causes were first seen whose jobs were retried."""

        def read(connection: Connection) -> Iterator[tuple[str, float]]:
            return first_noted(connection.store)

        def listed() -> dict[str, float]:
            found: dict[str, float] = {}
            for cause, moment in self._all(read, _keeps_facts):
                found[cause] = min(moment, found.get(cause, moment))
            return found

        return self._read("causes seen", 10.0, listed)

    def mute(self, cause: str, *, silent: bool) -> None:
        """Mutes a cause for 30 days, or ends that."""

        def note(connection: Connection) -> list[bool]:
            if silent:
                connection.store.set(_MUTED + cause, "1", _MUTED_FOR)
            else:
                connection.store.delete(_MUTED + cause)
            return [True]

        if not self._all(note, _keeps_facts):
            raise BackendUnavailable("no connection answers that could note it")
        self.forget("failed", "muted")

    # -- what is wrong ----------------------------------------------------------------------------

    def alerts(self) -> list[AlertState]:
        """Returns the active alerts, the latest first; none if there are no rules."""

        def read() -> list[AlertState]:
            try:
                return [AlertState.of(each) for each in alerts_on(place(self.manager))]
            except BackendUnavailable:  # the findings name it
                return []

        if not self.manager.settings.alerts.rules:
            return []
        return self._read("alerts", 1.0, read)

    def overview(self, patience: float | None = None) -> Overview:
        """Returns the problems and the totals.

        Parts that were never read, and take longer than `patience` in all, are named as pending.
        """
        ends = None if patience is None else time.monotonic() + patience
        if patience is not None:  # both go on in the background, while the rest is read here
            for slow in (self.queues, self.unsafe):
                _in_time(slow, time.monotonic(), "", [])
        working, failed = self.workers(), self.failed()
        pending: list[str] = []
        there = _in_time(self.queues, ends, "how many jobs wait", pending)
        warned = _in_time(self.unsafe, ends, "what is unsafe", pending)
        alive = [each for each in working if each.state != "gone"]
        return Overview(
            alerts=self.alerts(),
            findings=self._findings(there or [], warned or []),
            ready=None if there is None else sum(each.ready or 0 for each in there),
            delayed=None if there is None else sum(each.delayed or 0 for each in there),
            running=sum(each.used for each in alive),
            failed=failed.total,
            workers=len(alive),
            slots=sum(each.concurrency for each in alive),
            trend=self.trend(),
            pending=pending,
            deploys=self.deploys(),
        )

    def findings(self) -> list[Finding]:
        """Returns the problems, the worst first."""
        return self._findings(self.queues(), self.unsafe())

    def _findings(self, there: Iterable[QueueState], warned: Iterable[Unsafe]) -> list[Finding]:
        working, failed = self.workers(), self.failed()
        found = [
            Finding(level="bad", text=f"{name} does not answer: {why}", page="/queues")
            for name, why in sorted(self.silent.items())
        ]
        found += _of_queues(there, working) + _of_workers(working) + _of_causes(failed.causes)
        found += _of_schedules(self.schedules())
        found += [
            Finding(level="warn", text=f"{each.about}: {each.text}", page="/") for each in warned
        ]
        return sorted(found, key=lambda each: each.level)[:_MOST_FINDINGS]

    # -- keeping ----------------------------------------------------------------------------------

    def forget(self, *names: str) -> None:
        """Reads some of it anew, all without names: somebody has just changed it."""
        with self._lock:
            for name, kept in self._kept.items():
                if not names or name in names:
                    kept.forget()

    def ask(self, connection: Connection, read: Callable[[], T]) -> T:
        """Reads from a connection. Raises `BackendUnavailable`, as `Outages` does."""
        return self.outages.ask(connection.name, connection.backend, read)

    def _all(
        self,
        read: Callable[[Connection], Iterable[T]],
        able: Callable[[Connection], bool] = lambda _: True,
    ) -> list[T]:
        """Reads from each connection that is able; notes those that do not answer."""
        found: list[T] = []
        for connection in filter(able, self.connections()):
            with suppress(QframeError):
                found += self.ask(connection, partial(_listed, read, connection))
        return found

    def _read(
        self,
        name: str,
        seconds: float,
        read: Callable[[], T],
        patience: float | None = None,
        late: float = KNOWN,
    ) -> T:
        with self._lock:
            kept = self._kept.get(name)
            if kept is None:
                kept = self._kept[name] = Reading(seconds, read, self._behind)
        value: T = kept.get(patience, late)
        return value


def _listed(read: Callable[[Connection], Iterable[T]], connection: Connection) -> list[T]:
    return [*read(connection)]


def _keeps_facts(connection: Connection) -> bool:
    return Capability.FACTS in connection.capabilities


def _is_measured(connection: Connection) -> bool:
    return connection.is_measured


def _in_time(
    read: Callable[[float | None], T], ends: float | None, what: str, pending: list[str]
) -> T | None:
    """Reads until a moment; if it is not known then, returns None and adds it to `pending`."""
    try:
        return read(None if ends is None else ends - time.monotonic())
    except NotYetError:
        pending.append(what)
        return None


def _of_queues(there: Iterable[QueueState], working: Iterable[WorkerState]) -> list[Finding]:
    found = []
    listening = [
        (each.connection, pattern)
        for each in working
        if each.state != "gone"
        for pattern in each.queues
    ]
    for each in there:
        name, page = f"{each.connection}:{each.queue}", "/queues"
        waits = each.oldest_seconds or 0.0
        if each.paused and each.ready:
            text = f"{name} is paused, and {count_of(each.ready, 'job waits', 'jobs wait')}"
            found.append(Finding(level="warn", text=text, page=page))
        elif each.ready and not any(
            connection == each.connection and fnmatchcase(each.queue, pattern)
            for connection, pattern in listening
        ):
            jobs = count_of(each.ready, "job waits", "jobs wait")
            text = f"no worker works on {name}, where {jobs}"
            found.append(Finding(level="bad", text=text, page=page))
        elif waits > LONG_WAIT:
            text = f"the next job of {name} has waited {lasting(waits)}"
            found.append(Finding(level="bad", text=text, page=page))
        if each.buried:
            text = f"{count_of(each.buried, 'job is', 'jobs are')} buried in {name}"
            found.append(Finding(level="warn", text=text, page=page))
    return found


def _of_workers(working: Iterable[WorkerState]) -> list[Finding]:
    gone = [each for each in working if each.state == "gone"]
    return [
        Finding(
            level="bad",
            text=f"the worker {each.host}:{each.pid} of {each.connection} has died",
            page="/workers",
        )
        for each in gone
    ]


def _of_schedules(there: Iterable[ScheduleState]) -> list[Finding]:
    return [
        Finding(
            level="bad",
            text=f"nobody dispatches the schedule {each.name}: it was due "
            f"{lasting(each.late_seconds)} ago",
            page="/schedules",
        )
        for each in there
        if each.late_seconds > LONG_WAIT
    ][:5]


def _of_causes(causes: Iterable[CauseState]) -> list[Finding]:
    return [
        Finding(
            level="bad",
            text=f"new since yesterday, {_times(each.count)}: {each.job}: {each.error}",
            page=f"/failed?filter=cause:{each.cause}",
        )
        for each in causes
        if not each.silenced and each.is_new
    ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
