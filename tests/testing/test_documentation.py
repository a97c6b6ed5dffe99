"""The code of the guides in docs runs, each block by itself; an example of a message is one."""

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
_GUIDES = {
    page.name: page.read_text()
    for section in ("features", "concepts", "reference")
    for page in sorted((ROOT / "docs" / section).glob("*.md"))
}
_WITH_FILES = [name for name, page in _GUIDES.items() if " file=" in page]
_BLOCK = re.compile(r"^```python\n(?!# \S+\n)(.*?)^```$", re.DOTALL | re.MULTILINE)
_WITH_A_TEST = ("models.md", "typing.md")  # tests/models, tests/typing
_CODE = [
    pytest.param(code, id=f"{name}: {number}")
    for name, page in _GUIDES.items()
    if name not in _WITH_A_TEST
    for number, code in enumerate(_BLOCK.findall(page), 1)
]


@pytest.mark.parametrize(
    ("name", "tests"), [("testing.md", 8), ("testing-workflows.md", 6)], ids=["jobs", "workflows"]
)
def test_the_code_about_tests_runs(name: str, tests: int, tmp_path: Path) -> None:
    files: dict[str, str] = defaultdict(str)
    page = docs_page(name).read_text()
    for path, code in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        files[path] += code
    for path, code in files.items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    done = pytest_of(tmp_path, "-W", "error", "-p", "qframe.testing.plugin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout


def test_the_message_begins_as_there(fresh: Path) -> None:
    with fake() as queued:
        SendWelcome.dispatch(user_id=7)
    with pytest.raises(AssertionError) as caught:
        queued.assert_dispatched(SendWelcome, queue="low")
    first = str(caught.value).splitlines()[0]
    assert f"AssertionError: {first}\n" in PAGE


@pytest.mark.parametrize("name", _WITH_FILES)
def test_a_page_does_what_it_says(name: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(docs_page(name))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "did what the page says" in ran.stdout


@pytest.mark.parametrize("code", _CODE)
def test_the_code_of_a_guide_runs(code: str, fresh: Path) -> None:
    file = fresh / "guide.py"
    file.write_text(code)
    (fresh / "qframe.toml").write_text(
        'default = "memory"\n[connections.memory]\ndriver = "memory"\n'
    )
    runpy.run_path(str(file), run_name="guide")
