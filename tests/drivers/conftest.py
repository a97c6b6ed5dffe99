"""What tests of the drivers share."""

from __future__ import annotations

import pytest

from qframe.jobs import project


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have its own project root."""
    monkeypatch.setattr(project, "_root", None)
