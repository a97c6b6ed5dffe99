"""The job that runs a task: a class for each task function, under the function's own name."""

from __future__ import annotations

import inspect
import json
import logging
import time
import types
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings
from django.utils.timezone import get_default_timezone, make_naive

from qframe import events, exceptions
from qframe.dispatch.queueable import Queueable
from qframe.django import task_results
from qframe.django.compat import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from qframe.exceptions import ResultTooLarge
from qframe.features.status import MAX_RESULT
from qframe.hooks import of_process
from qframe.jobs.definition import JobDefinition

log = logging.getLogger("qframe")

_classes: WeakKeyDictionary[Any, type[TaskJob]] = WeakKeyDictionary()


def join() -> None:
    """Makes workers know tasks, and keep their results; idempotent."""
    of_process.adapters = [job_class_in]
    of_process.features = [task_results.TaskFeature(_fire_finished)]
    events.forget(_ended_otherwise)
    for kind in (events.JobSkipped, events.AttemptCancelled):
        events.listen(kind)(_ended_otherwise)


def _ended_otherwise(event: events.JobEvent) -> None:
    """Sends the signal for a task that a worker ended without success or failure."""
    record = task_results.ended(event.job)
    if record is not None:
        _fire_finished(event.job.uuid, record)


def _fire_finished(uuid: str, record: Mapping[str, Any]) -> None:
    """Sends the signal for such a task; logs what receivers raise, for it has ended."""
    path, text = record["errors"][-1]
    try:
        error: type[BaseException] = getattr(exceptions, path.rpartition(".")[2])
        _send_finished(result_of(uuid, record), error(text))
    except Exception:
        log.exception("task_finished of %s (%s)", record["task"], uuid)


def _send_finished(result: TaskResult, error: BaseException) -> None:
    """Sends the signal as Django does: receivers see the error by `sys.exc_info()`."""
    try:
        raise error
    except BaseException:  # noqa: BLE001 (whatever ended it)
        task_finished.send(sender=type(result.task.get_backend()), task_result=result)


class TaskJob(Queueable):
    """One call of a task. Each function has a class of its own, with its `handle`."""

    args: list[Any]
    kwargs: dict[str, Any]

    def failed(self, error: BaseException) -> None:
        """Sends the signal of the final failure."""
        found = task_results.find(_backend_of(self), self.job.uuid)
        if found is None:
            return
        _send_finished(result_of(self.job.uuid, found), error)

    def succeeded(self) -> None:
        """Sends the signal of the success."""
        result: TaskResult = self.__dict__["_result"]
        set_(result, status=TaskResultStatus.SUCCESSFUL, finished_at=moment(time.time()))
        task_finished.send(sender=type(result.task.get_backend()), task_result=result)


def job_class_in(value: object) -> type[JobDefinition] | None:
    """Returns the job class of a task; None for anything else."""
    return job_class_of(value) if isinstance(value, Task) else None


def job_class_of(task: Task) -> type[TaskJob]:
    """Returns the class of the jobs that run a task's function, with the options it declares."""
    found = _classes.get(task.func)
    if found is None:
        found = _classes[task.func] = _made(task)
    return found


def _made(task: Task) -> type[TaskJob]:
    function = task.func

    def handle(self: TaskJob) -> Any:  # noqa: ANN401 (what the task returns)
        return _returned(self, function(*_begun(self, task), **self.kwargs))

    async def handle_on_loop(self: TaskJob) -> Any:  # noqa: ANN401 (what the task returns)
        return _returned(self, await function(*_begun(self, task), **self.kwargs))

    body = {
        **getattr(task, "declared", dict)(),
        "handle": handle_on_loop if inspect.iscoroutinefunction(function) else handle,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
    }
    return types.new_class(function.__name__, (TaskJob,), {}, lambda space: space.update(body))


def _begun(job: TaskJob, task: Task) -> list[Any]:
    """Sends the signal of a new attempt; returns the arguments of the function."""
    reserved = job.job
    record = task_results.current(reserved)
    result = result_of(reserved.uuid, record, task)
    object.__setattr__(job, "_result", result)
    task_started.send(sender=type(result.task.get_backend()), task_result=result)
    return [TaskContext(task_result=result), *job.args] if task.takes_context else job.args


def _returned(job: TaskJob, value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Returns the result of the task as JSON has it.

    A result that cannot be kept fails the task, however many tries are left: another attempt would
    do its work once more, and return the same.
    """
    try:
        plain = _kept(value)
    except (TypeError, ValueError) as error:
        job.fail(error)
        raise
    set_(job.__dict__["_result"], _return_value=plain)
    return plain


def _kept(value: Any) -> Any:  # noqa: ANN401 (JSON)
    plain = normalize_json(value)
    size = len(json.dumps(plain))
    if size > MAX_RESULT:
        raise ResultTooLarge(
            f"the task returned {size:,} bytes of JSON, and {MAX_RESULT:,} are kept: "
            "store it (a model, a file) and return its key"
        )
    return plain


def _backend_of(job: TaskJob) -> Any:  # noqa: ANN401 (a `Backend`)
    return job.job.context.backend  # type: ignore[attr-defined] # a reserved job's


# -- records as Django's results ------------------------------------------------------------------


def result_of(uuid: str, record: Mapping[str, Any], task: Task | None = None) -> TaskResult:
    """Returns a record as Django has it. Raises `TaskResultDoesNotExist` if its task is gone."""
    known = task_at(record["task"]) if task is None else task
    made = TaskResult(
        task=known.using(
            priority=record["priority"],
            queue_name=record["queue"],
            run_after=moment(record["run_after"]),
            backend=record["backend"],
        ),
        id=uuid,
        status=TaskResultStatus(record["status"]),
        enqueued_at=moment(record["enqueued_at"]),
        started_at=moment(record["started_at"]),
        last_attempted_at=moment(record["last_attempted_at"]),
        finished_at=moment(record["finished_at"]),
        args=record["args"],
        kwargs=record["kwargs"],
        backend=record["backend"],
        errors=[
            TaskError(exception_class_path=path, traceback=text) for path, text in record["errors"]
        ],
        worker_ids=list(record["workers"]),
    )
    set_(made, _return_value=record.get("result"))
    return made


def task_at(path: str) -> Task:
    """Returns a task by the path of its function."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise TaskResultDoesNotExist(f"its task {path!r} is not there any more") from None
    if isinstance(found, Task):
        return found
    return task_backends["default"].task_class(
        func=found, priority=0, queue_name="default", backend="default", run_after=None
    )


def moment(epoch: float | None) -> datetime | None:
    """Returns a time in the project's form."""
    if epoch is None:
        return None
    found = datetime.fromtimestamp(epoch, UTC)
    return found if settings.USE_TZ else make_naive(found, get_default_timezone())


def set_(result: TaskResult, **values: object) -> None:
    """Changes a result, which is frozen."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
