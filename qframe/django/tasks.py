"""QframeBackend: `django.tasks` on qframe, with retries, timeouts, leases and results."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from django.core.checks import CheckMessage, Error
from django.utils.timezone import get_default_timezone, is_naive, make_aware

from qframe import config, manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.dispatch.pending import dispatch
from qframe.django import conf, task_jobs, task_results
from qframe.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from qframe.exceptions import ConfigurationError, JobDefinitionError
from qframe.jobs.options import check_option
from qframe.manager import QueueManager
from qframe.payload.text import nearest

_DAY: Final = 86_400
_AT_DISPATCH: Final = ("tries", "max_exceptions", "backoff", "timeout", "fail_on_timeout")
_OWN: Final = ("connection", "result_ttl", "tasks")
_MIDDLE: Final = 1024
"""beanstalkd's own priority, Django's 0; a greater one here comes first, there last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QframeTask(Task):
    """A task with qframe's options: `@task(tries=5, backoff=(1, 5, 10))` from Django 6.1 on."""

    tries: int | None = None
    max_exceptions: int | None = None
    backoff: Any = None
    timeout: float | None = None
    fail_on_timeout: bool | None = None
    retry_until: Any = None
    expires: Any = None
    concurrency: int | None = None
    unique: bool | None = None
    unique_id: Any = None
    unique_for: Any = None
    unique_until: str | None = None
    debounce: Any = None
    once: Any = None
    group: Any = None
    middleware: Any = None
    tags: Any = None

    def declared(self) -> dict[str, Any]:
        """Returns the options that were given."""
        found = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in found.items() if value is not None}


OPTIONS: Final = tuple(
    each.name for each in fields(QframeTask) if each.name not in {f.name for f in fields(Task)}
)


class QframeBackend(BaseTaskBackend):
    """Tasks as jobs of a connection.

    OPTIONS: `connection` (default: qframe's default one), `result_ttl` (seconds a result is kept
    after it was last written; a day), `tries`, `max_exceptions`, `backoff`, `timeout`,
    `fail_on_timeout` of all its tasks, and `tasks`: those of single tasks, by their paths.
    """

    task_class = QframeTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._able: Capability | None = None

    @property
    def supports_priority(self) -> bool:
        """Whether the connection has priorities."""
        if self._able is None:
            self._able = self._looked_at()
        return Capability.PRIORITY in self._able

    def _looked_at(self) -> Capability:
        """Reads the connection's capabilities; the process's own manager once all is set up.

        A test runner, for example, gives databases other names before it runs any test.
        """
        conf.join()  # tasks may be imported before the apps are ready
        queues = QueueManager(config.load())
        return queues.connection(self.options.get("connection")).capabilities

    @property
    def connection(self) -> Connection:
        """The connection that has the jobs. Raises `ConfigurationError`."""
        return manager.default().connection(self.options.get("connection"))

    def validate_task(self, task: Task) -> None:
        """Raises `InvalidTask` for a task that cannot run."""
        super().validate_task(task)
        for name, value in getattr(task, "declared", dict)().items():
            try:
                check_option(task.func.__qualname__, name, value)
            except JobDefinitionError as error:
                raise InvalidTask(str(error)) from None

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:  # noqa: ANN401 (the task's own)
        """Queues it; in a transaction as `QFRAME["DISPATCH"]` says. Its id is known at once."""
        self.validate_task(task)
        at = time.time()
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=task_jobs.moment(at),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        job = task_jobs.job_class_of(task)(args=result.args, kwargs=result.kwargs)
        for name, value in self._options_of(task).items():
            object.__setattr__(job, name, value)
        after = _aware(task.run_after)
        besides = {
            "task": task.module_path,
            "backend": self.alias,
            "priority": task.priority,
            "run_after": None if after is None else after.timestamp(),
            "at": at,
            "ttl": self.options.get("result_ttl", _DAY),
        }
        object.__setattr__(job, "besides", {task_results.KEY: besides})
        task_jobs.set_(result, id=dispatch(job).send())
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def _options_of(self, task: Task) -> dict[str, Any]:
        """Returns the options of this job that its class does not have."""
        found: dict[str, Any] = {"queue": task.queue_name}
        if (after := _aware(task.run_after)) is not None:
            found["delay"] = after
        if self.options.get("connection"):
            found["connection"] = self.options["connection"]
        if task.priority:
            found["priority"] = _MIDDLE - task.priority
        given = {name: self.options[name] for name in _AT_DISPATCH if name in self.options}
        given |= self.options.get("tasks", {}).get(task.module_path, {})
        declared: dict[str, Any] = getattr(task, "declared", dict)()
        return found | {name: value for name, value in given.items() if name not in declared}

    def get_result(self, result_id: str) -> TaskResult:
        """Returns the result of a task. Raises `TaskResultDoesNotExist`."""
        record = task_results.find(self.connection.backend, str(result_id))
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return task_jobs.result_of(str(result_id), record)

    # -- system checks ----------------------------------------------------------------------------

    def check(self, **_: object) -> Iterable[CheckMessage]:
        """Finds what is wrong with OPTIONS and the connection, without asking a backend."""
        where = f"TASKS[{self.alias!r}]"
        for name in self.options:
            known = (*_OWN, *_AT_DISPATCH)
            if name not in known:
                yield Error(
                    f"{where}: unknown option {name!r}{nearest(str(name), known)}",
                    id="qframe.E010",
                )
        places = [(where, {n: v for n, v in self.options.items() if n in _AT_DISPATCH})]
        places += [
            (f"{where} {path}", each) for path, each in self.options.get("tasks", {}).items()
        ]
        for place, options in places:
            for name, value in options.items():
                try:
                    if name not in _AT_DISPATCH:
                        hint = nearest(str(name), _AT_DISPATCH)
                        raise JobDefinitionError(f"{place}: unknown option {name!r}{hint}")
                    check_option(place, name, value)
                except JobDefinitionError as error:
                    yield Error(str(error), id="qframe.E011")
        try:
            able = self._looked_at()
        except ConfigurationError as error:
            yield Error(f"{where}: {error}", id="qframe.E012")
            return
        if Capability.RESERVE not in able:
            yield Error(
                f"{where}: its connection keeps no jobs, and so no results",
                hint="Django's own ImmediateBackend runs tasks at once.",
                id="qframe.E013",
            )


def _aware(when: datetime | None) -> datetime | None:
    naive = when is not None and is_naive(when)
    return make_aware(when, get_default_timezone()) if naive else when
