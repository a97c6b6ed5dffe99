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


@pytest.fixture(params=named(BACKENDS))
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Return what makes an empty place for messages."""
    return benches(request.param, request, tmp_path)
