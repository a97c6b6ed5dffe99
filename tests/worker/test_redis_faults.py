"""The fault gate on Redis: a short run of the scenarios that tell most; `make faults` runs all."""

from __future__ import annotations

import random

import pytest

from faults import scenario
from tests.support.redis_server import binary

GATE = ("F1", "F5", "F6", "F15", "F20", "F22", "F60", "F61", "F81")


@pytest.mark.parametrize("name", GATE)
def test_no_job_is_lost_and_none_done_twice_without_a_cause(name: str) -> None:
    binary()
    seed = random.SystemRandom().randrange(10**6)
    verdict, folder = scenario.run(scenario.table()[name], "redis", seed, quick=True)
    print(verdict.line())
    assert verdict.ok, f"{verdict.line()}\n{verdict.violations}\nthe ledger is in {folder}"
