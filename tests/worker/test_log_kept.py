"""What is logged in a job that keeps its log: where it is seen, and how much there is of it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.contracts.status import State
from qframe.features import status
from qframe.features.base import End
from qframe.features.status import StatusFeature
from qframe.jobs import current, logged
from tests.features.harness import Bench
from tests.features.test_status import seen
from tests.support.process import Project

log = logging.getLogger("tests.kept")


@pytest.fixture
def bench() -> Bench:
    return Bench([StatusFeature()])


@pytest.fixture(autouse=True)
def _factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


def said(bench: Bench, job: object, *texts: object) -> None:
    token = current.running.set(job)  # type: ignore[arg-type] # a reserved job
    try:
        for text in texts:
            log.warning("%s", text)
    finally:
        current.running.reset(token)


def test_the_last_lines_are_written_with_what_goes_anyway(bench: Bench) -> None:
    bench.push("a", track=60, keepLog=2)
    job = bench.started()
    said(bench, job, "one", "two", "thr\x1bee\nlines")
    assert seen(bench).log == ()
    job.look()
    first, second = seen(bench).log
    assert first.endswith("WARNING tests.kept: two")
    assert second.endswith("WARNING tests.kept: thr\\x1bee lines")
    assert first.startswith("#1 ")
    said(bench, job, "four")
    job.settle(End(State.COMPLETE))
    assert [each.rpartition(" ")[2] for each in seen(bench).log] == ["lines", "four"]


def test_lines_of_the_attempts_before_are_kept_through_a_failure(bench: Bench) -> None:
    bench.push("a", track=60, keepLog=5)
    job = bench.started()
    said(bench, job, "first")
    job.settle(End(State.RELEASED, error=ValueError("no")))
    job = bench.started()
    said(bench, job, "second")
    job.settle(End(State.FAILED, error=ValueError("no")))
    kept = seen(bench).log
    assert [(each[:2], each.rpartition(" ")[2]) for each in kept] == [
        ("#1", "first"), ("#2", "second"),
    ]  # fmt: skip


def test_how_much_is_kept_is_bounded(bench: Bench) -> None:
    bench.push("a", track=60, keepLog=10**9)
    job = bench.started()
    said(bench, job, *("\u20ac" * 10_000 for _ in range(1200)))
    job.look()
    kept = seen(bench).log
    assert 10 < len(kept) < 1000
    assert len(json.dumps(kept)) <= status.MAX_LOG + 2 * len(kept)
    assert max(map(len, kept)) < 520


def test_others_keep_nothing(bench: Bench) -> None:
    logged.capture()
    bench.push("a", track=60)
    job = bench.started()
    said(bench, job, "not kept")
    job.settle(End(State.COMPLETE))
    assert seen(bench).log == ()
    log.warning("outside of any job")


def test_what_cannot_be_shown_is_a_line_all_the_same() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    record = logging.LogRecord("a", logging.ERROR, "f", 1, "%d", ("x",), (Bad, Bad(), None))
    assert logged.line_of(record).endswith("ERROR a: %d (Bad)")


@pytest.mark.parametrize(
    "way", [(), ("--concurrency", "3"), ("--isolate",)], ids=["alone", "slots", "isolated"]
)
def test_a_worker_keeps_it_and_status_shows_it(project: Project, way: tuple[str, ...]) -> None:
    shutil.copy(Path(__file__).with_name("logging_jobs.py"), project.root)
    keep: dict[str, Any] = {"track": 600, "keepLog": 3}
    retried = project.push("logging_jobs.Told", maxTries=2, **keep)
    failed = project.push("logging_jobs.ToldOnLoop", **keep)
    assert project.work("--stop-when-empty", *way).finished().code == 0
    told = json.loads(project.qframe("status", retried, "--json").out)["log"]
    assert [line.partition("shop: ")[2] for line in told if "shop" in line] == ["sync 1", "sync 2"]
    lines = json.loads(project.qframe("status", failed, "--json").out)["log"]
    own = [line.partition("shop: ")[2] for line in lines if "shop" in line]
    assert own == ["in a thread", "on a \\x1b[31mloop"]
    assert own[1] in project.qframe("status", failed).out.replace("\\\\", "\\")
