"""Every backend under test, opened on a place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.contracts.backend import Backend
from tests.conformance.backends import BACKENDS, Bench, named


@pytest.fixture(params=named(BACKENDS))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give a place for messages, empty."""
    made: Bench = request.param(request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def backend(bench: Bench) -> Backend:
    """Give a backend on it."""
    return bench.open()


@pytest.fixture
def other(bench: Bench) -> Backend:
    """Give another on the same, as another worker has it."""
    return bench.open()
