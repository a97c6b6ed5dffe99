"""Where a middleware keeps what all workers share: the store beside the job's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe import manager
from qframe.drivers.store import Store
from qframe.features.reserved import ReservedJob

if TYPE_CHECKING:
    from qframe.jobs.definition import JobDefinition


def store_of(job: JobDefinition) -> Store:
    """Give the store of the connection the job runs on; outside a worker, the default one's."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    if isinstance(reserved, ReservedJob):
        return Store(reserved.context.backend)
    name = None if reserved is None else reserved.connection_name
    return manager.default().connection(name).store
