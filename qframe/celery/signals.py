"""Signals: what is called before and after a task runs, and around its dispatch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from qframe.celery import missing
from qframe.celery.missing import SIGNALS

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

        return connected if receiver is None else connected(receiver)

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


before_task_publish: Final = TaskSignal("before_task_publish")
after_task_publish: Final = TaskSignal("after_task_publish")
task_prerun: Final = TaskSignal("task_prerun")
task_postrun: Final = TaskSignal("task_postrun")
task_success: Final = TaskSignal("task_success")
task_failure: Final = TaskSignal("task_failure")
task_retry: Final = TaskSignal("task_retry")


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Refuse Celery's other signals, by name."""
        raise missing.of_module(__name__, name, SIGNALS)
