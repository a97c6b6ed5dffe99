"""Schedulers: all schedulers of a process, each in its own thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from qframe import forks
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.drivers.heartbeat import start_thread
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.schedules.calendar import Calendar
from qframe.schedules.definition import Schedule, book, fingerprint
from qframe.schedules.releases import Releases
from qframe.schedules.rows import ScheduleRows, keys_of
from qframe.schedules.scheduler import Scheduler

log = logging.getLogger("qframe")

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_ABLE = Capability.RESERVE | Capability.FACTS


def load(queues: QueueManager) -> list[Schedule]:
    """Import the modules that define schedules, and return these, by name.

    Raises `ConfigurationError` with what is wrong, and where.
    """
    queues.registry.load()
    queues.registry.import_all(queues.settings.schedule.modules, "schedule.modules")
    found = book.finished(queues.settings.schedule.timezone)
    for each in found:
        each.forwarded_to = _queue_elsewhere(queues, each)
    return found


def connection_of(queues: QueueManager, schedule: Schedule) -> Connection:
    """Return the connection of a schedule. Raises `ConfigurationError`."""
    connection = queues.connection(_pushed_to(queues, schedule).name)
    if _ABLE not in connection.capabilities:
        raise ConfigurationError(
            f"{schedule.place}: the connection {connection.name!r} "
            f"({connection.settings.driver}) keeps no jobs, so none can be scheduled on it"
        )
    return connection


def _pushed_to(queues: QueueManager, schedule: Schedule) -> Connection:
    """Return the connection for its pushes, which may have the default queue of another."""
    try:
        options = schedule.options
        return queues.connection_of(schedule.job, options.connection, options.queue)
    except ConfigurationError as error:
        raise ConfigurationError(f"{schedule.place}: {error}") from None


def _queue_elsewhere(queues: QueueManager, schedule: Schedule) -> str | None:
    """Return the queue to which the pushes for its own are forwarded, if on another connection."""
    connection, found = connection_of(queues, schedule), _pushed_to(queues, schedule)
    if found is connection:
        return None
    return found.queue_for(schedule.job, schedule.options.queue)


def warnings_of(calendar: Calendar, *, spread: int, overlap: float) -> list[str]:
    """Return warnings about options that are probably not intended, a sentence each."""
    found: list[str] = []
    now = time.time()
    first = calendar.next(now)
    if first is None:
        over = calendar.at is not None and calendar.at <= now
        found.append("its time has passed" if over else "it is never due: its words exclude all")
        return found
    second = calendar.next(first)
    if second is not None and spread > second - first:
        found.append(f"spread ({spread} s) is longer than the time between two runs")
    if overlap and second is not None and overlap < second - first:
        found.append("its lock ends before the next run: without_overlapping does nothing")
    return found


def able(queues: QueueManager) -> list[Connection]:
    """Return the default and configured connections that schedules may dispatch to."""
    names = dict.fromkeys([queues.settings.default, *queues.settings.connections])
    found = (queues.connection(name) for name in names)
    return [each for each in found if _ABLE in each.capabilities]


class Schedulers:
    """A scheduler for each connection with schedules in code, and for those in `more`.

    Raises `ConfigurationError` if a schedule is wrong.
    """

    def __init__(
        self,
        queues: QueueManager,
        more: Iterable[Connection] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self.rows = ScheduleRows(queues)
        self.schedules = load(queues)
        by_connection: defaultdict[Connection, list[Schedule]] = defaultdict(list)
        for each in more:
            by_connection[each] = []
        for schedule in self.schedules:
            by_connection[connection_of(queues, schedule)].append(schedule)
        self._by_connection = dict(by_connection)
        self._connecting = forks.lock()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._wakes: list[threading.Event] = []

    @property
    def connections(self) -> list[Connection]:
        """The connections that it dispatches to."""
        return list(self._by_connection)

    def is_needed(self) -> bool:
        """Whether there are schedules, or older code had some. Raises `BackendUnavailable`."""
        return bool(self.schedules) or any(map(self._had_any, self.connections))

    def _had_any(self, connection: Connection) -> bool:
        beside = keys_of(self._queues, connection).beside()
        return bool(self._released(connection)) or any(connection.store.items(beside))

    def _released(self, connection: Connection) -> list[str]:
        """Return this code's modules that ever had schedules there, in this or older code.

        A module that this code does not have may belong to newer code.
        """
        settings, keys = self._queues.settings, keys_of(self._queues, connection)
        roots = (*self._queues.registry.modules, *settings.schedule.modules)
        modules = sorted(
            name
            for name in list(sys.modules)
            if any(name == root or name.startswith(f"{root}.") for root in roots)
        )
        texts = connection.store.get(*map(keys.release, modules)) if modules else ()
        return [module for module, text in zip(modules, texts, strict=True) if text is not None]

    def scheduler(self, connection: Connection) -> Scheduler:
        """Make the scheduler of a connection. Raises `BackendUnavailable`."""
        own = self._by_connection.get(connection, [])
        keys = keys_of(self._queues, connection)
        return Scheduler(
            connection,
            own,
            Releases(connection.store, keys, self._versions(connection, own)),
            keys,
            rows=self._rows_of,
            environment=self._queues.settings.schedule.environment,
            clock=self._clock,
        )

    def _rows_of(self, connection: Connection) -> list[Schedule]:
        """Return the rows, except those with the name of a schedule in code."""
        taken = {each.title for each in self.schedules}
        return [each for each in self.rows.read(connection) if each.title not in taken]

    def _versions(self, connection: Connection, own: Sequence[Schedule]) -> dict[str, str]:
        """Return the version of each module's schedules, even of a module without any now."""
        modules = {each.module for each in self.schedules}
        versions = {
            module: fingerprint([each for each in own if each.module == module])
            for module in modules
        }
        for module in self._released(connection):
            versions.setdefault(module, fingerprint([]))
        return versions

    # -- in threads -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a thread for each connection."""
        with self._connecting:
            for connection in self._by_connection:
                self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        wake = threading.Event()
        self._wakes.append(wake)
        run = partial(self._run, connection, wake)
        self._threads.append(start_thread(f"qframe schedules {connection.name}", run))

    def stop(self, patience: float = 1.0) -> None:
        """Stop, waiting at most `patience` seconds for runs in progress. Loses no run."""
        with self._connecting:
            self._over.set()
            for wake in self._wakes:
                wake.set()
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _meet_others(self, connection: Connection) -> None:
        """Tell newer code which connections have schedules, and end older code's there.

        If the last schedule of a connection was removed, nothing else names that connection.
        """
        keys = keys_of(self._queues, connection)
        reported = {
            key.removeprefix(keys.beside()) for key, _ in connection.store.items(keys.beside())
        }
        with self._connecting:
            scheduled = {each.name for each, own in self._by_connection.items() if own}
            known = {each.name for each in self._by_connection}
            for name in sorted(reported - known & self._queues.settings.connections.keys()):
                other = self._queues.connection(name)
                if _ABLE in other.capabilities and not self._over.is_set():
                    self._by_connection[other] = []
                    self._begin(other)
        for name in scheduled - reported - {connection.name}:
            connection.store.set(keys.beside(name), "1")

    def _run(self, connection: Connection, wake: threading.Event) -> None:
        scheduler: Scheduler | None = None
        pause, lost_at = _FIRST_PAUSE, 0.0
        while not self._over.is_set():
            try:
                if scheduler is None:
                    self._meet_others(connection)
                    scheduler = self.scheduler(connection)
                seconds = scheduler.turn()
                if lost_at:
                    after = time.monotonic() - lost_at
                    log.warning("schedules reach %s again, after %.1f s", connection.name, after)
                    pause, lost_at = _FIRST_PAUSE, 0.0
            except BackendUnavailable as error:
                if not lost_at:
                    lost_at = time.monotonic()
                    log.warning("schedules cannot reach %s: %s", connection.name, error)
                seconds, pause = pause, min(_LONGEST_PAUSE, pause * 2)
            except Exception as error:
                trouble = error if isinstance(error, QframeError) else None
                log.error("schedules of %s: %s", connection.name, error, exc_info=not trouble)  # noqa: TRY400 (a trace only where it says something)
                seconds = _LONGEST_PAUSE / 10
            wake.wait(seconds)
        self._queues.close()
