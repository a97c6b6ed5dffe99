"""Where a middleware keeps what all workers share: the store beside the job's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qframe import manager

if TYPE_CHECKING:
    from qframe.contracts import Store
    from qframe.queueable import Queueable


def store_of(job: Queueable) -> Store:
    """Give the store of the connection the job runs on; outside a worker, the default one's."""
    reserved = job._reserved  # noqa: SLF001 (`job.job` raises outside a worker)
    return manager.default().store(None if reserved is None else reserved.connection_name)
