"""SlotInterrupts: ends one of several running jobs, on the event loop or in a thread."""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from time import thread_time
from types import FrameType, TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

from qframe.drivers import guard
from qframe.exceptions import Interruption, JobTimedOut
from qframe.worker.slots.turns import Turns

current: ContextVar[SlotInterrupts | None] = ContextVar("qframe_job", default=None)
"""The interrupts of the job whose code runs, also in the tasks it has started on the loop."""

_EARLY = 0.01
_TURN = 0.05
"""Seconds in which a loop that stood still lets all waiting jobs take their turn."""
_PUT_OFF = 10
"""How often a job's end is put off because the overseer may give time back."""
_AGAIN = 0.1
"""Seconds after which an interruption that has not reached its job is raised again."""


class SlotInterrupts:
    """What may end one attempt from outside. Only signal handlers call `fire`.

    So one comes after the other. A job that awaits is cancelled and sees what ends it; a job that
    computes on the loop is raised in by the handler, which knows whose code it has interrupted; a
    job in a thread gets the exception set there.
    """

    own = 0.0
    """For how many seconds this job has blocked the loop."""
    processor = 0.0
    """Seconds of the loop's processor time that its steps there have taken."""

    def __init__(
        self,
        arm: Callable[[float], None],
        loop: asyncio.AbstractEventLoop,
        turns: Turns | None = None,
    ) -> None:
        self.fired: Interruption | None = None
        self.due = math.inf
        """When its timeout is over."""
        self.task: asyncio.Task[Any] | None = None
        """Its task on the loop."""
        self.awaits = False
        """Whether its thread waits for what is to run on the loop."""
        self.started: WeakSet[asyncio.Task[Any]] | None = None
        """The tasks it has started there."""
        self._arm = arm
        self._loop = loop
        self._turns = turns or Turns()
        self._stood_before = 0.0
        self._waits_for_turn = False
        self._put_off = 0
        """How often its end was put off, for time that may not be its own, and when last."""
        self._put_off_at = 0.0
        self._on_trust = 0.0
        """Seconds it was given back without proof that it did not use them itself."""
        self._timeout = 0.0
        self._runs = False
        self._has_reached = False
        """Whether the interruption has been raised in the job."""
        self.thread = 0
        """The thread of the handler."""
        self._there: dict[str, Any] = {}
        # A signal that comes while another is handled enters it again.
        self._lock = threading.RLock()

    @property
    def runs(self) -> bool:
        return self._runs

    def has_started(self, task: asyncio.Task[Any]) -> None:
        if self.started is None:
            self.started = WeakSet()
        self.started.add(task)

    @property
    def is_on_loop(self) -> bool:
        """Whether the job cannot go on unless the loop does."""
        return self.task is not None or self.awaits

    # -- around the handler -----------------------------------------------------------------------

    def running(self, timeout: float) -> None:
        """The handler runs, on this thread; it may be ended from now on."""
        self.fired = None
        self.thread, self._there = threading.get_ident(), guard.here()
        self._runs = True
        self._stood_before = self._turns.stood
        self._set(timeout, 0.0)

    def change_timeout(self, timeout: float, passed: float) -> None:
        """Sets another timeout, of which `passed` seconds are over."""
        if self._runs and timeout != self._timeout:
            self._set(timeout, passed)

    def _set(self, timeout: float, passed: float) -> None:
        self._timeout = timeout
        self.due = time.monotonic() + max(0.001, timeout - passed) if timeout else math.inf
        self._arm(self.due)

    def not_running(self) -> None:
        """The handler has ended: nothing is raised any more."""
        with self._lock:
            self._runs = False
            if self.fired is not None and self.task is None:
                _raise_in(ctypes.c_ulong(self.thread), None)
        guard.forget_interruption()

    # -- beside it --------------------------------------------------------------------------------

    def give_back(self, seconds: float, now: float, *, on_trust: bool) -> None:
        """Gives a job in a thread time back in which it could not run."""
        with self._lock:
            if not self._runs or self.fired is not None or not self._timeout or self.is_on_loop:
                return
            if on_trust:
                seconds = min(seconds, self._timeout - self._on_trust)
                self._on_trust += seconds
            self.due = max(self.due, min(self.due + seconds, now + self._timeout))

    def while_running(self, act: Callable[[], None]) -> None:
        """Calls `act`, unless the handler has ended; it cannot end meanwhile."""
        with self._lock:
            if self._runs:
                act()

    # -- in a signal handler ----------------------------------------------------------------------

    def look(self, now: float) -> float:
        """Returns when to look again; what is due is left to `ring`."""
        if not self._runs:
            return math.inf
        if self.fired is None:
            is_looked_at = self._waits_for_turn or self._put_off
            return max(self.due, now + _AGAIN) if is_looked_at else self.due
        return math.inf if self._has_reached else now + _AGAIN

    def ring(self, now: float, frame: FrameType | None) -> None:
        """Ends the job if its time is over; raises again what has not reached it."""
        if self._runs and self.fired is None and now >= self.due - _EARLY:
            # Another job may be blocking the loop.
            if self.is_on_loop and current.get() is not self:
                if not self._waits_for_turn:
                    self._waits_for_turn = True
                    self._loop.call_soon_threadsafe(self._loop.call_later, _TURN, self._have_turned)
            elif not self._may_be_put_off(now, is_kept=self._turns.is_kept(self.thread, now)):
                self._take_back()
                if now >= self.due - _EARLY:
                    self._is_late(frame)
        elif self.fired is not None and not self._has_reached:
            self._reach(self.fired, frame)

    def _have_turned(self) -> None:
        """Ends a job on the loop that has had its turn, and the time others have taken from it."""
        now = time.monotonic()
        if self._runs and self._may_be_put_off(now, is_kept=self._turns.is_late(now)):
            self._loop.call_later(_TURN, self._have_turned)
            return
        self._waits_for_turn = False
        if not self._runs or self.fired is not None:
            return
        self._take_back()
        if now >= self.due - _EARLY:
            self._is_late(None)
        else:
            self._arm(self.due)

    @property
    def taken(self) -> float:
        """The seconds others have blocked the loop that were not given back."""
        return max(0.0, self._turns.stood - self._stood_before - self.own) if self.is_on_loop else 0

    def _take_back(self) -> None:
        if self.is_on_loop:
            self.due += self.taken
            self._stood_before, self.own = self._turns.stood, 0.0

    def _may_be_put_off(self, now: float, *, is_kept: bool) -> bool:
        """Whether to wait until the overseer has given back the taken time; not for ever."""
        if not is_kept:
            self._put_off = 0
        elif now - self._put_off_at > _AGAIN / 2:
            self._put_off += 1
            self._put_off_at = now
        return is_kept and self._put_off <= _PUT_OFF

    def _is_late(self, frame: FrameType | None) -> None:
        late = JobTimedOut(f"ran longer than its timeout of {self._timeout:g} s")
        self.fire(late, frame)

    def fire(self, error: Interruption, frame: FrameType | None) -> None:
        """Ends the job; once, so that its cleanup is not interrupted."""
        if self._runs and self.fired is None:
            self.fired = error
            self._reach(error, frame)

    def _reach(self, error: Interruption, frame: FrameType | None) -> None:
        with self._lock:
            if not self._runs:
                return
            if current.get() is self and not _is_between(frame):  # the handler interrupted its code
                if self.task is not None and asyncio.current_task(self._loop) is not self.task:
                    self._loop.call_soon_threadsafe(self._cancel)  # in a task it has started
                else:
                    self._has_reached = True
                guard.interrupt(error, frame)
            elif self.task is not None:
                self._loop.call_soon_threadsafe(self._cancel)
            elif not self.awaits:
                self._has_reached = True
                _interrupt(self.thread, self._there, error)

    def _cancel(self) -> None:
        """Cancels what awaits; called on the loop, so nothing changes meanwhile."""
        if self._runs and self.task is not None and not self._has_reached:
            self.task.cancel()

    # -- where it awaits --------------------------------------------------------------------------

    def seen(self, error: BaseException) -> BaseException:
        """Returns what the job sees instead of a bare cancellation."""
        if self.fired is None or self._has_reached or not isinstance(error, asyncio.CancelledError):
            return error
        self._has_reached = True
        kind = type(self.fired)
        if kind not in _cancellations:
            _cancellations[kind] = _as_cancellation(kind)
        return _cancellations[kind](*self.fired.args)


class Steps(Coroutine[Any, Any, Any]):
    """A job's coroutine, step by step: each is timed, and a cancelled job sees the reason.

    To whoever looks at it, it looks as the coroutine does.
    """

    __slots__ = ("_interrupts", "coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], interrupts: SlotInterrupts) -> None:
        self.coroutine = coroutine
        self._interrupts = interrupts

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (`cr_frame`, `__qualname__` and so on)
        return getattr(self.coroutine, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 (what it awaits)
        began = thread_time()
        try:
            return self.coroutine.send(None)
        finally:
            self._interrupts.processor += thread_time() - began

    def send(self, value: Any) -> Any:  # noqa: ANN401 (what it awaits)
        began = thread_time()
        try:
            return self.coroutine.send(value)
        finally:
            self._interrupts.processor += thread_time() - began

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        _: TracebackType | None = None,
    ) -> Any:  # noqa: ANN401 (what it awaits)
        raised = kind if isinstance(kind, BaseException) else error
        if not isinstance(raised, BaseException):
            raised = kind() if isinstance(kind, type) else kind
        raised = self.seen(raised)
        began = thread_time()
        try:
            return self.coroutine.throw(raised)
        finally:
            self._interrupts.processor += thread_time() - began

    def close(self) -> None:
        self.coroutine.close()

    def seen(self, error: BaseException) -> BaseException:
        return self._interrupts.seen(error)


class TaskSteps(Steps):
    """The coroutine of a task that a job has started: a cancellation of it is only that."""

    __slots__ = ()

    def seen(self, error: BaseException) -> BaseException:
        return error


class StartedTask(asyncio.Task[Any]):
    """A task that a job has started, whose steps are timed as the job's."""

    def get_coro(self) -> Any:  # noqa: ANN401 (asyncio's own)
        """Returns the job's own coroutine."""
        steps = super().get_coro()  # None once it has ended, perhaps
        return getattr(steps, "coroutine", steps)


def _is_between(frame: FrameType | None) -> bool:
    """Whether a signal came between two steps: raised there, the job would never see it."""
    return frame is not None and frame.f_code in _BETWEEN


_BETWEEN = {
    each.__code__
    for each in (
        *(Steps.__next__, Steps.send, Steps.throw, Steps.close),
        *(Steps.seen, TaskSteps.seen, SlotInterrupts.seen),
    )
}
_cancellations: dict[type[Interruption], type[Interruption]] = {}


def _as_cancellation(kind: type[Interruption]) -> type[Interruption]:
    """Makes a class that is a cancellation, too: task groups have to clean up."""
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__name__}
    return cast("type[Interruption]", type(kind.__name__, (kind, asyncio.CancelledError), body))


_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


def _interrupt(ident: int, there: dict[str, Any], error: BaseException) -> None:
    """Raises the class of `error` in a thread, or `error` when its driver call has returned.

    No byte code between the check and the call lets another thread run. A thread that waits for the
    system, or is in C code, is interrupted when that returns.
    """
    if "depth" in there and there["depth"]:  # noqa: RUF019 (`get` is a call: others may run)
        there["interruption"] = error
    else:
        _raise_in(ctypes.c_ulong(ident), ctypes.py_object(type(error)))
