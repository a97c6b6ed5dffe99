"""Fetcher: the loop of a worker of many jobs, in a thread beside their event loop."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, NoReturn

from qframe import events
from qframe.drivers import heartbeat
from qframe.drivers.heartbeat import start_thread
from qframe.worker import presence
from qframe.worker.loop import Loop
from qframe.worker.options import StopReason
from qframe.worker.slots.overseer import Overseer
from qframe.worker.slots.runner import SlotRunner


class Fetcher(Loop):
    """Talks to the backend in a thread; its own thread runs the event loop."""

    runner: SlotRunner
    _reason = StopReason.INTERRUPTED
    _error: BaseException | None = None

    def run(self) -> StopReason:
        loop, lifespan = self.runner.jobs_loop, self._own_lifespan()
        if lifespan is None:
            return self._run_jobs(lambda: loop.close(self.options.grace))
        try:
            left, signals = ExitStack(), self.runner.signals
            stop, closing = signals.request_stop, self.runner.closing
            around = lifespan.around(self._run_on_loop, lambda: signals.quit, stop, closing)
            if not left.enter_context(around):
                left.close()
                return StopReason.INTERRUPTED
            signals.look_beside(loop.loop, [lifespan.name])
            return self._run_jobs(left.close)
        finally:
            loop.close(self.options.grace)

    def _run_jobs(self, end: Callable[[], object]) -> StopReason:
        """Works, and calls `end` when no job runs any more."""
        loop = self.runner.jobs_loop
        overseer = Overseer(self.runner)
        overseer.start()
        thread = start_thread("qframe-fetcher", self._fetch)
        try:
            loop.run()
        except OSError as error:
            self.signals.leave_if_closed("a job")
            self._reason = StopReason.LOST_BACKEND
            self._leave(f"the event loop is broken: {error}")
        finally:
            thread.join()
            overseer.stop()
            if self.runner.resources is not None:
                self.runner.resources.close(self._run_on_loop, self.runner.closing)
            end()
        if self._error is not None:
            raise self._error
        return self._reason

    def _run_on_loop(self, steps: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 (what it gives)
        signals = self.runner.signals
        signals.fired = None
        try:
            return self.runner.jobs_loop.loop.run_until_complete(steps)
        except RuntimeError:
            if signals.fired is not None:  # which has stopped the loop
                raise signals.fired from None
            raise

    def _fetch(self) -> None:
        runner = self.runner
        try:
            heartbeat.use(self._beats)
            try:
                self._reason = self._ran()
            finally:
                self.connection.backend.leave()
        except BaseException as error:  # noqa: BLE001 (raised where the worker was called)
            self._error = error
        finally:
            runner.jobs_loop.stop()
            runner.signals.arm(0.0)  # for a loop without a wakeup: a job closed its files
            if runner.stuck is not None and runner.jobs_loop.is_blocked():
                self._leave("a job that does not end blocks the event loop")

    def _leave(self, why: str) -> NoReturn:
        """Ends the process if the loop cannot be ended; leases bring back what runs on it."""
        name, reason = self.connection.name, self._reason
        events.fire(events.WorkerStopping, name, self._given, reason, reason.exit_code, self.jobs)
        self._beats.end(self._presence.leave, presence.PARTING)
        with contextlib.suppress(OSError):
            os.write(2, f"qframe: {why}: leaving\n".encode())  # jobs may have taken `sys.stderr`
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(reason.exit_code or 1)
