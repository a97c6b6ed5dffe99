"""DeferredConnection: runs a job in this process, after the response or when the process ends."""

from __future__ import annotations

import contextvars
import logging
from asyncio import CancelledError
from collections import deque
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Self

from qframe import forks, manager
from qframe.contracts.step import Push
from qframe.dispatch.handed import Handed
from qframe.dispatch.sender import send_from_thread
from qframe.dispatch.sync import SyncConnection
from qframe.drivers import process
from qframe.drivers.sync import DeferredBackend
from qframe.hooks import Hooks
from qframe.jobs import current
from qframe.jobs.definition import JobDefinition
from qframe.manager import connection_types

log = logging.getLogger("qframe")

_MANY = 100
"""Jobs that wait for the end of the process when a warning says so."""


class DeferredJobs:
    """Runs the jobs that its block defers, in order, when the block has ended or raised.

    `with DeferredJobs():`, or `async with`, which does not block the event loop. If the task of an
    `async with` is cancelled, they run all the same.
    """

    def __init__(self) -> None:
        self._jobs: deque[DeferredJob] = deque()
        self._is_over = False
        """Whether the block has ended and run its jobs: it takes no more."""
        self._ending = forks.lock()

    def add(self, job: DeferredJob) -> int:
        """Add a job. Returns how many there are; 0 if the block takes no more."""
        with self._ending:
            if self._is_over:
                return 0
            self._jobs.append(job)
            return len(self._jobs)

    def run(self) -> None:
        """Run what was added, and what that adds."""
        while self._jobs:
            self._jobs.popleft().run()

    def clear(self) -> None:
        """Forget them: they are another process's."""
        self._jobs.clear()

    def _has_ended(self) -> bool:
        """Whether none is left to run; then the block is over."""
        with self._ending:
            self._is_over = not self._jobs
            return self._is_over

    def _leave(self) -> None:
        with suppress(ValueError):  # a server may close a response in another thread
            _block.reset(self._token)

    def _end(self) -> None:
        while not self._has_ended():
            self.run()

    def leave_to_parent(self) -> None:
        """Take no more, and forget its jobs: this is a fork, and its parent runs them."""
        self.clear()
        self._is_over = True

    def __enter__(self) -> Self:
        self._is_over = False
        forks.in_child_of(self, DeferredJobs.leave_to_parent)
        self._token: Token[DeferredJobs | None] = _block.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        self._end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        if not self._has_ended():
            hooks = self._jobs[0].hooks
            await send_from_thread(Handed(None, None), self._end, hooks).outcome()


class DeferredJob:
    """A job, and what its end pushes, to run in the context of its dispatch."""

    def __init__(
        self,
        connection: DeferredConnection,
        waiting: deque[Push],
        job_class: type[JobDefinition] | None,
    ) -> None:
        self.hooks: Hooks = connection.hooks
        self._run = partial(connection.work_off, waiting, job_class)
        self._name = "a deferred job" if job_class is None else job_class.__qualname__
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Run it. What it raises is recorded as its failure, and logged."""
        try:
            self._context.run(self._run)
        except (Exception, SystemExit, CancelledError):  # those behind it run all the same
            log.exception("%s failed after it was deferred", self._name)


_block: ContextVar[DeferredJobs | None] = ContextVar("qframe_deferred", default=None)
_at_end = DeferredJobs()
"""The jobs that no block waits for."""


class DeferredConnection(SyncConnection):
    """Runs each job after the block of `DeferredJobs` around it, such as the response of a request.

    Without a block it runs when the process ends; in a running job it runs at once. There is one
    attempt; a failure is logged, and recorded as a failed job. If the process is killed before, the
    job is lost.
    """

    def go_on(self, waiting: deque[Push], first: type[JobDefinition] | None = None) -> None:
        """Keep what a dispatch has pushed until the block ends."""
        job = DeferredJob(self, waiting, first)
        block = _block.get()
        if current.running.get() is not None:
            job.run()
        elif block is None or not block.add(job):  # or a task has outlived its request
            count = _at_end.add(job)
            if count == 1:
                process.before_a_child_ends(run_at_end)
            elif count == _MANY:
                log.warning(
                    "%d deferred jobs wait for the end of this process: a server needs the "
                    "middleware that runs them after each response",
                    _MANY,
                )

    def find_class(self, name: str) -> type[JobDefinition]:
        """Return the class of a job that another process has dispatched, such as a retried one."""
        return manager.default().registry.find(name)


def run_at_end() -> None:
    """Run what waits for the end of the process."""
    _at_end.run()


forks.in_child(_at_end.clear)
connection_types[DeferredBackend] = DeferredConnection
