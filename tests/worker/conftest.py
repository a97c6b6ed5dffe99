from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path / "app") as made:
        yield made
