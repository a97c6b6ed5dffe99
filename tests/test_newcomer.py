"""A stranger who follows a page of docs/start comes to a first job, without the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.newcomer import built, follow, hidden_files
from scripts.run_readme import PageError
from tests.support.pages import ROOT

_PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # it installs packages
def test_each_page_leads_to_a_first_job(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq"]
    sdist = built(tmp_path)
    for command in (
        ["sh", "scripts/venv.sh", sys.executable, str(venv)],
        [*pip, "-c", "constraints.txt", f"{sdist}[django,fastapi,flask]"],
    ):
        subprocess.run(command, cwd=ROOT, check=True)
    command = [sys.executable, "-m", "scripts.newcomer", "--venv", str(venv)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == [
        "page",
        "first-script",
        "first-fastapi",
        "first-django",
        "first-flask",
    ]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_a_page_names_its_files_where_a_reader_sees_it(page: Path) -> None:
    assert list(hidden_files(page.read_text())) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("Write this:\n\n```python file=a.py\n```\n", "the name of the file a.py"),
        ("```console\n$ echo qframe work\nno\n```\n", "does not come where it should: no"),
        ("```console\n$ false\n```\n", "exit status 1, expected 0"),
        ("```console\n$ true\n```\n", "has no `qframe work`"),
    ],
)
def test_a_page_that_leads_nowhere_is_told(page: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(PageError, match=problem):
        follow(tmp_path / "page.md", tmp_path, tmp_path)


def test_a_program_in_a_second_terminal_is_ended(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "```console skip terminal\n$ echo $$ > pid; echo up; sleep 600\nup\n```\n"
        "```console skip typed\n$ kill -0 $(cat pid)\n$ echo qframe work\nqframe work\n```\n"
    )
    assert follow(tmp_path / "page.md", tmp_path, tmp_path).first_job > 0
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path("/proc", pid).exists()
