"""IsolatingLoop: one run of a worker whose jobs have a process each; a single thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

from qframe.worker.isolation.runner import IsolatingRunner
from qframe.worker.options import StopReason
from qframe.worker.slots.fetcher import SlotLoop


class IsolatingLoop(SlotLoop):
    """Attends to the jobs' processes wherever it waits."""

    runner: IsolatingRunner
    _rested = 0
    """How many jobs had ended at the last rest."""
    _attended = False
    """Whether it has attended to the processes since it last did something else."""

    def run(self) -> StopReason:
        reason = super().run()
        self._drain()
        return reason

    def _note_ended(self) -> None:
        if not self._attended:
            self.runner.attend(0)
        self._attended = False
        super()._note_ended()

    def _exchange(self) -> bool:
        if self.options.rest and self.jobs > self._rested and not self.signals.quit:
            self._rested = self.jobs
            self.runner.settler.flush()
            self._pause(self.options.rest)
            return True
        return super()._exchange() and self.runner.free > 0

    def _room(self) -> int:
        """Returns how many more jobs to hold: none while some are held, or no slot is free."""
        return 0 if self._held or not self.runner.free else super()._room()

    def _ahead(self) -> int:
        return 0 if self.options.rest else self._prefetch.limit() - 1

    def _rest(self) -> None:
        self._beats.beat()  # no thread calls it here

    def _hear_signals(self) -> None:
        """Nothing: the runner has read them and passes them on to the jobs."""

    def _sleep(self, seconds: float, queues: Sequence[str] = ()) -> None:
        runner = self.runner
        until = time.monotonic() + seconds
        while not (runner.ended or runner.settler.has_ends):
            left = min(until - time.monotonic(), runner.patience())
            if queues and left > 0:
                self.connection.backend.wait(queues, left, runner.fileno())
                left = 0.0
            self._attended = True
            if runner.attend(left) or queues or time.monotonic() >= until:
                return

    def _gave_up_settling(self) -> bool:
        return super()._gave_up_settling() and not self.runner.runs

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.runner.attend(left):
            continue
