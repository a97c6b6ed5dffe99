"""The fault gate on Redis: a short run of the scenarios that tell most; `make faults` runs all."""

from __future__ import annotations

import pytest

from tests.support import gate
from tests.support.marks import slow
from tests.support.server_process import binary

GATE = ("F5", "F6", "F15", "F20", "F22", "F60", "F61", "F81", "D1", "P1", "P2")


@pytest.mark.parametrize("name", ["F1", *slow(*GATE)])
def test_no_job_is_lost_and_none_done_twice_without_a_cause(name: str) -> None:
    binary()
    gate.passes(name, "redis")
