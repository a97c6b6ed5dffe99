"""Queueable: the base of job classes, with the calls that dispatch them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, dataclass_transform, overload

from pydantic import Field

from qframe.dispatch.batch import Batch, Caught, Previous, batch_of, caught_by, previous_of
from qframe.dispatch.chain import extend
from qframe.dispatch.pending import PendingDispatch, dispatch, dispatch_sync
from qframe.jobs.definition import JobDefinition, made
from qframe.jobs.typed import MYPY, Handles

P = ParamSpec("P")
R = TypeVar("R")

Unspecific = Callable[["Queueable"], Handles[R]]
"""To mypy, a class that is known as a `type[SendWelcome]` only, whose fields it does not look at.

No job class is called with a single argument, so this is no other class, and nothing to others.
"""


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, dataclasses.field))
class Queueable(JobDefinition, base=True):
    """Base of job classes: annotated attributes are its fields, plain ones its options.

    ```python
    class SendWelcome(Queueable):
        user_id: int
        queue = "emails"
        tries = 5

        def handle(self) -> None: ...
    ```

    Fields are passed by keyword and validated by pydantic, when the job is made and again when it
    runs. Options (all optional, with Laravel's names):

    - `connection`, `queue`: where it is dispatched; default: the configured ones.
    - `delay`: seconds, timedelta or aware datetime before it is ready; default 0.
    - `priority`: from 0 (first) to 4294967295; default: 1024, on beanstalkd the connection's.
    - `tries`: how often it may be started, 0 without limit; default: the worker's `--tries`.
      Attempts in which the job released itself do not count.
    - `max_exceptions`: how many attempts may raise before it fails; default: no limit.
    - `backoff`: seconds before a retry, a sequence of them for the first, second, ... failure, an
      `Exponential`, or a method `backoff(self, attempt, error)`; default: the worker's `--backoff`.
    - `timeout`: seconds an attempt may take, 0 without limit; default: the worker's `--timeout`.
    - `concurrency`: how many jobs of the class run at once over all workers of all hosts, from 1 to
      1000; default: no limit. The `sync` connection, `dispatch_sync` and `testing.run` ignore it.
    - `fail_on_timeout`: fail at the first timeout instead of retrying; default: False.
    - `retry_until`: retry until then, whatever `tries` says (seconds or timedelta after the
      dispatch, an aware datetime, or a method that returns one).
    - `expires`: skip the job if it has not started by then (types as for `retry_until`).
    - `track`: keep its status (`job_status`, `qframe status`): True for a day after each update, or
      seconds, or a timedelta; default: no.
    - `keep_log`: how many of the last lines that the job logs are kept with its status, if it is
      tracked; default: 0.
    - `unique`: while one waits or runs, another dispatch of the same job queues nothing.
      `unique_id` says which jobs are the same: a text, a number, or a method that returns one;
      default: those with equal fields. `unique_until`: "handled", its final end (default), or
      "started". `unique_for`: seconds or a timedelta after which uniqueness ends in any case;
      default 3600.
    - `debounce`: seconds, or a timedelta, that each dispatch waits for a later one of the same job
      (by `unique_id`), which replaces it.
    - `once`: seconds, or a timedelta, from a dispatch in which another one of the same job (by
      `unique_id`) queues nothing, also after the job has ended; default: no.
    - `chunk`: a `Chunk` of jobs that one call of `handle_many(cls, jobs)` handles; default: none.
    - `group`: the group of its queue that it takes turns in; a format over its fields like
      `"shop:{shop}"`, or a method that returns a text; default: none.
    - `encrypted`: encrypt its fields with the configured `encryption_keys`; default: False.
    - `give_back`: if the worker stops, end at the next `checkpoint` and go back to the queue,
      uncounted; default: False.
    - `missing`: what becomes of it if a row that it has as an argument is gone when it starts:
      "fail" (default), "skip", or "retry", with its backoff, as after an exception.
    - `version`: a whole number from 1, raised with each change of the fields that old payloads do
      not fit; `upgrade(data, version)`, a static or class method, then returns the data of an older
      payload as the class has it now (0: written before the class had a version).
    - `job_name`: its name on the wire; default: module and class.
    - `display_name`, `tags`: shown to people; may be methods.
    - `middleware`: what wraps its run, outermost first; may be a method. See `qframe.middleware`.

    The worker calls `set_up`, `handle` and `tear_down` in this order, `tear_down` also after a
    failure (php-resque's setUp, perform, tearDown). It calls `succeeded()` after a success, and
    `failed(error)` once, at the final failure. Each may be `async def`.
    """

    # -- dispatching ----------------------------------------------------------------------------

    # To a type checker, `cls` is what makes a job of the fields: so it knows them, and what
    # `handle` returns.

    if MYPY:

        @overload
        @classmethod
        def dispatch(
            cls: Callable[P, Handles[R]], /, *args: P.args, **fields: P.kwargs
        ) -> PendingDispatch[R]: ...

        @overload
        @classmethod
        def dispatch(cls: Unspecific[R], /, **fields: Any) -> PendingDispatch[R]: ...  # noqa: ANN401 (its fields)

    @classmethod  # type: ignore[misc] # the second signature has other variables
    def dispatch(
        cls: Callable[P, Handles[R]], /, *args: P.args, **fields: P.kwargs
    ) -> PendingDispatch[R]:
        """Make the job and dispatch it: `SendWelcome.dispatch(user_id=7).on_queue("high")`."""
        return dispatch(made(cls, *args, **fields))

    if MYPY:

        @overload
        @classmethod
        def dispatch_if(
            cls: Callable[P, Handles[R]], condition: object, /, *args: P.args, **fields: P.kwargs
        ) -> PendingDispatch[R] | None: ...

        @overload
        @classmethod
        def dispatch_if(
            cls: Unspecific[R],
            condition: object,
            /,
            **fields: Any,  # noqa: ANN401 (its fields)
        ) -> PendingDispatch[R] | None: ...

    @classmethod  # type: ignore[misc] # the second signature has other variables
    def dispatch_if(
        cls: Callable[P, Handles[R]], condition: object, /, *args: P.args, **fields: P.kwargs
    ) -> PendingDispatch[R] | None:
        """Dispatch if `condition` is true. Returns None otherwise."""
        return dispatch(made(cls, *args, **fields)) if condition else None

    if MYPY:

        @overload
        @classmethod
        def dispatch_unless(
            cls: Callable[P, Handles[R]], condition: object, /, *args: P.args, **fields: P.kwargs
        ) -> PendingDispatch[R] | None: ...

        @overload
        @classmethod
        def dispatch_unless(
            cls: Unspecific[R],
            condition: object,
            /,
            **fields: Any,  # noqa: ANN401 (its fields)
        ) -> PendingDispatch[R] | None: ...

    @classmethod  # type: ignore[misc] # the second signature has other variables
    def dispatch_unless(
        cls: Callable[P, Handles[R]], condition: object, /, *args: P.args, **fields: P.kwargs
    ) -> PendingDispatch[R] | None:
        """Dispatch unless `condition` is true. Returns None otherwise."""
        return None if condition else dispatch(made(cls, *args, **fields))

    if MYPY:

        @overload
        @classmethod
        def dispatch_sync(
            cls: Callable[P, Handles[R]], /, *args: P.args, **fields: P.kwargs
        ) -> R: ...

        @overload
        @classmethod
        def dispatch_sync(cls: Unspecific[R], /, **fields: Any) -> R: ...  # noqa: ANN401 (its fields)

    @classmethod  # type: ignore[misc] # the second signature has other variables
    def dispatch_sync(cls: Callable[P, Handles[R]], /, *args: P.args, **fields: P.kwargs) -> R:
        """Run the job here and now. Returns the result of `handle`, or raises its exception."""
        return dispatch_sync(made(cls, *args, **fields))

    def batch(self) -> Batch | None:
        """Return the batch that the job is a member or callback of; None if there is none."""
        return batch_of(self)

    @property
    def caught(self) -> Caught | None:
        """The failed job, in a job that `catch` dispatched; otherwise None."""
        return caught_by(self)

    @property
    def previous(self) -> Previous:
        """The link before this job in its chain: `self.previous.result` is what it returned.

        The result is as JSON has it; None if there is none: for the first link, behind a batch, and
        outside of a chain. Raises `QframeError` if JSON could not carry it, or it was larger than
        64 KB, and `CannotDecrypt`.
        """
        return previous_of(self)

    def append_to_chain(self, job: JobDefinition) -> None:
        """Add a job at the end of this job's chain. Raises `QframeError` if it is in no chain."""
        extend(self, job, first=False)

    def prepend_to_chain(self, job: JobDefinition) -> None:
        """Add a job right behind this one in its chain.

        Raises `QframeError` if it is in no chain.
        """
        extend(self, job, first=True)
