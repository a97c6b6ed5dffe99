"""The application whose `dependency_overrides` apply to jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from qframe import manager
from qframe.features.reserved import ReservedJob
from qframe.hooks import Hooks, of_process
from qframe.jobs.current import current_job
from qframe.manager import QueueManager


def use(app: object, queues: QueueManager | None = None) -> None:
    """Applies the `dependency_overrides` of an application to jobs that run in this process.

    With `queues`, to the jobs of this manager, if it has hooks of its own: then two applications
    fit one process. `lifespan` does so by itself, for the jobs of the process.
    """
    kept = ref(app)
    hooks = of_process if queues is None else queues.hooks
    hooks.overrides = lambda: getattr(kept(), "dependency_overrides", None) or {}


def overrides() -> Mapping[Any, Any]:
    """Returns the replacements of dependencies for the running job."""
    replaced = _hooks().overrides
    return {} if replaced is None else replaced()


def _hooks() -> Hooks:
    job, queues = current_job(), manager.current()
    if isinstance(job, ReservedJob):
        return job.context.hooks
    return of_process if queues is None else queues.hooks
