"""Celery: an app, and the decorators that make tasks."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, NoReturn, Self, overload

from qframe.celery import broker, conf, jobs, map_tasks, missing, options
from qframe.celery.apps import TaskRegistry, apps, tasks
from qframe.celery.canvas import Signature, signature
from qframe.celery.conf import Conf
from qframe.celery.exceptions import ImproperlyConfigured
from qframe.celery.result import AsyncResult
from qframe.celery.running import current_task
from qframe.celery.schedules import planned
from qframe.celery.signals import TaskSignal
from qframe.celery.task import Task, known, name_of, task_of
from qframe.hooks import of_process
from qframe.jobs import registry
from qframe.schedules.definition import book

log = logging.getLogger("qframe")

_CONF = {"broker": "broker_url", "backend": "result_backend", "include": "include"}


class Celery:
    """An app: its settings, and the tasks that are defined with it.

    `main` is the module that tasks of a script are named after, `broker` the URL of one of qframe's
    connections (default: qframe's default connection), `include` modules with tasks. Other keywords
    are settings. Raises `NotSupported` for what qframe has not.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        config_source: object = None,
        task_cls: type[Task] | str | None = None,
        set_as_current: bool = True,
        **given: Any,
    ) -> None:
        self.main = main
        self.conf = Conf()
        self.tasks: TaskRegistry = tasks
        self.Task: type[Task] = (
            conf.named(task_cls) if isinstance(task_cls, str) else task_cls or Task
        )
        self.on_configure = TaskSignal("on_configure")
        self.on_after_configure = TaskSignal("on_after_configure")
        self.on_after_finalize = TaskSignal("on_after_finalize")
        self._periodic: dict[str, dict[str, Any]] = {}
        self._is_planned = False
        self.place, self.module = _caller()
        if config_source is not None:
            self.config_from_object(config_source)
        for name, value in given.items():
            if value is not None:
                self.conf[_CONF.get(name, name)] = value
        _may_run([*(self.conf.include if "include" in given else ()), map_tasks.__name__])
        if set_as_current or not apps.all:
            apps.all.append(self)
        else:
            apps.all.insert(0, self)
        book.sources.append(self._plan)

    # -- tasks ------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...

    @overload
    def task(self, **options_: Any) -> Callable[[Callable[..., Any]], Task]: ...

    def task(self, *given: Any, **options_: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(bind=True, max_retries=5)`.

        Raises `NotSupported` for an option that qframe has not.
        """
        return _decorated(self, given, options_)

    def register_task(self, task: Any, **given: Any) -> Task:
        """Make a task of a class known: `app.register_task(MyTask())`."""
        options.check_task(type(task).__name__, given)
        made: Task = task() if isinstance(task, type) else task
        if not made.name:
            made.name = name_of(type(made).__module__, type(made).__name__, self)
        type(made)._app = self  # noqa: SLF001 (its own)
        return known(made)

    def gen_task_name(self, name: str, module: str) -> str:
        """Return the default name of a task."""
        return name_of(module, name, self)

    def send_task(
        self,
        name: str,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> AsyncResult:
        """Queue a task by its name, which another program may have."""
        options.check_call(name, given)
        return AsyncResult(jobs.post(jobs.job_of(self, name, args, kwargs, given), name), self)

    def signature(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature, of a task or its name."""
        made: Signature = signature(*args, **kwargs)
        return made

    def AsyncResult(self, task_id: str) -> AsyncResult:  # noqa: N802 (Celery's name)
        """Return the result of a task, by its id."""
        return AsyncResult(task_id, self)

    @property
    def current_task(self) -> Any:
        """The running task; false outside of one."""
        return current_task

    # -- settings ---------------------------------------------------------------------------------

    def config_from_object(
        self,
        obj: Any,
        silent: bool = False,
        force: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Take settings from a module, an object, or what a path names, when first needed.

        `namespace="CELERY"` takes those that begin with `CELERY_`. `force` reads them at once.
        Raises `NotSupported`, when they are read, for a setting that qframe has not.
        """
        if silent:
            raise missing.refused("silent of config_from_object", "a module that is there")
        self.conf.read_later(partial(conf.values_of, obj, namespace))
        if force:
            _ = self.conf.timezone

    def config_from_envvar(self, variable: str, silent: bool = False, force: bool = False) -> None:
        """Take settings from the module that an environment variable names."""
        path = os.environ.get(variable)
        if path:
            self.config_from_object(path, force=force)
        elif not silent:
            raise ImproperlyConfigured(f"the environment variable {variable} is not set")

    def autodiscover_tasks(
        self,
        packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Let workers run the tasks in the module `tasks` of each package.

        Without packages, of each app of Django's. `force` imports them at once.
        """
        if packages is None:
            found = _django_apps()
        else:
            found = [*(packages() if callable(packages) else packages)]
        modules = [f"{each}.{related_name}" if related_name else each for each in found]
        there = [each for each in modules if _is_there(each)]
        _may_run(there)
        for each in there if force else ():
            importlib.import_module(each)

    @property
    def connection_name(self) -> str | None:
        """The connection of qframe's that it uses; None is the default one."""
        return broker.connection_name(self.conf.broker_url)

    # -- schedules --------------------------------------------------------------------------------

    def add_periodic_task(
        self,
        schedule: Any,
        sig: Signature,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **given: Any,
    ) -> str:
        """Have workers dispatch a task when its time comes, once each. Returns its name."""
        whole = sig.clone(args, kwargs)
        key = name or repr(whole)
        self._periodic[key] = {
            "task": whole.task,
            "schedule": schedule,
            "args": whole.args,
            "kwargs": whole.kwargs,
            "options": {**whole.options, **given},
        }
        return key

    def _plan(self) -> None:
        """Add what is to be dispatched by time to qframe's schedules."""
        if not self._is_planned:
            self._is_planned = True
            for each in (self.on_configure, self.on_after_configure, self.on_after_finalize):
                each.send(sender=self, source=self.conf)
        for name, entry in {**self.conf.beat_schedule, **self._periodic}.items():
            planned(self, name, entry)

    # -- what there is nothing to do for ----------------------------------------------------------

    def finalize(self, auto: bool = False) -> None:
        """Do nothing: tasks are known when they are defined."""

    def close(self) -> None:
        """Do nothing: connections are qframe's."""

    def set_default(self) -> None:
        """Make it the current app."""
        apps.all.remove(self)
        apps.all.append(self)

    set_current = set_default

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> NoReturn:
        raise missing.of_object("Celery", name, missing.OF_APP)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'} at {id(self):#x}>"


apps.make = partial(Celery, "default")


@overload
def shared_task(function: Callable[..., Any], /) -> Task: ...


@overload
def shared_task(**options_: Any) -> Callable[[Callable[..., Any]], Task]: ...


def shared_task(*given: Any, **options_: Any) -> Any:
    """Make a task of a function, for whichever app is current: `@shared_task`."""
    return _decorated(None, given, options_)


def app_or_default(app: Celery | None = None) -> Celery:
    """Return an app, by default the current one."""
    return app or apps.current()


def _decorated(app: Celery | None, given: tuple[Any, ...], options_: dict[str, Any]) -> Any:
    if app is not None:
        options_.setdefault("base", app.Task)

    def decorated(function: Any) -> Task:
        return task_of(app, function, dict(options_))

    if not given:
        return decorated
    if len(given) > 1 or not callable(given[0]):
        raise TypeError("@app.task takes a function, or options by name")
    return decorated(given[0])


def _caller() -> tuple[str, str]:
    """Return where the app is made: file and line, and the module's name."""
    frame = sys._getframe(1)  # noqa: SLF001 (what `inspect` stands on, without its cost)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", str(frame.f_globals.get("__name__", ""))


def _may_run(modules: Iterable[str]) -> None:
    """Let workers import these modules, and run their tasks."""
    of_process.modules = [*dict.fromkeys([*of_process.modules, *modules])]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _django_apps() -> list[str]:
    """Return the packages of Django's apps; a worker that imports the project sets it up."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        return []
    if not registry.importing.here:
        return []  # `manage.py` sets it up, and qframe.django knows its apps
    import django  # noqa: PLC0415 (most programs have none)
    from django.apps import apps as installed  # noqa: PLC0415

    if not installed.ready:
        django.setup()
    found = [each.name for each in installed.get_app_configs()]
    if "qframe.django" not in found:
        log.warning(
            'add "qframe.django" to INSTALLED_APPS: it looks after the connections to the '
            "databases, and dispatches wait for the commit"
        )
    return found


__all__ = ["Celery", "Task", "app_or_default", "cached_property", "shared_task"]
