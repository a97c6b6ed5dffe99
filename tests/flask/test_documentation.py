"""The pages docs/frameworks/flask.md and docs/frameworks/fastapi.md do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import docs_page

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "commands"), [("flask.md", 3), ("fastapi.md", 1)])
def test_a_page_does_what_it_says(name: str, commands: int) -> None:
    page = docs_page(name)
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{commands} command" in ran.stdout
