"""What docs/moving/celery.md shows is done as its reader would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_does_what_it_says() -> None:
    page = ROOT / "docs" / "moving" / "celery.md"
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(page)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
