"""Running: the running jobs, as their workers name them; with their data if a filter asks."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Place
from qframe.exceptions import BackendUnavailable, InvalidPayload
from qframe.failed.filters import Filter
from qframe.operations.arguments import arguments_of
from qframe.operations.board import Board
from qframe.operations.jobs import FilteredMessage
from qframe.operations.workers import RunningState
from qframe.payload import envelope
from qframe.payload.text import one_line

_PAGE = 250


class RunsOn(RunningState):
    """A running job and its worker."""

    worker: str
    connection: str
    host: str
    pid: int
    arguments: str = ""
    """Its data in one line, shortened, if it was read; secrets are stars."""


class Running(BaseModel):
    """The running jobs, the longest first."""

    jobs: list[RunsOn]
    note: str
    """Why some could not be read; "" if all were."""


class _ReadPayload(NamedTuple):
    """A payload that was read, and its bytes."""

    message: Mapping[str, Any]
    size: int


def seen(board: Board) -> list[RunsOn]:
    """Returns the running jobs, as their workers name them, the longest first."""
    found = [
        RunsOn(
            **job.model_dump(),
            worker=worker.id,
            connection=worker.connection,
            host=worker.host,
            pid=worker.pid,
        )
        for worker in board.workers()
        if worker.state != "gone"
        for job in worker.jobs
    ]
    return sorted(found, key=lambda each: -each.seconds)


def listed(board: Board, chosen: Filter, seconds: float, shown: int = 0) -> Running:
    """Lists the running jobs that a filter chooses, the first `shown` with their arguments.

    Their data is read for about so many seconds. If the filter asks for it, a job whose data cannot
    be read is not chosen, and the note says so.
    """
    there, ends = seen(board), time.monotonic() + seconds
    if not chosen.asks_data:
        found = [each for each in there if chosen.fits(_shown(each, {}))]
        _add_arguments(board, found[:shown], ends)
        return Running(jobs=found, note="")
    found, notes = list[RunsOn](), dict[str, int]()
    for (connection, queue), jobs in _by_queue(there).items():
        messages, trouble = _messages(board, connection, queue, jobs, ends)
        for each in jobs:
            read = messages.get(each.uuid)
            if read is not None and chosen.fits(_shown(each, read.message)):
                each.arguments = arguments_of(*read)
                found.append(each)
        if trouble:
            notes[trouble] = notes.get(trouble, 0) + len(jobs) - len(messages)
    lines = (
        f"Not looked at: the data of {count:,} jobs, as {why}." for why, count in notes.items()
    )
    return Running(jobs=sorted(found, key=lambda each: -each.seconds), note=" ".join(lines))


def _add_arguments(board: Board, jobs: Collection[RunsOn], ends: float) -> None:
    for (connection, queue), several in _by_queue(jobs).items():
        messages, _ = _messages(board, connection, queue, several, ends)
        for each in several:
            if each.uuid in messages:
                each.arguments = arguments_of(*messages[each.uuid])


def _by_queue(jobs: Collection[RunsOn]) -> dict[tuple[str, str], list[RunsOn]]:
    found: dict[tuple[str, str], list[RunsOn]] = {}
    for each in jobs:
        found.setdefault((each.connection, each.queue), []).append(each)
    return found


def _shown(job: RunsOn, message: Mapping[str, Any]) -> FilteredMessage:
    """Returns what a filter sees of a running job."""
    return FilteredMessage(
        job.uuid, job.connection, job.queue, job.job, b"", time.time() - job.seconds, None,
        hosts=(job.host,), message={**message, "tags": job.tags},
    )  # fmt: skip


def _messages(
    board: Board, name: str, queue: str, jobs: Collection[RunsOn], ends: float
) -> tuple[dict[str, _ReadPayload], str]:
    """Reads the payloads of a queue's running jobs, by uuid; and why some are missing."""
    connection = board.connection(name)
    if Capability.SEARCH not in connection.capabilities:
        return {}, f"{name} does not show it"
    found: dict[str, _ReadPayload] = {}
    left, after = {each.uuid for each in jobs}, ""
    while left:
        if time.monotonic() >= ends:
            return found, "there was no time for more"
        try:
            browse = partial(connection.backend.browse, queue, Place.RUNNING, _PAGE, after)
            page = board.ask(connection, browse)
        except BackendUnavailable:
            return found, f"{name} does not answer"
        for each in page.found:
            message = _message(each.raw_body)
            uuid = one_line(str(message.get("uuid", "")), 80)
            if uuid in left:
                left.discard(uuid)
                found[uuid] = _ReadPayload(message, len(each.raw_body))
        after = page.after
        if not after:
            break  # the rest have ended meanwhile
    return found, ""


def _message(raw: bytes) -> Mapping[str, Any]:
    try:
        return envelope.parse(raw)
    except InvalidPayload:
        return {}
