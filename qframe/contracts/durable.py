"""Durable: the calls of a running job that let later attempts go on where one stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
When = float | timedelta | datetime
"""Seconds, or a timedelta, from now; or an aware datetime."""


class DurableSteps(Protocol):
    """Keeps what an attempt has done; the calls are those of `Durable`."""

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops."""

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        within: object,
    ) -> Any:  # noqa: ANN401 (what the function returns)
        """Call the function, or return what is kept of an earlier call."""

    def sleep(self, name: str, delay: When) -> None:
        """End the attempt, until `delay` is over."""

    def wait_for_event(self, name: str, timeout: When) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the value of an event, or end the attempt."""

    def cursor(self, name: str, default: Any) -> Any:  # noqa: ANN401 (its type)
        """Return the last checkpoint."""

    def checkpoint(self, name: str, value: object) -> None:
        """Keep a checkpoint, now or later."""

    def flush(self) -> None:
        """Keep the checkpoints that are not kept yet."""

    def call_again(self) -> None:
        """Allow the names that were used: the attempt calls its handler once more."""


class Durable:
    """Steps, sleeps, events and cursors by name, kept until the job has ended.

    A name is a text of 1 to 100 characters and stands for one thing in a job: using it twice in one
    attempt raises `InvalidStep`. Names that the code no longer has are left alone, and the order
    does not matter, so a job that runs may be deployed anew. After a final failure everything is
    kept as long as the failed record, and `qframe retry` goes on from there.
    """

    def _durable_steps(self) -> DurableSteps:
        """Return what keeps the steps of this attempt."""
        raise NotImplementedError

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,  # noqa: ANN401 (those of `function`)
        within: object,
        **kwargs: Any,  # noqa: ANN401 (as above)
    ) -> R: ...

    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        within: object = None,
        **kwargs: Any,
    ) -> Any:
        """Call `function` once and keep what it returns; later attempts get the kept value.

        Await the result of an `async def` function, wherever the job runs. The value is kept by the
        return annotation, so a model, a `Decimal` or a `datetime` comes back as one; without an
        annotation it must be what JSON carries. It may have 64 KB of JSON.

        The call is made at least once: if its worker dies before the value is kept, another one
        calls the function again. With `within` (a session or connection with an open transaction on
        the database of the jobs, as for `PendingDispatch.within`) the value is committed with what
        the function writes there: exactly once. Commit before the job ends.

        Raises what the function raises, which keeps nothing; `InvalidStep` or `ResultTooLarge`
        before anything is kept; and `LeaseLost` if another worker has the job.
        """
        return self._durable_steps().step(name, function, args, kwargs, within)

    def sleep(self, name: str, delay: When) -> None:
        """Go on after `delay` (seconds, a timedelta or an aware datetime), without a worker.

        The attempt ends here, by an exception that `except Exception` does not catch, and does not
        count. The job is released, and its next attempt passes this call. Raises `Unsupported` on
        the `sync` connection.
        """
        self._durable_steps().sleep(name, delay)

    def wait_for_event(self, name: str, timeout: When) -> Any:  # noqa: ANN401 (any JSON value)
        """Return the value of an event that `send_event` sends to this job, now or before.

        If there is none yet, the attempt ends as in `sleep`, and the event wakes the job. After
        `timeout` (seconds, a timedelta or an aware datetime) it raises `EventTimedOut`.
        """
        return self._durable_steps().wait_for_event(name, timeout)

    def cursor(self, name: str, default: T) -> T:
        """Return the last value of `checkpoint` under this name, as the type of `default`."""
        value: T = self._durable_steps().cursor(name, default)
        return value

    def checkpoint(self, name: str, value: object) -> None:
        """Keep how far a loop has come: at most once a second, and at once if the worker stops.

        The last value is also kept when the attempt ends in an error. A job with `give_back = True`
        ends here if the worker stops: it goes back to its queue, uncounted.
        """
        self._durable_steps().checkpoint(name, value)

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, and waits for the job to end."""
        return self._durable_steps().is_stopping
