"""Overseer: the thread that watches the jobs of a worker, and calls no backend.

Only code that keeps the interpreter lock delays it, and the watchdog ends that.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import threading
import time
from collections.abc import Sequence

from qframe import events
from qframe.drivers.heartbeat import start_thread
from qframe.payload.text import one_line
from qframe.worker.slots.runner import LocalSlot, SlotRunner
from qframe.worker.slots.turns import LOOK, STILL, Passed

log = logging.getLogger("qframe")

_STDERR = 2
"""Jobs may have taken `sys.stderr`."""
_SLOW = 1.0
"""Seconds the event loop may be blocked before that is logged."""


class Overseer:
    """Finds handlers that do not end in time, and jobs that block the event loop."""

    def __init__(self, runner: SlotRunner) -> None:
        self._runner = runner
        self._reported: dict[str, tuple[float, float]] = {}
        """By class, until when it is not logged again, and for how long after that."""
        self._over = threading.Event()

    def start(self) -> None:
        start_thread("qframe-overseer", self._run)

    def stop(self) -> None:
        self._over.set()
        self._runner.watchdog.cancel()

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            try:
                self.look()
            except Exception:
                log.exception("the jobs that run could not be looked after")

    def look(self) -> None:
        now = time.monotonic()
        grace = self._runner.options.grace
        slots = self._runner.going
        jobs_loop = self._runner.jobs_loop
        passed = jobs_loop.turns.passed(now)
        computing = self._runner.computing()
        if passed.is_late:
            self._give_back(slots, passed, computing, now)
        stands_still = jobs_loop.blocked() > STILL
        others_ran = bool(passed.ran) and jobs_loop.thread not in passed.ran
        if computing is not None and (stands_still or (passed.is_late and not others_ran)):
            computing.interrupts.own += passed.seconds
        jobs_loop.turns.looked(now)
        self._runner.cover_all()
        for slot in slots:
            interrupts = slot.interrupts
            if stands_still and interrupts.is_on_loop and slot is not computing:
                slot.keep_covered()
                continue  # its wakeup fails; the time is not its own
            late = now - interrupts.due - interrupts.taken
            if interrupts.runs and not slot.is_left and late > grace:
                self._runner.give_up(slot)
                self._write_stacks()
        self._look_at_loop()

    def _give_back(
        self,
        slots: Sequence[LocalSlot],
        passed: Passed,
        computing: LocalSlot | None,
        now: float,
    ) -> None:
        """Gives back to the others the time in which only one of them could run."""
        self._runner.jobs_loop.was_kept(passed.seconds)
        for slot in slots:
            interrupts = slot.interrupts
            may_have_run = slot is computing or not interrupts.is_on_loop
            if not (may_have_run and interrupts.thread in passed.ran):
                interrupts.give_back(passed.seconds, now, on_trust=not passed.ran)
                slot.keep_covered()

    def _write_stacks(self) -> None:
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        for slot in self._runner.going:
            task = slot.interrupts.task
            if task is not None:
                stack = io.StringIO()
                task.print_stack(file=stack)
                name = one_line(f"{slot.job.name} {slot.job.uuid}")
                os.write(_STDERR, f"Task of {name}:\n{stack.getvalue()}".encode(errors="replace"))

    def _look_at_loop(self) -> None:
        """Logs which job blocks the loop; ever more seldom for a class."""
        seconds = self._runner.jobs_loop.blocked()
        if seconds <= STILL:
            return
        slot = self._runner.computing()
        if slot is None:
            return
        now, name = time.monotonic(), slot.attempt.name
        quiet_until, pause = self._reported.get(name, (0.0, _SLOW))
        if seconds < _SLOW or now < quiet_until:
            return
        self._reported[name] = (now + pause, 2 * pause)
        stack = self._runner.jobs_loop.stack()
        job = slot.job
        log.warning(
            "%s %s has blocked the event loop for %.1f s, and its neighbours with it:\n%s",
            job.name, job.uuid, seconds, stack,
        )  # fmt: skip
        events.fire(events.LoopBlocked, job, seconds, stack)
