"""The suite's fixtures on each of our backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from qframe.testing.conformance.plugin import (
    MakeBench,
    backend,
    bench,
    benches,
    other,
    pytest_pyfunc_call,
)
from tests.conformance.backends import BACKENDS, named

__all__ = ["backend", "bench", "make_bench", "other", "pytest_pyfunc_call"]


_UNSURE = pytest.mark.skip(
    reason="on a loaded machine, beanstalkd's wait now and then lasts beyond the end of a lease"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to .ci/run the tests that wait because a server's clock cannot be set."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            kind = item.callspec.params.get("make_bench")
            if not getattr(kind, "skews", True) and "pass_time" in item.function.__code__.co_names:
                item.add_marker("slow")
                if item.originalname == "test_it_ends_when_a_lease_does":
                    item.add_marker(_UNSURE)


@pytest.fixture(params=named(BACKENDS))
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Return what makes an empty place for messages."""
    return benches(request.param, request, tmp_path)
