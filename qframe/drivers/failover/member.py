"""Member: one connection of a failover, whether it answers, and the ends that it has not got."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from qframe import events
from qframe.contracts.backend import Backend
from qframe.contracts.step import Reservation, Result, Step
from qframe.exceptions import BackendUnavailable, BackendUnusable
from qframe.payload import tracebacks

log = logging.getLogger("qframe")

T = TypeVar("T")

_TIMES_AS_LONG = 10
"""How many times as long as it took to fail a connection is left alone."""
_GLANCE = 0.5
"""Seconds for which an empty member is passed over while others have jobs."""


class Member:
    """A connection of the failover `of`, for all threads of the process."""

    def __init__(self, of: str, name: str, backend: Backend, retry_after: float) -> None:
        self.of = of
        self.name = name
        self.backend = backend
        self.error: BackendUnavailable | None = None
        """Why it is down; None while it answers."""
        self._retry_after = retry_after
        self._down_since = 0.0
        self._down_until = 0.0
        self._empty_until = 0.0
        self._ends: deque[Step] = deque()
        """The ends of jobs that it could not be told."""

    @property
    def is_up(self) -> bool:
        """Whether it answers, as far as is known, or is to be tried again."""
        return self.error is None or time.monotonic() >= self._down_until

    @property
    def was_empty(self) -> bool:
        """Whether it had no message a moment ago."""
        return time.monotonic() < self._empty_until

    def ask(self, call: Callable[[Backend], T]) -> T:
        """Call its backend, after telling it the ends that it has not got.

        Raises `BackendUnavailable`, whose `in_doubt` says whether this call may have been applied.
        """
        began = time.monotonic()
        try:
            self._send_ends()
        except BackendUnavailable as error:
            self._failed(error, began)
            error.in_doubt = False
            raise
        try:
            answer = call(self.backend)
        except BackendUnavailable as error:
            if isinstance(error, BackendUnusable):
                error.in_doubt = False
            self._failed(error, began)
            raise
        if self.error is not None:
            self._answers()
        return answer

    def ask_if_up(self, call: Callable[[Backend], T]) -> T:
        """As `ask`, but raises at once while it is left alone."""
        if not self.is_up and self.error is not None:
            raise left_alone(self.error)
        return self.ask(call)

    def reserve(
        self, queues: Sequence[str], limit: int, first: Sequence[Step]
    ) -> tuple[list[Reservation], list[Result]]:
        jobs, results = self.ask(lambda backend: backend.reserve(queues, limit, first=first))
        for job in jobs:
            job.came_from = self.name
        self._empty_until = 0.0 if jobs else time.monotonic() + _GLANCE
        return jobs, results

    def tell_later(self, step: Step) -> None:
        """Keep the end of a job until the backend answers; its fence may refuse it then."""
        self._ends.append(step)

    def _send_ends(self) -> None:
        while self._ends:
            try:
                step = self._ends.popleft()
            except IndexError:  # another thread sends it
                return
            try:
                (result,) = self.backend.apply(step)
            except BaseException:
                self._ends.appendleft(step)
                raise
            if not result.of_end(unanswered=True).applied:
                log.warning("%s: the end of %r came too late", self.name, step.reservation)

    # -- up and down ------------------------------------------------------------------------------

    def _failed(self, error: BackendUnavailable, began: float) -> None:
        now = time.monotonic()
        was_up, self.error = self.error is None, error
        self._down_until = now + max(self._retry_after, (now - began) * _TIMES_AS_LONG)
        if was_up:
            self._down_since = now
            log.warning("%s: %s is down: %s", self.of, self.name, tracebacks.brief(error))
            events.fire(events.QueueFailedOver, self.of, self.name, error)

    def _answers(self) -> None:
        seconds, self.error = time.monotonic() - self._down_since, None
        log.info("%s: %s is back after %.0f s", self.of, self.name, seconds)
        events.fire(events.QueueFailedBack, self.of, self.name, seconds)


def left_alone(error: BackendUnavailable) -> BackendUnavailable:
    """Return the error for what was not sent because the last call failed like this."""
    again = BackendUnavailable(str(error))
    again.in_doubt = False
    return again
