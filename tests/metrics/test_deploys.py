"""Deploys: one mark for each, however many workers begin; none while old and new live together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qframe.config import Settings
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store
from qframe.metrics import deploys, version
from qframe.metrics.deploys import KEEP, KEY, MOST, ROLLING, Deploy, Deploys, put_together
from tests.support.clock import Clock


@pytest.fixture
def marks() -> Deploys:
    return Deploys(Store(MemoryBackend()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("qframe.metrics.deploys.time.time", clock)
    return clock


def versions(marks: Deploys) -> list[str]:
    return [each.version for each in marks.read()]


def test_of_many_workers_that_begin_at_once_one_marks(marks: Deploys) -> None:
    with ThreadPoolExecutor(16) as pool:
        said = [*pool.map(marks.seen, ["1.0"] * 64)]
    assert said.count(True) == 1
    with ThreadPoolExecutor(16) as pool:
        said = [*pool.map(marks.seen, ["2.0"] * 64)]
    assert said.count(True) == 1
    assert versions(marks) == ["1.0", "2.0"]


def test_old_and_new_workers_together_mark_nothing_more(marks: Deploys, clock: Clock) -> None:
    for each in ("1", "2", "1", "2", "1", "1", "2"):
        marks.seen(each)
        clock.now += 60
    assert versions(marks) == ["1", "2"]


def test_going_back_later_is_a_deploy(marks: Deploys, clock: Clock) -> None:
    for each in ("1", "2", "1"):
        marks.seen(each)
        clock.now += ROLLING + 1
    assert versions(marks) == ["1", "2", "1"]


def test_marks_go_after_two_weeks_but_the_version_is_remembered(
    marks: Deploys, clock: Clock
) -> None:
    marks.seen("1")
    marks.mark("", "price list")
    clock.now += KEEP + 1
    assert not marks.seen("1")
    marks.mark("", "another")
    assert [(each.version, each.text) for each in marks.read()] == [("1", ""), ("", "another")]
    assert not marks.seen("1")
    assert not marks.seen("")


def test_they_are_bounded_and_one_line(marks: Deploys) -> None:
    for number in range(MOST + 10):
        marks.mark(f"{number}", "a\nb" + "x" * 1000)
    found = marks.read()
    assert len(found) == MOST
    assert found[-1].version == f"{MOST + 9}"
    assert len(found[-1].text) <= deploys.LONGEST
    assert "\n" not in found[-1].text


def test_one_deploy_marked_in_several_stores_is_shown_once() -> None:
    one, other = [Deploy(10.0, "1"), Deploy(99.0, "2")], [Deploy(10.5, "1")]
    assert [(each.at, each.version) for each in put_together([one, other])] == [
        (10.0, "1"), (99.0, "2"),
    ]  # fmt: skip


def settings(root: Path, **more: Any) -> Settings:
    return Settings(root=root, **more)


def test_the_version_is_as_configured_or_the_commit(tmp_path: Path) -> None:
    assert version.of(settings(tmp_path)) == ""
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert version.of(settings(tmp_path)) == ""  # nothing was committed
    (tmp_path / ".git/packed-refs").write_text(f"# x\n{'ab' * 20} refs/heads/main\n")
    assert version.of(settings(tmp_path)) == "abababababab"
    (tmp_path / ".git/refs/heads/main").write_text("cd" * 20 + "\n")
    assert version.of(settings(tmp_path)) == "cdcdcdcdcdcd"
    (tmp_path / ".git/HEAD").write_text("ef" * 20)
    assert version.of(settings(tmp_path)) == "efefefefefef"
    assert version.of(settings(tmp_path, version="2.1")) == "2.1"


def test_without_git_it_is_the_version_of_the_installed_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "pytest"\n')
    assert version.of(settings(tmp_path)) == pytest.__version__
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "is-not-installed"\n')
    assert version.of(settings(tmp_path)) == ""


def test_a_further_worktree_has_its_own_head(tmp_path: Path) -> None:
    inner = tmp_path / "main/.git/worktrees/w"
    inner.mkdir(parents=True)
    (inner / "HEAD").write_text("ref: refs/heads/w\n")
    (inner / "commondir").write_text("../..\n")
    (tmp_path / "main/.git/refs/heads").mkdir(parents=True)
    (tmp_path / "main/.git/refs/heads/w").write_text("12" * 20)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/.git").write_text(f"gitdir: {inner}\n")
    assert version.of(settings(tmp_path / "w")) == "121212121212"


def test_one_who_marks_meanwhile_is_not_overwritten(marks: Deploys) -> None:
    store = marks._store
    real = store.get
    asked = 0

    def get(*keys: str) -> list[str | None]:
        nonlocal asked
        asked += 1
        found = real(*keys)
        if asked == 1:
            store.set(KEY, '[{"at":1900000000.0,"version":"9","text":""}]')
        return found

    store.get = get  # type: ignore[method-assign] # another worker comes between
    assert not marks.seen("9")
    assert versions(marks) == ["9"]
