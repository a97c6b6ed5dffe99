"""Wrong usage and files that cannot be used: one line on stderr, exit 2, nothing lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Project, wait_for


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "unknown connection 'nosuch'"),
        (["--timeout", "-1"], "timeout"),
        (["--config", "nosuch.toml"], "No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    project: Project, arguments: list[str], words: str
) -> None:
    """As a process; `tests/console/test_work.py` has them all."""
    finished = project.qframe("work", *arguments)
    assert finished.code == 2, finished
    line = finished.one_line()
    assert line.startswith("qframe: ")
    assert words in line
    assert finished.out == ""


def test_a_wrong_variable_is_one_line_and_exit_2(project: Project) -> None:
    worker = project.work(environment={"QFRAME_DEFUALT": "database"})
    finished = worker.finished()
    assert finished.code == 2
    assert "did you mean DEFAULT" in finished.one_line().replace("'", "")


# -- files that cannot be used ------------------------------------------------------------------


def test_a_file_that_is_no_database(project: Project) -> None:
    text = "this is my shopping list\n" * 100
    project.database.write_text(text)
    for command in (["work"], ["size"], ["dispatch", "jobs.Note"]):
        finished = project.qframe(*command)
        assert finished.code == 2, finished
        assert "is not an SQLite database" in finished.one_line()
    assert project.database.read_text() == text


def test_a_folder_in_place_of_the_file(project: Project) -> None:
    project.database.mkdir()
    finished = project.qframe("work")
    assert finished.code == 2
    assert "cannot be opened" in finished.one_line()


def test_a_folder_that_does_not_exist(project: Project) -> None:
    project.configure(url="sqlite:///no/such/folder/q.sqlite3")
    finished = project.qframe("work")
    assert finished.code == 2
    assert "cannot be opened" in finished.one_line()


@pytest.mark.parametrize("command", [["work"], ["dispatch", "jobs.Note"]])
def test_a_read_only_file(project: Project, command: list[str]) -> None:
    project.push("Note")
    project.close()
    files = list(project.root.glob("qframe.sqlite3*"))
    for file in files:
        file.chmod(0o444)
    before = project.database.read_bytes()
    finished = project.start(*command, limit=("no override", "")).finished()
    assert finished.code == 2, finished
    assert "is read-only: give its file and folder write permission" in finished.one_line()
    assert project.database.read_bytes() == before
    for file in files:
        file.chmod(0o644)
    project.drain()
    assert len(project.notes("note")) == 1


def test_a_file_in_a_read_only_folder(project: Project) -> None:
    project.configure(url="sqlite:///sealed/q.sqlite3")
    sealed = project.root / "sealed"
    sealed.mkdir()
    sealed.chmod(0o555)
    try:
        finished = project.work(limit=("no override", "")).finished()
    finally:
        sealed.chmod(0o755)
    assert finished.code == 2, finished
    finished.one_line()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte, where this user may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("mounting needs root; the limit on a file's size is tested everywhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_waited_for_and_loses_nothing(project: Project, small_disk: Path) -> None:
    project.configure(url=f"sqlite:///{small_disk}/q.sqlite3", retry_after=1)
    for number in range(30):
        project.push("Note", {"word": str(number)}, maxTries=0)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 512)
            except OSError:
                break
    refused = project.start("dispatch", "jobs.Typed", '{"number": 1}', "--queue", "big").finished()
    worker = project.work()
    wait_for(lambda: " gone: " in worker.out or len(project.notes("note")) == 30, "either")
    if refused.code:
        assert refused.code == 69
        assert "the disk is full" in refused.one_line()
    if " gone: " in worker.out:
        assert "the disk is full" in worker.out
        assert worker.out.count(" gone: ") == 1
    filler.unlink()
    wait_for(project.empty, "all jobs done")
    assert worker.stop() == 0
    project.close()
    assert {int(line[1]) for line in project.notes("note")} == set(range(30))
    assert "Traceback" not in worker.err


def test_a_file_that_may_not_grow(project: Project) -> None:
    """What a full disk does, where nobody may mount one: the process may write no more."""
    for number in range(20):
        project.push("Note", {"word": str(number)}, maxTries=0)
    project.close()
    size = project.database.stat().st_size
    project.configure(retry_after=1, give_up_after=1.5)
    finished = project.start("dispatch", "jobs.Note", limit=("file size", size // 2)).finished()
    assert finished.code == 69, finished
    finished.one_line()
    worker = project.work(limit=("file size", size // 2))
    assert worker.wait() in (2, 69), worker.out
    assert "Traceback" not in worker.err
    project.drain()
    assert {int(line[1]) for line in project.notes("note")} == set(range(20))
    assert project.empty()


def test_two_workers_on_a_file_being_created(project: Project) -> None:
    for number in range(3):
        project.configure(url=f"sqlite:///new-{number}.sqlite3")
        workers = [project.work("--once", "--sleep", "0.2") for _ in range(4)]
        for worker in workers:
            finished = worker.finished()
            assert (finished.code, finished.err) == (0, ""), finished
        with sqlite3.connect(project.root / f"new-{number}.sqlite3") as connection:
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        connection.close()
        assert {"jobs", "failed_jobs", "qframe_facts", "jobs_due_at", "jobs_leases"} <= names


def test_the_project_is_found_from_a_folder_below(project: Project) -> None:
    project.push("Note")
    below = project.root / "deep" / "down"
    below.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(below)
    try:
        assert project.drain().code == 0
    finally:
        os.chdir(before)
    assert len(project.notes("note")) == 1
