"""Real workers on Redis: what only this backend can do to them, and the commands about it."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.support.process import Finished, Process, Project, wait_for
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.parametrize("project", ["redis"], indirect=True)


@contextmanager
def meanwhile(act: Callable[[], object], pause: float) -> Iterator[None]:
    """Do something again and again, from another thread."""
    over = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        while not over.wait(pause):
            try:
                act()
            except Exception as error:  # noqa: BLE001 (raised below)
                failures.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for failure in failures:
        raise failure


def ran(project: Project) -> list[int]:
    return sorted(int(line[1]) for line in project.notes("note"))


def stop(workers: Sequence[Process]) -> None:
    for worker in workers:
        assert worker.stop() == 0, worker.err
        assert "Traceback" not in worker.err
        assert "lost" not in worker.err


# -- a server that makes trouble ------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [("CLIENT", "KILL", "TYPE", "normal"), ("SCRIPT", "FLUSH")])
def test_every_job_runs_once_whatever_becomes_of_connections_and_scripts(
    project: Project, redis_server: RedisServer, trouble: tuple[str, ...]
) -> None:
    """Two workers, short jobs reserved ahead, their starts and ends sent and not waited for."""
    for number in range(1500):
        project.push("Note", {"word": str(number)}, maxTries=1)
    workers = [project.work("--quiet") for _ in range(2)]
    project.wait_for_note("note")
    with meanwhile(lambda: redis_server.command(*trouble), 0.02):
        project.wait_for_note("note", count=1000)
    project.wait_for_note("note", count=1500)
    wait_for(project.empty, "the end of the last ones")
    assert ran(project) == list(range(1500))
    assert {line[2] for line in project.notes("note")} == {"1"}
    assert project.failed() == []
    stop(workers)


@pytest.mark.slow
def test_a_long_job_keeps_its_short_lease_through_broken_connections(
    project: Project, redis_server: RedisServer
) -> None:
    project.configure(retry_after=3)
    project.push("Sleep", {"seconds": 7}, maxTries=1)
    workers = [project.work() for _ in range(2)]
    project.wait_for_note("start")
    kill = ("CLIENT", "KILL", "TYPE", "normal")
    with meanwhile(lambda: redis_server.command(*kill), 0.15):
        project.wait_for_note("end")
    wait_for(project.empty, "its end")
    assert len(project.notes("start")) == 1
    assert project.failed() == []
    stop(workers)


def test_a_job_whose_reservation_vanished_is_reported_and_the_worker_goes_on(
    project: Project, redis_server: RedisServer
) -> None:
    project.push("Sleep", {"seconds": 1})
    worker = project.work()
    project.wait_for_note("start")
    redis_server.command("FLUSHALL")
    project.wait_for_note("end")
    wait_for(lambda: "it runs twice" in worker.err or "LOST" in worker.out, "its report")
    project.push("Note")
    project.wait_for_note("note")
    wait_for(project.empty, "its end")
    assert worker.stop() == 0
    assert "1 lost" in worker.out
    assert "Traceback" not in worker.err


@pytest.mark.slow
def test_what_a_stopped_worker_had_done_but_not_said_is_refused(project: Project) -> None:
    """It stands still between two short jobs, for longer than its lease."""
    project.configure(retry_after=1)
    for number in range(20_000):
        project.queue.push_raw(json.dumps({"job": "jobs.Note", "data": {"word": str(number)}}))
    late = project.work("--quiet", "--tries", 0)
    project.wait_for_note("note", count=100)
    late.signal(signal.SIGSTOP)
    other = project.work("--quiet", "--tries", 0)
    wait_for(project.empty, "the rest", 60)
    late.signal(signal.SIGCONT)
    assert late.stop() == 0
    assert other.stop() == 0
    assert project.empty()
    assert set(ran(project)) == set(range(20_000))
    twice = len(ran(project)) - 20_000
    assert twice <= 1, "the one that was done, or ran, when it was stopped"
    assert project.failed() == []


# -- attempts and order ---------------------------------------------------------------------------


@pytest.mark.slow
def test_attempts_are_exact_among_jobs_that_fail_release_and_succeed(project: Project) -> None:
    chance = random.Random(5)
    pushed = [chance.choice(["Flaky", "Release", "Note"]) for _ in range(240)]
    for number, job in enumerate(pushed):
        more = {"Flaky": {"failures": 2}, "Release": {"times": 2}, "Note": {}}[job]
        word = {} if job == "Release" else {"word": f"{job}-{number}"}
        project.push(job, {**more, **word}, maxTries=0 if job == "Release" else 3, backoff="0")
    project.drain()
    flaky = pushed.count("Flaky")
    starts = [(line[1].split("-")[0], line[2]) for line in project.notes("start")]
    for attempt in ("1", "2", "3"):
        assert starts.count(("Flaky", attempt)) == flaky
        assert starts.count(("release", attempt)) == pushed.count("Release")
    assert len(starts) == 3 * (flaky + pushed.count("Release"))
    assert len(project.notes("note")) == pushed.count("Note")
    words = [int(line[1].split("-")[1]) for line in project.notes("note")]
    assert words == sorted(words), "in their order"
    assert project.failed() == []


# -- commands -------------------------------------------------------------------------------------


def told(finished: Finished) -> str:
    """Give what a command printed; fails unless it went well."""
    assert (finished.code, finished.err) == (0, "")
    return finished.out


def test_the_commands_tell_and_change_what_is_there(project: Project) -> None:
    emails = ("--queue", "emails")
    project.push("Flaky", {"failures": 1, "word": "flaky"}, queue="emails")
    project.push("Note", {"word": "buried"}, queue="emails")
    project.drain(*emails, "--max-jobs", 1)
    (job,) = project.queue.reserve(["emails"])
    job.bury()
    for delay in (0, 0, 60):
        project.push("Note", {"word": "cleared"}, queue="emails", delay=delay)
    size = told(project.qframe("size", "--connection", "redis", *emails, "--json"))
    counts = {"ready": 2, "delayed": 1, "reserved": 0, "buried": 1}
    assert json.loads(size) == [
        {"connection": "redis", "queue": "emails", **counts, "approximate": False}
    ]
    busy = project.qframe("monitor", "--connection", "redis", *emails, "--max", 2)
    assert busy.code == 1
    assert "emails" in busy.out
    assert "3" in told(project.qframe("clear", "redis", *emails, "--no-bin"))
    assert "1" in told(project.qframe("kick", "redis", *emails))
    (record,) = json.loads(told(project.qframe("failed", "--json")))
    assert (record["queue"], record["attempts"]) == ("emails", 1)
    assert "1" in told(project.qframe("retry", "all"))
    assert project.failed() == []
    project.drain(*emails, "--tries", 2)
    assert [line[1] for line in project.notes("note")] == ["buried"]
    assert [line[:3] for line in project.notes("start")] == [
        ["start", "flaky", attempt] for attempt in ("1", "1", "2")
    ]
    assert project.notes("end") == [["end", "flaky", "2"]]
    assert project.empty("emails")
    assert project.failed() == []
