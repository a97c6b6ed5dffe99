"""Side tasks: what a worker does besides its jobs; who makes a worker hands them over."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from qframe.connection import Connection
from qframe.drivers.heartbeat import Heartbeat
from qframe.drivers.store import Store
from qframe.exceptions import BackendUnavailable
from qframe.worker.control import Control

LOOK_EVERY = 5.0
"""Seconds between two looks at whether there is something to do for a task."""


class SideTask(Protocol):
    """A side task: it runs in threads of a worker, or in a process beside one that forks."""

    @property
    def name(self) -> str: ...

    @property
    def without(self) -> str:
        """What a log says if it cannot run."""

    @property
    def key(self) -> str | None:
        """A fact on the worker's connection: once it is set, there is something to do."""

    @property
    def waits_for_key(self) -> bool:
        """Whether there is nothing to do before the fact is set."""

    def is_wanted(self) -> bool:
        """Whether it is configured. Raises `ConfigurationError`."""

    def prepare(self) -> bool:
        """Loads what it needs, where it is to run; returns whether it surely has something to do.

        Raises `ConfigurationError`.
        """

    def is_needed(self) -> bool:
        """Whether it has something to do, without regard to `key`. Raises `BackendUnavailable`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class SideTasks:
    """The side tasks of a worker that are configured. Raises `ConfigurationError`."""

    def __init__(self, tasks: Sequence[SideTask], connection: Connection, control: Control) -> None:
        self.wanted = [task for task in tasks if task.is_wanted()]
        *first, last = [task.name for task in tasks] or [""]
        self.names = f"{', '.join(first)} and {last}" if first else last
        """What it was handed, in words."""
        keys = ((task, task.key) for task in self.wanted)
        self._facts = {
            task: WatchedFact(key, connection.store, control) for task, key in keys if key
        }
        self._unneeded: set[SideTask] = set()
        """Those that are needed only once their fact is set."""

    def facts(self) -> Sequence[str | None]:
        """Returns the last known facts: other ones may mean that there is something to do."""
        return [each.last_known() for each in self._facts.values()]

    def all_wait(self, facts: Sequence[str | None]) -> bool:
        """Whether all wait for facts that are not set; `facts` are the last known ones."""
        return not any(facts) and all(each.waits_for_key for each in self.wanted)

    def is_needed(self, task: SideTask) -> bool:
        """Whether there is something to do for a prepared task, as far as is known."""
        if task not in self._unneeded:
            with contextlib.suppress(BackendUnavailable):  # the worker itself logs it
                if task.is_needed():
                    return True
                self._unneeded.add(task)
        fact = self._facts.get(task)
        return fact is not None and fact.last_known() is not None

    def may_be_needed(self, task: SideTask) -> bool:
        """Asks now whether there is something to do; true if nobody answers."""
        fact = self._facts.get(task)
        try:
            return (fact is not None and fact.read() is not None) or task.is_needed()
        except BackendUnavailable:
            return True


class WatchedFact:
    """A fact that the worker reads with its orders.

    An idle worker has read it already; one with a long job has to ask.
    """

    def __init__(self, key: str, store: Store, control: Control) -> None:
        self._store = store
        self._control = control
        self._key = key
        control.watch(key)

    def last_known(self) -> str | None:
        """Returns the last known value; None if there is none."""
        looked, value = self._control.watched(self._key)
        if time.monotonic() - looked > LOOK_EVERY:
            with contextlib.suppress(BackendUnavailable):  # the worker itself logs it
                return self.read()
        return value

    def read(self) -> str | None:
        """Reads the value now. Raises `BackendUnavailable`."""
        (value,) = self._store.get(self._key)
        return value


@contextlib.contextmanager
def running(tasks: SideTasks, beats: Heartbeat) -> Iterator[None]:
    """Runs the tasks in threads while the block runs; each starts once it has something to do.

    Raises `ConfigurationError`.
    """
    sure = {task: task.prepare() for task in tasks.wanted}
    waiting = [task for task, is_sure in sure.items() if not is_sure]
    started: list[SideTask] = []
    is_over, changing = False, threading.Lock()

    def start(task: SideTask) -> None:
        with changing:
            if not is_over:
                task.start()
                started.append(task)

    def look() -> float | None:
        for task in waiting.copy():
            if tasks.is_needed(task):
                waiting.remove(task)
                start(task)
        return None if waiting else math.inf

    beat = beats.add(LOOK_EVERY, look, 0.0) if waiting else None
    try:
        for task, is_sure in sure.items():
            if is_sure:
                start(task)
        yield
    finally:
        with changing:
            is_over = True
        if beat is not None:
            beats.drop(beat)
        for task in reversed(started):
            task.stop()
