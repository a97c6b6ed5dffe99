"""The code of resources.md does what the page says."""

from __future__ import annotations

import subprocess
import sys

from tests.support.pages import ROOT, docs_page


def test_the_page_does_what_it_says() -> None:
    page = docs_page("resources.md")
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 commands did what the page says" in ran.stdout
