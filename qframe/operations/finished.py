"""Finished: the tracked jobs that have ended, as long as their statuses are kept."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.status import JobStatus
from qframe.failed.filters import Filter
from qframe.features import status
from qframe.operations.board import Board
from qframe.payload.text import one_line
from qframe.payload.timing import iso

LOOKED_AT = 5000
"""So many statuses are examined for one page."""
_PREFIX = "status:"
_PAGE = 500


class FinishedState(BaseModel):
    """One tracked job that has ended. `state`: `complete`, `skipped`, `failed` or `cancelled`."""

    uuid: str
    connection: str
    queue: str
    job: str
    state: str
    attempt: int
    ended_at: str | None
    host: str | None
    error: str
    tags: list[str]


class Finished(BaseModel):
    """A page of ended jobs, by their uuids: those of qframe, the last dispatched first."""

    jobs: list[FinishedState]
    after: str
    """Where the next page begins; "" if there is none."""
    looked_at: int


@dataclass(frozen=True, slots=True)
class FilteredStatus:
    """A status as a filter sees it."""

    uuid: str
    connection: str
    queue: str
    name: str
    payload: bytes
    exception: str
    failed_at: float
    """When it ended."""
    hosts: tuple[str, ...]
    state: str

    @classmethod
    def of(cls, known: JobStatus) -> FilteredStatus:
        """Returns what a filter sees; of the payload, a status has only the tags."""
        return cls(
            known.uuid,
            known.connection,
            known.queue,
            known.name,
            json.dumps({"tags": list(known.tags)}).encode(),
            _error(known),
            known.ended_at or known.queued_at or 0.0,
            (known.host,) if known.host else (),
            known.state.value.lower(),
        )


def keepers(board: Board, chosen: Filter) -> list[Connection]:
    """Returns the connections that keep statuses, of those that a filter allows."""
    return [
        each
        for each in board.connections()
        if Capability.FACTS in each.capabilities and chosen.allows("connection", each.name)
    ]


def connection_of(board: Board, chosen: Filter, name: str) -> Connection | None:
    """Returns the named connection if a filter allows it, else the first it allows.

    None if it allows none. Raises `ConfigurationError` for an unknown name.
    """
    if name and chosen.allows("connection", name):
        return board.connection(name)
    return next(iter(keepers(board, chosen)), None)


def listed(
    connection: Connection,
    chosen: Filter,
    after: str = "",
    limit: int = 50,
    seconds: float = math.inf,
) -> Finished:
    """Lists the ended tracked jobs of a connection that a filter chooses.

    A page examines so many statuses at most, or for about so many seconds.
    """
    connection.need(Capability.FACTS)
    ends = time.monotonic() + seconds
    found: list[FinishedState] = []
    looked_at, key = 0, f"{_PREFIX}{after}" if after else ""
    while looked_at < LOOKED_AT:
        page = connection.backend.scan(_PREFIX, _PAGE, key, last_first=True)
        for key, text in page:
            looked_at += 1
            known = status.read_as(key.removeprefix(_PREFIX), text)
            if known is None or not known.is_final or known.connection != connection.name:
                continue
            if chosen.fits(FilteredStatus.of(known)):
                found.append(_state(known))
            if len(found) == limit:
                return Finished(jobs=found, after=known.uuid, looked_at=looked_at)
        if len(page) < _PAGE:
            return Finished(jobs=found, after="", looked_at=looked_at)
        if time.monotonic() >= ends:
            break
    return Finished(jobs=found, after=key.removeprefix(_PREFIX), looked_at=looked_at)


def _state(known: JobStatus) -> FinishedState:
    return FinishedState(
        uuid=known.uuid,
        connection=known.connection,
        queue=known.queue,
        job=known.name,
        state=known.state.value.lower(),
        attempt=known.attempt,
        ended_at=None if known.ended_at is None else iso(known.ended_at),
        host=known.host,
        error=one_line(_error(known), 300),
        tags=list(known.tags),
    )


def _error(known: JobStatus) -> str:
    return "" if known.exception is None else ": ".join(known.exception)
