"""ThrottlesExceptions: after too many exceptions, jobs wait instead of causing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from qframe.drivers.store import Store
from qframe.exceptions import (
    BackendUnavailable,
    BackendUnusable,
    DontHandle,
    JobDefinitionError,
    JobTimedOut,
    LimitReached,
)
from qframe.jobs.definition import JobDefinition
from qframe.jobs.exponential import Exponential
from qframe.jobs.options import Delays
from qframe.middleware import limits as over_time
from qframe.middleware.base import store_of
from qframe.middleware.fail_on import matching
from qframe.middleware.holding import HeldBack
from qframe.middleware.limits import By, Limit, LimitWindow
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

When = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], object]


class ThrottlesExceptions:
    """Holds jobs back once `max` of them have raised within `per` seconds.

    Then it releases jobs without running them, which uses up no try, until fewer than `max`
    exceptions lie within the last `per` seconds. A success clears the exceptions that were known
    when it began. It swallows no exception: a job that raised is retried, or failed, by its own
    `tries`, `max_exceptions` and `retry_until`, and its error is recorded.

    - `max`, `per`: default 10 in 600 seconds (a number or a timedelta).
    - `name`: what is protected; default: the job's class. Jobs of all classes with this name are
      held back together.
    - `by`: a value, or a function of the job that returns one: each value is counted separately.
    - `backoff`: seconds before a job that raised is retried, a sequence for the first, second, ...
      failure, or an `Exponential`; default: the job's own.
    - `when`: which exceptions count: a class, several, or a function of the exception; default:
      every `Exception`, and timeouts.
    - `report`: a function of the exception, called when it reaches the limit; default: a warning in
      the log.

    If a job cannot be released (connection `sync`, `dispatch_sync`) it raises `LimitReached`. If
    the store does not answer, jobs run. Raises `JobDefinitionError` for invalid arguments.
    """

    def __init__(
        self,
        max: int = 10,  # noqa: A002 (the name a reader expects)
        per: float | timedelta = 600,
        *,
        name: str | None = None,
        by: By = None,
        backoff: Delays | None = None,
        when: When = (Exception, JobTimedOut),
        report: Callable[[BaseException], object] | None = None,
    ) -> None:
        over_time.check_name(name, "ThrottlesExceptions")
        self.limit = Limit(max, per)
        self._name = name
        self._by = by
        self._backoff = _checked(backoff)
        errors = when if isinstance(when, tuple) else (when,)
        self._when = matching("ThrottlesExceptions", errors, BaseException)
        if report is not None and not callable(report):
            raise JobDefinitionError("ThrottlesExceptions: report must be a function")
        self._report = report

    def __repr__(self) -> str:
        return f"ThrottlesExceptions({self.limit})"

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job, unless too many have raised; count its exception."""
        name, key = self._named(job)
        store = store_of(job)
        known = self._window(store, key)
        wait = known.wait()
        if wait:
            wait += over_time.spread(job, self.limit)
            over_time.put_back(job, wait, f"{name} has raised {self.limit}")
            return None
        try:
            result = call_next(job)
        except (Exception, JobTimedOut) as error:
            if self._when(error) and not isinstance(error, DontHandle | LimitReached):
                self._note(store, key, name, error)
                if self._backoff is not None:
                    object.__setattr__(job, "_own_backoff", self._backoff)  # also on a frozen job
            raise
        reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
        gave_up = reserved is not None and (reserved.is_released or reserved.has_failed)
        if known.last and not gave_up:
            self._change(store, key, lambda window: window.forget(known.last))
        return result

    def holding(self, job: JobDefinition) -> HeldBack | None:
        """Return whether too many have raised for a job to start. Raises `BackendUnavailable`."""
        name, key = self._named(job)
        wait = over_time.read(store_of(job), {key: self.limit})[key].wait()
        return HeldBack("exceptions", f"{name} has raised {self.limit}", wait) if wait else None

    def _named(self, job: JobDefinition) -> tuple[str, str]:
        """Return the name of what is protected, and the key of its exceptions."""
        name = over_time.name_of(self._name, job)
        return name, f"exceptions:{name}:{self.limit.per:g}:{over_time.value_of(self._by, job)}"

    def _window(self, store: Store, key: str) -> LimitWindow:
        """Read the window; an empty one if the store does not answer, so that jobs run."""
        try:
            windows = over_time.read(store, {key: self.limit})
            if windows[key].ahead:  # written as now, or they would stay ahead
                over_time.write(store, windows)
        except BackendUnusable:
            raise
        except BackendUnavailable as error:
            log.warning("the exceptions of %s cannot be read: %s", key, error)
            return LimitWindow(self.limit, None, over_time.now())
        return windows[key]

    def _note(self, store: Store, key: str, name: str, error: BaseException) -> None:
        """Count an exception, and report it if it reaches the limit."""
        if not self._change(store, key, LimitWindow.add):
            return
        if self._report is not None:
            self._report(error)
        else:
            warning_text = "%s has raised %s: its jobs wait; the last exception was %s"
            log.warning(warning_text, name, self.limit, tracebacks.brief(error))

    def _change(self, store: Store, key: str, change: Callable[[LimitWindow], None]) -> bool:
        """Change the window. Returns whether that reached the limit.

        A failure is ignored: the job's own outcome matters more.
        """
        try:
            for _ in over_time.rounds():
                windows = over_time.read(store, {key: self.limit})
                free = not windows[key].wait()
                change(windows[key])
                if over_time.write(store, windows):
                    return free and bool(windows[key].wait())
        except BackendUnavailable as error:
            log.warning("the exceptions of %s cannot be counted: %s", key, error)
        return False


def _checked(backoff: object) -> Delays | None:
    if backoff is None or isinstance(backoff, Exponential):
        return backoff
    if not isinstance(backoff, Sequence) or isinstance(backoff, str):
        return over_time.seconds(backoff, "backoff")
    if not backoff:
        raise JobDefinitionError("ThrottlesExceptions: backoff must not be empty")
    return [over_time.seconds(each, "backoff") for each in backoff]
