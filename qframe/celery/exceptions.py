"""The exceptions that Celery's tasks raise, and those that their callers catch."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

from qframe.exceptions import ConfigurationError, JobTimedOut, QframeError

SoftTimeLimitExceeded = JobTimedOut
"""Raised in a task at its time limit. It is a `BaseException`, and ends the attempt if caught."""
TimeLimitExceeded = JobTimedOut


class CeleryError(QframeError):
    """Base of these exceptions."""


class ImproperlyConfigured(CeleryError, ConfigurationError):
    """A setting of the app is wrong."""


class NotSupported(ImproperlyConfigured, TypeError):
    """Celery has it and qframe has not; the message says what to use instead."""


class TaskPredicate(CeleryError):
    """Base of what a task raises to say how its attempt ends."""


class Retry(TaskPredicate):
    """The task is to be tried again: what `retry` raises."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
    ) -> None:
        super().__init__(message or (f"Retry: {exc!r}" if exc is not None else "Retry"))
        self.message = message
        self.exc = exc
        self.when = when


class Ignore(TaskPredicate):
    """Ends the task, neither done nor failed."""


class Reject(TaskPredicate):
    """Ends the task as failed, which keeps it; with `requeue` it goes back to its queue at once."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(f"reject requeue={requeue}: {reason}")
        self.reason = reason
        self.requeue = requeue


class MaxRetriesExceededError(CeleryError):
    """The task was retried as often as it may be."""

    def __init__(self, *args: object, **about: Any) -> None:
        super().__init__(*args)
        self.task_args = about.get("task_args")
        self.task_kwargs = about.get("task_kwargs")


class NotRegistered(CeleryError, KeyError):
    """There is no task of this name."""

    def __str__(self) -> str:
        return f"Task of kind {self.args[0]!r} is not registered" if self.args else ""


class TaskRevokedError(CeleryError):
    """The task was revoked, or expired before it began."""


class ChordError(CeleryError):
    """A task before this one has failed, so that it has not begun."""


class TimeoutError(CeleryError, builtins.TimeoutError):  # noqa: A001 (Celery's name)
    """The result was not there in time."""
