"""Lists: queues, workers, batches, flows, classes and schedules, with their filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from qframe.contracts.status import State
from qframe.failed.filters import Term, check_state, fits, moment, terms, unknown
from qframe.operations.activity import ClassState
from qframe.operations.batches import BatchState
from qframe.operations.failures import CauseState
from qframe.operations.flows import FlowState
from qframe.operations.queues import QueueState
from qframe.operations.schedules import ScheduleState
from qframe.operations.workers import SupervisorState, WorkerState

T = TypeVar("T")

LATE = 60.0
"""Seconds after which a schedule that is due is late."""
ENDS = tuple(each.value for each in State if each.is_final)

_Texts = Callable[[T], Sequence[str]]


@dataclass(frozen=True)
class RowKind(Generic[T]):
    """What the rows of a list can be filtered by."""

    texts: Mapping[str, _Texts[T]]
    """What is compared as a whole, or with a pattern."""
    states: Sequence[str] = ()
    """The values of `state:`."""
    since: Callable[[T], float] | None = None
    """The epoch time that `older:` and `newer:` compare."""
    parts: Mapping[str, _Texts[T]] = field(default_factory=dict)
    """What must contain the value."""

    @property
    def names(self) -> tuple[str, ...]:
        """The words of its filters."""
        times = ("older", "newer") if self.since else ()
        return (*self.texts, *self.parts, *times, "text")

    def chosen(self, rows: Iterable[T], text: str) -> list[T]:
        """Returns the rows that a filter chooses. Raises `ConfigurationError`."""
        tests = [self._test(term) for term in terms(text)]
        return [row for row in rows if all(test(row) for test in tests)]

    def _test(self, term: Term) -> Callable[[T], bool]:
        test = self._plain_test(term.name, term.values)
        return (lambda row: not test(row)) if term.turned else test

    def _plain_test(self, name: str, values: Sequence[str]) -> Callable[[T], bool]:
        if name == "state" and self.states:
            check_state(values, self.states)
        if name in self.texts:
            texts = self.texts[name]
            return lambda row: fits(texts(row), values)
        if name in {"older", "newer"} and self.since is not None:
            since, is_older, at = moment(name, values), name == "older", self.since
            return lambda row: (at(row) < since) is is_older
        if name and name not in self.parts:
            raise unknown(name, self.names)
        words = [each.casefold() for each in values]
        looked_in = [self.parts[name]] if name else [*self.texts.values(), *self.parts.values()]
        return lambda row: any(
            word in text.casefold() for get in looked_in for text in get(row) for word in words
        )


def _moment_of(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


QUEUES = RowKind[QueueState](
    {
        "queue": lambda row: (row.queue,),
        "connection": lambda row: (row.connection,),
        "state": lambda row: ("paused" if row.paused else "working",),
    },
    ("working", "paused"),
)
WORKERS = RowKind[WorkerState](
    {
        "host": lambda row: (row.host,),
        "id": lambda row: (row.id,),
        "connection": lambda row: (row.connection,),
        "queue": lambda row: row.queues,
        "state": lambda row: (row.state,),
        "class": lambda row: [job.job for job in row.jobs],
        "tag": lambda row: [tag for job in row.jobs for tag in job.tags],
        "name": lambda row: (row.name,),
    },
    ("idle", "running", "paused", "gone"),
    lambda row: _moment_of(row.started_at),
)
SUPERVISORS = RowKind[SupervisorState](
    {
        "name": lambda row: (row.name,),
        "host": lambda row: (row.host,),
        "connection": lambda row: (row.connection,),
        "queue": lambda row: [share.queue for share in row.queues],
        "state": lambda row: ("gone" if row.gone else "running",),
    },
    ("running", "gone"),
)
CAUSES = RowKind[CauseState](
    {"cause": lambda row: (row.cause,), "class": lambda row: (row.job,)},
    since=lambda row: _moment_of(row.last_at),
    parts={"error": lambda row: (row.error,), "place": lambda row: (row.place,)},
)
BATCHES = RowKind[BatchState](
    {
        "id": lambda row: (row.id,),
        "name": lambda row: (row.name,),
        "connection": lambda row: (row.connection,),
        "state": lambda row: (row.state, *(["failed"] if row.failed else [])),
    },
    ("running", "finished", "cancelled", "failed"),
    lambda row: _moment_of(row.created_at),
)
FLOWS = RowKind[FlowState](
    {
        "id": lambda row: (row.id,),
        "name": lambda row: (row.name,),
        "connection": lambda row: (row.connection,),
        "state": lambda row: (row.state, *(["failed"] if row.failed else [])),
    },
    ("running", "done", "cancelled", "failed"),
    lambda row: _moment_of(row.created_at),
)
CLASSES = RowKind[ClassState](
    {
        "class": lambda row: (row.job,),
        "connection": lambda row: (row.connection,),
        "state": lambda row: ("failing" if row.failed else "fine",),
    },
    ("failing", "fine"),
)
SCHEDULES = RowKind[ScheduleState](
    {
        "name": lambda row: (row.name,),
        "class": lambda row: (row.job,),
        "connection": lambda row: (row.connection,),
        "queue": lambda row: (row.queue,),
        "state": lambda row: (_state_of(row), *(each.state.lower() for each in row.runs[:1])),
    },
    ("planned", "late", "paused", "refused", "over", "dispatched", *map(str.lower, ENDS)),
    parts={"error": lambda row: [each.error for each in row.runs[:1]]},
)


def _state_of(row: ScheduleState) -> str:
    if row.refused:
        return "refused"
    if row.paused:
        return "paused"
    if row.next_at is None:
        return "over"
    return "late" if row.late_seconds > LATE else "planned"
