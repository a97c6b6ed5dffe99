"""Every backend does, whatever is done to it, what the memory backend does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.backends import (
    BACKENDS,
    Bench,
    LossyRedisBench,
    OrderedPostgresBench,
    OrderedSqliteBench,
    SqlBench,
)
from tests.histories.history import Author, Event, shrunk
from tests.histories.run import Run

MOST = int(os.environ.get("HISTORIES", "15"))
"""The histories of each backend; `make test-all` asks for more."""
FEW = int(os.environ.get("SQL_HISTORIES", "6"))
"""Those of a backend on a server of SQL, or of SQLite in parts: each takes a second or two."""

_SLOW_ONES = (SqlBench, OrderedPostgresBench, OrderedSqliteBench)
KINDS: dict[str, type[Bench]] = {**BACKENDS, "redis that loses answers": LossyRedisBench}


@pytest.mark.timeout(900)  # 200 on a Cluster take two minutes
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[pytest.mark.slow] if kind.slow else [])
        for name, kind in KINDS.items()
    ],
)
def test_it_does_what_the_memory_backend_does(
    kind: type[Bench], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def run(history: Sequence[Event]) -> None:
        bench = kind(request, tmp_path)
        try:
            Run(bench).all(history)
        finally:
            bench.close()

    def fails(history: Sequence[Event]) -> bool:
        try:
            run(history)
        except Exception:  # noqa: BLE001 (whatever it is, less of it may do)
            return True
        return False

    seeds = FEW if issubclass(kind, _SLOW_ONES) else MOST
    for seed in range(seeds):
        history = Author(seed).history()
        if fails(history):
            run(shrunk(history, fails))
            pytest.fail(f"seed {seed} fails at times")
