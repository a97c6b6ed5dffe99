"""Turns: the processor time of the threads that run jobs."""

from __future__ import annotations

import threading
import time

import pytest

from qframe.worker.slots.turns import Turns


def test_a_thread_may_begin_while_the_overseer_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, read = Turns(), time.clock_gettime
    turns.enter()

    def beginning(clock: int) -> float:
        thread = threading.Thread(target=turns.enter)
        thread.start()
        thread.join()
        return read(clock)

    monkeypatch.setattr(time, "clock_gettime", beginning)
    turns.looked(time.monotonic())
    assert not turns.is_late(time.monotonic())
