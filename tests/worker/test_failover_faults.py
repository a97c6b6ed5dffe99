"""The fault gate on a failover: a short run of those that tell most; `make faults` runs all."""

from __future__ import annotations

import pytest

from tests.support import gate
from tests.support.postgres_server import program
from tests.support.server_process import binary

LONG = ("F53", "F55", "F56", "F57")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["F54", *(pytest.param(each, marks=pytest.mark.long) for each in LONG)]
)
def test_no_job_is_lost_and_none_done_twice_without_a_cause(name: str) -> None:
    binary()
    program("postgres")
    gate.passes(name, "failover")
