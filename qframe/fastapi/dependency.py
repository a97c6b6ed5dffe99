"""BackgroundJobs: the parameter of a route that takes jobs in place of `BackgroundTasks`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, TypeAlias

from fastapi import Depends, HTTPException

from qframe.exceptions import BackendUnavailable
from qframe.fastapi.background import JobsOfRequest


async def _of_request() -> AsyncIterator[JobsOfRequest]:
    """Give what takes jobs, and queue them before the answer is sent."""
    jobs = JobsOfRequest()
    yield jobs
    try:
        await jobs.send()
    except BackendUnavailable as error:
        raise HTTPException(503, "the work could not be queued") from error


BackgroundJobs: TypeAlias = Annotated[JobsOfRequest, Depends(_of_request, scope="function")]
"""`jobs: BackgroundJobs` in a route, or in a dependency of scope `function`.

What was added is queued after the route has returned and before its answer is sent: a 2xx says that
it is. Nothing is queued where the route raised. Where the backend does not answer, 503 is answered.
"""
