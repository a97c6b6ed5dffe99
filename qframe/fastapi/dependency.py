"""BackgroundJobs: the parameter of a route that takes jobs in place of `BackgroundTasks`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, TypeAlias

from fastapi import Depends, HTTPException

from qframe.exceptions import BackendUnavailable
from qframe.fastapi.background import JobsOfRequest


async def _of_request() -> AsyncIterator[JobsOfRequest]:
    """Yields what takes jobs, and queues them before the response is sent."""
    jobs = JobsOfRequest()
    yield jobs
    try:
        await jobs.send()
    except BackendUnavailable as error:
        raise HTTPException(503, "the work could not be queued") from error


BackgroundJobs: TypeAlias = Annotated[JobsOfRequest, Depends(_of_request, scope="function")]
"""`jobs: BackgroundJobs` in a route, or in a dependency of scope `function`.

The jobs are queued after the route has returned and before its response is sent: a 2xx confirms
that. Nothing is queued if the route raised. If the backend does not answer, the response is 503.
"""
