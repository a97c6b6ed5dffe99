"""job_status, wait_for, cancel: the status of a tracked job, and cancelling it."""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from qframe import manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.identity import JobId
from qframe.contracts.queue import Cancelling
from qframe.contracts.status import JobStatus, State
from qframe.contracts.step import Set, Step
from qframe.dispatch.calls import Call, CallPause, Read, run
from qframe.dispatch.sender import awaited
from qframe.exceptions import BackendUnavailable, NotTracked, Unsupported, WaitTimedOut
from qframe.features import status
from qframe.jobs import returned
from qframe.jobs.execution import refuse_on_loop
from qframe.manager import QueueManager
from qframe.payload.timing import seconds_until

CANCEL_TTL = 30.0
"""Seconds until a request to cancel a running job expires."""
_NOTED_FOR = 30 * 86400.0
"""Seconds for which workers are told not to start a job that waits."""
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
_HELD = 3.0
"""Seconds after which a held job has been started or given back."""

R = TypeVar("R")
T = TypeVar("T")


@overload
def job_status(id: JobId[R], connection: str | None = None) -> JobStatus[R] | None: ...


@overload
def job_status(id: str, connection: str | None = None) -> JobStatus[Any] | None: ...


def job_status(id: str, connection: str | None = None) -> JobStatus[Any] | None:  # noqa: A002 (as `send()` calls it)
    """Return the status of a tracked job; None if there is none (any more).

    Its `result` is as `handle` returns it for the id that `send()` returned, and as JSON has it for
    the same text as a `str`.

    Asks the named connection, or the default one and all configured ones. Raises
    `BackendUnavailable` if one does not answer and no other has the status, and `SynchronousOnly`
    on a running event loop: await `ajob_status` there.
    """
    refuse_on_loop("job_status()", "ajob_status()")
    return run(_status(id, connection))


@overload
async def ajob_status(id: JobId[R], connection: str | None = None) -> JobStatus[R] | None: ...


@overload
async def ajob_status(id: str, connection: str | None = None) -> JobStatus[Any] | None: ...


async def ajob_status(id: str, connection: str | None = None) -> JobStatus[Any] | None:  # noqa: A002
    """As `job_status`, without blocking the event loop."""
    return await awaited(_status(id, connection))


@overload
def wait_for(id: JobId[R], timeout: float, connection: str | None = None) -> JobStatus[R]: ...


@overload
def wait_for(id: str, timeout: float, connection: str | None = None) -> JobStatus[Any]: ...


def wait_for(id: str, timeout: float, connection: str | None = None) -> JobStatus[Any]:  # noqa: A002
    """Wait until a tracked job has reached its final state, and return its status.

    Its `result` is that of `job_status`. It polls every few milliseconds at first, then four times
    a second. Raises `WaitTimedOut`, with the last `status`, after `timeout` seconds (at most 100
    years); `NotTracked` if there is no status; `ValueError` or `TypeError` for a wrong `timeout`;
    and `SynchronousOnly` on a running event loop: await `await_for` there.
    """
    refuse_on_loop("wait_for()", "await_for()")
    return run(_waiting(id, timeout, connection))


@overload
async def await_for(
    id: JobId[R],
    timeout: float,  # noqa: ASYNC109 (as `wait_for`)
    connection: str | None = None,
) -> JobStatus[R]: ...


@overload
async def await_for(
    id: str,
    timeout: float,  # noqa: ASYNC109 (as `wait_for`)
    connection: str | None = None,
) -> JobStatus[Any]: ...


async def await_for(id: str, timeout: float, connection: str | None = None) -> JobStatus[Any]:  # noqa: A002, ASYNC109 (as `wait_for`)
    """As `wait_for`, without blocking the event loop.

    The requests of many waiting coroutines are combined.
    """
    return await awaited(_waiting(id, timeout, connection))


def cancel(id: str, *, running: bool = False, connection: str | None = None) -> Cancelling:  # noqa: A002
    """Cancel a job. Returns what became of it.

    `Cancelling.REMOVED`: the job was waiting and will not run. `RUNNING`: it is running; with
    `running` set, its worker will interrupt it within about a second and end it as cancelled.
    `NOTED`: it may wait in a backend that cannot be searched (beanstalkd, brokers); a worker that
    gets it will not start it. `ABSENT`: there is no such job.
    Raises `SynchronousOnly` on a running event loop: await `acancel` there.
    """
    refuse_on_loop("cancel()", "acancel()")
    return run(_cancelling(id, connection, running=running))


async def acancel(id: str, *, running: bool = False, connection: str | None = None) -> Cancelling:  # noqa: A002
    """As `cancel`, without blocking the event loop."""
    return await awaited(_cancelling(id, connection, running=running), is_long=True)


def _status(uuid: str, connection: str | None) -> Call[JobStatus[Any] | None]:
    def ask(queue: Connection) -> Call[JobStatus | None]:
        key = status.key_of(uuid)
        if key is None:
            return None
        (text,) = yield Read(queue.backend, (key,))
        return status.read_as(uuid, text)

    found = yield from _first(connection, ask)
    if found is None or found.result is None or not isinstance(uuid, JobId):
        return found
    job_class = getattr(uuid, "job_class", None)
    return replace(found, result=returned.of_class(job_class, found.result))


def _waiting(uuid: str, timeout: float, connection: str | None) -> Call[JobStatus[Any]]:
    timeout = seconds_until(timeout, "timeout")
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        found = yield from _status(uuid, connection)
        if found is None:
            raise NotTracked(f"there is no status of a job {uuid!r}: not tracked, or expired")
        if found.is_final:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimedOut(f"the job {uuid} is {found.state} after {timeout:g} s", found)
        yield CallPause(min(pause, left))
        pause = min(_LONGEST_PAUSE, pause * 1.5)


def _cancelling(uuid: str, connection: str | None, *, running: bool) -> Call[Cancelling]:
    outcome = yield from _first(
        connection, lambda queue: _cancelling_on(queue, uuid, running=running)
    )
    if outcome is not None:
        return outcome
    queues = connections(manager.default(), connection)
    noted = [note_unseen(queue, uuid, running=running) for queue in queues]
    return Cancelling.NOTED if any(noted) else Cancelling.ABSENT


# -- on all connections ---------------------------------------------------------------------------


def connections(queues: QueueManager, only: str | None = None) -> Iterator[Connection]:
    """Iterate over the connections that hold jobs: the default and configured ones, or `only`."""
    names = dict.fromkeys([queues.settings.default, *queues.settings.connections])
    for name in [only] if only else names:
        queue = queues.connection(name)
        if Capability.RESERVE in queue.capabilities:
            yield queue


def _first(only: str | None, ask: Callable[[Connection], Call[T | None]]) -> Call[T | None]:
    trouble: BackendUnavailable | None = None
    for queue in connections(manager.default(), only):
        try:
            answer = yield from ask(queue)
        except BackendUnavailable as error:
            trouble = trouble or error
            continue
        if answer is not None:
            return answer
    if trouble is not None:
        raise trouble
    return None


def cancel_on(queue: Connection, uuid: str, *, running: bool) -> Cancelling | None:
    """Cancel a job on one connection; None if it has no such job."""
    return run(_cancelling_on(queue, uuid, running=running))


def _cancelling_on(queue: Connection, uuid: str, *, running: bool) -> Call[Cancelling | None]:
    known = status.read(queue.backend, uuid)
    if Capability.SEARCH not in queue.capabilities:
        return _without_search(queue, uuid, known, running=running)
    deadline = time.monotonic() + _HELD
    pause = _FIRST_PAUSE
    looked = 0
    while True:
        outcome = queue.cancel(uuid, known.queue if known is not None else None)
        if outcome is Cancelling.RUNNING and running:
            interrupt(queue, uuid)
        # A job that moved during the first search is found by the second.
        looked += outcome is Cancelling.ABSENT
        if outcome is Cancelling.ABSENT and (looked > 1 or (known and known.is_final)):
            return None
        if outcome in {Cancelling.REMOVED, Cancelling.RUNNING}:
            return outcome
        if time.monotonic() > deadline:
            return Cancelling.RUNNING
        yield CallPause(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)


def _without_search(
    queue: Connection, uuid: str, known: JobStatus | None, *, running: bool
) -> Cancelling | None:
    """Cancel a job where the backend cannot search: its status is known, and who is in line."""
    lined, _ = queue.look_in_line(uuid, None if known is None else known.queue)
    with suppress(Unsupported):  # it has more than its line: its worker drops it in its turn
        if lined is not None and queue.remove_in_line(lined):
            return Cancelling.REMOVED
    if known is None or known.is_final or known.connection != queue.name:
        return None
    if known.state is not State.RUNNING:
        _note(queue, known.uuid)
        return Cancelling.NOTED
    if running:
        interrupt(queue, known.uuid)
    return Cancelling.RUNNING


def note_unseen(queue: Connection, uuid: str, *, running: bool) -> bool:
    """Let the workers of a backend that cannot search drop a job that nobody tracks.

    Returns whether it may be there. Call this once it was found on no connection.
    """
    can = queue.capabilities
    if Capability.RESERVE not in can or Capability.SEARCH in can or not status.may_be_noted(uuid):
        return False
    if status.read(queue.backend, uuid) is not None:
        return False
    _note(queue, uuid)
    if running:
        interrupt(queue, uuid)
    return True


def _note(queue: Connection, uuid: str) -> None:
    note = Set(status.cancelled_key(queue.name, uuid), "1", _NOTED_FOR)
    last = Set(status.last_cancelled_key(queue.name), uuids.uuid4().hex, _NOTED_FOR)
    queue.backend.apply(Step(None, note, last))


def interrupt(queue: Connection, uuid: str) -> None:
    """Request the job's worker to end it."""
    queue.store.set(status.cancel_key(uuid), "1", CANCEL_TTL)
