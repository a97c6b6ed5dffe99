"""The job of a task: its class, and one call of it as a job to dispatch."""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Self, cast

from qframe.celery import signals, states
from qframe.celery.apps import tasks
from qframe.celery.calls import ExceptionInfo, TaskCall, backoff_of, is_retried
from qframe.celery.exceptions import Reject, Retry, SoftTimeLimitExceeded
from qframe.celery.result import parsed
from qframe.celery.running import TaskRequest
from qframe.celery.values import plain, restored
from qframe.dispatch.batch import Caught
from qframe.dispatch.pending import dispatch
from qframe.dispatch.queueable import Queueable
from qframe.drivers import process
from qframe.exceptions import DontHandle, RetryLater
from qframe.jobs import execution
from qframe.jobs.definition import made
from qframe.jobs.hooks import GENERATORS, refuse_generator, refuse_unrun
from qframe.jobs.options import check_given
from qframe.payload import envelope
from qframe.payload.envelope import OWN_TIMEOUT
from qframe.schedules.calendar import zone_of

KEY: Final = "celery"
"""Payload key: what a job is besides a call of its task; `errback` calls it after a failure."""
ERRBACK: Final = "errback"


class CeleryJob(Queueable):
    """One call of a task. Each task has a class of its own, with its `handle`."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}

    def _requested(self) -> Self:
        """Return the call as `delay` makes it, with the options of task and app."""
        task = tasks.get(self.own_name())
        if task is None:
            return self
        return cast("Self", job_of(task.app, task.name, self.args, self.kwargs, {}))

    def succeeded(self) -> None:
        """Calls `on_success` and `after_return`, and sends the signal."""
        call = self.__dict__.get("_call")
        if isinstance(call, TaskCall) and call.state == states.SUCCESS:
            call.tell()

    def failed(self, error: BaseException) -> None:
        """Calls `on_failure` and `after_return`, and sends the signal."""
        call = self.__dict__.get("_call")
        if not isinstance(call, TaskCall) or call.error is not error:
            call = TaskCall(tasks[self.job.name], request_of(self))
            call.state, call.error = states.FAILURE, error
            call.info = ExceptionInfo(error, str(error))
        call.tell()


def class_of(task: Any) -> type[CeleryJob]:
    """Make the class of the jobs that run a task. Raises `JobDefinitionError`."""
    refuse_generator(task.name, task.run)

    def handle(self: CeleryJob) -> Any:
        call = _began(self, task)
        with call:
            call.value = call.run()
            if inspect.isawaitable(call.value):  # of a decorator that hides an `async def`
                call.value = execution.finish(call.value)
            _check_ran(task, call)
        return _ended(self, call)

    async def handle_on_loop(self: CeleryJob) -> Any:
        call = _began(self, task)
        with call:
            call.value = await call.run()
            _check_ran(task, call)
        return _ended(self, call)

    def backoff(self: CeleryJob) -> float:  # for what ends it from outside: timeouts, dead children
        retries = max(0, self.attempts - 1)
        return backoff_of(task, retries) if task.retry_backoff else task.default_retry_delay

    module, _, name = task.name.rpartition(".")
    limit = task.soft_time_limit or task.time_limit
    body: dict[str, Any] = {
        "handle": handle_on_loop if inspect.iscoroutinefunction(task.run) else handle,
        "backoff": backoff,
        "tries": 0 if task.max_retries is None else max(0, task.max_retries) + 1,
        "fail_on_timeout": not is_retried(task, SoftTimeLimitExceeded()),
        "__module__": task.__module__,
        "__qualname__": name,
        "__doc__": task.__doc__,
    }
    if limit:
        body["timeout"] = limit
    if module != task.__module__ or not name.isidentifier():
        body["job_name"] = task.name
        body["__qualname__"] = type(task).__name__
    job_class: type[CeleryJob] = types.new_class(
        body["__qualname__"], (CeleryJob,), {}, lambda ns: ns.update(body)
    )
    if task.__module__ == "__main__" and module != "__main__":
        job_class.fixed_name = task.name
    return job_class


def _check_ran(task: Any, call: TaskCall) -> None:
    """Raise `JobDefinitionError` if a decorator hides that the task is a generator."""
    if isinstance(call.value, GENERATORS):
        refuse_unrun(task.name, task.run, call.value)


@lru_cache(1024)
def _class_elsewhere(name: str) -> type[CeleryJob]:
    """Make the class for a task that only other programs have."""
    body = {"job_name": name}
    job_class: type[CeleryJob] = types.new_class(
        "CeleryJob", (CeleryJob,), {}, lambda ns: ns.update(body)
    )
    job_class.fixed_name = name
    return job_class


# -- in a worker ----------------------------------------------------------------------------------


def _began(job: CeleryJob, task: Any) -> TaskCall:
    signals.process_begins()
    request = request_of(job)
    request.instance = task
    call = TaskCall(task, request)
    object.__setattr__(job, "_call", call)
    return call


def request_of(job: CeleryJob) -> TaskRequest:
    """Return what the task of a reserved job knows of its call."""
    reserved = job.job
    task = tasks.get(reserved.name)
    args = restored(job.args)
    if job.caught is not None and _is_errback(reserved.payload.get(KEY)):
        args = _after_failure(task, job.caught, args)
    return TaskRequest(
        id=reserved.uuid,
        task=reserved.name,
        args=args,
        kwargs=restored(job.kwargs),
        retries=max(0, reserved.attempts() - 1),
        called_directly=False,
        hostname=process.NAME,
        queue=reserved.queue,
        delivery_info={
            "routing_key": reserved.queue,
            "exchange": "",
            "priority": reserved.payload.get("priority"),
            "redelivered": reserved.attempts() > 1,
        },
        expires=envelope.number(reserved.payload, "expiresAt"),
        timelimit=_limits_of(task, reserved.payload),
        instance=task,
    )


def _limits_of(task: Any, message: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the hard and the soft time limit of a call; of one that has its own, that alone."""
    if OWN_TIMEOUT in message:
        return None, envelope.number(message, "timeout")
    return (None, None) if task is None else (task.time_limit, task.soft_time_limit)


def _is_errback(besides: object) -> bool:
    return isinstance(besides, dict) and besides.get(ERRBACK) is True


def _after_failure(task: Any, caught: Caught, args: list[Any]) -> list[Any]:
    """Return the arguments of an errback: request, exception and traceback, or the id alone."""
    failed = TaskRequest(id=caught.id, task=caught.name, called_directly=False)
    of = tasks.get(caught.name)
    error = parsed(caught.error, "" if of is None else of.__module__)
    whole = [failed, error, None, *args]
    if task is not None:
        try:
            inspect.signature(task.run).bind(*whole)
        except TypeError:
            return [caught.id, *args]
    return whole


def _ended(job: CeleryJob, call: TaskCall) -> Any:
    """Bring about what becomes of the call."""
    call.over()
    error = call.error
    match error:
        case None:
            return call.value
        case Retry():
            call.tell()
            return _retried(job, call, error)
        case Reject() if error.requeue:
            job.release()
            return None
    if call.state == states.IGNORED:
        raise DontHandle(f"{states.IGNORED_REMARK}{error}")
    job.fail(error)  # whatever tries are left: Celery retries only what it is told to
    raise error


def _retried(job: CeleryJob, call: TaskCall, error: Retry) -> None:
    seconds = _seconds(error.when)
    most = call.task.max_retries
    if most is not None and call.request.retries >= most:  # this call of `retry` allowed more
        job.release(seconds)
        return
    raise RetryLater(seconds, str(error)) from error.exc


def _seconds(when: float | datetime | None) -> float:
    if isinstance(when, datetime):
        return max(0.0, (_aware(when) - datetime.now(UTC)).total_seconds())
    seconds = float(when or 0)
    return 0.0 if seconds < 0 else seconds  # NaN is refused later


def _aware(when: datetime, zone: str | None = None) -> datetime:
    """Return a moment with its zone; one without is in that of the app."""
    return when if when.tzinfo is not None else when.replace(tzinfo=zone_of(zone or "UTC"))


# -- to dispatch ----------------------------------------------------------------------------------


def job_of(
    app: Any,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    errback: bool = False,
) -> CeleryJob:
    """Return one call of a task as a job, with the options of task, app and call.

    Raises `InvalidJob` for arguments that JSON cannot carry.
    """
    task, conf = tasks.get(name), app.conf
    job_class = _class_elsewhere(name) if task is None else task.job_class
    own = {} if task is None else task.declared()
    routed = {} if options.get("queue") else conf.route(name, args, kwargs, options)
    told = {
        "queue": conf.task_default_queue,
        "priority": conf.task_default_priority,
        "ignore_result": conf.task_ignore_result,
        **own,
        **routed,
        **{key: value for key, value in options.items() if value is not None},
    }
    job: CeleryJob = made(job_class, args=plain(list(args or ())), kwargs=plain(dict(kwargs or {})))
    put(job, "connection", app.connection_name)
    put(job, "queue", told["queue"])
    put(job, "priority", told["priority"])
    put(job, "expires", _expiry(told.get("expires"), conf.timezone))
    if (delay := _delay(told, conf.timezone)) is not None:
        put(job, "delay", delay)
    if not told["ignore_result"]:
        put(job, "track", _kept(conf.result_expires))
    own_limit = told.get("soft_time_limit") or told.get("time_limit")
    if own_limit:
        put(job, "timeout", own_limit)
    elif job_class.timeout is None:
        limit = conf.task_soft_time_limit or conf.task_time_limit or 0
        put(job, "timeout", limit)
    put(job, "display_name", told.get("shadow"))
    besides: dict[str, Any] = {}
    if told.get("task_id"):
        besides["uuid"] = str(told["task_id"])
    if errback:
        besides[KEY] = {ERRBACK: True}
    if own_limit:
        besides[OWN_TIMEOUT] = True
    if besides:
        put(job, "besides", besides)
    return job


def put(job: CeleryJob, option: str, value: object) -> None:
    """Set an option of this job; None leaves that of its class. Raises `InvalidJob`."""
    if value is None:
        return
    if option != "besides":
        check_given(type(job).__name__, option, value)
    object.__setattr__(job, option, value)


def _kept(seconds: float | timedelta | None) -> float | timedelta | bool:
    """Return `result_expires` as `track`: None and 0 are for ever there, and a year here."""
    return seconds or timedelta(days=365)


def _delay(told: Mapping[str, Any], zone: str | None) -> Any:
    countdown = told.get("countdown")
    if countdown is not None:
        return 0 if isinstance(countdown, int | float) and countdown < 0 else countdown
    eta = told.get("eta")
    return _aware(eta, zone) if isinstance(eta, datetime) else eta


def _expiry(given: Any, zone: str | None) -> Any:
    if isinstance(given, datetime):
        return _aware(given, zone)
    if isinstance(given, int | float) and given <= 0:
        return datetime.fromtimestamp(time.time(), UTC)  # it has expired already
    return given


def post(job: CeleryJob, name: str) -> str:
    """Dispatch a job. Returns its id. Raises what goes wrong."""
    about: dict[str, Any] = {
        "exchange": "",
        "routing_key": job.queue,
        "retry_policy": None,
        "declare": [],
    }
    body: tuple[Any, ...] = (job.args, job.kwargs, {})
    pending = dispatch(job)
    headers = {"task": name, "id": pending._draft.envelope.uuid}  # noqa: SLF001 (it is ours to tell)
    signals.before_task_publish.send(
        sender=name, body=body, headers=headers, properties={}, **about
    )
    identity = pending.send()
    signals.after_task_publish.send(sender=name, body=body, headers=headers, **about)
    return identity
