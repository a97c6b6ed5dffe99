"""Each tutorial of docs/start does what it says, from an empty folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.pages import ROOT

_PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(page: object) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
