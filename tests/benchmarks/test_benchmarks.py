"""The benchmarks run and report every measure; how fast anything is, is no test's business."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import environments, report, rows
from benchmarks.groups import sqlite
from benchmarks.groups.redis import bench as redis
from benchmarks.peers import sides
from benchmarks.places import NotHereError, Place, Side, producing
from benchmarks.redis_server import RedisServer
from tests.support.server_process import binary

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

PEERS = ("Celery", "RQ", "Dramatiq", "Huey", "SAQ", "ARQ", "TaskIQ", "streaq")
REDIS_PEERS = (
    "drain, Celery, solo (acks before the job)",
    "drain, Celery, prefork 1 (acks before the job)",
    "drain, RQ, SimpleWorker (acks after the job)",
    "drain, RQ, a fork per job (acks after the job)",
    "drain, Dramatiq, 8 threads (acks after the job)",
    "drain, Dramatiq, the same, prefetch 1,000 (acks after the job)",
    "drain, Huey (acks nothing)",
    "drain, SAQ (acks after the job)",
    "drain, ARQ (acks after the job)",
    "drain, TaskIQ, streams (acks after the job)",
    "drain, streaq (acks after the job)",
    "drain, the fastest Python peer that acks",
    "drain, the fastest Python peer",
    "drain, Laravel 8, PHP (acks after the job)",
    "drain, Laravel 8, PHP with opcache and JIT",
    "drain, Sidekiq 6.4, one thread (acks nothing)",
    *(f"dispatch, {peer}" for peer in PEERS),
    "dispatch, Laravel 8",
    "dispatch, Sidekiq 6.4",
    "dispatch, the fastest Python peer",
)
REDIS_OURS = (
    "drain, bare loop",
    "drain, bare loop with pydantic and a timer",
    "drain, bare loop, processor time per job",
    "drain, bare loop with both, processor time per job",
    "dispatch, bare loop of rpush",
    "bulk of 200, bare loop of rpush",
    "dispatch to start, idle worker, median",
    "dispatch to start, idle worker, p99",
    "delayed job late by, median",
    "delayed job late by, p99",
    "idle worker, round trips",
    "idle worker, of one core",
    "worker's memory, PSS",
    "drain at 2,000 waiting, at 200",
    "dispatch with min_replicas=1, without",
)
SQS = (
    "dispatch, calls",
    "dispatch, a second",
    "drain, one at a time, calls",
    "drain, one at a time, a second",
    "drain, ten at once, calls",
    "drain, ten at once, a second",
)
BEANSTALKD = (
    "drain, bare loop",
    "drain, bare loop, processor time per job",
    "drain, Laravel 8, PHP",
    "dispatch, bare loop of put",
    "dispatch, Laravel 8, PHP",
    "bulk of 200, sent one by one",
    "dispatch to start, idle worker, median",
    "dispatch to start, idle worker, p99",
    "delayed job late by, median",
    "delayed job late by, p99",
    "idle worker, of one core",
    "worker's memory, PSS",
)
WORKERS = (
    "--isolate, RQ's fork per job",
    "--isolate, bare fork and wait",
    "--isolate --preload, bare fork and wait",
    "--isolate --preload, the same, as large",
    *(
        f"{options}, processor time a job, recorder on, off"
        for options in ("--isolate --preload", "--workers 1")
    ),
    "a second of recording, of one core",
    "a log line recorded",
    "--workers 2, one worker; 5 ms jobs",
    *(f"drain on {driver}, tracked, and not" for driver in ("redis", "database", "beanstalkd")),
    "--isolate, idle parent, of one core",
    "--isolate, parent's memory, PSS",
    "--workers 2, idle parent, of one core",
    "--workers 2, parent's memory, PSS",
    *(
        f"started again on {driver}, {how}"
        for driver in ("redis", "database", "beanstalkd")
        for how in ("by another", "in a pool")
    ),
    *(
        f"kill -9 in a job, then a new worker: {side}"
        for side in (
            *("Celery, solo", "RQ, SimpleWorker", "Dramatiq, 8 threads", "Huey", "SAQ", "ARQ"),
            *("TaskIQ, streams", "streaq", "Laravel 8, PHP", "Sidekiq 6.4, one thread", "qframe"),
        )
    ),
)


WORKLOADS = tuple(
    measure
    for driver in ("redis", "database", "beanstalkd")
    for measure in (
        *(f"100 {kind} on {driver}, dispatched one by one" for kind in ("plain", "unique tracked")),
        *(
            f"100 {kind} on {driver}, {what}"
            for kind in ("plain", "chain", "batch", "unique tracked")
            for what in ("dispatched at once", "drained", "processor time per job")
        ),
        f"dispatch to start on {driver}, idle worker, median",
    )
)


def run(*arguments: str, cwd: Path, timeout: int = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.mark.slow
@pytest.mark.long
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


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
def test_every_measure_on_redis_is_reported_and_so_is_who_is_not_here(tmp_path: Path) -> None:
    binary("redis-server")
    file = tmp_path / "raw.json"

    done = run("redis", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["redis"]}
    assert set(found) == {*REDIS_PEERS, *REDIS_OURS}
    assert all(found[measure]["ours"] for measure in REDIS_OURS)
    assert {found[measure]["peer"] for measure in REDIS_PEERS} == {
        "left out",
        "none of them is here",
    }
    assert {found[measure]["met"] for measure in REDIS_PEERS} == {None}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
def test_every_measure_on_rabbitmq_is_reported(tmp_path: Path) -> None:
    binary("rabbitmqctl", Path("/usr/lib/rabbitmq/bin"))
    file = tmp_path / "raw.json"
    done = run("rabbitmq", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["rabbitmq"]}
    assert len(found["drain, 50 at once, one at a time"]["samples"]["ours"]) == 1
    assert found["dispatch, TaskIQ, quorum queue"]["peer"] == "left out"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
def test_every_measure_on_beanstalkd_is_reported(tmp_path: Path) -> None:
    binary("beanstalkd")
    file = tmp_path / "raw.json"

    done = run("beanstalkd", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["beanstalkd"]}
    assert list(found) == list(BEANSTALKD)
    assert [row["measure"] for row in found.values() if row["peer"] == "left out"] == [
        "drain, Laravel 8, PHP",
        "dispatch, Laravel 8, PHP",
    ]
    assert all(row["ours"] for row in found.values() if row["peer"] != "left out")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="CPU time is read from /proc")
def test_every_measure_on_sqs_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "raw.json"

    done = run("sqs", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())["groups"]["sqs"]
    assert [row["measure"] for row in found] == list(SQS)
    assert all(row["ours"] and row["peer"] == "left out" for row in found)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
def test_every_measure_of_workers_is_reported(tmp_path: Path) -> None:
    binary("redis-server")
    binary("beanstalkd")
    file = tmp_path / "raw.json"

    done = run("workers", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY, timeout=280)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["workers"]}
    assert set(found) == set(WORKERS)
    assert all(row["ours"] for row in found.values() if row["peer"] != "left out")
    again = [row for measure, row in found.items() if measure.startswith("started again")]
    assert all(row["samples"]["ours"] for row in again)


@pytest.mark.slow
@pytest.mark.long
def test_every_measure_of_overlapping_is_reported_and_never_two_ran_at_once(tmp_path: Path) -> None:
    binary("redis-server")
    binary("beanstalkd")
    file = tmp_path / "raw.json"

    done = run("overlapping", "--quick", "--json", str(file), cwd=REPOSITORY, timeout=280)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["overlapping"]}
    for driver in ("redis", "database", "beanstalkd"):
        assert found.pop(f"two at once, on {driver}")["met"] is True
        assert found.pop(f"key busy, on {driver}")["ours"]
    assert not found


@pytest.mark.slow
@pytest.mark.long
def test_every_measure_of_schedules_is_reported(tmp_path: Path) -> None:
    binary("redis-server")
    file = tmp_path / "raw.json"

    done = run("schedule", "--quick", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["schedule"]}
    for name in ("Redis", "SQLite"):
        assert f"{name}, 100 schedules, none due, of one processor" in found
        assert f"{name}, 100 a second, late by, p99" in found
    assert all(row["ours"] for row in found.values())


@pytest.mark.slow
@pytest.mark.long
def test_every_measure_of_features_is_reported(tmp_path: Path) -> None:
    binary("redis-server")
    file = tmp_path / "raw.json"

    done = run("features", "--quick", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["features"]}
    assert set(found) == {
        f"{what}, {feature}, and plain"
        for what in ("drain", "dispatch")
        for feature in ("middleware", "unique", "signed", "encrypted")
    } | {"drain, a batch, and plain"}
    assert all(row["ours"] for row in found.values())


@pytest.mark.slow
@pytest.mark.long
def test_every_measure_of_awaiting_is_reported_and_so_is_who_is_not_here(tmp_path: Path) -> None:
    binary("redis-server")
    file = tmp_path / "raw.json"

    done = run("awaiting", "--quick", "--alone", "--json", str(file), cwd=REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"]["awaiting"]}
    ways = [f"100 at once, {peer}" for peer in ("SAQ", "ARQ", "TaskIQ, streams", "streaq")]
    assert set(found) == {
        f"{way}{what}"
        for way in (*ways, "100 by one call, streaq")
        for what in ("", ": longest blockage of the loop", ": threads")
    }
    assert all(row["ours"] for row in found.values())
    assert {row["peer"] for row in found.values()} == {"left out"}
    assert {row["ours"] for measure, row in found.items() if "threads" in measure} == {"2"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc")
@pytest.mark.parametrize("against", [False, True])
def test_every_workload_is_reported_also_beside_another_checkout(
    tmp_path: Path, *, against: bool
) -> None:
    binary("redis-server")
    binary("beanstalkd")
    file = tmp_path / "raw.json"
    shutil.copytree(REPOSITORY / "qframe", tmp_path / "other" / "qframe")
    more = ("--against", str(tmp_path / "other")) if against else ()

    done = run("workloads", "--quick", "--json", str(file), *more, cwd=REPOSITORY, timeout=280)

    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(file.read_text())
    assert ("against" in said["machine"]) is against
    found = {row["measure"]: row for row in said["groups"]["workloads"]}
    assert set(found) == set(WORKLOADS)
    assert all(row["ours"] for row in found.values())
    beside = {measure for measure, row in found.items() if row["peer"]}
    drains = {measure for measure in WORKLOADS if measure.endswith("drained")}
    assert beside == (set(WORKLOADS) if against else drains)


def test_the_bare_loop_speaks_to_redis_as_the_driver_does() -> None:
    binary("redis-server")
    with RedisServer() as server:
        ours = redis.ours(server.url())
        worker = ("python", "-m", "benchmarks.apps.bare_redis", "drain")
        with Place(replace(ours, worker=worker, stopped=False)) as place:
            place.produce("bulk", 60)
            place.drain(61)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_measure_of_django_is_reported(tmp_path: Path) -> None:
    binary("redis-server")
    file = tmp_path / "raw.json"

    done = run("django", "--quick", "--json", str(file), cwd=REPOSITORY, timeout=580)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())["groups"]["django"]
    assert len(found) == 8, done.stdout
    assert all(row["peer"] for row in found[1:])


def test_the_bare_loop_speaks_to_sqlite_as_the_driver_does() -> None:
    with Place(sqlite.OURS) as place:
        place.produce("bulk", 60)
        assert place.run(sqlite.BARE, "drain", 61) > 0
        assert place.written() == 61


def test_a_side_runs_on_the_qframe_of_its_checkout(tmp_path: Path) -> None:
    (tmp_path / "qframe").mkdir()
    (tmp_path / "qframe" / "__init__.py").touch()
    (tmp_path / "qframe" / "known.py").write_text("print(7)\n")
    side = Side("other", (), (), checkout=tmp_path)

    with Place(side) as place:
        assert place.run("qframe.known") == 7


def test_a_folder_without_qframe_is_no_checkout(tmp_path: Path) -> None:
    done = run("workloads", "--against", str(tmp_path), cwd=REPOSITORY)

    assert done.returncode == 2
    assert "there is no qframe in" in done.stderr


def test_a_peer_that_cannot_be_installed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer.txt").write_text("peer==1.0\n")
    monkeypatch.setattr(environments, "_PINNED", tmp_path)
    monkeypatch.setattr(environments, "_KEPT", tmp_path / "kept")
    monkeypatch.setattr(sys, "executable", "no-such-python")

    with pytest.raises(NotHereError, match="There is no no-such-python here"):
        environments.programs("peer")


def test_a_program_that_is_not_there_is_missing_and_no_failure() -> None:
    side = Side("peer", producing("peer"), ("no-such-program",))

    with Place(side) as place, pytest.raises(NotHereError, match="no no-such-program here"):
        place.check()


def test_a_peer_whose_producer_fails_is_missing_with_its_last_line() -> None:
    side = Side("peer", producing("no_such_module"), ("python",))

    with (
        Place(side) as place,
        pytest.raises(NotHereError, match="No module named 'no_such_module'"),
    ):
        place.check()


@pytest.mark.parametrize("peer", dict.fromkeys(peer.environment for peer in sides.PEERS))
def test_every_peer_is_pinned(peer: str) -> None:
    pinned = environments.pinned(peer)

    assert peer in pinned
    assert all(version[0].isdigit() for version in pinned.values())


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
