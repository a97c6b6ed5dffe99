"""Queues used by `dispatch`: in memory, and on each backend that keeps chains and batches.

What chains and batches do is tested in `tests/features`, what a backend promises them in the
conformance suite. So `make test` runs a test here in memory; those marked `every_backend` on each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qframe import QueueManager, manager
from tests.conftest import settings_of
from tests.following.jobs import heard, ran

_SERVERS = ["database", "redis", "beanstalkd"]
_REPEATED = ["postgresql", "redis cluster"]
"""Run by `make test-all` alone: what they do otherwise, the conformance suite shows."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_backend: run on all by `make test`, too")
    config.addinivalue_line("markers", "two_managers: that share a backend, so none in memory")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        marked = {mark.name for mark in metafunc.definition.iter_markers()}
        quick = "database" if "two_managers" in marked else "memory"
        long = [pytest.mark.slow, pytest.mark.long]
        marks = [] if "every_backend" in marked else long
        others = [pytest.param(name, marks=marks) for name in _SERVERS if name != quick]
        others += [pytest.param(name, marks=long) for name in _REPEATED]
        metafunc.parametrize("backend", [quick, *others], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Give the settings of a connection to the backend a test is run with, emptied."""
    return settings_of(request)


@pytest.fixture
def queues(backend: dict[str, Any], fresh: Path) -> QueueManager:
    """Give queues on a backend; signed, so that whatever is pushed late must be signed as well."""
    made = QueueManager(
        {
            "default": "used",
            "jobs": ["tests.following.jobs"],
            "connections": {"used": backend},
            "signing_key": "a key of the tests that is long enough",
            "encryption_keys": ["vTwM3vbPc0RjOYyrcIrQfvMIqgD2zZ1Cw8mEobFDgOQ="],
        }
    )
    manager.use(made)
    ran.clear()
    heard.clear()
    return made
