"""Board: the state of a program's queues, workers, classes, batches, flows and schedules."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

from qframe.connection import Connection
from qframe.contracts.batch import BatchRecord
from qframe.contracts.flow import FlowRecord
from qframe.dispatch.flow import FlowRun
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.features.batches import BatchStore
from qframe.features.binned import BinAct
from qframe.manager import QueueManager
from qframe.metrics import version as versions
from qframe.metrics.by_tag import metrics_of
from qframe.metrics.deploys import KEEP, Deploy, Deploys, put_together
from qframe.metrics.kept import Metrics
from qframe.metrics.series import Fields
from qframe.operations import (
    activity,
    forecast,
    holds,
    payload_reports,
    queues,
    retries,
    schedules,
    undo,
    unsafe,
    usage,
    workers,
)
from qframe.operations.activity import Activity, ClassState, Trend
from qframe.operations.bulk import BulkActions
from qframe.operations.deploys import DeployState
from qframe.operations.failed_board import FailedBoard
from qframe.operations.forecast import ForecastState
from qframe.operations.holds import HoldState
from qframe.operations.payload_reports import PayloadReport
from qframe.operations.queues import QueueState
from qframe.operations.reading import KNOWN
from qframe.operations.retries import RetryState
from qframe.operations.schedules import ScheduleState
from qframe.operations.source import BoardSource, is_measured, keeps_facts
from qframe.operations.stored import FindStore, R
from qframe.operations.undo import ActState
from qframe.operations.unsafe import Unsafe
from qframe.operations.usage import By, UsageState
from qframe.operations.workers import SupervisorState, WorkerState
from qframe.retries.kept import place
from qframe.worker import roster

_MOST_STORED = 500


class KnownBatch(NamedTuple):
    """A batch, and its connection."""

    connection: Connection
    kept: BatchStore
    record: BatchRecord


class Board(BoardSource):
    """The state of all connections of a manager, or of the `only` one."""

    def __init__(self, manager: QueueManager, only: str | None = None) -> None:
        super().__init__(manager, only)
        self.bulks = BulkActions()
        self.failed = FailedBoard(self)

    @cached_property
    def version(self) -> str:
        """The version of the application when it was first asked for; "" if unknown."""
        return versions.of(self.manager.settings)

    def queues(self, patience: float | None = None, late: float = KNOWN) -> list[QueueState]:
        """Returns all queues. Raises `NotYetError` if that takes longer than `patience`.

        If counting takes long, the counts may be up to `late` seconds old.
        """

        def listed() -> list[QueueState]:
            active = self.activity()
            return self.from_all(lambda each: queues.states(each, active.get(each.name)))

        return self.cached("queues", 1.5, listed, patience, late)

    def named_queues(self) -> list[QueueState]:
        """Returns all queues without their sizes, which may take long to count."""
        return self.cached("queue names", 1.5, lambda: self.from_all(queues.named))

    def forecasts(self, patience: float | None = None) -> list[ForecastState]:
        """Returns what comes of all queues in the next hours.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(connection: Connection) -> list[ForecastState]:
            return forecast.states(self.manager, connection)

        return self.cached(
            "forecasts", 60.0, lambda: self.from_all(read, keeps_facts), patience, late=60.0
        )

    def workers(self) -> list[WorkerState]:
        """Returns all workers, dead ones first."""
        return self.cached("workers", 1.0, lambda: workers.states(self._rostered(roster.listed)))

    def supervisors(self) -> list[SupervisorState]:
        """Returns the supervisors, and how many processes each queue has of them."""

        def listed() -> list[SupervisorState]:
            return workers.supervisors(self._rostered(roster.pools))

        return self.cached("supervisors", 1.0, listed)

    def _rostered(self, entries: Callable[[Store], list[roster.L]]) -> list[roster.L]:
        """Returns the entries in the stores, each once: connections may share a store."""

        def read(connection: Connection) -> list[roster.L]:
            return entries(connection.store)

        names = {each.name for each in self.connections()}
        known = self.from_all(read, keeps_facts)
        found = {entry.id: entry for entry in known if entry.connection in names}
        return [*found.values()]

    def activity(
        self, hours: float = 1.0, patience: float | None = None, *, by_tag: bool = False
    ) -> dict[str, Activity]:
        """Returns the counts of the last hours, by connection.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(connection: Connection) -> list[tuple[str, Activity]]:
            found = Activity.of(connection, hours, by_tag=by_tag)
            return [] if found is None else [(connection.name, found)]

        name = f"activity by tag {hours}" if by_tag else f"activity {hours}"
        return self.cached(name, 5.0, lambda: dict(self.from_all(read, is_measured)), patience)

    def totals(self) -> list[tuple[str, str, str, Fields]]:
        """Returns the counts since the beginning: connection, queue, class, and counts."""
        return self.cached("totals", 1.0, lambda: self._totals(Metrics))

    def classes(
        self, hours: float = 1.0, job: str = "", patience: float | None = None
    ) -> list[ClassState]:
        """Returns the state of each class, or of one, in the last hours.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(patience: float | None = None) -> list[ClassState]:
            found = [
                state
                for name, each in self.activity(hours, patience).items()
                for state in each.classes(name, job)
            ]
            return sorted(found, key=lambda each: (-each.started, each.job))

        if job:
            return read(patience)
        return self.cached(f"classes {hours}", 5.0, read, patience)

    def tags(self, hours: float = 1.0, patience: float | None = None) -> list[ClassState]:
        """Returns the state of each counted tag in the last hours.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(patience: float | None = None) -> list[ClassState]:
            every = self.activity(hours, patience, by_tag=True)
            return [state for name, each in every.items() for state in each.classes(name)]

        if not self.manager.settings.metric_tags:
            return []
        return self.cached(f"tags {hours}", 5.0, read, patience)

    def usage(
        self, hours: float = 24.0, by: By = "class", patience: float | None = None
    ) -> list[UsageState]:
        """Returns what each class, or each counted tag, has used in the last hours.

        Shares are of the run time of all jobs. Raises `NotYetError` if that takes longer than
        `patience`.
        """

        def used(by: By) -> list[UsageState]:
            def read(patience: float | None = None) -> list[UsageState]:
                every = self.activity(hours, patience, by_tag=by == "tag")
                return [state for name, each in every.items() for state in usage.states(each, name)]

            return self.cached(f"usage by {by} {hours}", 5.0, read, patience)

        classes = used("class")
        seconds = sum(each.run_seconds for each in classes)
        if by == "class":
            return usage.with_shares(classes, seconds)
        if not self.manager.settings.metric_tags:
            return []
        return usage.with_shares(used("tag"), seconds)

    def tag_totals(self) -> list[tuple[str, str, str, Fields]]:
        """Returns the counts since the beginning: connection, queue, tag, and counts."""
        if not self.manager.settings.metric_tags:
            return []
        return self.cached("tag totals", 1.0, lambda: self._totals(metrics_of))

    def _totals(self, kept: Callable[[Store, str], Metrics]) -> list[tuple[str, str, str, Fields]]:
        def read(connection: Connection) -> list[tuple[str, str, str, Fields]]:
            found = kept(connection.store, connection.name).totals()
            return [(connection.name, *pair, fields) for pair, fields in found.items()]

        return self.from_all(read, is_measured)

    def trend(
        self,
        hours: float = 1.0,
        connection: str = "",
        queue: str = "",
        job: str = "",
        together: int = 1,
        patience: float | None = None,
    ) -> Trend | None:
        """Returns the counts by so many steps: of all, or of one connection, queue or class.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(patience: float | None = None) -> Trend | None:
            return activity.put_together(
                each.trend(queue, job, together)
                for name, each in self.activity(hours, patience).items()
                if connection in {"", name}
            )

        if patience is None or connection or queue or job:
            return read(patience)
        return self.cached(f"trend {hours} {together}", 5.0, read, patience)

    def deploys(self, hours: float = 1.0) -> list[DeployState]:
        """Returns the deploys of the last hours, latest first."""

        def read(connection: Connection) -> list[list[Deploy]]:
            return [Deploys(connection.store).read()]

        marks = self.cached("deploys", 5.0, lambda: put_together(self.from_all(read, keeps_facts)))
        now = time.time()
        return [
            DeployState.of(each, now) for each in reversed(marks) if now - each.at < hours * 3600
        ]

    def deployed_at(self) -> str:
        """Returns when the last deploy was marked; "" if none is kept."""
        return next((each.at for each in self.deploys(KEEP / 3600)), "")

    def batches(self, limit: int = 100) -> list[BatchRecord]:
        return self._latest("batches", Connection.batches)[:limit]

    def find_batch(self, identity: str) -> KnownBatch | None:
        """Returns a batch and its connection: its own, if that is one of ours."""
        found = self._found(Connection.batches, identity)
        if found is None:
            return None
        connection, record = found
        kept = connection.batches()
        return None if kept is None else KnownBatch(connection, kept, record)

    def flows(self, limit: int = 100) -> list[FlowRecord]:
        """Returns the flows, the latest first."""
        return self._latest("flows", Connection.flows)[:limit]

    def find_flow(self, identity: str) -> FlowRun | None:
        """Returns a flow, of its own connection if that is one of ours."""
        found = self._found(Connection.flows, identity)
        return None if found is None else FlowRun(found[0], identity, found[1])

    def _latest(self, name: str, find: FindStore[R]) -> list[R]:
        """Returns the batches or flows of all connections, the latest first."""

        def read(connection: Connection) -> list[R]:
            kept = find(connection)
            return [] if kept is None else list(islice(kept.all(), _MOST_STORED))

        def listed() -> list[R]:
            found = {each.id: each for each in self.from_all(read, keeps_facts)}
            return sorted(found.values(), key=lambda each: -each.created_at)

        return self.cached(name, 2.0, listed)

    def _found(self, find: FindStore[R], identity: str) -> tuple[Connection, R] | None:
        """Returns a batch or flow with its connection: its own, if that is one of ours."""
        other: tuple[Connection, R] | None = None
        for connection in filter(keeps_facts, self.connections()):
            kept = find(connection)
            if kept is None:
                continue
            with suppress(BackendUnavailable):
                record = self.ask(connection, partial(kept.read, identity))
                if record is not None:
                    if record.connection == connection.name:
                        return connection, record
                    other = other or (connection, record)
        return other

    def holds(self) -> list[HoldState]:
        """Returns the holds of all connections."""
        return self.cached("holds", 1.0, lambda: self.from_all(holds.listed, keeps_facts))

    def acts(self) -> list[ActState]:
        """Returns the acts that can be taken back, the latest first."""

        def read(connection: Connection) -> list[tuple[Connection, list[BinAct]]]:
            return [(connection, undo.acts_of(connection))]

        return undo.put_together(self.from_all(read, keeps_facts))

    def schedules(self) -> list[ScheduleState]:
        """Returns the schedules, the next one first."""

        def read(connection: Connection) -> list[ScheduleState]:
            return schedules.states(self.manager, connection)

        def listed() -> list[ScheduleState]:
            found = self.from_all(read, keeps_facts)
            return sorted(found, key=lambda each: (each.next_at or "9999", each.name))

        return self.cached("schedules", 2.0, listed)

    def retries(self) -> list[RetryState]:
        """Returns the watched retries of the last week, the latest first."""

        def listed() -> list[RetryState]:
            with suppress(QframeError):  # `silent` says which connection does not answer
                return self.ask(place(self.manager), lambda: retries.states(self.manager))
            return []

        return self.cached("retries", 1.0, listed)

    def payload_reports(self) -> list[PayloadReport]:
        """Returns the reports of the last checks of stored payloads, the latest first."""

        def listed() -> list[PayloadReport]:
            found = self.from_all(payload_reports.reports_of, keeps_facts)
            return payload_reports.put_together(found)

        return self.cached("payload reports", 5.0, listed)

    def unsafe(self, patience: float | None = None) -> list[Unsafe]:
        """Returns what is unsafe, as `qframe check` reports it.

        Raises `NotYetError` if that takes longer than `patience`.
        """

        def read(connection: Connection) -> list[Unsafe]:
            return unsafe.of_connection(self.manager, connection, connection.backend.check())

        def planned(connection: Connection) -> list[Unsafe]:
            return unsafe.of_known_schedules(self.manager, connection)

        def found() -> list[Unsafe]:
            every = unsafe.of_signing(self.manager) + self.from_all(read)
            outbox = self.manager.settings.outbox.connection
            if outbox and outbox not in {each.name for each in self.connections()}:
                with suppress(QframeError):
                    keeper = self.manager.connection(outbox)
                    every += self.ask(keeper, partial(read, keeper))
            return every + self.from_all(planned, keeps_facts)

        return self.cached("unsafe", 60.0, found, patience)
