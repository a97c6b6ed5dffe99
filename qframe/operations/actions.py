"""Actions: what people may do with queues, jobs and workers; each is logged and fires an event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from qframe import events
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.failed import FailedJob
from qframe.contracts.queue import Cancelling
from qframe.dispatch.calls import run
from qframe.dispatch.event import encoded, json_value, send_on
from qframe.dispatch.flow import FlowRun
from qframe.dispatch.status import cancel_on, interrupt, note_unseen
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.failed.filters import RUNNING, WAITING, Filter, seconds_of_span
from qframe.failed.retry import retry
from qframe.features.batches import BatchStore
from qframe.features.steps import check_name
from qframe.manager import QueueManager
from qframe.operations import (
    failures,
    holds,
    jobs,
    queues,
    retries,
    running,
    schedules,
    waiting,
)
from qframe.operations import undo as undoing
from qframe.operations.bin import BinAction
from qframe.operations.board import Board
from qframe.operations.bulk import BulkAction
from qframe.operations.jobs import FilteredMessage
from qframe.operations.running import RunsOn
from qframe.operations.waiting import Scope
from qframe.operations.workers import WorkerState
from qframe.payload.text import count_of, one_line, queue_name
from qframe.payload.timing import iso
from qframe.retries.terms import RetryTerms
from qframe.retries.watched import ChosenJob
from qframe.schedules.options import Missed
from qframe.schedules.rows import Grace, Overlap, Spread, row_of
from qframe.worker.control import QUIET, STOP, order_key, slots_key
from qframe.worker.options import MOST_AT_ONCE

log = logging.getLogger("qframe")
T = TypeVar("T")

_LONGEST = 500
_SLOTS_KEPT = 3600.0
_RUNNING_WITHIN = 30.0
"""Seconds for reading the data of running jobs."""
_ORDER_KEPT = 7 * 86400.0
"""Seconds for which an order to a worker stays in the store."""


class Wanted(BaseModel):
    """What an action acts on; each action says which fields it needs."""

    model_config = ConfigDict(extra="forbid")

    connection: str = Field("", max_length=_LONGEST)
    queue: str = Field("", max_length=_LONGEST)
    place: str = Field("", max_length=20)
    uuids: list[str] = Field([], max_length=1000)
    filter: str | None = Field(None, max_length=2000)
    """All jobs that this chooses; None: those of `uuids`."""
    cause: str = Field("", max_length=20)
    id: str = Field("", max_length=_LONGEST)
    seconds: float | None = Field(None, gt=0, lt=3e9)
    number: int | None = Field(None, ge=1, le=MOST_AT_ONCE)
    job: str = Field("", max_length=200)
    data: str = Field("", max_length=100_000)
    """The job's fields, as JSON."""
    when: str = Field("", max_length=200)
    timezone: str = Field("", max_length=60)
    first: int | None = Field(None, ge=0)
    then: str = Field("", max_length=60)
    stop_if: str = Field("", max_length=60)
    missed: Missed | None = None
    grace: Grace | None = None
    spread: Spread | None = None
    overlap: Overlap | None = None
    reason: str = Field("", max_length=300)
    """Why, for others to read."""
    maintenance: bool | None = None
    foreign: bool | None = None
    _where: str = PrivateAttr("the page")

    def by_api(self) -> Self:
        """Notes that a program asks for it, by the API; returns itself."""
        self._where = "the API"
        return self

    @property
    def where(self) -> str:
        """From where it is asked for, in words."""
        return self._where

    @field_validator("seconds", mode="before")
    @classmethod
    def _may_be_a_span(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return seconds_of_span("seconds", value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    @field_validator("connection", "queue", "uuids", "filter", "id", "reason")
    @classmethod
    def _can_be_text(cls, value: T) -> T:
        if "\0" in "".join(value if isinstance(value, list) else [str(value)]):
            raise ValueError("NUL is in no text that a backend keeps")
        return value


class Done(BaseModel):
    """What an action did."""

    changed: int
    text: str
    bulk: str = ""
    """The id of the bulk action that goes on in the background."""
    undo: dict[str, str] = Field({}, exclude=True)
    """What undoes it, if only the action knows: `action`, and the fields it acts on."""


class Action(NamedTuple):
    """Something people may do."""

    verb: str
    act: Callable[[Board, Wanted, str], Done]
    question: str
    """The question before the action, about `what`; "": none."""


def perform(board: Board, name: str, wanted: Wanted, who: str) -> Done:
    """Performs an action. Raises `ConfigurationError` if it is impossible, `BackendUnavailable`."""
    action = ACTIONS.get(name)
    if action is None:
        raise ConfigurationError(f"there is no action {one_line(name, 60)!r}")
    done = action.act(board, wanted, who)
    if not done.bulk:
        log_action(who, name, what(wanted), done.changed)
    board.forget()
    return done


def log_action(who: str, action: str, of: str, count: int) -> None:
    """Logs who did what, and fires the event."""
    log.info("%s: %s %s (%d)", one_line(who, 100), action, of, count)
    events.fire(events.OperatorActed, who, action, of, count)


def what(wanted: Wanted) -> str:
    """Returns in words what an action acts on."""
    shown = {
        "connection": wanted.connection,
        "queue": wanted.queue,
        "place": wanted.place,
        "cause": wanted.cause,
        "id": wanted.id,
        "filter": wanted.filter or ("all" if wanted.filter is not None else ""),
        "jobs": ", ".join(wanted.uuids[:3]) + (", ..." if len(wanted.uuids) > 3 else ""),  # noqa: PLR2004 (a few)
    }
    return one_line(" ".join(f"{name} {value}" for name, value in shown.items() if value), 300)


def _selected(wanted: Wanted) -> list[str]:
    if not wanted.uuids:
        raise ConfigurationError("no job is selected")
    return wanted.uuids


# -- queues ---------------------------------------------------------------------------------------


def _queue(board: Board, wanted: Wanted) -> tuple[Connection, str]:
    connection = board.connection(wanted.connection)
    return connection, queue_name(wanted.queue or connection.default_queue)


def _pause(board: Board, wanted: Wanted, who: str) -> Done:
    connection, name = _queue(board, wanted)
    queues.pause(connection, name, wanted.seconds, who=who, where=wanted.where)
    return Done(changed=1, text=f"paused {name} of {connection.name}")


def _resume(board: Board, wanted: Wanted, _who: str) -> Done:
    connection, name = _queue(board, wanted)
    queues.resume(connection, name)
    return Done(changed=1, text=f"resumed {name} of {connection.name}")


def _clear(board: Board, wanted: Wanted, who: str) -> Done:
    connection, name = _queue(board, wanted)
    act = BinAction(board.manager, "clear", f"{connection.name}:{name}", who)
    try:
        count = act.at(connection).clear(name)
    finally:
        act.close()
    return _into_bin(
        act, count, f"deleted {count_of(count, 'job', 'jobs')} of {connection.name}:{name}"
    )


def _into_bin(act: BinAction, count: int, text: str) -> Done:
    """Returns what an act has done, and that it can be taken back."""
    told = act.told()
    offered = {"action": "undo", "id": act.id} if act.kept else {}
    return Done(changed=count, text=f"{text}; {told}" if told else text, undo=offered)


def _undo(board: Board, wanted: Wanted, _who: str) -> Done:
    name, done = one_line(wanted.id, 40), undoing.Undone()
    known = [each for each in undoing.listed(board.connections()) if each.id == wanted.id]
    if not known:
        raise ConfigurationError(f"nothing of the act {name!r} is in the bin (any more)")
    for each in known[0].connections:
        undoing.undo(board.connection(each), wanted.id, done)
    for index in board.failed.indexes() if known[0].action in {"forget", "flush"} else ():
        board.failed.ask(index, index.refresh)
    text = done.said
    if done.left:
        text = "; ".join([f"{text}, {done.left:,} stay in the bin", *done.troubles[:2]])
    return Done(changed=done.back, text=text)


def _hold(board: Board, wanted: Wanted, who: str) -> Done:
    if wanted.seconds is None:
        raise ConfigurationError("hold needs a number of seconds")
    connection = board.connection(wanted.connection)
    names = [wanted.queue] if wanted.queue else []
    chosen, seconds = wanted.filter or "", wanted.seconds
    made = holds.begin(connection, chosen, seconds, who, wanted.reason, names)
    text = f"holds {one_line(made.filter, 80)} of {connection.name} until {iso(made.until)} UTC"
    undo = {"action": "unhold", "connection": connection.name, "id": made.id}
    return Done(changed=1, text=text, undo=undo)


def _unhold(board: Board, wanted: Wanted, _who: str) -> Done:
    connection = board.connection(wanted.connection)
    count = holds.end(connection, wanted.id)
    if count is None:
        raise ConfigurationError(
            f"{connection.name} has no hold {one_line(wanted.id, 40)!r} (any more)"
        )
    text = f"ended the hold {wanted.id}: {holds.said(connection, count)}"
    return Done(changed=count, text=text)


def _kick(board: Board, wanted: Wanted, _who: str) -> Done:
    connection, name = _queue(board, wanted)
    count = connection.kick(name)
    return Done(changed=count, text=f"made {count:,} buried jobs of {connection.name}:{name} ready")


# -- failed jobs ----------------------------------------------------------------------------------


def chosen_by(wanted: Wanted) -> Filter:
    """Returns the filter that chooses the failed jobs of an action."""
    text = wanted.filter or ""
    return Filter(f'{text} cause:"{_key(wanted.cause)}"' if wanted.cause else text)


def _key(cause: str) -> str:
    if not cause.isalnum():
        raise ConfigurationError(f"{one_line(cause, 40)!r} is no cause")
    return cause


def _of_failed(
    act: Callable[[Board, FailedStore, FailedJob, BinAction], bool], verb: str, done: str
) -> Callable[[Board, Wanted, str], Done]:
    def run(board: Board, wanted: Wanted, who: str) -> Done:
        into = BinAction(board.manager, verb, what(wanted), who)
        if wanted.filter is not None or wanted.cause:
            chosen = chosen_by(wanted)
            steps = (
                partial(act, board, store, record, into)
                for store, record in failures.kept_in(board.failed.stores(), chosen)
            )
            return _in_background(board, wanted, who, verb, steps, into)
        changed, troubles = 0, []
        try:
            for uuid in _selected(wanted):
                found = board.failed.find(uuid)
                if found is None:
                    troubles.append(_no_failed_job(uuid))
                    continue
                try:
                    changed += act(board, *found, into)
                except ConfigurationError as error:
                    troubles.append(str(error))
        finally:
            into.close()
        text = "; ".join(
            [done.format(f"{changed:,} of {len(wanted.uuids):,} failed jobs"), *troubles[:3]]
        )
        return _into_bin(into, changed, text)

    return run


def _retry(
    board: Board, store: FailedStore, record: FailedJob, _into: BinAction | None = None
) -> bool:
    done = retry(board.manager, store, record)
    if done:
        _forget_in_indexes(board, record.uuid)
    return done


def _watch_retry(board: Board, wanted: Wanted, who: str) -> Done:
    """Begins a retry that workers drive: some jobs first, the rest at a pace."""
    terms = RetryTerms.asked(wanted.first, wanted.then, wanted.stop_if)
    found: list[ChosenJob] = []
    of = what(wanted)

    def begin() -> bool:
        retries.start(board.manager, terms, found, of, who)
        return False

    if wanted.filter is not None or wanted.cause:
        return _in_background(
            board, wanted, who, "watch-retry", _choosing(board, wanted, found, begin)
        )
    troubles: list[str] = []
    for uuid in _selected(wanted):
        known = board.failed.find(uuid)
        if known is None:
            troubles.append(_no_failed_job(uuid))
        else:
            found.append(retries.choose(known[1]))
    if found:
        begin()
    text = f"retrying {count_of(len(found), 'failed job', 'failed jobs')} in the background"
    return Done(changed=len(found), text="; ".join([text, *troubles[:3]]))


def _no_failed_job(uuid: str) -> str:
    return f"{one_line(uuid, 60)} is no failed job (any more)"


def _choosing(
    board: Board, wanted: Wanted, found: list[ChosenJob], begin: Callable[[], bool]
) -> Iterator[Callable[[], bool]]:
    """Yields a function for each failed job that a filter chooses, and one that begins."""
    chosen = chosen_by(wanted)

    def keep(record: FailedJob) -> bool:
        found.append(retries.choose(record))
        return True

    for _, record in failures.chosen_in(board.failed.stores(), chosen):
        yield partial(keep, record)
    yield begin


def _stop_retry(board: Board, wanted: Wanted, who: str) -> Done:
    told = retries.stop(board.manager, wanted.id, who)
    return Done(changed=1, text=f"stopped the retry {told.id}")


def _forget(board: Board, store: FailedStore, record: FailedJob, into: BinAction) -> bool:
    done = into.forget(store, record)
    if done:
        _forget_in_indexes(board, record.uuid)
    return done


def _forget_in_indexes(board: Board, uuid: str) -> None:
    for index in board.failed.indexes():
        index.forget(uuid)


def _mute(board: Board, wanted: Wanted, _who: str) -> Done:
    board.failed.mute(_key(wanted.cause), silent=True)
    return Done(changed=1, text=f"silenced the cause {wanted.cause} for 30 days")


def _unmute(board: Board, wanted: Wanted, _who: str) -> Done:
    board.failed.mute(_key(wanted.cause), silent=False)
    return Done(changed=1, text=f"the cause {wanted.cause} is no longer silenced")


# -- jobs that wait or run ------------------------------------------------------------------------


def _cancel(board: Board, wanted: Wanted, who: str) -> Done:
    if wanted.filter is not None:
        into = BinAction(board.manager, "cancel", what(wanted), who)
        steps = _cancelling(board, wanted, into)
        return _in_background(board, wanted, who, "cancel", steps, into)
    noted = 0

    def cancel(uuid: str) -> bool:
        nonlocal noted
        outcome = _cancel_one(board, uuid, wanted.connection)
        noted += outcome is Cancelling.NOTED
        return outcome is not Cancelling.ABSENT

    def told(changed: int, of: int) -> str:
        if not noted:
            return f"cancelled {changed:,} of {of:,} jobs"
        drops = f"noted {noted:,} of {of:,} jobs: the workers that get them will drop them"
        return drops if noted == changed else f"cancelled {changed - noted:,}, and {drops}"

    return _each_of(_selected(wanted), cancel, told)


def _cancelling(board: Board, wanted: Wanted, into: BinAction) -> Iterator[Callable[[], bool]]:
    """Yields a function for each job in a place that a filter chooses; it cancels the job."""
    try:
        place = Place(wanted.place)
    except ValueError:
        raise ConfigurationError(f"{one_line(wanted.place, 40)!r} is no place") from None
    if place is Place.RUNNING:
        there = running_of(board, wanted)
        return (partial(_is_cancelled, board, each.uuid, each.connection) for each in there)
    chosen, within = waiting_of(board, wanted)
    if not within.searchable:
        for each in within.connections[:1]:
            each.need(Capability.SEARCH)
    return _removing(within, waiting.chosen_of(within, place, chosen), into)


def _removing(
    within: Scope,
    chosen: Iterable[tuple[Connection, FilteredMessage | BackendUnavailable]],
    into: BinAction,
) -> Iterator[Callable[[], bool]]:
    for connection in within.connections:
        if connection.name not in within.searchable:
            yield partial(_raise, connection.cannot(Capability.SEARCH))
    for connection, each in chosen:
        if isinstance(each, BackendUnavailable):
            yield partial(_raise, each)
        else:
            yield partial(jobs.remove, connection, each, into.at(connection))


def _raise(error: QframeError) -> bool:
    raise error


def waiting_of(board: Board, wanted: Wanted) -> tuple[Filter, Scope]:
    """Returns the filter and the queues whose waiting jobs an action acts on.

    Without a filter that chooses, that is one queue; else all that the filter allows.
    """
    chosen = Filter(wanted.filter or "", WAITING)
    if chosen.is_empty:
        return chosen, Scope.one(*_queue(board, wanted))
    there = board.named_queues()
    return chosen, waiting.scope(board, chosen, wanted.connection, wanted.queue, there)


def running_of(board: Board, wanted: Wanted) -> list[RunsOn]:
    """Returns the running jobs of an action: of all queues if it names none."""
    chosen = Filter(wanted.filter or "", RUNNING)
    return [
        each
        for each in running.listed(board, chosen, _RUNNING_WITHIN).jobs
        if wanted.connection in {"", each.connection} and wanted.queue in {"", each.queue}
    ]


def _is_cancelled(board: Board, uuid: str, name: str) -> bool:
    return _cancel_one(board, uuid, name) is not Cancelling.ABSENT


def _cancel_one(board: Board, uuid: str, name: str) -> Cancelling:
    runs = next((each for each in running.seen(board) if each.uuid == uuid), None)
    home = name or (runs.connection if runs is not None else "")
    if home and runs is not None and not _shows(board.connection(home)):
        interrupt(board.connection(home), uuid)  # its worker reports it as running
        return Cancelling.RUNNING
    outcomes: list[Cancelling] = []

    def cancel(connection: Connection) -> bool:
        done = cancel_on(connection, uuid, running=True)
        outcomes.extend([] if done is None else [done])
        return done is not None

    if _on_any(board, home, cancel):
        return outcomes[0]
    note = partial(note_unseen, uuid=uuid, running=True)
    return Cancelling.NOTED if _on_any(board, home, note) else Cancelling.ABSENT


def _shows(connection: Connection) -> bool:
    return Capability.SEARCH in connection.capabilities


def _on_any(board: Board, name: str, act: Callable[[Connection], bool]) -> bool:
    """Acts on each connection, or on the named one; returns whether that did anything.

    Raises `BackendUnavailable` if it did nothing, and one does not answer.
    """
    acted, silent = False, None
    for connection in board.connections():
        if name in {"", connection.name}:
            try:
                acted = board.ask(connection, partial(act, connection)) or acted
            except BackendUnavailable as error:
                silent = error
    if silent is not None and not acted:
        raise silent
    return acted


def _each_of(
    uuids: Sequence[str], act: Callable[[str], bool], told: Callable[[int, int], str]
) -> Done:
    """Acts on each job. Raises `BackendUnavailable` if an outage kept it from doing anything."""
    changed, silent = 0, None
    for uuid in uuids:
        try:
            changed += act(uuid)
        except BackendUnavailable as error:
            silent = error
    if silent is not None and not changed:
        raise silent
    shown = told(changed, len(uuids))
    return Done(changed=changed, text=f"{shown}; {silent}" if silent else shown)


def _run_now(board: Board, wanted: Wanted, _who: str) -> Done:
    def make_ready(connection: Connection, uuid: str) -> bool:
        if not _shows(connection):
            return False
        found = connection.find(uuid, wanted.queue or None)
        return found is not None and connection.make_ready(found)

    def run(uuid: str) -> bool:
        return _on_any(board, wanted.connection, partial(make_ready, uuid=uuid))

    return _each_of(_selected(wanted), run, "made {:,} of {:,} delayed jobs ready".format)


def _send_event(board: Board, wanted: Wanted, _who: str) -> Done:
    if not wanted.id:
        raise ConfigurationError("send-event needs the name of the event as id")
    name, text = check_name(wanted.id), encoded(wanted.id, json_value(wanted.data or "null"))

    def send(connection: Connection, uuid: str) -> bool:
        if Capability.FACTS not in connection.capabilities:
            return False
        return run(send_on(connection, uuid, name, text))

    def act(uuid: str) -> bool:
        return _on_any(board, wanted.connection, partial(send, uuid=uuid))

    return _each_of(
        _selected(wanted), act, f"sent the event {name} to {{:,}} of {{:,}} jobs".format
    )


# -- batches, flows and workers -------------------------------------------------------------------


def _batch(board: Board, wanted: Wanted) -> tuple[Connection, BatchStore]:
    found = board.find_batch(wanted.id)
    if found is None or found.record.connection != found.connection.name:
        raise ConfigurationError(f"no batch {one_line(wanted.id, 100)!r}")
    return found.connection, found.kept


def _cancel_batch(board: Board, wanted: Wanted, _who: str) -> Done:
    _, kept = _batch(board, wanted)
    done = kept.cancel(wanted.id)
    text = f"cancelled the batch {wanted.id}" if done else f"{wanted.id} is over already"
    return Done(changed=int(done), text=text)


def _retry_batch(board: Board, wanted: Wanted, _who: str) -> Done:
    _, kept = _batch(board, wanted)
    return _retried(board, kept.reopen(wanted.id), "the batch")


def _retried(board: Board, uuids: Sequence[str], of: str) -> Done:
    found = [board.failed.find(uuid) for uuid in uuids]
    count = sum(_retry(board, *each) for each in found if each is not None)
    return Done(changed=count, text=f"queued {count:,} failed jobs of {of} again")


def _flow(board: Board, wanted: Wanted) -> FlowRun:
    found = board.find_flow(wanted.id)
    if found is None:
        raise ConfigurationError(f"no flow {one_line(wanted.id, 100)!r}")
    return found


def _cancel_flow(board: Board, wanted: Wanted, _who: str) -> Done:
    done = _flow(board, wanted).cancel()
    text = f"cancelled the flow {wanted.id}" if done else f"{wanted.id} is over already"
    return Done(changed=int(done), text=text)


def _retry_flow(board: Board, wanted: Wanted, _who: str) -> Done:
    return _retried(board, _flow(board, wanted).reopen(), "the flow")


def _worker(board: Board, wanted: Wanted) -> tuple[WorkerState, Connection]:
    for each in board.workers():
        if each.id == wanted.id:
            return each, board.connection(each.connection)
    raise ConfigurationError(f"no worker {one_line(wanted.id, 60)!r}")


def _scale(board: Board, wanted: Wanted, _who: str) -> Done:
    worker, connection = _worker(board, wanted)
    if wanted.number is None:
        raise ConfigurationError("scale needs a number of jobs at once")
    if not worker.scales:
        raise ConfigurationError(
            f"{worker.host}:{worker.pid} cannot be scaled: it has no slots, or is one of a pool, "
            "which qframe scale tells"
        )
    connection.store.set(slots_key(worker.id), str(wanted.number), _SLOTS_KEPT)
    text = (
        f"told {worker.host}:{worker.pid} to run {count_of(wanted.number, 'job', 'jobs')} at once"
    )
    before = {"action": "scale", "id": worker.id, "number": str(worker.concurrency)}
    return Done(changed=1, text=text, undo={} if worker.concurrency == wanted.number else before)


def _order(order: str, words: str) -> Callable[[Board, Wanted, str], Done]:
    def give(board: Board, wanted: Wanted, _who: str) -> Done:
        worker, connection = _worker(board, wanted)
        key = order_key(worker.id)
        if order:
            connection.store.set(key, order, _ORDER_KEPT)
        else:
            connection.store.delete(key)
        return Done(changed=1, text=f"told {worker.host}:{worker.pid} {words}")

    return give


# -- schedules ------------------------------------------------------------------------------------


def _schedule(
    act: Callable[[QueueManager, Connection, str], object], text: str
) -> Callable[[Board, Wanted, str], Done]:
    def run(board: Board, wanted: Wanted, _who: str) -> Done:
        connection = board.connection(wanted.connection)
        found = schedules.find(board.manager, connection, wanted.id)
        act(board.manager, connection, found.name)
        return Done(changed=1, text=text.format(found.name))

    return run


_OF_A_ROW = (
    "job", "when", "timezone", "queue", "missed", "grace", "spread", "overlap", "maintenance",
    "foreign",
)  # fmt: skip
"""The fields of a row that an action may set, besides its data; "" and None: not given."""


def _row_fields(wanted: Wanted, who: str) -> dict[str, Any]:
    """Returns the given fields of a row, and who gave them."""
    given = wanted.model_dump(include={*_OF_A_ROW})
    fields = {key: value for key, value in given.items() if value not in ("", None)}
    if wanted.data:
        fields["data"] = schedules.data_of_text(wanted.data)
    return {**fields, "added_at": round(time.time(), 3), "added_by": one_line(who, 100)}


def _add_schedule(board: Board, wanted: Wanted, who: str) -> Done:
    row = row_of(**{"data": {}, "job": "", "when": "", **_row_fields(wanted, who)})
    schedules.add(board.manager, board.connection(wanted.connection), wanted.id, row)
    undo = {"action": "remove-schedule", "connection": wanted.connection, "id": wanted.id}
    return Done(changed=1, text=f"added the schedule {wanted.id}", undo=undo)


def _change_schedule(board: Board, wanted: Wanted, who: str) -> Done:
    connection = board.connection(wanted.connection)
    schedules.change(board.manager, connection, wanted.id, **_row_fields(wanted, who))
    return Done(changed=1, text=f"changed the schedule {wanted.id}")


def _in_background(
    board: Board,
    wanted: Wanted,
    who: str,
    action: str,
    steps: Iterator[Callable[[], bool]],
    into: BinAction | None = None,
) -> Done:
    of = what(wanted)
    troubles = [f"{name} does not answer: {why}" for name, why in sorted(board.silent.items())]
    bulk = BulkAction(who, action, of, steps, troubles)

    def log_end(count: int) -> None:
        log_action(who, action, of, count)
        if into is not None:
            into.close()
            bulk.told, bulk.undo = into.told(), into.id if into.kept else ""
        board.forget()

    board.bulks.start(bulk, log_end)
    return Done(changed=0, text=f"{action}: {of}", bulk=bulk.id)


def _stop_bulk(board: Board, wanted: Wanted, _who: str) -> Done:
    bulk = board.bulks.find(wanted.id)
    if bulk is None:
        raise ConfigurationError("no action with this id is running")
    bulk.cancel()
    return Done(changed=1, text="it stops after the current job", bulk=bulk.id)


ACTIONS = {
    "pause": Action("Pause", _pause, ""),
    "resume": Action("Resume", _resume, ""),
    "hold": Action("Hold", _hold, ""),
    "unhold": Action("End hold", _unhold, ""),
    "undo": Action("Undo", _undo, "Bring back what this act has removed?"),
    "clear": Action("Clear", _clear, "Delete all ready and delayed jobs of this queue?"),
    "kick": Action("Kick", _kick, "Make all buried jobs of this queue ready?"),
    "retry": Action(
        "Retry", _of_failed(_retry, "retry", "queued {} again"), "Queue these failed jobs again?"
    ),
    "watch-retry": Action(
        "Retry a few first", _watch_retry, "Queue a few first, and the rest at a pace?"
    ),
    "stop-retry": Action("Stop", _stop_retry, "Stop this retry? The other jobs stay failed."),
    "forget": Action(
        "Forget",
        _of_failed(_forget, "forget", "removed {} for good"),
        "Remove these failed jobs for good?",
    ),
    "silence": Action("Silence", _mute, ""),
    "unsilence": Action("Tell again", _unmute, ""),
    "cancel": Action("Cancel", _cancel, "Cancel these jobs? One that runs is interrupted."),
    "run-now": Action("Run now", _run_now, ""),
    "send-event": Action("Send", _send_event, ""),
    "cancel-batch": Action("Cancel", _cancel_batch, "Cancel this batch?"),
    "retry-batch": Action("Retry failed", _retry_batch, "Queue its failed jobs again?"),
    "cancel-flow": Action("Cancel", _cancel_flow, "Cancel this flow?"),
    "retry-flow": Action("Retry failed", _retry_flow, "Queue its failed jobs again?"),
    "scale": Action("Scale", _scale, ""),
    "quiet": Action("Quiet", _order(QUIET, "to take no more jobs"), ""),
    "unquiet": Action("Go on", _order("", "to go on"), ""),
    "stop-worker": Action(
        "Stop", _order(STOP, "to end after its jobs"), "Stop this worker, after its jobs?"
    ),
    "stop": Action("Stop", _stop_bulk, ""),
    "run-schedule": Action(
        "Run now", _schedule(schedules.ask, "a worker runs {} within some seconds"), ""
    ),
    "pause-schedule": Action("Pause", _schedule(schedules.pause, "paused {}"), ""),
    "resume-schedule": Action("Resume", _schedule(schedules.resume, "resumed {}"), ""),
    "add-schedule": Action("Add", _add_schedule, ""),
    "change-schedule": Action("Change", _change_schedule, ""),
    "remove-schedule": Action(
        "Remove", _schedule(schedules.remove, "removed {}"), "Remove this schedule?"
    ),
}
"""All actions, by the name that a role may be given."""
