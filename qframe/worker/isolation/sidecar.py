"""Sidecar: the process in which an isolating worker runs what others run in threads.

It runs the side tasks, such as dispatching schedules.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import ConfigurationError
from qframe.payload import tracebacks
from qframe.worker import handlers, process_tree
from qframe.worker.isolation.runner import IsolatingRunner
from qframe.worker.side_tasks import LOOK_EVERY, SideTask, SideTasks

log = logging.getLogger("qframe")

_PATIENCE = 5.0
"""Seconds a sidecar has to end; its own waits are shorter."""
_PAUSE = 0.01
_SLOW = 30.0
"""Seconds after which the worker logs that its sidecar has not begun."""
_AT_WORK, _NOTHING = b"w", b"n"
"""What a sidecar sends: it is at work, or it has nothing to do."""


@contextlib.contextmanager
def running_sidecar(tasks: SideTasks, beats: Heartbeat, runner: IsolatingRunner) -> Iterator[None]:
    """Runs a sidecar while the block runs, if there are tasks."""
    if not tasks.wanted:
        yield
        return
    sidecar = _Sidecar(tasks, runner)
    beat = beats.add(LOOK_EVERY, sidecar.look, 0.0)
    try:
        yield
    finally:
        beats.drop(beat)
        sidecar.end()


class _Sidecar:
    """The process as the worker sees it: restarted when it dies, not when it has nothing to do."""

    def __init__(self, tasks: SideTasks, runner: IsolatingRunner) -> None:
        self._tasks = tasks
        self._runner = runner
        self._pid = 0
        self._begun_at = math.inf
        self._facts: Sequence[str | None] = ()
        """The facts when it was started."""
        self._has_left = False
        """Whether it left because there was nothing to do."""
        self._stopping: AbstractSet[int] = frozenset()
        self._there, self._word = os.pipe()
        self._reports, self._said = os.pipe()
        os.set_blocking(self._reports, False)

    def look(self) -> None:
        """Starts it unless it runs, or has left and there is still nothing to do."""
        if self._pid:
            self._read_report()
            end = self._runner.spawner.ended(self._pid)
            if end is None:
                return
            self._pid = 0
            if not self._has_left:
                log.warning("the process for %s %s", self._tasks.names, end.words())
        facts = self._tasks.facts()
        if self._tasks.all_wait(facts):
            return
        if not self._has_left or facts != self._facts:
            self._has_left, self._facts, self._begun_at = False, facts, time.monotonic()
            self._stopping = handlers.taken()
            try:
                self._pid = self._runner.spawner.fork(self._be)
            except OSError as full:
                log.warning("no process can be forked for %s: %s", self._tasks.names, full)

    def _read_report(self) -> None:
        """Reads whether it is at work, or has left; logs once if it reports neither."""
        with contextlib.suppress(BlockingIOError):
            if os.read(self._reports, 1) == _NOTHING:
                self._has_left = True
            self._begun_at = math.inf
        if time.monotonic() - self._begun_at > _SLOW:
            self._begun_at = math.inf
            log.warning(
                "the process for %s (pid %d) has not begun in %g s: it may hang in a module that "
                "it imports",
                self._tasks.names, self._pid, _SLOW,
            )  # fmt: skip

    def end(self) -> None:
        os.write(self._word, b".")
        until = time.monotonic() + _PATIENCE
        while self._pid and self._runner.spawner.ended(self._pid) is None:
            if time.monotonic() > until:
                process_tree.kill_group(self._pid)
            time.sleep(_PAUSE)
        for descriptor in (self._there, self._word, self._reports, self._said):
            os.close(descriptor)

    # -- there ------------------------------------------------------------------------------------

    def _be(self, unblock: Callable[[], object]) -> None:
        """Runs the sidecar until the worker ends it; signals that stop the worker do not."""
        self._runner.close_here()
        for number in {*self._stopping, signal.SIGHUP} - {signal.SIGCHLD}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers.take(number, lambda *_: None)  # programs do not inherit it, unlike SIG_IGN
        unblock()
        _retitle(self._tasks.names)
        try:
            tasks = self._needed()
            os.write(self._said, _AT_WORK if tasks else _NOTHING)
            for task in tasks:
                task.start()
            if tasks:
                os.read(self._there, 1)
            for task in reversed(tasks):
                task.stop()
        except KeyboardInterrupt as error:
            log.error("%s: %s", self._tasks.names, tracebacks.brief(error))  # noqa: TRY400 (one clear line)
            os.write(self._said, _NOTHING)

    def _needed(self) -> list[SideTask]:
        """Returns the tasks that can run; none if there is nothing to do for any."""
        prepared: list[SideTask] = []
        is_needed = False
        for task in self._tasks.wanted:
            try:
                is_sure = task.prepare()
            except ConfigurationError as error:
                log.error("%s: %s", task.without, error)  # noqa: TRY400 (one clear line)
            else:
                prepared.append(task)
                is_needed = is_needed or is_sure or self._tasks.may_be_needed(task)
        return prepared if is_needed else []


def _retitle(names: str) -> None:
    with contextlib.suppress(ImportError):  # an extra
        from setproctitle import getproctitle, setproctitle  # noqa: PLC0415

        if getproctitle().startswith("qframe:"):
            setproctitle(f"qframe: {names} beside pid {os.getppid()}")
