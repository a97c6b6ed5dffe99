"""The pusher: one thread that does, in order, what must not be done where an object dies.

A finalizer runs at any byte code, on any thread, perhaps in the middle of an exchange with a
backend. So it only leaves a task here; the thread, started when first needed, has connections of
its own.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from qframe import forks
from qframe.drivers import guard, process
from qframe.jobs.execution import on_a_running_loop

log = logging.getLogger("qframe")

_STUCK = 60.0
"""Seconds after which nobody waits any longer for a task that makes no progress."""
_MOST = 100
"""How many tasks may wait before whoever makes more has to."""


class Elsewhere(Protocol):
    """What another thread does."""

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for it."""

    def wait(self, seconds: float) -> bool:
        """Wait until it is done; says whether it is."""


class _Pusher:
    """The tasks of one process, and their thread."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.beats = 0
        self.tasks_open: dict[int, Callable[[], object]] = {}
        """Those that are not done; a dictionary, whose changes no finalizer can break into."""
        self._follow: deque[Callable[[], object]] = deque()
        """Those made by the one that is being done: they are done before any other."""
        self.elsewhere: dict[int, Elsewhere] = {}
        """What other threads do that is not done, or whose error nobody has heard."""
        self._noted = False
        self._running = threading.Lock()
        self._started = False
        self._thread = 0

    def put(self, task: Callable[[], object]) -> None:
        self.tasks_open[id(task)] = task
        if sys.is_finalizing():  # a module's object dies: no thread runs any more, and none starts
            self._do(task)
            return
        if self._thread == threading.get_ident():
            self._follow.append(task)
            return
        self.tasks.put(task)
        if not self._started:
            self._start()

    def note(self, task: Elsewhere) -> None:
        if not self._noted:
            self._noted = True
            process.before_a_child_ends(partial(self.wait, everything=True))
        self.elsewhere[id(task)] = task

    def may_wait(self) -> bool:
        return self._thread != threading.get_ident() and not on_a_running_loop()

    def wait(self, *, everything: bool = False) -> bool:
        if not self.wait_for_tasks():
            return False
        return not self.elsewhere or (
            self._wait_elsewhere(everything=everything) and self.wait_for_tasks()
        )

    def _wait_elsewhere(self, *, everything: bool) -> bool:
        if not self.may_wait():
            return False
        for each in list(self.elsewhere.values()):
            seen = self.beats
            while (everything or not each.is_awaited) and not each.wait(_STUCK):
                if self.beats == seen:
                    log.warning("what was dispatched has not been pushed in %g s", _STUCK)
                    return False
                seen = self.beats
        return True

    def wait_for_tasks(self) -> bool:
        if not self.tasks_open:
            return True
        if not self.may_wait():
            return False
        if not self._started:
            self._start()
        if not self._started:  # no thread can be had
            self._do_all()
            return True
        done = threading.Lock()
        done.acquire()
        self.tasks.put(done.release)
        seen = self.beats
        while not done.acquire(timeout=_STUCK):
            if self.beats == seen:
                log.warning("a dropped dispatch has not been pushed in %g s", _STUCK)
                return False
            seen = self.beats
        return True

    def _start(self) -> None:
        """Start the thread; without the locks of `threading`, which this thread may hold."""
        with contextlib.suppress(RuntimeError):  # there are too many, or the process ends
            _thread.start_new_thread(self._run, ())
            self._started = True
            process.before_a_child_ends(self.wait)

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # two threads have started it
        self._thread = threading.get_ident()
        threading.current_thread().name = "qframe-pusher"
        while True:
            self._do(self.tasks.get())

    def _do_all(self) -> None:
        while not self.tasks.empty():
            self._do(self.tasks.get())

    def _do(self, task: Callable[[], object]) -> None:
        self._do_one(task)
        while self._follow:
            self._do_one(self._follow.popleft())

    def _do_one(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException:  # what comes after it must not be lost
            log.exception("a dropped dispatch could not be pushed, nor could that be reported")
        finally:
            self.beats += 1
            self.tasks_open.pop(id(task), None)


own = _Pusher()
"""That of this process."""


def put(task: Callable[[], object]) -> None:
    """Have a task done. Takes no lock and never waits: a finalizer may call it anywhere.

    The next driver call on this thread waits until it is done.
    """
    own.put(task)
    guard.before_next_call(_wait_before_a_call)


def wait(*, everything: bool = False) -> bool:
    """Wait until what was put is done, and what other threads do (`note`) that nobody waits for.

    Also what somebody waits for, where it is to be `everything`. Not to be called by those threads.
    False where it takes too long, on the thread of a running loop, and on the pusher's own.
    """
    return own.wait(everything=everything)


def wait_for_tasks() -> bool:
    """Wait until what was put is done, and for nothing else."""
    return own.wait_for_tasks()


def note(task: Elsewhere) -> None:
    """Have whoever waits for the pusher wait for this, too, until it is `over`."""
    own.note(task)


def over(task: Elsewhere) -> None:
    """Wait no more for this."""
    own.elsewhere.pop(id(task), None)


def left() -> list[Elsewhere]:
    """Give what was noted and is not over."""
    return list(own.elsewhere.values())


async def wait_on_loop() -> None:
    """Do as `wait`, on the thread of a running loop, without blocking it."""
    if own.tasks_open:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        own.put(lambda: loop.call_soon_threadsafe(_end, done))
        await done
    if own.elsewhere and not all(each.is_awaited for each in left()):
        await asyncio.to_thread(own.wait)


def _end(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def make_room() -> None:
    """Wait where many tasks do: who makes them may be quicker than the backend."""
    if own.tasks.qsize() >= _MOST:
        own.wait()


def beat() -> None:
    """Say that the task that is being done makes progress."""
    own.beats += 1


def _wait_before_a_call() -> bool:
    if own.tasks_open and not own.may_wait():
        return False
    own.wait_for_tasks()
    return True


def _anew() -> None:
    global own  # noqa: PLW0603 (a forked child has none of its parent's threads)
    own = _Pusher()


forks.in_child(_anew)
