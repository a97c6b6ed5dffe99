"""Handed: a call that another thread does for coroutines, and what comes of it."""

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
"""Tells of an error that nobody has heard."""


class Handed(Generic[T]):
    """A call that was handed to another thread. It is done whatever becomes of who waits for it.

    With `lost` its error reaches somebody: whoever waits, or else `lost`, at exit at the latest.
    Without, it is a question, which is given up when nobody waits for the answer any more.
    """

    value: T | None = None
    error: BaseException | None = None
    is_done = False
    is_over = False
    """Whether those who wait know that it is done."""
    is_left = False
    """Whether all who waited for it have left."""
    was_heard = False
    """Whether its error has reached somebody."""

    def __init__(
        self,
        call: Call[T] | None,
        lost: Lost | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.call = call
        self.lost = lost
        self.context = context or contextvars.copy_context()
        """What the call, and the listeners it tells, see."""
        self.pid = process.own.pid
        self._waiting = 0
        """How many coroutines wait."""
        self._futures: list[asyncio.Future[None]] = []
        """What wakes them, each on its loop."""

    # -- for those who wait -----------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits, or is about to."""
        return not self.is_left

    async def outcome(self) -> T:
        """Wait for it, without blocking the event loop, and give what came of it."""
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
                self._tell()

    def result(self) -> T:
        """Wait for it, blocking, and give what came of it."""
        self._check_process()
        self.is_left = False
        self.wait()
        return self._given()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done; says whether it is."""
        with _changed:
            return _changed.wait_for(lambda: self.is_over, seconds)

    def _given(self) -> T:
        if self.error is not None:
            self._hear()
            raise self.error
        return self.value  # type: ignore[return-value] # there is one by now

    def _check_process(self) -> None:
        if self.pid != process.own.pid:
            raise InvalidJob("the call belongs to the process that made it, not to a fork")

    # -- its error --------------------------------------------------------------------------------

    def _hear(self) -> Lost | None:
        """Note that its error is known; gives, the first time, what else would have told of it."""
        with _lock:
            lost, self.lost = self.lost, None
            self.was_heard = True
        pusher.over(self)
        return lost

    def _tell(self) -> None:
        """Have the pusher tell of an error that nobody has heard."""
        if self.error is not None and self.pid == process.own.pid and (lost := self._hear()):
            pusher.put(partial(self.context.run, lost, self.error))

    def tell_now(self) -> None:
        """Tell of its error, or that it does not end: the process ends."""
        if (lost := self._hear()) is not None:
            error = self.error or BackendUnavailable("it does not end")
            self.context.run(lost, error)

    # -- for who does it --------------------------------------------------------------------------

    def end(self, value: T | None, error: BaseException | None) -> None:
        """Note what came of it; `wake` wakes those who wait."""
        self.value, self.error, self.call = value, error, None

    def done(self) -> Sequence[asyncio.Future[None]]:
        """Note that it is done; gives what wakes those who wait."""
        with _lock:
            self.is_done = True
            futures, self._futures = self._futures, []
        return futures

    def over(self, *, unheard: bool) -> None:
        """Note that those who wait know; `unheard`: they cannot, their loops are closed."""
        if self.error is None:
            self.lost = None  # which may hold what holds this
            pusher.over(self)
        elif unheard or self.is_left:
            self._tell()
        self.is_over = True


_lock = forks.rlock()
"""Reentrant: a coroutine that waits may end in the garbage collector."""
_changed = threading.Condition(_lock)
"""Told when some are over."""


def tell_unheard() -> None:
    """Tell of every error that nobody has heard, and of what does not end: the process does."""
    for handed in pusher.left():
        if isinstance(handed, Handed):
            handed.tell_now()


def wake(ended: Sequence[Handed[Any]]) -> None:
    """Wake those who wait, each loop in one call."""
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
        handed.over(unheard=gone)
    with _changed:
        _changed.notify_all()


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
