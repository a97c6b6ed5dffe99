"""The fault gate on SQLite: random kills, stops and ends of workers, counted by a ledger."""

from __future__ import annotations

import random

import pytest

from faults import scenario


@pytest.mark.timeout(180)
def test_no_job_is_lost_whatever_happens_to_the_workers() -> None:
    """About 40 s: nothing lost, run unsent or left; each job done twice explained by a fault."""
    seed = random.SystemRandom().randrange(10**6)
    verdict, folder = scenario.run(scenario.table()["MIX"], "database", seed)
    print(verdict.line())
    assert verdict.ok, f"{verdict.line()}\n{verdict.violations}\nthe ledger is in {folder}"
