"""JobsOfRequest: the jobs of a request, queued before its response is sent."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, overload

from qframe.contracts.identity import JobId
from qframe.dispatch.bulk import abulk
from qframe.dispatch.function import QueueableFunction
from qframe.dispatch.pending import check_job
from qframe.dispatch.queueable import Unspecific
from qframe.exceptions import InvalidJob
from qframe.jobs.definition import JobDefinition, made
from qframe.jobs.foreign import Foreign
from qframe.jobs.typed import Handles
from qframe.payload.text import one_line

P = ParamSpec("P")


class JobsOfRequest:
    """Jobs that are queued together once the request was handled, but not if that raised.

    The durable counterpart of `BackgroundTasks`: in FastAPI a parameter `jobs: BackgroundJobs`
    gives one; elsewhere it is `async with JobsOfRequest() as jobs:`.
    """

    def __init__(self) -> None:
        self._jobs: list[Any] = []

    @overload
    def add_task(
        self,
        func: QueueableFunction[P, Any, Any] | Callable[P, Handles[Any]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None: ...

    @overload
    def add_task(self, func: JobDefinition | Foreign) -> None: ...

    @overload
    def add_task(self, func: Unspecific[Any], **kwargs: Any) -> None: ...  # noqa: ANN401 (its fields)

    def add_task(self, func: Any, *args: Any, **kwargs: Any) -> None:
        """Adds a call of a function under `@queueable`, a job class with its fields, or a job.

        Raises `InvalidJob` for arguments that do not fit, and for a function without `@queueable`:
        a worker runs only what its author has made a job.
        """
        self._jobs.append(_job(func, args, kwargs))

    async def send(self) -> list[JobId[Any]]:
        """Queues what was added, in one request to each connection; returns the ids in order.

        Raises what goes wrong; the event loop goes on meanwhile.
        """
        jobs, self._jobs = self._jobs, []
        return await abulk(jobs) if jobs else []

    def __len__(self) -> int:
        return len(self._jobs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.send()


def _job(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 (a job)
    if isinstance(func, QueueableFunction):
        return func.job(*args, **kwargs)
    if isinstance(func, type) and issubclass(func, JobDefinition):
        if args:
            raise InvalidJob(f"{func.__name__}: its fields are given by keyword")
        return made(func, **kwargs)
    if isinstance(func, JobDefinition | Foreign):
        if args or kwargs:
            raise InvalidJob(f"{type(func).__name__}: a job that is made takes no arguments")
        check_job(func)
        return func
    raise InvalidJob(f"{_shown(func)} is no job: put @queueable on it, so that workers may run it")


def _shown(func: Callable[..., object]) -> str:
    return one_line(str(getattr(func, "__qualname__", repr(func))), 80)
