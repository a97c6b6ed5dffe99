"""Workers that are killed in turn while they work."""

from __future__ import annotations

import signal
import time

from tests.support.process import Process, Project

_EVERY = 0.2
"""Seconds the workers have before one is killed."""
_START = 5.0
"""Seconds that they have at most if no job writes a note: a busy machine starts them slowly."""


def kill_oldest(project: Project, workers: list[Process]) -> None:
    """Let the workers work, then kill the oldest and start another."""
    had, patience = len(project.notes()), time.monotonic() + _START
    time.sleep(_EVERY)
    while len(project.notes()) == had and time.monotonic() < patience:
        time.sleep(_EVERY)
    oldest = workers.pop(0)
    oldest.signal(signal.SIGKILL)
    oldest.wait()
    workers.append(project.work("--quiet"))
