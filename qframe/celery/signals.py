"""Signals: what is called before and after a task runs, around its dispatch, and by a worker."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from qframe import events
from qframe.celery import missing
from qframe.celery.apps import apps
from qframe.celery.missing import SIGNALS
from qframe.drivers import process

log = logging.getLogger("qframe")

F = TypeVar("F", bound=Callable[..., Any])


class TaskSignal:
    """A list of functions to call; each gets `signal`, `sender` and the signal's own arguments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._receivers: dict[Hashable, tuple[Callable[..., Any], Any]] = {}

    @overload
    def connect(
        self,
        receiver: F,
        sender: object = None,
        weak: bool = False,
        dispatch_uid: Hashable | None = None,
    ) -> F: ...

    @overload
    def connect(
        self,
        receiver: None = None,
        sender: object = None,
        weak: bool = False,
        dispatch_uid: Hashable | None = None,
    ) -> Callable[[F], F]: ...

    def connect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: object = None,
        weak: bool = False,  # noqa: ARG002 (Celery's own; receivers are kept)
        dispatch_uid: Hashable | None = None,
    ) -> Any:
        """Call a function at each signal, or at those of one sender. Also a decorator.

        `sender` is a task, its name, or an app.
        """

        def connected(function: F) -> F:
            key = dispatch_uid if dispatch_uid is not None else (function, _key(sender))
            self._receivers[key] = (function, sender)
            return function

        self._before_connect()
        return connected if receiver is None else connected(receiver)

    def _before_connect(self) -> None:
        """Do what the signal needs to be sent."""

    def disconnect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: object = None,
        weak: object = None,  # noqa: ARG002 (Celery's own)
        dispatch_uid: Hashable | None = None,
    ) -> bool:
        """Call it no more. Returns whether it was connected."""
        key = dispatch_uid if dispatch_uid is not None else (receiver, _key(sender))
        return self._receivers.pop(key, None) is not None

    def send(self, sender: object, **given: Any) -> list[tuple[Any, Any]]:
        """Call the receivers; what they raise is logged. Returns what each gave."""
        answers: list[tuple[Any, Any]] = []
        for function, wanted in list(self._receivers.values()):
            if wanted is not None and not _is(sender, wanted):
                continue
            try:
                answers.append((function, function(signal=self, sender=sender, **given)))
            except Exception as error:
                log.exception("a receiver of %s raised", self.name)
                answers.append((function, error))
        return answers

    def __repr__(self) -> str:
        return f"<TaskSignal {self.name}>"


def _key(sender: object) -> Hashable:
    return None if sender is None else id(sender)


def _is(sender: object, wanted: object) -> bool:
    names = {getattr(sender, "name", None), sender if isinstance(sender, str) else None}
    return sender is wanted or (isinstance(wanted, str) and wanted in names)


class WorkerSignal(TaskSignal):
    """A signal of a worker, which qframe's events bring about."""

    def _before_connect(self) -> None:
        for kind, listener in _OF_EVENTS.items():
            events.forget(listener)  # also one that a test's end has removed
            events.listen(kind)(listener)


@dataclass(frozen=True)
class WorkerSender:
    """The sender of a worker's signals."""

    hostname: str
    """The worker's host."""
    app: Any


before_task_publish: Final = TaskSignal("before_task_publish")
after_task_publish: Final = TaskSignal("after_task_publish")
task_prerun: Final = TaskSignal("task_prerun")
task_postrun: Final = TaskSignal("task_postrun")
task_success: Final = TaskSignal("task_success")
task_failure: Final = TaskSignal("task_failure")
task_retry: Final = TaskSignal("task_retry")
celeryd_init: Final = WorkerSignal("celeryd_init")
celeryd_after_setup: Final = WorkerSignal("celeryd_after_setup")
worker_init: Final = WorkerSignal("worker_init")
worker_process_init: Final = WorkerSignal("worker_process_init")
worker_ready: Final = WorkerSignal("worker_ready")
worker_shutting_down: Final = WorkerSignal("worker_shutting_down")
worker_shutdown: Final = WorkerSignal("worker_shutdown")
worker_process_shutdown: Final = WorkerSignal("worker_process_shutdown")

_begun: set[int] = set()
"""The pid of this process, once `worker_process_init` was sent in it."""


def process_begins() -> None:
    """Send `worker_process_init`, once in each process that runs tasks."""
    pid = os.getpid()
    if pid not in _begun:
        _begun.add(pid)
        worker_process_init.send(sender=None)


def _starting(event: events.WorkerStarting) -> None:  # noqa: ARG001 (the listener's)
    worker, conf = _sender(), apps.current().conf
    celeryd_init.send(sender=worker.hostname, instance=worker, conf=conf, options={})
    celeryd_after_setup.send(sender=worker.hostname, instance=worker, conf=conf)
    worker_init.send(sender=worker)
    process_begins()
    worker_ready.send(sender=worker)


def _interrupted(event: events.WorkerInterrupted) -> None:
    worker_shutting_down.send(
        sender=_sender().hostname, sig=signal.Signals(event.signal).name, how="Warm", exitcode=0
    )


def _stopping(event: events.WorkerStopping) -> None:
    worker_process_shutdown.send(sender=None, pid=os.getpid(), exitcode=event.status)
    worker_shutdown.send(sender=_sender())


def _sender() -> WorkerSender:
    return WorkerSender(process.NAME, apps.current())


_OF_EVENTS: Final[dict[Any, Callable[[Any], None]]] = {
    events.WorkerStarting: _starting,
    events.WorkerInterrupted: _interrupted,
    events.WorkerStopping: _stopping,
}


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Refuse Celery's other signals, by name."""
        raise missing.of_module(__name__, name, SIGNALS)
