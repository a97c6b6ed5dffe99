"""The demonstration on real input, on a part of the library, as a reader would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from examples.stdlib_index import __main__ as demo
from examples.stdlib_index import report, source
from examples.stdlib_index.jobs import IndexFile
from examples.stdlib_index.results import Results
from examples.stdlib_index.source import Facts, facts_of, source_files
from qframe import QueueManager, config, dispatch_sync

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.stdlib_index"]
LIMIT = 150


def test_indexes_as_a_plain_loop_does(fresh: Path) -> None:
    folder = fresh / "demo"
    ran = subprocess.run(
        [*COMMAND, "--limit", str(LIMIT), "--folder", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "matches the direct computation\n" in ran.stdout
    assert f"qframe web --config {folder}" in ran.stdout
    assert f"{LIMIT} of {LIMIT} done" in ran.stdout
    told = dict(re.findall(r"^(\w[\w ]*?) {2,}(\d+)", ran.stdout, re.MULTILINE))
    failed = int(told["failed"])
    assert failed >= 1
    assert int(told["files indexed"]) == LIMIT - failed
    assert int(told["retries"]) == 2 * failed

    queues = QueueManager(config.load(folder / "qframe.toml"))
    assert [queues.connection().sizes(name).total for name in demo.QUEUES] == [0, 0]
    records = queues.failed_store().page(LIMIT)
    assert len(records) == failed
    for record in records:
        assert record.attempts == 3
        assert [attempt.ended for attempt in record.history.attempts] == ["error"] * 3
        first, second, third = [attempt.started_at for attempt in record.history.attempts]
        assert round(second - first, 3) >= 0.2
        assert round(third - second, 3) >= 0.5
    with closing(Results(folder / "results.sqlite3")) as results:
        assert len(results.all()) == LIMIT - failed


def test_the_part_tested_has_a_file_that_is_no_python() -> None:
    errors = report.without_queue(source_files(LIMIT)).errors.values()
    assert any(error.startswith("SyntaxError: ") for error in errors)


def test_a_difference_is_told_and_fails(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = source_files(20)[0]

    def wrong(path: Path) -> Facts:
        return Facts("", "", 0, 0, 0) if path == odd else facts_of(path)

    monkeypatch.setattr(report, "facts_of", wrong)
    assert demo.demonstrate(fresh, 20) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("differs: ")] == lines[-1:]
    assert source.short(odd) in lines[-1]


def test_ending_it_leaves_nothing(fresh: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--limit", "1200"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(fresh)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if " of " in line:  # a quarter is done: the workers are at work
                    break
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read()
            code = process.wait(30)
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 130
    assert rest.endswith("interrupted; the workers have ended\n")
    # A worker leaves the folder of health files, which other workers of this user have, too.
    assert [each for each in fresh.rglob("*") if not each.is_dir()] == []


def test_a_job_run_twice_counts_once(fresh: Path) -> None:
    path = Path(source.__file__)
    for _ in range(2):
        dispatch_sync(IndexFile(path=path, results=fresh / "results.sqlite3"))
    with closing(Results(fresh / "results.sqlite3")) as results:
        assert [result.facts for result in results.all()] == [facts_of(path)]


def test_a_library_without_its_tests_is_filled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, packages = tmp_path / "library", tmp_path / "library" / "site-packages"
    packages.mkdir(parents=True)
    for file in (library / "a.py", library / "LICENSE.txt", packages / "b.py", packages / "b.txt"):
        file.write_text("This is no Python\n")
    monkeypatch.setattr(source, "STDLIB", library)
    monkeypatch.setattr(source, "PACKAGES", packages)
    assert {path.name for path in source_files()} == {"a.py", "LICENSE.txt", "b.py"}
    assert {path.name for path in source_files(10)} == {"a.py", "LICENSE.txt"}
    (library / "test" / "tokenizedata").mkdir(parents=True)
    assert {path.name for path in source_files(10)} == {"a.py"}
