"""Task: a function, or the method `run` of a class, that can be called, delayed and retried."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NoReturn

from qframe.celery import custom, jobs, maps, missing, options, running, states
from qframe.celery.apps import apps, tasks
from qframe.celery.calls import ExceptionInfo, TaskCall
from qframe.celery.canvas import Signature, listed
from qframe.celery.exceptions import MaxRetriesExceededError, NotSupported, Reject, Retry
from qframe.celery.result import AsyncResult, EagerResult
from qframe.celery.running import TaskRequest
from qframe.celery.values import plain, restored
from qframe.jobs.current import current_job
from qframe.payload.envelope import new_uuid
from qframe.resources.giving import with_resources

_UNSET: Final = object()
_NUMBER: Final = (int, float)
_DECLARED: Final = ("queue", "priority", "expires", "ignore_result")


class Task:
    """A task. `app.task` and `shared_task` make one of a function.

    A class of one's own derives from it, sets options as attributes and has a method `run`;
    `app.register_task(MyTask())` makes it known. Raises `NotSupported` at its definition for what
    qframe has not.
    """

    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Sequence[type[BaseException]] = ()
    dont_autoretry_for: Sequence[type[BaseException]] = ()
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    retry_kwargs: Mapping[str, Any] | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    expires: float | datetime | None = None
    queue: str | None = None
    priority: int | None = None
    acks_late: bool = True
    reject_on_worker_lost: bool = True
    serializer: str = "json"
    track_started: bool = True
    typing: bool = True
    run: Any
    _app: ClassVar[Any] = None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        options.check_class(cls.__name__, vars(cls))
        own = {key: value for key, value in vars(cls).items() if key in options.OF_TASKS}
        options.check_task(cls.__name__, own)

    # -- calling ----------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now. Returns what it returns."""
        request = running.innermost()
        if request is not None and request.instance is self and not request.entered:
            request.entered = True
            return self.run(*args, **kwargs)
        direct = TaskRequest(task=self.name, args=args, kwargs=kwargs, instance=self, entered=True)
        with running.running(direct):
            return self.run(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Queue the task with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> AsyncResult:
        """Queue the task.

        `countdown` (seconds) or `eta` (datetime) say when, `expires` (seconds or datetime) until
        when it may begin; `queue`, `priority`, `task_id`, `ignore_result`, `shadow` (shown to
        people), `link` and `link_error`; `soft_time_limit` or `time_limit` (seconds) in place of
        those of the task. Raises `TypeError` for arguments that the task does not
        take, `NotSupported` for another option, and what goes wrong with the push.
        """
        sent: AsyncResult = self.signature(args, kwargs)._send(given)  # noqa: SLF001 (its own)
        return sent

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `TypeError` for arguments that the task does not take."""
        if self.typing:
            try:
                self._takes.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}() {error}") from None

    @cached_property
    def _takes(self) -> inspect.Signature:
        return inspect.signature(self.run)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        throw: bool | None = None,
        task_id: str | None = None,
        retries: int = 0,
        link: Any = None,
        link_error: Any = None,
        **given: Any,
    ) -> EagerResult:
        """Run the task here and now, with its retries at once. Returns its result.

        With `throw`, or `app.conf.task_eager_propagates`, it raises what the task raised.
        """
        options.check_call(self.name, given)
        identity = task_id or new_uuid()
        given_args, given_kwargs = plain(list(args or ())), plain(dict(kwargs or {}))
        while True:
            request = TaskRequest(
                id=identity,
                task=self.name,
                args=restored(given_args),
                kwargs=restored(given_kwargs),
                retries=retries,
                is_eager=True,
                called_directly=False,
                delivery_info={"is_eager": True, "routing_key": given.get("queue")},
                timelimit=(self.time_limit, self.soft_time_limit),
                instance=self,
            )
            call = TaskCall(self, request)
            with call:
                call.value = running.finished(call.run())
            call.over()
            call.tell()
            requeued = isinstance(call.error, Reject) and call.error.requeue
            if call.state != states.RETRY and not requeued:
                break
            retries += 1
        propagates = self.app.conf.task_eager_propagates if throw is None else throw
        if propagates and call.state == states.FAILURE and call.error is not None:
            raise call.error
        result = EagerResult(identity, call)
        _follow(result, link if call.error is None else None, link_error if call.info else None)
        return result

    # -- inside a running task --------------------------------------------------------------------

    @property
    def request(self) -> TaskRequest:
        """The call that runs: `id`, `args`, `kwargs`, `retries`, `delivery_info`, ..."""
        return running.request_of(self)

    def retry(
        self,
        args: object = None,
        kwargs: object = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: Any = _UNSET,
        **given: Any,
    ) -> Retry:
        """Have the task tried again: `raise self.retry(exc=error, countdown=5)`.

        It comes after `countdown` seconds (`default_retry_delay`, 180), or at `eta`, at most
        `max_retries` times (3; None is without limit); then it fails with `exc`, or with
        `MaxRetriesExceededError`. Raises `Retry`, and returns it unless `throw`: then the task is
        tried again when this call of it has ended.
        """
        for name, value in (("args", args), ("kwargs", kwargs), *given.items()):
            if value is not None:
                raise missing.refused(
                    f"{name} of retry ({self.name})", "a dispatch of the task with what it needs"
                )
        request = self.request
        if request.called_directly:
            _raise(exc or Retry("Task can be retried", None))
        most = self.max_retries if max_retries is _UNSET else max_retries
        if most is not None and request.retries >= most:
            if exc is not None:
                _raise(exc)
            raise MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} "
                f"kwargs:{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        when: Any = eta
        if eta is None:
            when = self.default_retry_delay if countdown is None else countdown
        found = Retry(exc=exc, when=when)
        if throw:
            raise found from exc
        request.retry = found
        return found

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None
    ) -> None:
        """Give the task, or another by its id, a state of its own, with `meta` as its `info`.

        It stands until the attempt ends. With numbers `current` and `total` in `meta`, the page
        shows the progress. Run here and now, a task keeps none. Raises `ValueError` if it has no
        state or `meta` has more than 64 KB of JSON, and `TypeError` for what JSON cannot carry.
        """
        request = self.request
        identity = task_id or request.id
        if not state or identity is None:
            raise ValueError("update_state takes a state, and outside of a task its id")
        if request.is_eager and identity == request.id:
            return
        own = identity == request.id and not request.called_directly
        custom.keep(
            self.app,
            identity,
            custom.CustomState(state, meta, request.retries + 1 if own else None),
        )
        if own and isinstance(meta, dict):
            _show_progress(meta, state)

    # -- signatures -------------------------------------------------------------------------------

    def signature(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Signature:
        """Return a call of the task to dispatch later, alone or in a canvas."""
        return Signature(self.name, args, kwargs, given)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature: `add.s(2, 2)`."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature that does not take the result before it."""
        return self.signature(args, kwargs, immutable=True)

    def map(self, it: Iterable[Any]) -> Signature:
        """Return one task that calls this one with each item in turn: `~add.map([1, 2])`."""
        return maps.xmap(self, it)

    def starmap(self, it: Iterable[Sequence[Any]]) -> Signature:
        """As `map`; each item is a list of arguments."""
        return maps.xstarmap(self, it)

    def chunks(self, it: Iterable[Sequence[Any]], n: int) -> Any:
        """Return a group of `starmap`, each of at most `n` items."""
        return maps.chunks(self, it, n)

    def AsyncResult(self, task_id: str) -> AsyncResult:  # noqa: N802 (Celery's name)
        """Return the result of a call, by its id."""
        return AsyncResult(task_id, self.app)

    # -- Django -----------------------------------------------------------------------------------

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Queue the task when Django's transaction is committed."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """As `apply_async`, when Django's transaction is committed."""
        from django.db import transaction  # noqa: PLC0415 (most programs have no Django)

        transaction.on_commit(partial(self.apply_async, *args, **kwargs))

    # -- hooks ------------------------------------------------------------------------------------

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called before each call."""

    def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called after a success."""

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called when it is to be tried again."""

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called once, at the final failure."""

    def after_return(
        self,
        status: Any,
        retval: Any,
        task_id: Any,
        args: Any,
        kwargs: Any,
        einfo: ExceptionInfo | None,
    ) -> None:
        """Called after a success, a failure, or when it is to be tried again."""

    # -- internal ---------------------------------------------------------------------------------

    @property
    def app(self) -> Any:
        """The app that the task was defined with; of a shared one, the current app."""
        return self._app or apps.current()

    @cached_property
    def job_class(self) -> type[jobs.CeleryJob]:
        """The class of its jobs, by which a worker finds it."""
        return jobs.class_of(self)

    def declared(self) -> dict[str, Any]:
        """Return the options that the task sets for its calls."""
        found = {name: getattr(self, name) for name in _DECLARED}
        return {name: value for name, value in found.items() if value is not None}

    def __getattr__(self, name: str) -> NoReturn:
        raise missing.of_object("Task", name, missing.OF_TASK)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"


def task_of(app: Any, function: Any, given: dict[str, Any]) -> Task:
    """Make the task of a function."""
    base, bind = given.pop("base", None) or Task, given.pop("bind", False)
    name = given.pop("name", None) or name_of(function.__module__, function.__name__, app)
    options.check_task(name, given)
    if not issubclass(base, Task):
        raise NotSupported(f"{name}: base is {base!r}, which does not derive from Task")
    given.pop("shared", None)
    function = with_resources(name, function)
    body = {
        "run": function if bind else staticmethod(function),
        "name": name,
        "_app": app,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__wrapped__": function,
        "__name__": function.__name__,
        **given,
    }
    made = type(function.__name__, (base,), body)()
    return known(made)


def known(task: Task) -> Task:
    """Make a task known, and so its job."""
    tasks.register(task)
    _ = task.job_class
    return task


def name_of(module: str, name: str, app: Any) -> str:
    """Return the default name of a task."""
    if module == "__main__" and app is not None and app.main:
        module = app.main
    return f"{module}.{name}"


def _show_progress(meta: Mapping[str, Any], state: str) -> None:
    current, total = meta.get("current"), meta.get("total")
    running_job = current_job()
    if running_job is None or not (isinstance(current, _NUMBER) and isinstance(total, _NUMBER)):
        return
    if total > 0:
        running_job.progress(min(1.0, max(0.0, current / total)), state)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _follow(result: EagerResult, links: Any, error_links: Any) -> None:
    for each in listed(links):
        each.clone([] if each.immutable else [result.get()]).apply()
    for each in listed(error_links) if result.failed() else ():
        each.clone([] if each.immutable else [result.request, result.result, None]).apply()


__all__ = ["Task"]
