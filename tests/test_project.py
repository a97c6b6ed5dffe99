from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qframe.jobs import project


@pytest.fixture
def root(fresh: Path) -> Path:
    project.set_root(fresh)
    return fresh


def write(file: Path, text: str = "class Job: ...\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_the_root_is_the_working_directory_until_it_is_set(fresh: Path, tmp_path: Path) -> None:
    assert project.root() == fresh
    project.set_root(tmp_path)
    assert project.root() == tmp_path


def test_the_root_is_put_on_the_path_once(root: Path) -> None:
    project.put_on_path()
    project.put_on_path()
    assert sys.path[0] == str(root)
    assert sys.path.count(str(root)) == 1


@pytest.mark.parametrize("name", ["a.py", "app/a.py", "app/deep/er/a.py"])
def test_files_under_the_root_are_its_own(root: Path, name: str) -> None:
    assert project.holds(root / name)
    assert project.holds(name), "relative to the working directory"


@pytest.mark.parametrize(
    "name",
    [
        ".hidden/a.py",
        ".a.py",
        "app/.git/a.py",
        ".venv/lib/python3.11/site-packages/x/a.py",
        "venv/lib/python3.11/site-packages/a.py",
        "lib/dist-packages/a.py",
        "app/node_modules/a.py",
        "app/__pycache__/a.py",
        "../a.py",
        "app/../../a.py",
        "/etc/passwd",
    ],
)
def test_libraries_hidden_folders_and_what_is_outside_are_not(root: Path, name: str) -> None:
    assert not project.holds(root / name)


def test_no_file_is_not_the_projects(root: Path) -> None:
    assert not project.holds(None)


def test_a_link_out_of_the_root_is_not_its_own(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside" / "jobs.py")
    (root / "jobs.py").symlink_to(tmp_path / "outside" / "jobs.py")
    (root / "linked").symlink_to(tmp_path / "outside")
    assert not project.holds(root / "jobs.py")
    assert not project.holds(root / "linked" / "jobs.py")
    assert project.source_of("jobs") is None
    assert project.source_of("linked.jobs") is None


def test_a_link_within_the_root_is(root: Path) -> None:
    write(root / "real.py")
    (root / "alias.py").symlink_to(root / "real.py")
    assert project.source_of("alias") == root / "alias.py"


def test_a_root_that_is_itself_a_link_works(root: Path, tmp_path: Path) -> None:
    write(root / "jobs.py")
    (tmp_path / "current").symlink_to(root)
    project.set_root(tmp_path / "current")
    assert project.source_of("jobs") is not None
    assert project.holds(tmp_path / "current" / "jobs.py")


def test_a_root_inside_a_hidden_folder_works(fresh: Path) -> None:
    write(fresh / ".cache" / "app" / "jobs.py")
    project.set_root(fresh / ".cache" / "app")
    assert project.source_of("jobs") is not None


def test_the_source_of_a_module_is_found_by_its_name_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jobs", raising=False)  # another test's
    write(root / "jobs.py")
    write(root / "app" / "__init__.py")
    write(root / "app" / "jobs.py")
    write(root / "bare" / "jobs.py")
    assert project.source_of("jobs") == root / "jobs.py"
    assert project.source_of("app") == root / "app" / "__init__.py"
    assert project.source_of("app.jobs") == root / "app" / "jobs.py"
    assert project.source_of("bare.jobs") == root / "bare" / "jobs.py"
    assert project.source_of("bare") is None
    assert "jobs" not in sys.modules


def test_a_src_folder_on_the_path_is_searched_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root / "src" / "app" / "jobs.py")
    assert project.source_of("app.jobs") is None
    monkeypatch.syspath_prepend(str(root / "src"))
    assert project.source_of("app.jobs") == root / "src" / "app" / "jobs.py"


def test_libraries_on_the_path_are_not_searched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (".venv/lib/site-packages", "venv/lib/site-packages"):
        write(root / folder / "library.py")
        monkeypatch.syspath_prepend(str(root / folder))
    assert project.source_of("library") is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "..jobs", "jobs.", "/etc/passwd", "../jobs", "app/jobs", "jobs\0", "jobs.py",
     "\uff4aobs", "j\u043ebs", "os", "subprocess", "builtins", "qframe.drivers.guard",
     "x" * 300, "a." * 3000],
)  # fmt: skip
def test_other_names_have_no_source_here(root: Path, name: str) -> None:
    write(root / "jobs.py")
    assert project.source_of(name) is None
