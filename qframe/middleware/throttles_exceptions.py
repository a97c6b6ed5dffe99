"""ThrottlesExceptions: after so many exceptions, jobs wait instead of running into more."""

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
from qframe.jobs.definition import JobDefinition, Seconds
from qframe.middleware import limits as over_time
from qframe.middleware.limits import By, Limit, Window
from qframe.middleware.stores import store_of
from qframe.payload import tracebacks
from qframe.payload.text import one_line

log = logging.getLogger("qframe")

When = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], object]


class ThrottlesExceptions:
    """Holds jobs back once `max` of them have raised within `per` seconds.

    ```python
    class Sync(Queueable):
        middleware = (ThrottlesExceptions(10, per=300, name="github"),)
    ```

    From then on jobs are released without being run, which uses up no try, until fewer than `max`
    exceptions lie within the last `per` seconds. A success forgets the exceptions that were known
    when it began. Nothing is swallowed: the job that raised is retried, or failed, by its own
    `tries`, `max_exceptions` and `retry_until`, and its error is recorded, also of the one that
    was the last straw.

    - `max`, `per`: default 10 in 600 seconds (a number or a timedelta).
    - `name`: what is protected; default: the job's class. Jobs of all classes that have this name
      are held back together.
    - `by`: a value, or a function of the job that gives one: each value is counted by itself.
    - `backoff`: seconds before a job that raised is tried again, or a sequence for the first,
      second, ... failure; default: the job's own.
    - `when`: which exceptions count: a class, several, or a function of the exception; default:
      every `Exception`, and timeouts.
    - `report`: a function of the exception, called when it was the last straw; default: a warning
      in the log.

    Where a job cannot be released (connection `sync`, `dispatch_sync`) `LimitReached` is raised.
    Where the store does not answer, jobs run. Raises `JobDefinitionError` for wrong arguments.
    """

    def __init__(
        self,
        max: int = 10,  # noqa: A002 (the name a reader expects)
        per: float | timedelta = 600,
        *,
        name: str | None = None,
        by: By = None,
        backoff: Seconds | Sequence[Seconds] | None = None,
        when: When = (Exception, JobTimedOut),
        report: Callable[[BaseException], object] | None = None,
    ) -> None:
        over_time.check_name(name, "ThrottlesExceptions")
        self.limit = Limit(max, per)
        self._name = name
        self._by = by
        self._backoff = _checked(backoff)
        self._when = _predicate(when)
        if report is not None and not callable(report):
            raise JobDefinitionError("ThrottlesExceptions: report must be a function")
        self._report = report
        self._ttl = self.limit.per + self.limit.grain / 1000 + 1

    def __repr__(self) -> str:
        return f"ThrottlesExceptions({self.limit})"

    def __call__(self, job: JobDefinition, call_next: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (what the job returns)
        """Run the job, unless too many have raised; count what it raises."""
        name = over_time.name_of(self._name, job)
        key = f"exceptions:{name}:{self.limit.per:g}:{over_time.value_of(self._by, job)}"
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
            if self._counts(error):
                self._note(store, key, name, error)
                if self._backoff is not None:
                    object.__setattr__(job, "_own_backoff", self._backoff)  # also on a frozen job
            raise
        if known.last and not _gave_up(job):
            self._succeeded(store, key, known.last)
        return result

    def _counts(self, error: BaseException) -> bool:
        return not isinstance(error, DontHandle | LimitReached) and bool(self._when(error))

    def _window(self, store: Store, key: str) -> Window:
        """Read what is known; nothing where the store does not answer: then jobs just run."""
        window = Window(self.limit, None, over_time.now())
        try:
            (text,) = store.get(key)
            window = Window(self.limit, text, over_time.now())
            if window.ahead:  # written down as now, or they would stay ahead
                store.swap({key: (text, window.text())}, self._ttl)
        except BackendUnusable:
            raise
        except BackendUnavailable as error:
            log.warning("the exceptions of %s cannot be read: %s", key, error)
        return window

    def _note(self, store: Store, key: str, name: str, error: BaseException) -> None:
        """Count an exception, and tell when it was the last straw."""
        if self._changed(store, key, _counted):
            if self._report is not None:
                self._report(error)
            else:
                log.warning(
                    "%s has raised %s: its jobs wait; the last exception was %s",
                    name,
                    self.limit,
                    tracebacks.brief(error),
                )

    def _succeeded(self, store: Store, key: str, last: int) -> None:
        """Forget the exceptions from before a success began."""
        self._changed(store, key, lambda window: window.forget(last))

    def _changed(self, store: Store, key: str, change: Callable[[Window], None]) -> bool:
        """Change what is known; says whether it has become too much by that.

        Where that cannot be done it is left: the job's own outcome matters more.
        """
        tripped = False

        def step() -> bool:
            nonlocal tripped
            (text,) = store.get(key)
            window = Window(self.limit, text, over_time.now())
            free = not window.wait()
            change(window)
            tripped = free and bool(window.wait())
            return store.swap({key: (text, window.text())}, self._ttl)

        try:
            return over_time.in_turn(step) and tripped
        except BackendUnavailable as error:
            log.warning("the exceptions of %s cannot be counted: %s", key, error)
            return False


def _counted(window: Window) -> None:
    window.add()
    window.trim()


def _gave_up(job: JobDefinition) -> bool:
    """Whether the job was released, or failed itself, which is no success."""
    reserved = job._reserved  # noqa: SLF001 (the job's own package)
    return reserved is not None and (reserved.is_released or reserved.has_failed)


def _checked(backoff: object) -> Seconds | Sequence[Seconds] | None:
    if backoff is None:
        return None
    if isinstance(backoff, Sequence) and not isinstance(backoff, str):
        if not backoff:
            raise JobDefinitionError("ThrottlesExceptions: backoff must not be empty")
        return [over_time.seconds(each, "backoff") for each in backoff]
    return over_time.seconds(backoff, "backoff")


def _predicate(when: When) -> Callable[[BaseException], object]:
    kinds = when if isinstance(when, tuple) else (when,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return lambda error: isinstance(error, kinds)  # type: ignore[arg-type] # just looked at
    if isinstance(when, tuple | type) or not callable(when):
        raise JobDefinitionError(
            "ThrottlesExceptions: when must be exception classes or a function of the exception, "
            f"not {one_line(repr(when), 60)}"
        )
    return when
