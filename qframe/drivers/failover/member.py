"""Member: one connection of a failover, whether it answers, and what it is to be told later."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from qframe import events, forks
from qframe.contracts.backend import Backend
from qframe.contracts.step import APPLIED, LOST, Release, Reservation, Result, Start, Step
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
        self._later: deque[tuple[tuple[Step, ...], bool]] = deque()
        """What it could not be told about a job, and whether it may have been all the same."""
        self._turning = forks.lock()
        forks.in_child_of(self, Member.forget)

    @property
    def is_up(self) -> bool:
        """Whether it answers, as far as is known, or is to be tried again."""
        return self.error is None or time.monotonic() >= self._down_until

    @property
    def was_empty(self) -> bool:
        """Whether it had no message a moment ago."""
        return time.monotonic() < self._empty_until

    def ask(self, call: Callable[[Backend], T]) -> T:
        """Call its backend, after telling it what it could not be told before.

        Raises `BackendUnavailable`, whose `in_doubt` says whether this call may have been applied.
        """
        began = time.monotonic()
        try:
            self._send_kept()
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

    def tell_later(self, step: Step, *, in_doubt: bool) -> Result:
        """Keep a step that the backend did not answer until it does. Returns its result for now.

        An end counts as applied; its fence may refuse it then. No job starts: if it may have, it
        is given back later, uncounted.
        """
        first = step.operations[0]
        if type(first) is not Start:
            self._later.append(((step,), in_doubt))
            return APPLIED
        if in_doubt:
            again = Step(step.reservation, Start(first.lease))  # which counts once
            back = Step(step.reservation, Release(front=True, counted=False))
            self._later.append(((again, back), True))  # in this order, whichever thread sends it
        return LOST

    def _send_kept(self) -> None:
        while self._later:
            try:
                steps, in_doubt = self._later.popleft()
            except IndexError:  # another thread sends it
                return
            try:
                results = self.backend.apply(*steps)
            except BaseException:
                self._later.appendleft((steps, in_doubt))
                raise
            if results[-1].lost and not in_doubt:
                log.warning("%s: the end of %r came too late", self.name, steps[-1].reservation)

    def forget(self) -> None:
        """Leave it to the parent of a fork to tell what it keeps."""
        self._later.clear()

    # -- up and down ------------------------------------------------------------------------------

    def _failed(self, error: BackendUnavailable, began: float) -> None:
        now = time.monotonic()
        with self._turning:
            was_up, self.error = self.error is None, error
        self._down_until = now + max(self._retry_after, (now - began) * _TIMES_AS_LONG)
        if was_up:
            self._down_since = now
            log.warning("%s: %s is down: %s", self.of, self.name, tracebacks.brief(error))
            events.fire(events.QueueFailedOver, self.of, self.name, error)

    def _answers(self) -> None:
        with self._turning:
            was_down, self.error = self.error is not None, None
        if not was_down:  # another thread has said so
            return
        seconds = time.monotonic() - self._down_since
        log.info("%s: %s is back after %.0f s", self.of, self.name, seconds)
        events.fire(events.QueueFailedBack, self.of, self.name, seconds)


def left_alone(error: BackendUnavailable) -> BackendUnavailable:
    """Return the error for what was not sent because the last call failed like this."""
    again = BackendUnavailable(str(error))
    again.in_doubt = False
    return again
