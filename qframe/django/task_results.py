"""TaskRecords: the result of each task, a fact written whole in the steps that move its job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from qframe import exceptions
from qframe.contracts.backend import Backend
from qframe.contracts.status import State
from qframe.contracts.step import Operation, Raise
from qframe.drivers import process
from qframe.features.base import End, Plan, Pushing
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.features.status import life_of, rank_of
from qframe.forks import cached_property
from qframe.payload import envelope, tracebacks

KEY = "djangoTask"
"""The payload's key of what the record has and the job does not."""
_LONGEST_TTL = 10**9
_MOST = 20
"""So many errors and workers are kept: the first, and the last ones."""
_STATUS = {
    State.RUNNING: "RUNNING",
    State.COMPLETE: "SUCCESSFUL",
    State.FAILED: "FAILED",
    State.SKIPPED: "FAILED",
    State.CANCELLED: "FAILED",
}
"""Django's status of each state; all others are READY."""
_ENDED_BY = {State.SKIPPED: "DontHandle", State.CANCELLED: "JobCancelled"}

Record = dict[str, Any]


def key_of(uuid: str) -> str:
    """Returns the key of a task's record."""
    return f"django-task:{uuid}"


def find(backend: Backend, uuid: str) -> Record | None:
    """Returns the record of a task; None if there is none (any more)."""
    (text,) = backend.read(key_of(uuid)) if 0 < len(uuid) <= 200 else (None,)  # noqa: PLR2004 (as long as a key)
    return None if text is None else json.loads(text)


class _TaskAttempt:
    """The record of one job, and the attempt that runs here."""

    def __init__(self, job: ReservedJob) -> None:
        self.job = job
        self.life = life_of(job.payload)
        self.began = time.time()
        self.unwritten = False

    @cached_property
    def record(self) -> Record:
        """The record so far; the first attempt of the first life has nothing before it."""
        job, before = self.job, None
        if job.attempts() > job.reservation.started or self.life:
            before = find(job.context.backend, job.uuid)
        return before or _first(job.payload, job.queue)

    def started(self, job: ReservedJob, *, ran: bool = True) -> None:
        """Adds the past attempts, and this one if it ran; the backend knows them.

        So the record includes attempts whose worker was killed, and could not write it.
        """
        record, own = self.record, job.reservation.started
        attempts = job.history.attempts if ran or not own else job.history.attempts[:-1]
        if not (ran or attempts):
            return
        where = [f"{each.host}:{each.pid}" for each in attempts]
        first, last = (
            (attempts[0].started_at, attempts[-1].started_at) if attempts else [self.began] * 2
        )
        record["started_at"] = record["started_at"] or first
        record["last_attempted_at"] = last
        earlier = record.get("workers_before", [])
        here = f"{process.NAME}:{process.pid()}"
        record["workers"] = _bounded([*earlier, *(where or [*record["workers"], here])])

    def write(self, job: ReservedJob, state: State, delay: float = 0.0) -> Raise:
        """Returns the operation that writes it."""
        self.record["status"] = _STATUS.get(state, "READY")
        rank = rank_of(self.life, state, job.attempts())
        text = json.dumps(self.record, separators=(",", ":"))
        return Raise(key_of(job.uuid), rank, text, _ttl(job.payload) + delay)


class TaskFeature(Feature):
    """Writes the record of a task in the steps that move its job.

    `removed` is called for each that was cancelled while it waited, in the process that did it: no
    worker will.
    """

    key: ClassVar[str] = KEY
    waits: ClassVar[bool] = True
    asks: ClassVar[bool] = True
    keeps_result: ClassVar[bool] = True

    def __init__(self, removed: Callable[[str, Record], None]) -> None:
        self._removed = removed

    def push(self, context: Context, job: Pushing, plan: Plan) -> None:
        """Writes that it is ready."""
        life, record = life_of(job.message), _first(job.message, job.queue)
        if life and (before := find(context.backend, job.uuid)) is not None:
            workers = before["workers"]
            record = {**before, "status": "READY", "finished_at": None, "workers_before": workers}
        text = json.dumps(record, separators=(",", ":"))
        rank = rank_of(life, State.WAITING, 0)
        plan.add(Raise(key_of(job.uuid), rank, text, _ttl(job.message) + job.delay))

    def start(self, job: ReservedJob, plan: Plan) -> None:  # noqa: ARG002 (nothing is added)
        """Notes when it starts; `look` writes it, if it runs on."""
        _attempt(job).began = time.time()
        _attempt(job).unwritten = True

    def look(self, job: ReservedJob) -> Sequence[Operation]:
        """Writes that it runs."""
        attempt = _attempt(job)
        if not attempt.unwritten:
            return ()
        attempt.unwritten = False
        attempt.started(job)
        return (attempt.write(job, State.RUNNING),)

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        """Writes how the reservation ended."""
        if end.state is State.WAITING:
            return
        attempt = _attempt(job)
        attempt.started(job, ran=job.reservation.started and end.ran)
        record = attempt.record
        fault = _fault(end)
        if fault is not None:
            record["errors"] = _bounded([*record["errors"], fault])
        if end.state.is_final:
            record["finished_at"] = time.time()
        if end.state is State.COMPLETE:
            record["result"] = _plain(end.result)
        plan.add(attempt.write(job, end.state, end.delay))
        if end.state is State.CANCELLED and not job.reservation.started:
            plan.then(lambda: self._removed(job.uuid, record))


def ended(job: Any) -> Record | None:  # noqa: ANN401 (a reserved job)
    """Returns the record, as written, of a job that was ended in this process; else None.

    It asks no backend.
    """
    attempt: _TaskAttempt | None = job.read_once(KEY, lambda: None)
    return None if attempt is None else attempt.record


def _attempt(job: ReservedJob) -> _TaskAttempt:
    return job.read_once(KEY, lambda: _TaskAttempt(job))


def _first(message: Mapping[str, Any], queue: str) -> Record:
    given, data = message.get(KEY), message.get("data")
    given = given if isinstance(given, dict) else {}
    data = data if isinstance(data, dict) else {}
    return {
        "task": given.get("task", ""),
        "backend": given.get("backend", "default"),
        "queue": queue,
        "priority": given.get("priority", 0),
        "run_after": given.get("run_after"),
        "args": data.get("args", []),
        "kwargs": data.get("kwargs", {}),
        "status": "READY",
        "enqueued_at": given.get("at") or time.time(),
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "workers": [],
    }


def _ttl(message: Mapping[str, Any]) -> float:
    given = message.get(KEY)
    ttl = envelope.number(given, "ttl") if isinstance(given, dict) else None
    return ttl if ttl and 0 < ttl < _LONGEST_TTL else 86_400.0


def _bounded(kept: list[Any]) -> list[Any]:
    return kept if len(kept) <= _MOST else [*kept[:1], *kept[1 - _MOST :]]


def _plain(result: object) -> Any:  # noqa: ANN401 (JSON)
    """Returns a result as JSON has it; from an isolated job's process it came as text."""
    text = getattr(result, "text", None)
    return json.loads(text) if isinstance(text, str) and text else result


def _fault(end: End) -> tuple[str, str] | None:
    """Returns the path of what ended the attempt, and its traceback."""
    error = end.error
    if isinstance(error, BaseException):
        return path_of(error), tracebacks.full(error)
    if isinstance(error, str):
        name = error.partition(":")[0]
        home = "qframe.exceptions" if hasattr(exceptions, name) else "builtins"
        return f"{home}.{name if home == 'qframe.exceptions' else 'Exception'}", error
    name = _ENDED_BY.get(end.state, "")
    return (f"qframe.exceptions.{name}", end.remark) if name else None


def path_of(error: BaseException) -> str:
    """Returns the path of an error's class; for an error of another process, as it was there."""
    kind: type = type(error)
    module = getattr(error, "module_elsewhere", kind.__module__)
    return f"{module}.{kind.__qualname__}"


def current(job: Any) -> Record:  # noqa: ANN401 (a job that runs here, or in its own process)
    """Returns the record of a task whose attempt begins, as it will be written."""
    record = dict(_first(job.payload, job.queue))
    ran = [f"{each.host}:{each.pid}" for each in job.history.attempts]
    if job.attempts() > 1 or life_of(job.payload):
        record |= find(job.context.backend, job.uuid) or {}
    record["status"] = "RUNNING"
    record["last_attempted_at"] = time.time()
    record["started_at"] = record["started_at"] or record["last_attempted_at"]
    record["workers"] = ran or [*record["workers"], f"{process.NAME}:{process.pid()}"]
    return record
