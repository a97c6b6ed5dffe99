"""Runs each test over every driver that declares what the test needs.

`needs(capability)` on a test or module names it; what a driver does *not* declare is asked for
in test_unsupported.py, so nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import project
from qframe.contracts import Capability
from tests.conformance.drivers import DRIVERS, Bench


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability): run over the drivers that declare it")
    config.addinivalue_line("markers", "in_client: where atomic steps are made of calls here")
    config.addinivalue_line("markers", "by_readiness: where jobs come as they became ready")
    config.addinivalue_line("markers", "own_stores: where the backend keeps the stores itself")
    config.addinivalue_line("markers", "lacks(capability): run over the drivers that do not")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "bench" not in metafunc.fixturenames or any("bench" in names for names in named):
        return
    needed = lacked = Capability.NONE
    for mark in metafunc.definition.iter_markers("needs"):
        needed |= mark.args[0]
    for mark in metafunc.definition.iter_markers("lacks"):
        lacked |= mark.args[0]
    in_client = metafunc.definition.get_closest_marker("in_client")
    by_readiness = metafunc.definition.get_closest_marker("by_readiness")
    own_stores = metafunc.definition.get_closest_marker("own_stores")
    kinds = {
        name: kind
        for name, kind in DRIVERS.items()
        if needed in kind.kind.capabilities
        and not lacked & kind.kind.capabilities
        and (kind.steps_in_client or not in_client)
        and (kind.by_readiness or not by_readiness)
        and (kind.own_stores or not own_stores)
    }
    metafunc.parametrize("bench", list(kinds.values()), ids=list(kinds), indirect=True)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(project, "_root", None)
    made: Bench = request.param(tmp_path)
    yield made
    made.close()
