"""Sidecar: the process in which an isolating worker runs what others run in threads.

It relays the outbox, checks alerts, and dispatches schedules.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from qframe.connection import Connection
from qframe.drivers.heartbeat import Heartbeat
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.payload import tracebacks
from qframe.schedules.schedulers import Schedulers
from qframe.worker import handlers, process_tree
from qframe.worker.alerting import alerting
from qframe.worker.isolation.runner import IsolatingRunner
from qframe.worker.relaying import relaying
from qframe.worker.scheduling import LOOK_EVERY, Rows

log = logging.getLogger("qframe")

_WHAT = "schedules, alerts and the outbox"
_PATIENCE = 5.0
"""Seconds a sidecar has to end; its own waits are shorter."""
_PAUSE = 0.01
_SLOW = 30.0
"""Seconds after which the worker logs that its sidecar has not begun."""
_AT_WORK, _NOTHING = b"w", b"n"
"""What a sidecar sends: it is at work, or it has nothing to do."""


@contextlib.contextmanager
def running_sidecar(
    queues: QueueManager,
    connection: Connection,
    beats: Heartbeat,
    runner: IsolatingRunner,
    rows: Rows | None,
) -> Iterator[None]:
    """Runs a sidecar while the block runs, if it has something to do.

    `rows` knows whether schedules were ever added; without it none are dispatched. Raises
    `ConfigurationError` for a wrong outbox.
    """
    needed = queues.outbox() is not None or bool(queues.settings.alerts.rules)
    if not needed and rows is None:
        yield
        return
    sidecar = _Sidecar(queues, connection, runner, rows, needed=needed)
    beat = beats.add(LOOK_EVERY, sidecar.look, 0.0)
    try:
        yield
    finally:
        beats.drop(beat)
        sidecar.end()


class _Sidecar:
    """The process as the worker sees it: restarted when it dies, not when it has nothing to do."""

    def __init__(
        self,
        queues: QueueManager,
        connection: Connection,
        runner: IsolatingRunner,
        rows: Rows | None,
        *,
        needed: bool,
    ) -> None:
        self._queues = queues
        self._connection = connection
        self._runner = runner
        self._rows = rows
        self._needed = needed
        self._pid = 0
        self._begun_at = math.inf
        self._left: tuple[str | None] | None = None
        """The version of `rows` when it left with nothing to do, once it has."""
        self._stopping: AbstractSet[int] = frozenset()
        self._there, self._word = os.pipe()
        self._heard, self._said = os.pipe()
        os.set_blocking(self._heard, False)

    def look(self) -> None:
        """Starts it unless it runs, or has left and there is still nothing to do."""
        if self._pid:
            self._hear()
            end = self._runner.spawner.ended(self._pid)
            if end is None:
                return
            self._pid = 0
            if self._left is None:
                log.warning("the process for %s %s", _WHAT, end.words())
        if self._left is None or self._left != (self._told(),):
            self._left, self._begun_at = None, time.monotonic()
            self._stopping = handlers.taken()
            try:
                self._pid = self._runner.spawner.fork(self._be)
            except OSError as full:
                log.warning("no process can be forked for %s: %s", _WHAT, full)

    def _hear(self) -> None:
        """Reads whether it is at work, or has left; logs once if it reports neither."""
        with contextlib.suppress(BlockingIOError):
            if os.read(self._heard, 1) == _NOTHING:
                self._left = (self._told(),)
            self._begun_at = math.inf
        if time.monotonic() - self._begun_at > _SLOW:
            self._begun_at = math.inf
            log.warning(
                "the process for %s (pid %d) has not begun in %g s: it may hang in a module that "
                "it imports",
                _WHAT, self._pid, _SLOW,
            )  # fmt: skip

    def end(self) -> None:
        os.write(self._word, b".")
        until = time.monotonic() + _PATIENCE
        while self._pid and self._runner.spawner.ended(self._pid) is None:
            if time.monotonic() > until:
                process_tree.kill_group(self._pid)
            time.sleep(_PAUSE)
        for descriptor in (self._there, self._word, self._heard, self._said):
            os.close(descriptor)

    def _told(self) -> str | None:
        return None if self._rows is None else self._rows.told()

    # -- there ------------------------------------------------------------------------------------

    def _be(self, unblock: Callable[[], object]) -> None:
        """Runs the sidecar until the worker ends it; signals that stop the worker do not."""
        self._runner.close_here()
        for number in {*self._stopping, signal.SIGHUP} - {signal.SIGCHLD}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers.take(number, lambda *_: None)  # programs do not inherit it, unlike SIG_IGN
        unblock()
        _retitle()
        try:
            with relaying(self._queues), alerting(self._queues), self._scheduling() as is_needed:
                os.write(self._said, _AT_WORK if is_needed else _NOTHING)
                if is_needed:
                    os.read(self._there, 1)
        except (ConfigurationError, KeyboardInterrupt) as error:
            log.error("%s: %s", _WHAT, tracebacks.brief(error))  # noqa: TRY400 (one clear line)
            os.write(self._said, _NOTHING)

    @contextlib.contextmanager
    def _scheduling(self) -> Iterator[bool]:
        """Dispatches what is due; yields whether the sidecar has anything to do."""
        schedulers = None
        if self._rows is not None:
            try:
                schedulers = Schedulers(self._queues, [self._connection])
            except ConfigurationError as error:
                log.error("nothing is scheduled: %s", error)  # noqa: TRY400 (one clear line)
        if schedulers is None or not (self._needed or self._is_needed(schedulers)):
            yield self._needed
            return
        schedulers.start()
        try:
            yield True
        finally:
            schedulers.stop()

    def _is_needed(self, schedulers: Schedulers) -> bool:
        try:
            rows = None if self._rows is None else self._rows.ask()
            return rows is not None or schedulers.is_needed()
        except BackendUnavailable:
            return True  # perhaps


def _retitle() -> None:
    with contextlib.suppress(ImportError):  # an extra
        from setproctitle import getproctitle, setproctitle  # noqa: PLC0415

        if getproctitle().startswith("qframe:"):
            setproctitle(f"qframe: {_WHAT} beside pid {os.getppid()}")
