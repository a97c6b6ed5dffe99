"""The code of docs/how-to, and of the pages for those who move here, runs; each block by itself."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.support.pages import ROOT

_PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
_MOVING = sorted((ROOT / "docs" / "moving").glob("from-*.md"))
_BLOCK = re.compile(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_CODE = [
    pytest.param(code, id=f"{page.stem}: {question}")
    for page in [*_PAGES, *_MOVING]
    for question, code in _BLOCK.findall(page.read_text())
]


@pytest.mark.parametrize("code", _CODE)
def test_an_answer_runs(code: str, fresh: Path) -> None:
    file = fresh / "answer.py"
    file.write_text(code)
    (fresh / "qframe.toml").write_text(
        'default = "memory"\n[connections.memory]\ndriver = "memory"\n'
    )
    runpy.run_path(str(file), run_name="answer")


def test_each_answer_is_under_a_screen() -> None:
    for page in _PAGES:
        for section in page.read_text().split("\n## ")[1:]:
            assert len(section.splitlines()) <= 50, section.splitlines()[0]


def test_there_are_thirty_questions() -> None:
    assert sum(page.read_text().count("\n## ") for page in _PAGES) >= 30
