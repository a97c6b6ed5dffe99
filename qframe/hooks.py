"""Hooks: what a framework does around the jobs and dispatches of one `QueueManager`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Awaits = Callable[[], Coroutine[Any, Any, Any]]


class OpenTransaction(Protocol):
    """The program's open transaction around a dispatch."""

    def within(self) -> object | None:
        """Return the transaction to push in; None if it has ended, or the push comes after it."""

    def on_commit(self, act: Callable[[], None]) -> None:
        """Call `act` after the commit, never after a rollback."""


@dataclass(slots=True, eq=False)
class Hooks:
    """The hooks of one application; each costs a comparison with None if it is not set.

    Not here, because they are of a process: what a fork does (`forks`), the settings of a manager
    made without any (`config.framework`), fakes (`connection.stand_in`: they take the dispatches of
    all managers) and tracing (`jobs.tracing.active`: a process has one tracer provider).
    """

    around: Callable[[Callable[[], Any]], Any] | None = None
    """Wraps job code that is called in a thread."""
    around_on_loop: Callable[[Awaits], Coroutine[Any, Any, Any]] | None = None
    """Wraps job code that is awaited."""
    finish_in_caller: Callable[[Awaits], Any] | None = None
    """Awaits a job for a caller, even on a running loop."""
    submit: Callable[[Callable[[], None]], None] | None = None
    """Runs a function in the caller's thread for blocking code."""
    find_open: Callable[[Any], OpenTransaction | None] | None = None
    """Returns the transaction that a dispatch on a `Connection` joins, or None."""
    modules: Sequence[str] = ()
    """Modules of jobs besides those in the settings; imported modules may add to them."""
    adapters: Sequence[Callable[[object], type[Any] | None]] = ()
    """Return the job class of other objects, such as another library's task."""
    features: Sequence[Any] = ()
    """Features for results of another library, for connections opened from now on."""
    sessions: tuple[Callable[[], Any], Callable[[], Any]] | None = None
    """Open the session of SQLAlchemy that loads a job's rows; the second one's for `async` jobs."""
    overrides: Callable[[], Mapping[Any, Any]] | None = None
    """Returns the functions that replace dependencies of jobs."""


of_process = Hooks()
"""The hooks of managers that are given none.

The framework of a process with one application sets them; otherwise they are empty.
"""
