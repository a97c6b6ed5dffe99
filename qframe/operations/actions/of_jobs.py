"""Actions on jobs that wait or run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.contracts.queue import Cancelling
from qframe.dispatch.calls import run
from qframe.dispatch.event import encoded, json_value, send_on
from qframe.dispatch.status import cancel_on, interrupt, note_unseen
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.failed.filters import RUNNING, WAITING, Filter
from qframe.features.steps import check_name
from qframe.operations import jobs, running, waiting
from qframe.operations.actions.background import in_background
from qframe.operations.actions.of_queues import queue_of
from qframe.operations.actions.wanted import Done, Wanted, selected, what
from qframe.operations.bin import BinAction
from qframe.operations.board import Board
from qframe.operations.jobs import FilteredMessage
from qframe.operations.running import RunsOn
from qframe.operations.waiting import Scope
from qframe.payload.text import one_line

_RUNNING_WITHIN = 30.0
"""Seconds for reading the data of running jobs."""


def cancel_jobs(board: Board, wanted: Wanted, who: str) -> Done:
    if wanted.filter is not None:
        into = BinAction(board.manager, "cancel", what(wanted), who)
        steps = _cancelling(board, wanted, into)
        return in_background(board, wanted, who, "cancel", steps, into)
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

    return _each_of(selected(wanted), cancel, told)


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
        return chosen, Scope.one(*queue_of(board, wanted))
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


def run_now(board: Board, wanted: Wanted, _who: str) -> Done:
    def make_ready(connection: Connection, uuid: str) -> bool:
        if not _shows(connection):
            return False
        found = connection.find(uuid, wanted.queue or None)
        return found is not None and connection.make_ready(found)

    def run(uuid: str) -> bool:
        return _on_any(board, wanted.connection, partial(make_ready, uuid=uuid))

    return _each_of(selected(wanted), run, "made {:,} of {:,} delayed jobs ready".format)


def send_event(board: Board, wanted: Wanted, _who: str) -> Done:
    if not wanted.id:
        raise ConfigurationError("send-event needs the name of the event as id")
    name, text = check_name(wanted.id), encoded(wanted.id, json_value(wanted.data or "null"))

    def send(connection: Connection, uuid: str) -> bool:
        if Capability.FACTS not in connection.capabilities:
            return False
        return run(send_on(connection, uuid, name, text))

    def act(uuid: str) -> bool:
        return _on_any(board, wanted.connection, partial(send, uuid=uuid))

    return _each_of(selected(wanted), act, f"sent the event {name} to {{:,}} of {{:,}} jobs".format)
