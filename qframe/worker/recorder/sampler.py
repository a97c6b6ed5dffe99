"""Sampler: a thread that takes the stacks of running jobs once a second, in their own process."""

from __future__ import annotations

import _thread
import faulthandler
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from qframe.drivers.heartbeat import has_threads
from qframe.worker.recorder import stacks
from qframe.worker.recorder.memory import JobRing
from qframe.worker.recorder.watch import EVERY

_CRASHES = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")
CRASHES = {getattr(signal, name) for name in _CRASHES if hasattr(signal, name)}
"""The signals of which `faulthandler` writes the stacks."""
RunningStacks = Callable[[], Iterable[tuple[JobRing, bytes]]]


def sample(
    running: RunningStacks, every: float = EVERY, first: float = EVERY
) -> Callable[[], None]:
    """Starts the thread; returns what ends it. `running` gives the stack of each running job.

    It takes the first stacks after `first` seconds. A plain thread: a job must not wait for it.
    """
    wait = _thread.allocate_lock()
    wait.acquire()

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        due = time.monotonic() + first
        while True:
            if wait.acquire(timeout=max(0.0, due - time.monotonic())):
                return
            with suppress(Exception):  # a stack may change while it is read
                for ring, stack in running():
                    if stack:
                        ring.saw(stack)
            due = max(due + every, time.monotonic() + every / 2)

    if has_threads():
        with suppress(RuntimeError):  # the system allows no more
            _thread.start_new_thread(work, ())
    return wait.release


def write_stacks_to(descriptor: int, *, fatal: bool) -> None:
    """Makes `faulthandler` write there when asked by signal and, if `fatal`, at a crash."""
    with suppress(OSError, ValueError, RuntimeError):
        if fatal:
            faulthandler.enable(descriptor)
        if stacks.SIGNAL:
            faulthandler.register(stacks.SIGNAL, descriptor, all_threads=False)
