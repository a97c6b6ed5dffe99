"""`make release`: what it refuses, the index it installs from, and the workflows' form."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import qframe
from scripts.release import index_of, refusals, section
from tests.support.pages import ROOT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## [Unreleased]\n\n## [1.2.0]\n\n- New.\n")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_a_version_that_is_told_of_is_released(root: Path) -> None:
    assert list(refusals(root, "1.2.0")) == []
    assert section(root, "1.2.0") == "- New."


def test_a_version_nothing_is_said_of_is_refused(root: Path) -> None:
    assert ["CHANGELOG.md" in each for each in refusals(root, "1.2.1")] == [True]
    assert ["[Unreleased]'" in each for each in refusals(root, "Unreleased")] == [True]


def test_a_tree_with_changes_is_refused(root: Path) -> None:
    (root / "new.py").write_text("")
    assert [each.endswith("new.py") for each in refusals(root, "1.2.0")] == [True]


def test_a_tag_that_is_there_is_refused(root: Path) -> None:
    subprocess.run(["git", "-C", str(root), "tag", "v1.2.0"], check=True)
    assert ["the tag v1.2.0" in each for each in refusals(root, "1.2.0")] == [True]


def test_pip_finds_the_wheel_by_its_name(tmp_path: Path) -> None:
    wheel = tmp_path / "qframe-9.9.9-py3-none-any.whl"
    wheel.touch()
    place = index_of([wheel], tmp_path / "index")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    command += ["--index-url", place, "qframe"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "9.9.9" in found.stdout, found.stderr


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_a_workflow_fits_the_schema(name: str) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    file = ROOT / ".github" / "workflows" / name
    command = [str(program), "--builtin-schema", "vendor.github-workflows", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_version_is_that_of_the_package() -> None:
    assert qframe.__version__ == metadata.version("qframe")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
