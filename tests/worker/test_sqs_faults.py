"""The fault gate on SQS: a short run of those that tell most; `make faults` runs all."""

from __future__ import annotations

import pytest

from tests.support import gate

LONG = ("F1", "F2", "F5", "F66")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["F65", *(pytest.param(each, marks=pytest.mark.long) for each in LONG)]
)
def test_no_job_is_lost_and_none_done_twice_without_a_cause(name: str) -> None:
    gate.passes(name, "sqs")
