"""What a middleware is: a callable around a job's run, with a store that all workers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from qframe import manager
from qframe.drivers.store import Store
from qframe.features.reserved import ReservedJob

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition


class Middleware(Protocol):
    """Something that is called in a job's place, and may call on.

    `call_next(job)` runs what is inside of it, at last the job, gives what `handle` gave and raises
    what it raised. One that returns without having called on, and without having released, failed
    or deleted the job, has it skipped. It may be a class with `__call__`, or a function; with
    `async def`, `call_next` is awaited.
    """

    def __call__(self, job: Any, call_next: Callable[[Any], Any], /) -> Any:  # noqa: ANN401 (a `Queueable`; what it gave)
        """Run the job, or do not; give what `call_next` gave."""


def store_of(job: JobDefinition) -> Store:
    """Give the store of the connection the job runs on; outside a worker, the default one's."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    if isinstance(reserved, ReservedJob):
        return Store(reserved.context.backend)
    name = None if reserved is None else reserved.connection_name
    return manager.default().connection(name).store
