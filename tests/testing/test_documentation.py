"""The code of testing.md, chains.md and others runs; an example of a message is one."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from qframe.testing import fake
from tests.support.pages import docs_page
from tests.testing.jobs import SendWelcome
from tests.testing.test_plugin import ROOT, pytest_of

PAGE = docs_page("testing.md").read_text()


def test_the_code_runs(tmp_path: Path) -> None:
    files: dict[str, str] = defaultdict(str)
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        files[name] += code
    assert PAGE.count("```python") == 9
    for name, code in files.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    done = pytest_of(tmp_path, "-W", "error", "-p", "qframe.testing.plugin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 passed" in done.stdout


def test_the_message_begins_as_there(fresh: Path) -> None:
    with fake() as queued:
        SendWelcome.dispatch(user_id=7)
    with pytest.raises(AssertionError) as caught:
        queued.assert_dispatched(SendWelcome, queue="low")
    first = str(caught.value).splitlines()[0]
    assert f"AssertionError: {first}\n" in PAGE


@pytest.mark.parametrize("name", ["chains.md", "batches.md", "steps.md", "flows.md", "chunks.md"])
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    page = docs_page(name)
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "commands did what the page says" in ran.stdout
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        file = tmp_path / f"{name}_{number}.py"
        file.write_text(code)
        runpy.run_path(str(file), run_name=file.stem)
