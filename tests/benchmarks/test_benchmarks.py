"""The benchmarks run and report every measure; how fast anything is, is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, rows

REPOSITORY = Path(__file__).resolve().parents[2]

MEASURES = (
    "dispatch, each as it comes",
    "dispatch, both synchronous=normal",
    "dispatch, both synchronous=full",
    "drain, each as it comes",
    "drain, both synchronous=normal",
    "drain, both synchronous=full",
    "drain, processor time per job, both synchronous=normal",
    "drain, against bare sqlite3",
    "bulk, against bare executemany",
    "dispatch to start, idle worker, median",
    "dispatch to start, idle worker, p95",
    "delayed job late by, median",
    "delayed job late by, p95",
    "delayed job late by, most",
    "drain at 500 waiting and 200 delayed, at 100",
    "idle worker, of one core",
    "worker's memory, PSS",
    "worker's memory, RSS",
    "worker's memory, its own alone",
)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
def test_every_measure_of_a_group_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "raw.json"

    done = run("sqlite", "--quick", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Python: " in done.stdout
    assert "huey: " in done.stdout
    found = json.loads(file.read_text())["groups"]["sqlite"]
    assert [row["measure"] for row in found] == list(MEASURES)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(MEASURES)
    assert all(row["ours"] for row in found)
    assert all(row["met"] in {True, False} for row in found if row["target"])


def test_an_unknown_group_is_refused_by_name() -> None:
    done = run("sqlight", cwd=REPOSITORY)

    assert done.returncode == 2
    assert "no such group: sqlight" in done.stderr


def test_a_ratio_is_the_median_of_the_pairs_and_held_to_its_target() -> None:
    ours, peer = [10.0, 30.0, 30.0], [10.0, 20.0, 10.0]

    reached = rows.compared("m", ours, peer, rows.per_second, at_least=1.5)
    missed = rows.compared("m", ours, peer, rows.per_second, at_least=1.6)
    below = rows.compared("m", ours, peer, rows.per_second, below=1.5)

    assert (reached.ratio, reached.met, missed.met, below.met) == (1.5, True, False, False)
    assert "MISSED" in report.table([missed])
    assert "MISSED" not in report.table([reached])


def test_sides_take_turns_in_both_directions() -> None:
    assert list(rows.alternated("AB", 3)) == ["A", "B", "B", "A", "A", "B"]
