"""Middleware: a callable around a job's run, with a store that all workers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from qframe import manager
from qframe.drivers.store import Store
from qframe.features.reserved import ReservedJob

if TYPE_CHECKING:
    from qframe.contracts.job import Job
    from qframe.jobs.definition import JobDefinition


class Middleware(Protocol):
    """Called in a job's place; it may run the job by `call_next(job)`.

    `call_next` runs the next middleware, and in the end the job; it returns the result of `handle`
    and raises its exception. If a middleware returns without calling it, and without releasing,
    failing or deleting the job, the job is skipped. A middleware is a class with `__call__`, or a
    function; with `async def`, await `call_next`.
    """

    def __call__(self, job: Any, call_next: Callable[[Any], Any], /) -> Any:  # noqa: ANN401 (a `Queueable`; what it gave)
        """Run the job or not. Return the result of `call_next`."""


def store_of(job: JobDefinition) -> Store:
    """Return the store of the job's connection; outside of a worker, of the default one."""
    return store_beside(job._reserved)  # noqa: SLF001 (`job.job` raises outside a worker)


def store_beside(reserved: Job | None) -> Store:
    """Return the store of a reserved job's connection; without a job, of the default one."""
    if isinstance(reserved, ReservedJob):
        return Store(reserved.context.backend)
    name = None if reserved is None else reserved.connection_name
    return manager.default().connection(name).store
