"""The import of a CSV file by a batch: whole, as a reader would run it, and its jobs one by one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.csv_import import __main__ as demo
from examples.csv_import.jobs import (
    CountCategories,
    ImportSlice,
    TellEnd,
    TellFailure,
    TellProgress,
    import_file,
)
from examples.csv_import.rows import LAST, Slice, read_slice, repair, slices, write_file
from examples.csv_import.table import Table
from qframe.dispatch.batch import Caught
from qframe.testing import fake, fake_batch, run

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("fresh")
def test_imports_as_a_plain_loop_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.csv_import", "--last", "12000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    (jobs,) = map(int, re.findall(r"^dispatched a batch of (\d+) jobs", ran.stdout, re.MULTILINE))
    assert jobs >= 10
    assert f" s: {jobs - 1} done, 1 failed\n  why: UnicodeDecodeError: " in ran.stdout
    assert ": queued 1 failed job again\n" in ran.stdout
    assert f" s: {jobs} done, 0 failed\n" in ran.stdout
    assert re.search(r"^bad rows +\d+: \d+ cut off, 65 no name$", ran.stdout, re.MULTILINE)
    assert ran.stdout.endswith("matches the direct computation\n")


@pytest.fixture
def file(fresh: Path) -> Path:
    made = fresh / "characters.csv"
    write_file(made, 3000)
    return made


@pytest.fixture
def table(fresh: Path) -> Iterator[Table]:
    with closing(Table(fresh / "characters.sqlite3")) as made:
        yield made


def test_the_whole_file_has_tens_of_thousands_of_rows(fresh: Path) -> None:
    assert write_file(fresh / "all.csv", LAST) > 30_000
    parts = list(slices(fresh / "all.csv", 500))
    assert sum(length for _, length in parts) + parts[0][0] == (fresh / "all.csv").stat().st_size


def test_the_batch(file: Path, fresh: Path) -> None:
    with fake() as queued:
        made = import_file(file, fresh / "db", 500)
    parts = list(slices(file, 500))
    assert made.total == len(parts) >= 5
    queued.assert_batched(
        name="characters.csv",
        jobs=[
            ImportSlice(file=file, database=fresh / "db", start=start, length=length)
            for start, length in parts
        ],
    )
    queued.assert_batched(lambda batch: batch.allows_failures and len(batch.then) == 1)


def test_a_slice_counts_its_bad_rows_and_runs_twice(file: Path, fresh: Path, table: Table) -> None:
    (start, length), *_ = slices(file, 100)
    job = ImportSlice(file=file, database=fresh / "characters.sqlite3", start=start, length=length)
    for _ in range(2):
        run(job).assert_done()
    assert (len(table.rows()), table.bad()) == (68, {"no name": 32})
    assert table.rows()[0].name == "SPACE"


def test_a_slice_in_another_encoding_fails_until_it_is_repaired(file: Path, fresh: Path) -> None:
    start, length = list(slices(file, 100))[2]
    job = ImportSlice(file=file, database=fresh / "characters.sqlite3", start=start, length=length)
    run(job).assert_failed_with(UnicodeDecodeError)
    repair(file)
    run(job).assert_done()
    assert "LATIN SMALL LETTER E WITH ACUTE" in {
        row.name for row in read_slice(file, start, length).rows
    }


def test_what_follows(fresh: Path, table: Table) -> None:
    database = fresh / "characters.sqlite3"
    rows = fake_batch(total=4, done=2, failed=1)
    why = Caught("id", "ImportSlice", "ValueError: no")
    run(TellProgress(database=database), batch=rows)
    run(TellFailure(database=database), batch=rows, caught=why)
    run(TellEnd(database=database), batch=rows)
    run(CountCategories(database=database), batch=rows)
    assert table.notes() == {
        "progress": "75%",
        "catch": "ValueError: no",
        "finally": "2 done, 1 failed",
        "then": "{}",
    }


def test_a_difference_is_told_and_fails(
    file: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    repair(file)
    whole = read_slice(file, len(file.read_bytes().partition(b"\n")[0]) + 1, 10**9)
    table.save(0, Slice(whole.rows[1:], whole.bad))
    table.note("then", "{}")
    assert demo.report(table, file) == 1
    assert capsys.readouterr().out.endswith("differs: rows, categories\n")
