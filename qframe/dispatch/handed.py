"""Handed: a call that another thread runs for coroutines, and its result."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from qframe import forks
from qframe.dispatch import pusher
from qframe.dispatch.calls import Call
from qframe.drivers import process
from qframe.exceptions import BackendUnavailable, InvalidJob

T = TypeVar("T")
Lost = Callable[[BaseException], object]
"""Reports an error that no caller received."""


class Handed(Generic[T]):
    """A call that was given to another thread. It runs even if its callers stop waiting.

    With `lost`, an error reaches a waiting caller, or otherwise `lost`, at exit at the latest. A
    call without `lost` is read-only, and is dropped once no caller waits for it.
    """

    value: T | None = None
    error: BaseException | None = None
    is_done = False
    is_over = False
    """Whether all waiting callers have been woken."""
    is_left = False
    """Whether all waiting callers have left."""
    was_raised = False
    """Whether a caller has received its error."""

    def __init__(
        self,
        call: Call[T] | None,
        lost: Lost | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.call = call
        self.lost = lost
        self.context = context or contextvars.copy_context()
        """The context of the call and of the listeners it notifies."""
        self.pid = process.own.pid
        self._waiting = 0
        """The number of waiting coroutines."""
        self._futures: list[asyncio.Future[None]] = []
        """Futures that wake them, each on its loop."""

    # -- for the callers --------------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits, or is about to."""
        return not self.is_left

    async def outcome(self) -> T:
        """Wait for the result without blocking the event loop."""
        self._check_process()
        future = asyncio.get_running_loop().create_future()
        with _lock:
            self._waiting, self.is_left = self._waiting + 1, False
            if not self.is_done:
                self._futures.append(future)
        try:
            if not self.is_done:
                await future
            return self._given()
        finally:
            with _lock:
                self._waiting -= 1
                self.is_left = not self._waiting
                if future in self._futures:
                    self._futures.remove(future)
            if self.is_left and self.is_done:
                self._report_lost()

    def result(self) -> T:
        self._check_process()
        self.is_left = False
        self.wait()
        return self._given()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done, at most `seconds`. Returns whether it is."""
        with _changed:
            return _changed.wait_for(lambda: self.is_over, seconds)

    def _given(self) -> T:
        if self.error is not None:
            self._take_lost()
            raise self.error
        return self.value  # type: ignore[return-value] # there is one by now

    def _check_process(self) -> None:
        if self.pid != process.own.pid:
            raise InvalidJob("the call belongs to the process that made it, not to a fork")

    # -- the error --------------------------------------------------------------------------------

    def _take_lost(self) -> Lost | None:
        """Mark the error as received. The first time, returns what would have reported it."""
        with _lock:
            lost, self.lost = self.lost, None
            self.was_raised = True
        pusher.over(self)
        return lost

    def _report_lost(self) -> None:
        """Let the pusher report an error that no caller received."""
        if self.error is not None and self.pid == process.own.pid and (lost := self._take_lost()):
            pusher.put(partial(self.context.run, lost, self.error))

    def report_now(self) -> None:
        """Report its error, or that it did not end, because the process ends."""
        if (lost := self._take_lost()) is not None:
            error = self.error or BackendUnavailable("it does not end")
            self.context.run(lost, error)

    # -- for the thread that runs it --------------------------------------------------------------

    def end(self, value: T | None, error: BaseException | None) -> None:
        """Set the result; `wake` wakes the callers."""
        self.value, self.error, self.call = value, error, None

    def done(self) -> Sequence[asyncio.Future[None]]:
        """Mark it as done. Returns the futures of the callers."""
        with _lock:
            self.is_done = True
            futures, self._futures = self._futures, []
        return futures

    def over(self, *, closed: bool) -> None:
        """Mark the callers as woken.

        `closed` if they cannot be, because their loops are closed.
        """
        if self.error is None:
            self.lost = None  # it may refer back to this object
            pusher.over(self)
        elif closed or self.is_left:
            self._report_lost()
        self.is_over = True


_lock = forks.rlock()
"""Reentrant: the garbage collector may end a waiting coroutine."""
_changed = threading.Condition(_lock)
"""Notified when some are over."""


def report_unraised() -> None:
    """Report every error that no caller received, and every unfinished call: the process ends."""
    for handed in pusher.left():
        if isinstance(handed, Handed):
            handed.report_now()


def wake(ended: Sequence[Handed[Any]]) -> None:
    """Wake the callers, with one call for each loop."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]](list)
    waiting = [handed.done() for handed in ended]
    for futures in waiting:
        for future in futures:
            by_loop[future.get_loop()].append(future)
    closed = set[asyncio.AbstractEventLoop]()
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:
            closed.add(loop)
    for handed, futures in zip(ended, waiting, strict=True):
        gone = bool(futures and closed) and closed.issuperset(f.get_loop() for f in futures)
        handed.over(closed=gone)
    with _changed:
        _changed.notify_all()


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
