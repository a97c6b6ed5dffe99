"""One call of a task: what becomes of it, its hooks and signals; in a worker and in `apply`."""

from __future__ import annotations

import random
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from qframe.celery import running, signals, states
from qframe.celery.exceptions import Ignore, Reject, Retry
from qframe.celery.running import TaskRequest


@dataclass(frozen=True)
class ExceptionInfo:
    """An exception with its traceback as a text."""

    exception: BaseException
    traceback: str

    @property
    def type(self) -> type[BaseException]:
        """Its class."""
        return type(self.exception)

    def __str__(self) -> str:
        return self.traceback


class TaskCall(AbstractContextManager["TaskCall"]):
    """The body of a `with` calls the task, and puts what it returned into `value`.

    Afterwards `state` and `error` tell how it ended. What ends a job from outside passes through.
    """

    def __init__(self, task: Any, request: TaskRequest) -> None:
        self.task = task
        self.request = request
        self.state: str = states.SUCCESS
        self.value: Any = None
        self.error: BaseException | None = None
        self.info: ExceptionInfo | None = None
        self._around = running.running(request)

    def __enter__(self) -> Self:
        self._around.__enter__()
        try:
            task, request = self.task, self.request
            about = {"task_id": request.id, "args": request.args, "kwargs": request.kwargs}
            signals.task_prerun.send(sender=task, task=task, **about)
            task.before_start(request.id, request.args, request.kwargs)
        except BaseException:
            self._around.__exit__(None, None, None)
            raise
        return self

    def run(self) -> Any:
        """Call the task: its `__call__` if its class has one of its own."""
        return self.task(*(self.request.args or ()), **(self.request.kwargs or {}))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            if error is None and self.request.retry is not None:
                error = self.request.retry
            if error is not None:
                if not isinstance(error, Exception):
                    return False
                self._sort(error)
            return True
        finally:
            self._around.__exit__(None, None, None)

    def _sort(self, error: Exception) -> None:
        """Find out how an exception ends the call."""
        task = self.task
        if not isinstance(error, Ignore | Reject | Retry) and is_retried(task, error):
            try:
                error = task.retry(exc=error, throw=False, **_delays(task))
            except Exception as final:  # noqa: BLE001 (out of retries: what it failed with)
                error = final
        self.error = error
        self.info = ExceptionInfo(error, "".join(traceback.format_exception(error)))
        if isinstance(error, Retry):
            self.state = states.RETRY
        elif isinstance(error, Ignore):
            self.state = states.IGNORED
        elif isinstance(error, Reject):
            self.state = states.REJECTED
        else:
            self.state = states.FAILURE

    # -- what is told of it -----------------------------------------------------------------------

    def over(self) -> None:
        """Send the signal that the call is over."""
        request, value = self.request, self.value if self.error is None else self.error
        signals.task_postrun.send(
            sender=self.task,
            task_id=request.id,
            task=self.task,
            args=request.args,
            kwargs=request.kwargs,
            retval=value,
            state=self.state,
        )

    def tell(self) -> None:
        """Call the hooks of the task for this end, and send its signal."""
        task, request = self.task, self.request
        about = (request.id, request.args, request.kwargs)
        if self.state == states.SUCCESS:
            task.on_success(self.value, *about)
            signals.task_success.send(sender=task, result=self.value)
        elif self.state == states.RETRY:
            reason = self.error.exc if isinstance(self.error, Retry) else None
            task.on_retry(reason or self.error, *about, self.info)
            signals.task_retry.send(
                sender=task, request=request, reason=self.error, einfo=self.info
            )
        elif self.state in {states.FAILURE, states.REJECTED}:
            task.on_failure(self.error, *about, self.info)
            signals.task_failure.send(
                sender=task,
                task_id=request.id,
                exception=self.error,
                args=request.args,
                kwargs=request.kwargs,
                traceback=getattr(self.error, "__traceback__", None),
                einfo=self.info,
            )
        if self.state not in {states.IGNORED, states.REJECTED}:
            value = self.value if self.error is None else self.error
            task.after_return(self.state, value, *about, self.info)


def is_retried(task: Any, error: BaseException) -> bool:
    """Whether `autoretry_for` is about this exception."""
    wanted, unwanted = tuple(task.autoretry_for), tuple(task.dont_autoretry_for)
    return isinstance(error, wanted) and not isinstance(error, unwanted)


def _delays(task: Any) -> dict[str, Any]:
    """Return the arguments of an automatic retry."""
    given = dict(task.retry_kwargs or {})
    if task.retry_backoff:
        given["countdown"] = backoff_of(task, task.request.retries)
    return given


def backoff_of(task: Any, retries: int) -> float:
    """Return the seconds before a retry after so many, by `retry_backoff` and what goes with it."""
    first = int(max(1.0, float(task.retry_backoff)))
    seconds: float = min(task.retry_backoff_max, first * 2 ** min(retries, 60))
    if task.retry_jitter:
        seconds = random.randrange(int(seconds) + 1)  # noqa: S311 (no secret)
    return max(0, seconds)
