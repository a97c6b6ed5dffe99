"""The fault gate on SQLite: random kills, stops and ends of workers, counted by a ledger."""

from __future__ import annotations

import pytest

from tests.support import gate


@pytest.mark.slow
def test_no_job_is_lost_whatever_happens_to_the_workers() -> None:
    """About 40 s: nothing lost, run unsent or left; each job done twice explained by a fault."""
    gate.passes("MIX", "database", quick=False)
