"""Pusher: one thread that runs, in order, what a finalizer must not do itself.

A finalizer runs at any byte code, on any thread, perhaps in the middle of an exchange with a
backend. So it only adds a task here; the thread starts on first use and has its own connections.
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
"""Seconds after which waiting for a task without progress ends."""
_MOST = 100
"""Tasks that may wait before those who add more must wait."""


class Elsewhere(Protocol):
    """A task of another thread."""

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for it."""

    def wait(self, seconds: float) -> bool:
        """Wait until it is done, at most `seconds`. Returns whether it is."""


class _Pusher:
    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.beats = 0
        self.tasks_open: dict[int, Callable[[], object]] = {}
        """Unfinished tasks; a dictionary, whose changes no finalizer can interrupt."""
        self._follow: deque[Callable[[], object]] = deque()
        """Tasks added by the current one; they run before any other."""
        self.elsewhere: dict[int, Elsewhere] = {}
        """Tasks of other threads that are unfinished, or whose error no caller has received."""
        self._noted = False
        self._running = threading.Lock()
        self._started = False
        self._thread = 0
        self._is_last = False
        """Whether this thread, the last of the process, does tasks."""

    def put(self, task: Callable[[], object]) -> None:
        self.tasks_open[id(task)] = task
        if sys.is_finalizing():
            self._do_at_last(task)
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
        """Whether the tasks are another thread's, which can do them while this one waits."""
        if sys.is_finalizing():
            return False
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
        if not self._started:  # no thread could be started
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
        with contextlib.suppress(RuntimeError):  # too many threads, or the process ends
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

    def _do_at_last(self, task: Callable[[], object]) -> None:
        """Do it here: an object of a module dies, no thread runs any more, and none can start."""
        while not self.tasks.empty():
            self._follow.append(self.tasks.get())
        self._follow.append(task)
        if self._is_last:  # a finalizer amid another task
            return
        self._is_last = True
        try:
            while self._follow:
                self._do_one(self._follow.popleft())
        finally:
            self._is_last = False

    def _do(self, task: Callable[[], object]) -> None:
        self._do_one(task)
        while self._follow:
            self._do_one(self._follow.popleft())

    def _do_one(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException:  # the following tasks must not be lost
            log.exception("a dropped dispatch could not be pushed, nor could that be reported")
        finally:
            self.beats += 1
            self.tasks_open.pop(id(task), None)


own = _Pusher()
"""The pusher of this process."""


def put(task: Callable[[], object]) -> None:
    """Add a task. Takes no lock and never waits, so a finalizer may call it anywhere.

    The next driver call on this thread waits until the task is done.
    """
    own.put(task)
    guard.before_next_call(_wait_before_a_call)


def wait(*, everything: bool = False) -> bool:
    """Wait for all tasks, and for tasks of other threads (`note`) that have no waiting caller.

    `everything` includes those with a waiting caller. Those threads must not call it. Returns False
    if it takes too long, on the thread of a running loop, and on the pusher's own.
    """
    return own.wait(everything=everything)


def wait_for_tasks() -> bool:
    """Wait for all tasks, but not for those of other threads."""
    return own.wait_for_tasks()


def note(task: Elsewhere) -> None:
    """Include a task of another thread in `wait`, until it is `over`."""
    own.note(task)


def over(task: Elsewhere) -> None:
    """Remove a task of another thread from `wait`."""
    own.elsewhere.pop(id(task), None)


def left() -> list[Elsewhere]:
    return list(own.elsewhere.values())


async def wait_on_loop() -> None:
    """As `wait`, on the thread of a running loop, without blocking it."""
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
    """Wait while too many tasks wait: the caller may be faster than the backend."""
    if own.tasks.qsize() >= _MOST:
        own.wait()


def beat() -> None:
    """Report progress of the current task."""
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
