"""The suite's random histories on each of our backends, and on a Redis that loses answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from qframe.testing.conformance import Bench
from qframe.testing.conformance.plugin import MakeBench, bench, benches
from qframe.testing.conformance.test_histories import (
    test_it_does_what_the_memory_backend_does,
)
from tests.conformance.backends import (
    BACKENDS,
    AgelessBeanstalkdBench,
    LossyRedisBench,
    named,
)

__all__ = ["bench", "make_bench", "test_it_does_what_the_memory_backend_does"]

pytestmark = pytest.mark.timeout(900)  # 200 on a Cluster take two minutes


_KINDS: dict[str, type[Bench]] = {
    **BACKENDS,
    "beanstalkd": AgelessBeanstalkdBench,
    "redis that loses answers": LossyRedisBench,
}


@pytest.fixture(params=named(_KINDS))
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Return what makes an empty place for messages."""
    return benches(request.param, request, tmp_path)
