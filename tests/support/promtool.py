"""Prometheus' own checker, where it is installed: in CI it has to be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needed = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ, reason="promtool is not installed"
)
"""Marks a test that needs it."""


def run(*words: str, folder: Path | None = None, said: str = "") -> tuple[int, str, str]:
    """Run it, which reads what is `said`; gives its exit code, its output and its errors."""
    done = subprocess.run(
        ["promtool", *words], cwd=folder, input=said, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr
