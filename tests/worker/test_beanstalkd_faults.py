"""The fault gate on beanstalkd: a short run of those that tell most; `make faults` runs all."""

from __future__ import annotations

import pytest

from tests.support import gate
from tests.support.beanstalkd_server import beanstalkd
from tests.support.marks import slow

GATE = ("F5", "F6", "F15", "F40", "F42", "F43", "F45", "F60", "F61", "D1")


@pytest.mark.parametrize("name", ["F1", *slow(*GATE)])
def test_no_job_is_lost_and_none_done_twice_without_a_cause(name: str) -> None:
    beanstalkd()
    gate.passes(name, "beanstalkd")
