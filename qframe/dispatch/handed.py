"""Handed: a call that was handed to another thread, by a coroutine or on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
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
    """A call that was handed to another thread, and what comes of it.

    An error that nobody hears is told by `lost`: when nobody is left who could, or at exit. A
    question has none. Where the backend cannot be reached, what was `dropped` is said again
    `retries` times: it was never awaited, and nobody is left who could.
    """

    tries = 0
    is_done = False
    is_over = False
    """Whether everybody who waited has been told."""
    value: T | None = None
    error: BaseException | None = None
    heard = False
    dropped = False
    was_awaited = False
    awaiting = 0
    """How many coroutines wait for what comes of it."""
    is_left = False
    """Whether it was awaited, and whoever did has been cancelled."""
    _ended: threading.Event | None = None

    def __init__(
        self,
        call: Call[T] | None,
        lost: Lost | None = None,
        *,
        context: contextvars.Context | None = None,
        retries: int = 0,
    ) -> None:
        self.call = call
        self.context = context or contextvars.copy_context()
        """What the call, and the listeners it tells, see."""
        self.lost = lost
        self.retries = retries
        self.pid = process.pid()
        self.waiting: list[asyncio.Future[None]] = []
        """Who is to be woken, each on its loop."""

    def __del__(self) -> None:
        if self.error is not None:
            self._tell()

    def _tell(self) -> None:
        """Have the pusher tell of an error that nobody has heard."""
        if not self.heard and self.lost is not None and self.pid == process.pid():
            self.heard = True
            pusher.put(_Telling(self))

    # -- for those who wait -----------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """Whether a coroutine waits for what comes of it."""
        return self.awaiting > 0

    @property
    def has_failed(self) -> bool:
        """Whether somebody has heard that it failed."""
        return self.heard and self.error is not None

    async def outcome(self) -> T:
        """Wait for it, without blocking the event loop, and give what came of it."""
        self._check_process()
        future = self._future(1)
        self.was_awaited, self.is_left = True, False
        if future is not None:
            try:
                await future
            except BaseException:
                self.is_left = self._leave(future, 1)
                raise
        return self._given()

    async def ended(self) -> None:
        """Wait until it is done, without blocking the event loop, and hear nothing."""
        future = self._future(0)
        if future is not None:
            try:
                await future
            finally:
                self._leave(future, 0)

    def _future(self, awaiting: int) -> asyncio.Future[None] | None:
        """Give what is resolved when it is done; None: it is."""
        future = asyncio.get_running_loop().create_future()
        with _lock:
            if self.is_done:
                return None
            self.waiting.append(future)
            self.awaiting += awaiting
        return future

    def _leave(self, future: asyncio.Future[None], awaiting: int) -> bool:
        """Wait no more; says whether nobody does."""
        with _lock:
            with contextlib.suppress(ValueError):
                self.waiting.remove(future)
            self.awaiting -= awaiting
            return not self.awaiting

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done; says whether it is."""
        with _lock:
            if self.is_over:
                return True
            ended = self._ended = self._ended or threading.Event()
        return ended.wait(seconds)

    def result(self) -> T:
        """Wait for it, blocking, and give what came of it."""
        self._check_process()
        self.was_awaited, self.is_left = True, False
        self.wait()
        return self._given()

    def _given(self) -> T:
        self.heard = True
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # there is one by now

    def _check_process(self) -> None:
        if self.pid != process.pid():
            raise InvalidJob("the call belongs to the process that made it, not to a fork")

    # -- for who does it --------------------------------------------------------------------------

    def end(self, value: T | None, error: BaseException | None) -> None:
        """Note what came of it; those who wait are woken by `wake`."""
        self.value, self.error, self.call = value, error, None
        if error is not None and self.lost is not None:
            _unheard.add(self)

    def finish(self) -> Sequence[asyncio.Future[None]]:
        """Say that it is done; gives who waits on event loops."""
        with _lock:
            self.is_done = True
            waiting, self.waiting = self.waiting, []
        return waiting

    def over(self, *, unheard: bool) -> None:
        """Wake the threads that wait, once those on event loops were; `unheard`: or could not."""
        if self.error is not None and (unheard or self.is_left or self.dropped):
            self._tell()
        pusher.over(self)
        with _lock:
            self.is_over, ended = True, self._ended
        if ended is not None:
            ended.set()


class _Telling:
    """Tells, on the pusher's thread, of an error that nobody has heard."""

    def __init__(self, handed: Handed[Any]) -> None:
        self._context, self._lost, self._error = handed.context, handed.lost, handed.error

    def __call__(self) -> None:
        if self._lost is not None and self._error is not None:
            self._context.run(self._lost, self._error)


_lock = forks.lock()
"""Held for a moment, by who waits or wakes; no finalizer takes it."""
_unheard: weakref.WeakSet[Handed[Any]] = weakref.WeakSet()
"""Those whose errors somebody may hear yet."""


def tell_unheard() -> None:
    """Tell of every error that nobody has heard, and of what does not end: the process does."""
    for handed in pusher.left():
        if isinstance(handed, Handed) and handed.lost is not None:
            handed.error = BackendUnavailable("it does not end")
            _unheard.add(handed)
    for handed in list(_unheard):
        if not handed.heard:
            handed.heard = True
            _Telling(handed)()


def wake(ended: Sequence[Handed[Any]]) -> None:
    """Wake those who wait, each loop in one call."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]](list)
    waiting = [handed.finish() for handed in ended]
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


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _anew() -> None:
    _unheard.clear()


forks.in_child(_anew)
