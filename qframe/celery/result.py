"""The results of tasks, read from the statuses of their jobs."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from qframe import manager
from qframe.celery import custom, missing, running, states
from qframe.celery.apps import apps, tasks
from qframe.celery.calls import TaskCall
from qframe.celery.exceptions import (
    CeleryError,
    ChordError,
    TaskRevokedError,
    TimeoutError,  # noqa: A004 (Celery's name)
)
from qframe.celery.running import TaskRequest
from qframe.contracts.status import JobStatus, State
from qframe.dispatch.flow import find_flow
from qframe.dispatch.status import cancel, job_status
from qframe.exceptions import NotTracked
from qframe.features.status import key_of
from qframe.payload.timing import seconds_until

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.25


def _deadline(timeout: float | None) -> float | None:
    """Return when a wait ends, by the monotonic clock; None: never. Raises as `seconds_until`."""
    return None if timeout is None else time.monotonic() + seconds_until(timeout, "timeout")


class Applied:
    """A canvas that was dispatched: the id of its flow, once it has one."""

    id: str = ""


class AsyncResult:
    """The result of a task: its state, what it returned or raised.

    The status of its job has it, for `app.conf.result_expires` seconds after its end.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 (Celery's name)
        app: Any = None,
        *,
        parent: AsyncResult | GroupResult | None = None,
        before: Sequence[AsyncResult] = (),
        applied: Applied | None = None,
    ) -> None:
        if not id:
            raise ValueError(f"AsyncResult requires valid id, not {type(id).__name__}")
        self.id = id
        self.app = app or apps.current()
        self.parent = parent
        """The result before this one in a chain."""
        self._before = before
        self._applied = applied
        self._last: JobStatus | None = None

    @property
    def task_id(self) -> str:
        """The id."""
        return self.id

    # -- how it stands ----------------------------------------------------------------------------

    def _status(self) -> JobStatus | None:
        if self._last is None or not self._last.is_final:
            self._last = job_status(self.id, self.app.connection_name)
        return self._last

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED or IGNORED.

        Or what the task itself has said with `update_state`. PENDING also if its status is not kept
        (any more), or was never.
        """
        status = self._status()
        custom_state = self._custom(status)
        return states.state_of(status) if custom_state is None else custom_state.state

    def _custom(self, status: JobStatus | None) -> custom.CustomState | None:
        """Return the state that the task gave itself in the attempt that runs, or ignored."""
        word = states.state_of(status)
        if word not in {states.PENDING, states.STARTED, states.IGNORED}:
            return None
        found = custom.read(self.app, self.id)
        if found is None or status is None or found.attempt is None:
            return found
        return found if found.attempt >= status.attempt else None

    @property
    def status(self) -> str:
        """The state."""
        return self.state

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Whether it has ended well."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether it has failed."""
        return self.state == states.FAILURE

    @property
    def result(self) -> Any:
        """What it returned, as JSON has it, the exception that it failed with, or its `meta`."""
        status = self._status()
        said = self._custom(status)
        if said is not None:
            return _exception_in(said) if said.state in states.EXCEPTION_STATES else said.meta
        if status is None:
            return None
        return status.result if status.state is State.COMPLETE else _error_of(status)

    @property
    def info(self) -> Any:
        """The result."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """The traceback of its failure; None if there is none."""
        if not self.failed():
            return None
        record = manager.default().failed_store(self.app.connection_name).find(self.id)
        return None if record is None else record.exception

    @property
    def name(self) -> str | None:
        """The task's name, from its status."""
        return None if (status := self._status()) is None else status.name

    @property
    def queue(self) -> str | None:
        """The queue, from its status."""
        return None if (status := self._status()) is None else status.queue

    @property
    def retries(self) -> int | None:
        """How often it was tried again."""
        return None if (status := self._status()) is None else max(0, status.attempt - 1)

    @property
    def date_done(self) -> datetime | None:
        """When it ended."""
        status = self._status()
        if status is None or not status.is_final or status.ended_at is None:
            return None
        return datetime.fromtimestamp(status.ended_at, UTC)

    # -- waiting ----------------------------------------------------------------------------------

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float | None = None,
        disable_sync_subtasks: bool = True,
    ) -> Any:
        """Wait for its end, at most `timeout` seconds, and return what it returned.

        If it failed, or a task before it in a canvas, the exception is raised; with `propagate`
        False it is returned. Raises `TimeoutError`; `TaskRevokedError`; `NotTracked` if its status
        is not kept; and `RuntimeError` within a task, where waiting may never end.
        """
        if disable_sync_subtasks and running.in_worker():
            raise RuntimeError(
                "Never call result.get() within a task! Use a chain or a chord, or get("
                "disable_sync_subtasks=False)"
            )
        deadline = _deadline(timeout)
        if interval is not None:
            interval = seconds_until(interval, "interval")
        pause = interval or _FIRST_PAUSE
        while True:
            status = self._status()
            if status is not None and status.is_final:
                return self._given(propagate=propagate)
            broken = self._broken(certain=status is not None, slow=pause >= _LONGEST_PAUSE)
            if broken is not None:
                if propagate:
                    raise broken
                return broken
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"The operation timed out: {self.id} is {self.state}")
            time.sleep(pause if left is None else min(pause, left))
            pause = interval or min(_LONGEST_PAUSE, pause * 1.5)

    wait = get

    def _given(self, *, propagate: bool) -> Any:
        if propagate:
            self.maybe_throw()
        return self.result

    def maybe_throw(self, propagate: bool = True) -> Any:
        """Return the result, or raise what the task has failed with."""
        if propagate and self.state in states.PROPAGATE_STATES:
            raise self.result
        return self.result

    maybe_reraise = maybe_throw

    def _broken(self, *, certain: bool, slow: bool) -> BaseException | None:
        """Return why it will not begin: a task before it has failed or was revoked."""
        if self._applied is None:
            if certain:
                return None
            raise NotTracked(f"there is no status of a task {self.id!r}: not kept, or expired")
        if not self._before or not (slow or not certain):
            return None
        flow = find_flow(self._applied.id, self.app.connection_name)
        if flow is None or flow.state not in {"failed", "cancelled"}:
            return None
        for each in self._before:
            error = each.result if each.state in states.PROPAGATE_STATES else None
            if error is not None and len(self._before) > 1:
                error = ChordError(f"Dependency {each.id} raised {error!r}")
            error = error or each._broken(certain=False, slow=True)  # noqa: SLF001 (of its own kind)
            if isinstance(error, BaseException):
                return error
        return None

    # -- acting -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Remove its status and result, and those of the tasks before it in its chain."""
        self._last = None
        key = key_of(self.id)
        if key is not None:
            manager.default().connection(self.app.connection_name).store.delete(key)
        custom.forget(self.app, self.id)
        if self.parent is not None:
            self.parent.forget()

    def revoke(self, terminate: bool = False, **given: Any) -> None:
        """Remove it from its queue; with `terminate`, also end it if it runs."""
        for name, value in given.items():
            if name not in {"connection", "signal", "wait", "timeout"} or value:
                raise missing.refused(f"{name} of revoke", "terminate=True")
        self._last = None
        cancel(self.id, running=terminate, connection=self.app.connection_name)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing.of_object("AsyncResult", name, missing.OF_RESULT)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AsyncResult):
            return other.id == self.id
        return other == self.id if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


class EagerResult(AsyncResult):
    """The result of `apply`, which has it already."""

    def __init__(self, id: str, call: TaskCall) -> None:  # noqa: A002 (Celery's name)
        super().__init__(id)
        self._call = call

    @property
    def request(self) -> TaskRequest:
        """What the task knew of its call."""
        return self._call.request

    @property
    def state(self) -> str:
        """SUCCESS, FAILURE, IGNORED or REJECTED."""
        return self._call.state

    @property
    def result(self) -> Any:
        """What it returned or raised."""
        return self._call.value if self._call.error is None else self._call.error

    @property
    def traceback(self) -> str | None:
        """The traceback of its failure."""
        return None if self._call.info is None else self._call.info.traceback

    def ready(self) -> bool:
        """Whether it has ended: always."""
        return True

    def get(
        self,
        timeout: float | None = None,  # noqa: ARG002 (as `AsyncResult.get`)
        propagate: bool = True,
        interval: float | None = None,  # noqa: ARG002
        disable_sync_subtasks: bool = True,  # noqa: ARG002
    ) -> Any:
        """Return what it returned, or raise what it raised."""
        return self._given(propagate=propagate)

    wait = get

    def forget(self) -> None:
        """Nothing is kept of it."""

    def revoke(self, terminate: bool = False, **given: Any) -> None:
        """It has ended already."""


class GroupResult:
    """The results of a group, in order."""

    def __init__(
        self,
        id: str,  # noqa: A002 (Celery's name)
        results: Sequence[Any],
        parent: AsyncResult | GroupResult | None = None,
    ) -> None:
        self.id = id
        self.results = list(results)
        self.parent = parent

    @property
    def children(self) -> list[Any]:
        """The results."""
        return self.results

    def get(self, timeout: float | None = None, propagate: bool = True, **given: Any) -> list[Any]:
        """Wait for all, at most `timeout` seconds, and return what they returned.

        The first exception is raised; with `propagate` False it stands in the list.
        """
        deadline = _deadline(timeout)
        found = []
        for each in self.results:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found.append(each.get(timeout=left, propagate=propagate, **given))
        return found

    join = get

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Whether all have ended well."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Whether one has failed."""
        return any(each.failed() for each in self.results)

    def waiting(self) -> bool:
        """Whether one has not ended."""
        return any(not each.ready() for each in self.results)

    def completed_count(self) -> int:
        """Return how many have ended well."""
        return sum(int(each.successful()) for each in self.results)

    def maybe_throw(self, propagate: bool = True) -> None:
        """Raise what one has failed with."""
        for each in self.results:
            each.maybe_throw(propagate=propagate)

    def forget(self) -> None:
        """Remove all their statuses and results."""
        for each in self.results:
            each.forget()

    def revoke(self, terminate: bool = False, **given: Any) -> None:
        """Revoke all."""
        for each in self.results:
            each.revoke(terminate=terminate, **given)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing.of_object("GroupResult", name, missing.OF_RESULT)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupResult):
            return NotImplemented
        return (other.id, other.results) == (self.id, self.results)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(map(str, self.results))}]>"


ResultSet = GroupResult


# -- exceptions -----------------------------------------------------------------------------------


def _error_of(status: JobStatus) -> BaseException | None:
    if status.state in {State.CANCELLED, State.SKIPPED}:
        return TaskRevokedError(status.remark or "revoked")
    if status.exception is None:
        return None
    task = tasks.get(status.name)
    return rebuilt(*status.exception, "" if task is None else task.__module__)


def _exception_in(said: custom.CustomState) -> BaseException:
    """Return the exception of a state such as FAILURE that a task gave itself."""
    meta = said.meta if isinstance(said.meta, dict) else {}
    message = meta.get("exc_message", said.meta)
    shown = ", ".join(map(str, message)) if isinstance(message, list | tuple) else str(message)
    return rebuilt(str(meta.get("exc_type", "Exception")), shown)


def rebuilt(kind: str, message: str, module: str = "") -> BaseException:
    """Return an exception by the name of its class, as the status of a job has it.

    The class is a built-in one, one of Celery's, one that the task's module knows, or, as in
    Celery, made for it: also for what ends a job from outside, which must not end its caller.
    """
    from qframe.celery import exceptions  # noqa: PLC0415 (its names are looked up)

    places = (builtins, exceptions, sys.modules.get(module))
    for place in places:
        found = getattr(place, kind, None)
        if isinstance(found, type) and issubclass(found, Exception):
            try:
                return found(message)
            except Exception:  # noqa: BLE001 (its class takes other arguments)
                break
    made: BaseException = type(kind, (CeleryError,), {"__module__": __name__})(message)
    return made


def parsed(text: str, module: str = "") -> BaseException:
    """Return an exception by its class and message in one line."""
    kind, _, message = text.partition(": ")
    return rebuilt(kind.rpartition(".")[2] or "Exception", message, module)
