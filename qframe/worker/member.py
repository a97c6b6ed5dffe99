"""Member: a worker's side of the pool it was started by."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from qframe.worker import kinship
from qframe.worker.slip import Slip

VARIABLE = "QFRAME_POOL_MEMBER"
"""The variable of the environment by which a pool tells a worker that it is one of its own."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a worker got from its pool: its slip, and what tells of the pool's death."""

    slip: Slip
    parent: int
    lifeline: int
    """The reading end of a pipe that nobody writes to: it ends when the pool is dead."""

    @classmethod
    def joined(cls) -> Member | None:
        """Give the membership of this process, once; None where no pool started it.

        What this process starts is no member. Raises `SystemExit` where the pool is dead already.
        """
        told = os.environ.pop(VARIABLE, "")
        if not told:
            return None
        slip, lifeline, parent = map(int, told.split(":"))
        for descriptor in (slip, lifeline):
            os.set_inheritable(descriptor, False)
        member = cls(Slip(slip), parent, lifeline)
        kinship.signal_at_death_of_parent(signal.SIGHUP)
        if member.is_orphan():
            raise SystemExit(0)
        return member

    def is_orphan(self) -> bool:
        """Whether the pool is dead."""
        return os.getppid() != self.parent

    def follow(self, stop: Callable[[], None]) -> None:
        """Call `stop` when the pool is dead, where the system does not tell by SIGHUP."""
        if self.is_orphan():
            stop()
        if kinship.CAN_SIGNAL_DEATH:
            return

        def wait() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.read(self.lifeline, 1)
            stop()

        threading.Thread(target=wait, name="qframe-lifeline", daemon=True).start()
