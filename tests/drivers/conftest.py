"""A database connection in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import project
from tests.conformance.drivers import SqliteBench


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have its own project root."""
    monkeypatch.setattr(project, "_root", None)


@pytest.fixture
def bench(own_root: None, tmp_path: Path) -> Iterator[SqliteBench]:
    made = SqliteBench(tmp_path)
    yield made
    made.close()
