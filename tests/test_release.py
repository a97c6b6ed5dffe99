"""`make release`: what it refuses, the index it installs from, and the workflows' form."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
import typer

import qframe
from qframe import events
from qframe.console.app import app
from scripts import release
from scripts.release import index_of, refusals, section, write_addresses
from tests.support.pages import ROOT, docs_page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## [Unreleased]\n\n## [1.2.0]\n\n- New.\n")
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "versions.md").write_text("**1.2.0**, **1.2.1** do nothing")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "a"\nversion = "1.2.0"\ndependencies = []\n\n'
        '[project.urls]\nSource = "https://forge.example/a/b"\n\n[project.scripts]\na = "a:b"\n'
    )
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
    assert any("[Unreleased]'" in each for each in refusals(root, "Unreleased"))


def test_a_version_without_a_note_of_the_upgrade_is_refused(root: Path) -> None:
    (root / "docs" / "reference" / "versions.md").write_text("")
    assert any("upgrade to **1.2.0**" in each for each in refusals(root, "1.2.0"))


def test_a_release_has_the_addresses_of_its_repository(root: Path) -> None:
    file = root / "pyproject.toml"
    text = file.read_text()
    file.write_text(re.sub(r"\[project.urls\]\n.*\n\n", "", text))
    assert any("--address" in each for each in refusals(root, "1.2.0"))
    for wrong in ("forge.example/a/b", "https://forge.example", "file:///a/b", "https://f/a/b/c"):
        with pytest.raises(ValueError, match="is not like"):
            write_addresses(root, wrong)
    bare = file.read_text()
    for address in ("https://forge.example/a/b", "git@forge.example:a/b.git"):
        file.write_text(bare)
        write_addresses(root, address)
        project = tomllib.loads(file.read_text())["project"]
        assert list(project["urls"]) == ["Source", "Documentation", "Issues", "Changelog"]
        assert project["urls"]["Source"] == "https://forge.example/a/b"
        assert project["scripts"] == {"a": "a:b"}
    with pytest.raises(ValueError, match=r"has \[project.urls\]"):
        write_addresses(root, "https://forge.example/a/b")


def test_the_tag_of_a_release(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["user.name", "a"], ["user.email", "a@b"]):
        subprocess.run(["git", "-C", str(root), "config", *words], check=True)
    monkeypatch.setattr(release, "ROOT", root)
    monkeypatch.setattr(release, "_build", list)
    monkeypatch.setattr(release, "_try_out", lambda *_: None)
    assert release.main(["--dry-run"]) == 0
    assert _git(root, "tag", "--list") == ""
    assert release.main([]) == 0
    assert "git push origin v1.2.0 publishes it" in capsys.readouterr().out
    assert _git(root, "cat-file", "-t", "v1.2.0") == "tag", "one with a name and a date"
    assert _git(root, "rev-list", "-n", "1", "v1.2.0") == _git(root, "rev-parse", "HEAD")
    assert _git(root, "for-each-ref", "--format=%(subject)", "refs/tags") == "qframe 1.2.0"
    assert release.main([]) == 2


def test_what_fails_is_not_tagged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise subprocess.CalledProcessError(1, ["twine"])

    monkeypatch.setattr(release, "ROOT", root)
    monkeypatch.setattr(release, "_build", fails)
    assert release.main([]) == 1
    assert _git(root, "tag", "--list") == ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)  # it builds, and installs packages five times
def test_a_release_of_this_checkout_in_a_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    version = metadata.version("qframe")
    for words in (["user.name", "a"], ["user.email", "a@b"]):
        _git(clone, "config", *words)
    if "urls" not in tomllib.loads((clone / "pyproject.toml").read_text())["project"]:
        write_addresses(clone, "https://forge.example/a/qframe")
    if not section(clone, version):
        changes = clone / "CHANGELOG.md"
        text = changes.read_text()
        changes.write_text(text.replace("## [Unreleased]", f"## [Unreleased]\n\n## [{version}]", 1))
    _git(clone, "commit", "-qam", "release", "--allow-empty")
    command = [sys.executable, "-m", "scripts.release"]
    ran = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert _git(clone, "tag", "--list", f"v{version}") == f"v{version}"
    with zipfile.ZipFile(next((clone / "dist").glob("*.whl"))) as wheel:
        text = wheel.read(f"qframe-{version}.dist-info/METADATA").decode()
    assert "Project-URL: Issues, https://forge.example/a/qframe/issues" in text


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


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


def test_the_workflows_are_safe() -> None:
    program = Path(sys.executable).with_name("zizmor")
    command = [str(program), "--offline", "--no-progress", str(ROOT / ".github" / "workflows")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_pythons_are_those_that_are_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        found[1]
        for each in project["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
    ]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r'"([^"]+)"', matrix[1]) == named
    assert project["requires-python"] == f">={named[0]}"
    assert f"Python {named[0]} to {named[-1]}." in docs_page("versions.md").read_text()


def test_what_is_public_is_still_there() -> None:
    """What goes away is deprecated first, by the rule of versions.md, and leaves the list then."""
    listed = (ROOT / "tests" / "public_names.txt").read_text().splitlines()
    there = public_names()
    missing = [each for each in listed if each not in there]
    assert not missing, "deprecate them first: docs/reference/versions.md"


def public_names() -> set[str]:
    """Give the names, commands and options that are public."""
    modules = ("qframe", "qframe.middleware", "qframe.testing")
    names = {f"{each}.{name}" for each in modules for name in import_module(each).__all__}
    names |= {f"qframe.events.{name}" for name in events.kinds()}

    def add(command: Any, words: str) -> None:
        names.add(words)
        names.update(
            f"{words} {option}"
            for each in command.params
            for option in each.opts
            if not getattr(each, "hidden", False) and option.startswith("--")
        )
        for name, each in getattr(command, "commands", {}).items():
            add(each, f"{words} {name}")

    add(typer.main.get_command(app), "$ qframe")
    return names


def test_the_version_is_that_of_the_package() -> None:
    assert qframe.__version__ == metadata.version("qframe")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_no_page_takes_the_package_from_an_index() -> None:
    folders = (ROOT / "docs", ROOT / "examples")
    pages = [ROOT / "README.md", *(each for folder in folders for each in folder.rglob("*.md"))]
    install = re.compile(r"^(?:\$ |RUN )?pip install.*[ '\"]qframe\b", re.MULTILINE)
    found = {each.name: install.findall(each.read_text(encoding="utf-8")) for each in pages}
    assert not {name: lines for name, lines in found.items() if lines}, "none is published yet"
