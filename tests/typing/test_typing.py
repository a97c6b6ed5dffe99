"""Runs mypy on the modules beside this one: what they mark as an error must be one.

Each expected error is a `# type: ignore[code]`; one that is not needed is an error itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = "  # type: ignore"


def mypy(cache: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    options = ["--strict", "--warn-unused-ignores", "--config-file", "pyproject.toml"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", cache, *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.timeout(300)  # without a cache, all of pydantic is read
def test_mypy_sees_what_a_user_would_want_it_to_see(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    cache = pytestconfig.rootpath / ".mypy_cache" / "tests"
    checked = mypy(cache, *sorted(HERE.glob("declares_*.py")))
    assert checked.returncode == 0, checked.stdout

    # Without its marks, each marked line is an error: the marks are not there in vain.
    lines = (HERE / "declares_wrongly.py").read_text().splitlines()
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(line.partition(MARK)[0] for line in lines))
    found = [
        line.split(":") for line in mypy(cache, bare).stdout.splitlines() if ": error:" in line
    ]
    wrong = {int(place) for _, place, *_ in found}
    assert wrong == {number for number, line in enumerate(lines, 1) if MARK in line}
    assert len(wrong) > 20
