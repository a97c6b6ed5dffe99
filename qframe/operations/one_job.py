"""One job: everything known about it, wherever it is, with secrets as stars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.status import JobStatus, State
from qframe.exceptions import BackendUnavailable, InvalidPayload
from qframe.features import batch as batch_feature
from qframe.features import chain as chain_feature
from qframe.features import flow as flow_feature
from qframe.features import status as statuses
from qframe.features.in_line import LinedJob
from qframe.operations import ids, steps
from qframe.operations.batches import BatchState
from qframe.operations.board import Board
from qframe.operations.failures import FailedState
from qframe.operations.flows import FlowState
from qframe.operations.jobs import FilteredMessage, JobState, shown_payload
from qframe.operations.recordings import RecordingState
from qframe.operations.running import RunsOn, seen
from qframe.operations.steps import StepState
from qframe.payload import envelope, tags
from qframe.payload.timing import iso

LONGEST = 200_000
"""Characters of an error that are shown."""
_LISTED = 10_000
"""So many statuses are searched for the beginning or end of an id."""
_SEARCH = 0.1
"""Seconds of search for a waiting job, if its uuid does not tell its place."""


class AttemptState(BaseModel):
    """One start of a job's handler.

    `ended`: `error`, `released`, `timed out`, `interrupted`, `worker died`; `runs` while it runs,
    and "" if the end is unknown. `ended_at` is None if it was not recorded.
    """

    number: int
    host: str
    pid: int
    started_at: str
    ended_at: str | None
    ended: str
    error: str


class ChainState(BaseModel):
    """The progress of a job's chain."""

    id: str
    at: str
    """The uuid of the link that waits, runs or has failed."""
    position: int
    """The number of that link, from 1."""
    following: list[str]
    """The names of the links after it."""
    is_whole: bool
    """Whether these are all."""


class StatusState(BaseModel):
    """The status of a tracked job."""

    state: str
    attempt: int
    queued_at: str | None
    started_at: str | None
    ended_at: str | None
    host: str | None
    pid: int | None
    progress: float | None
    message: str
    result: Any
    exception: str
    remark: str
    retries: int
    log: list[str]
    """The last lines logged in it, if it keeps them; each begins with its attempt."""

    @classmethod
    def of(cls, known: JobStatus) -> StatusState:
        moments = {
            key: None if (at := getattr(known, key)) is None else iso(at)
            for key in ("queued_at", "started_at", "ended_at")
        }
        return cls(
            state=known.state.value,
            attempt=known.attempt,
            host=known.host,
            pid=known.pid,
            progress=known.progress,
            message=known.message,
            result=known.result,
            exception=": ".join(known.exception or ()),
            remark=known.remark,
            retries=known.retries,
            log=list(known.log),
            **moments,
        )


class OneJob(BaseModel):
    """Everything about one job; null for what does not apply or is unknown."""

    uuid: str
    job: str
    connection: str
    queue: str
    tags: list[str]
    waiting: JobState | None
    """Its place in its queue, or in the line of its group; also of a running job."""
    running: RunsOn | None
    failed: FailedState | None
    status: StatusState | None
    attempts: list[AttemptState]
    steps: list[StepState]
    """Its durable steps, in the order in which they were kept."""
    waits_for: str
    """The name of the event that it waits for; ""."""
    chain: ChainState | None
    batch: BatchState | None
    flow: FlowState | None
    exception: str
    """The error of a failed job, with its traceback."""
    recording: RecordingState | None
    """What was kept of its last attempt that was killed, timed out or ran out of memory."""
    payload: str | None
    """Secrets are stars, and what is encrypted stays so."""


class Located(NamedTuple):
    """Where one job is, and what is kept of it."""

    status: JobStatus | None
    record: FailedJob | None
    running: RunsOn | None
    home: Connection | None
    """The connection where it waits."""
    waiting: FilteredMessage | None
    """Its message, or its place in the line of its group."""
    is_sure: bool
    """Whether it is certain that it waits nowhere else."""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.status or self.record or self.running or self.waiting)


def locate(
    board: Board, uuid: str, connection: str = "", queue: str = "", seconds: float = _SEARCH
) -> Located:
    """Finds a job by its whole uuid; searches about so many seconds in each connection."""
    status, record = _status(board, uuid), _record(board, uuid)
    running = _running(board, uuid)
    place, is_sure = (None, True) if record else _waiting(board, uuid, connection, queue, seconds)
    may_be_in_line = status is None or status.state is State.WAITING
    if may_be_in_line and not (record or place or running):
        hint = queue or (status.queue if status else "")
        place, all_looked_at = _in_line(board, uuid, connection, hint, seconds)
        is_sure = is_sure and all_looked_at
    home, waiting = place or (None, None)
    return Located(status, record, running, home, waiting, is_sure)


def whole_id(board: Board, part: str) -> str | None:
    """Returns the one id of a failed, running or tracked job that begins or ends so.

    Raises `AmbiguousId`.
    """
    return ids.whole(part, _ids(board)) if ids.may_be_part(part) else None


def find(
    board: Board, uuid: str, connection: str = "", queue: str = ""
) -> tuple[OneJob | None, bool]:
    """Finds a job among those that failed, run, wait or are tracked; the queue is a hint.

    Unless the job waits, a beginning or end of its uuid is enough. Raises `AmbiguousId`. If it is
    not found, also returns whether it certainly does not exist.
    """
    if not uuid:
        return None, True
    whole, found = resolved(board, uuid, connection, queue)
    return (described(board, whole, found), True) if found.is_known else (None, found.is_sure)


def resolved(board: Board, uuid: str, connection: str = "", queue: str = "") -> tuple[str, Located]:
    """Finds a job as `find` does; returns its whole uuid, and where it is."""
    found = locate(board, uuid, connection, queue)
    whole = None if found.is_known else whole_id(board, uuid)
    if whole is None:
        return uuid, found
    return whole, locate(board, whole, connection, queue)


def described(board: Board, uuid: str, found: Located) -> OneJob:
    """Returns everything about a job that was found."""
    status, record, running, home, waiting, _ = found
    payload = record.payload if record else waiting.payload if waiting else None
    message = {} if payload is None else _message(payload)
    where = record or waiting or running or status
    assert where is not None  # noqa: S101 (it is one of them)
    home = home or board.known(where.connection)
    shown = None if waiting is None else JobState.of(waiting)
    runs = running is not None or (shown is not None and shown.place == Place.RUNNING.value)
    history = record.history if record else _history(home, waiting)
    return OneJob(
        uuid=uuid,
        job=where.job if isinstance(where, RunsOn) else where.name,
        connection=where.connection,
        queue=where.queue,
        tags=tags.read(message) or list(status.tags if status else ()),
        waiting=shown,
        running=running,
        failed=FailedState.of(record) if record else None,
        status=StatusState.of(status) if status else None,
        attempts=attempts_of(history, runs=runs),
        steps=_steps(board, home, uuid),
        waits_for=_waits_for(board, home, uuid),
        chain=_chain(home, message),
        batch=_batch(home, message),
        flow=_flow(home, message),
        exception=record.exception[:LONGEST] if record else "",
        recording=RecordingState.of(history.recording),
        payload=None if payload is None else shown_payload(payload),
    )


def failed_ids(board: Board) -> Iterator[str]:
    """Yields the ids of failed jobs, as far as they are known soon."""
    for index in board.failed.indexes():
        with suppress(BackendUnavailable):
            board.failed.ask(index, index.refresh)
        yield from index.uuids()


def _ids(board: Board) -> Iterator[str]:
    """Yields the ids of failed, running and tracked jobs, as far as they are known soon."""
    yield from failed_ids(board)
    yield from (each.uuid for each in seen(board))
    for connection in board.connections():
        with suppress(BackendUnavailable):
            look = partial(lambda each: [*islice(ids.tracked(each), _LISTED)], connection.backend)
            yield from board.ask(connection, look)


def _status(board: Board, uuid: str) -> JobStatus | None:
    for connection in board.connections():
        if Capability.FACTS in connection.capabilities:
            try:
                status = board.ask(connection, partial(statuses.read, connection.backend, uuid))
            except BackendUnavailable:
                continue
            if status is not None:
                return status
    return None


def _record(board: Board, uuid: str) -> FailedJob | None:
    found = board.failed.find(uuid)
    return None if found is None else found[1]


def _running(board: Board, uuid: str) -> RunsOn | None:
    return next((each for each in seen(board) if each.uuid == uuid), None)


def _waiting(
    board: Board, uuid: str, name: str, queue: str, seconds: float
) -> tuple[tuple[Connection, FilteredMessage] | None, bool]:
    """Finds a job in the queue that a link names, or else in all queues."""
    able = [each for each in board.connections() if Capability.SEARCH in each.capabilities]
    return _first(board, able, name, lambda each: each.look(uuid, queue or None, seconds))


def _in_line(
    board: Board, uuid: str, name: str, queue: str, seconds: float
) -> tuple[tuple[Connection, FilteredMessage] | None, bool]:
    """Finds a job that stands in the line of its group."""
    able = board.connections()

    def look(each: Connection) -> tuple[LinedJob | None, bool]:
        return each.look_in_line(uuid, queue or None, seconds)

    return _first(board, able, name, look)


def _first(
    board: Board,
    connections: Sequence[Connection],
    name: str,
    look: Callable[[Connection], tuple[Found | LinedJob | None, bool]],
) -> tuple[tuple[Connection, FilteredMessage] | None, bool]:
    """Returns the first that a search finds; of all connections, or the named one.

    Also returns whether it was found, or certainly is not there.
    """
    is_sure = True
    for connection in connections:
        if name in {"", connection.name}:
            try:
                found, is_complete = board.ask(connection, partial(look, connection))
            except BackendUnavailable:
                is_sure = False
                continue
            if found is not None:
                return (connection, FilteredMessage.of(connection.name, found)), True
            is_sure = is_sure and is_complete
    return None, is_sure


def _message(payload: bytes) -> Mapping[str, Any]:
    try:
        return envelope.parse(payload)
    except InvalidPayload:
        return {}


def _history(home: Connection | None, waiting: FilteredMessage | None) -> History:
    if home is None or waiting is None or waiting.found is None:
        return History()
    return home.history(waiting.found)


def attempts_of(history: History, *, runs: bool = False) -> list[AttemptState]:
    """Returns the attempts of a job, which may run just now."""
    last = history.attempts[-1] if history.attempts else None
    return [
        AttemptState(
            number=each.number,
            host=each.host,
            pid=each.pid,
            started_at=iso(each.started_at),
            ended_at=None if each.ended_at is None else iso(each.ended_at),
            ended=each.ended or ("runs" if runs and each is last else ""),
            error=each.error,
        )
        for each in history.attempts
    ]


def _steps(board: Board, home: Connection | None, uuid: str) -> list[StepState]:
    if home is None or Capability.FACTS not in home.capabilities:
        return []
    with suppress(BackendUnavailable):
        return board.ask(home, partial(steps.listed, home.context, uuid))
    return []


def _waits_for(board: Board, home: Connection | None, uuid: str) -> str:
    if home is None or Capability.FACTS not in home.capabilities:
        return ""
    with suppress(BackendUnavailable):
        waiting = board.ask(home, partial(steps.waiting, home.context, uuid))
        return "" if waiting is None else waiting.event
    return ""


def _chain(home: Connection | None, message: Mapping[str, Any]) -> ChainState | None:
    if home is None or Capability.FACTS not in home.capabilities:
        return None
    found = chain_feature.standing(home.backend, message)
    return None if found is None else ChainState(**found._asdict())


def _batch(home: Connection | None, message: Mapping[str, Any]) -> BatchState | None:
    identity = batch_feature.batch_of(message)
    kept = None if home is None or identity is None else home.batches()
    record = None if kept is None or identity is None else kept.read(identity)
    return None if record is None else BatchState.of(record)


def _flow(home: Connection | None, message: Mapping[str, Any]) -> FlowState | None:
    place = flow_feature.NodePlace.of(message)
    kept = None if home is None or place is None else home.flows()
    record = None if kept is None or place is None else kept.read(place.flow)
    return None if record is None else FlowState.of(record)
