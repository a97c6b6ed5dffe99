"""Waiting: the jobs of all queues that a filter allows, queue after queue, page by page."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, unquote

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.failed.filters import Filter
from qframe.operations import jobs
from qframe.operations.board import Board
from qframe.operations.jobs import Jobs, JobState
from qframe.operations.queues import QueueState
from qframe.payload.text import one_line, queue_name

_MOST_QUEUES = 200
"""So many queues are read for one page."""


class At(NamedTuple):
    """A queue of a connection."""

    connection: Connection
    queue: str


class Scope(NamedTuple):
    """Where jobs are searched."""

    connections: list[Connection]
    queues: list[At]
    """By connection, and within it by name."""

    @classmethod
    def one(cls, connection: Connection, queue: str) -> Scope:
        return cls([connection], [At(connection, queue)])

    @property
    def connection_name(self) -> str:
        """The name of the connection; "" for several."""
        return _only(each.name for each in self.connections)

    @property
    def queue_name(self) -> str:
        """The name of the queue; "" for several."""
        return _only(each.queue for each in self.queues)

    @property
    def searchable(self) -> set[str]:
        """The connections that can be searched: jobs of others cannot be cancelled."""
        able = (each for each in self.connections if Capability.SEARCH in each.capabilities)
        return {each.name for each in able}


def _only(names: Iterable[str]) -> str:
    found = {*names}
    return found.pop() if len(found) == 1 else ""


def scope(
    board: Board, chosen: Filter, connection: str, queue: str, there: Iterable[QueueState]
) -> Scope:
    """Returns the queues that a filter allows: of all connections, or the named ones.

    A named queue need not be `there`: not every backend can list its queues. Raises
    `ConfigurationError` for an unknown connection, `InvalidQueueName`.
    """
    known = [board.connection(connection)] if connection else board.connections()
    able = [each for each in known if chosen.allows("connection", each.name)]
    names = [(each.connection, each.queue) for each in there]
    name = queue or chosen.queue
    if name:
        if name not in {queue for _, queue in names}:  # other programs may name it as they like
            queue_name(name)
        return Scope(able, [At(each, name) for each in able if chosen.allows("queue", name)])
    return Scope(
        able,
        [
            At(each, queue)
            for each in able
            for home, queue in names
            if home == each.name and chosen.allows("queue", queue)
        ],
    )


def asked_of(
    board: Board, chosen: Filter, connection: str, queue: str, there: Iterable[QueueState]
) -> Scope:
    """Returns the requested queues; the filter overrides a name that it excludes."""
    home = connection if chosen.allows("connection", connection) else ""
    name = queue if chosen.allows("queue", queue) else ""
    return scope(board, chosen, home, name, there)


def listed(
    board: Board,
    scope: Scope,
    place: Place,
    chosen: Filter,
    after: str = "",
    limit: int = 50,
    seconds: float = math.inf,
) -> Jobs:
    """Lists the jobs in a place that a filter chooses, queue after queue.

    Limited as `jobs.listed` is, over all queues. `after` names the queue as well. A connection that
    does not answer is in the note; if there is no other, raises `BackendUnavailable`.
    """
    ends = time.monotonic() + seconds
    queues, key = _from(scope, after)
    found: list[JobState] = []
    looked_at, following = 0, ""
    notes = _silent(board, scope)
    for number, at in enumerate(queues):
        is_over = len(found) >= limit or looked_at >= jobs.LOOKED_AT or number >= _MOST_QUEUES
        if is_over or (number and time.monotonic() >= ends):
            following = _named(at, "")
            break
        start, key = key, ""
        look = partial(
            jobs.listed,
            *at,
            place,
            chosen,
            start,
            limit=limit - len(found),
            seconds=ends - time.monotonic(),
            most=jobs.LOOKED_AT - looked_at,
        )
        try:
            page = board.ask(at.connection, look)
        except (BackendUnavailable, ConfigurationError) as error:
            if len(scope.connections) == 1:
                raise
            notes[at.connection.name] = _trouble(at.connection, error)
            continue
        found += page.jobs
        looked_at += page.looked_at
        if page.note:
            notes[at.connection.name] = page.note
        if page.after:
            following = _named(at, page.after)
            break
    return Jobs(jobs=found, after=following, looked_at=looked_at, note=". ".join(notes.values()))


def chosen_of(
    scope: Scope, place: Place, chosen: Filter
) -> Iterator[tuple[Connection, jobs.FilteredMessage | BackendUnavailable]]:
    """Yields all messages in a place that a filter chooses, of the searchable connections.

    For a connection that does not answer, yields the error, and goes on with the others.
    """
    left = scope.searchable
    for connection, queue in scope.queues:
        if connection.name not in left:
            continue
        try:
            for each in jobs.chosen_of(connection, queue, place, chosen):
                yield connection, each
        except BackendUnavailable as error:
            left.discard(connection.name)
            yield connection, error


def _silent(board: Board, scope: Scope) -> dict[str, str]:
    """Returns which connections do not answer, and so name no queue; raises if no other does."""
    named = {each.connection.name for each in scope.queues}
    silent = [each for each in scope.connections if each.name not in named]
    why = {
        each.name: BackendUnavailable(board.silent[each.name])
        for each in silent
        if each.name in board.silent
    }
    if why and len(scope.connections) == 1:
        raise why.popitem()[1]
    return {each.name: _trouble(each, why[each.name]) for each in silent if each.name in why}


def _trouble(connection: Connection, error: Exception) -> str:
    verb = "does not answer" if isinstance(error, BackendUnavailable) else "cannot be looked at"
    return f"{connection.name} {verb}: {one_line(str(error), 200)}"


def _named(at: At, key: str) -> str:
    """Returns where a page begins: the connection, the queue, and its backend's position."""
    return "/".join([quote(at.connection.name, safe=""), quote(at.queue, safe=""), key])


def _from(scope: Scope, after: str) -> tuple[list[At], str]:
    """Returns the queues from where a page begins, and the backend's position in the first.

    If that queue is gone meanwhile, the next one follows.
    """
    if not after:
        return scope.queues, ""
    order = [each.name for each in scope.connections]
    name, _, rest = after.partition("/")
    queue, slash, key = rest.partition("/")
    name, queue = unquote(name), unquote(queue)
    if not slash or name not in order:
        raise ConfigurationError(f"no page of these jobs begins at {one_line(after, 60)!r}")
    begins = (order.index(name), queue)
    left = [
        each for each in scope.queues if (order.index(each.connection.name), each.queue) >= begins
    ]
    is_there = bool(left) and (left[0].connection.name, left[0].queue) == (name, queue)
    return left, key if is_there else ""
