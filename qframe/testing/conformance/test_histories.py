"""The backend does, whatever is done to it, what the memory backend does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.history import Author, Event, shrunk
from qframe.testing.conformance.history_run import HistoryRun
from qframe.testing.conformance.plugin import MakeBench

_TRIES_IN_REAL_TIME = 3
"""A busy machine may let a lease run out between two events: such a history is run again."""


def test_it_does_what_the_memory_backend_does(bench: Bench, make_bench: MakeBench) -> None:
    def run(history: Sequence[Event]) -> None:
        fresh = make_bench()
        try:
            HistoryRun(fresh).all(history)
        finally:
            fresh.close()

    def fails_once(history: Sequence[Event]) -> bool:
        try:
            run(history)
        except Exception:  # noqa: BLE001 (whatever it is, less of it may do)
            return True
        return False

    def fails(history: Sequence[Event]) -> bool:
        return all(fails_once(history) for _ in range(1 if bench.skews else _TRIES_IN_REAL_TIME))

    for seed in range(bench.histories):
        history = Author(seed).history()
        if fails(history):
            run(shrunk(history, fails))
            pytest.fail(f"seed {seed} fails at times")
