from __future__ import annotations

import os
import time
from typing import Any

import pytest

from qframe.drivers import process
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.worker import WorkerOptions, roster
from tests.console.conftest import Shop
from tests.console.test_queues import AWAY, TWO


def register(shop: Shop, connection: str = "database", **over: Any) -> roster.Entry:
    """Put a worker, which is this process, into the store."""
    entry = roster.introduced(WorkerOptions(), connection, ("default",))
    entry = entry.model_copy(update={"beat_at": time.time(), **over})
    shop.manager.connection("database").store.set(entry.key, entry.model_dump_json())
    return entry


def running(name: str, seconds: float = 5) -> roster.RunningJob:
    since = time.time() - seconds
    return roster.RunningJob(uuid="u", name=name, queue="emails", attempt=2, since=since)


def test_workers_are_listed_with_what_they_do(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert shop.run("workers").out == "no worker is registered\n"
    assert shop.run("workers", "--json").rows == []
    counts = {"processed": 7, "given back": 1}
    register(shop, state="running", jobs=(running("shop.Order", 125),), counts=counts, memory=61.7)
    register(shop, name="mail", born="1", queues=("a", "b"), started_at=now + 1)
    header, *rows = shop.run("workers").lines
    assert header.split() == [
        "worker", "queues", "state", "used", "free", "job", "for",
        "processed", "failed", "MB", "seen",
    ]  # fmt: skip
    me = f"{process.NAME}:{os.getpid()}"
    assert [row.split() for row in rows] == [
        [me, "database:default", "running", "1", "0", "shop.Order", "2m", "5s",
         "7", "0", "62", "0s", "ago"],
        [me, "mail", "database:a,b", "gone", "0", "1", "0", "0", "0", "0s", "ago"],
    ]  # fmt: skip
    first, _ = shop.run("workers", "--json").rows
    assert (first["concurrency"], first["used"], first["free"]) == (1, 1, 0)
    assert first["pool"] is None
    (job,) = first["jobs"]
    assert job["name"] == "shop.Order"
    assert job["since"].startswith("20")
    assert (first["processed"], first["given_back"], first["memory"]) == (7, 1, 61.7)


def test_supervisors_are_shown_with_why(shop: Shop) -> None:
    entry = roster.introduced_pool(WorkerOptions(name="mail"), "database", 5, 2, 10)
    told = {"a": "40 ready: needs 4", "b": "0 ready: needs 0"}
    update = {"beat_at": time.time(), "shares": {"a": 4, "b": 1}, "why": told}
    entry = entry.model_copy(update=update)
    shop.manager.connection("database").store.set(entry.key, entry.model_dump_json())
    lines = [line.split() for line in shop.run("workers").lines if line]
    me = [f"{process.NAME}:{os.getpid()}", "mail"]
    assert lines[-3:] == [
        ["supervisor", "queue", "processes", "of", "why"],
        [*me, "database:a", "4", "10", "40", "ready:", "needs", "4"],
        [*me, "database:b", "1", "10", "0", "ready:", "needs", "0"],
    ]
    said = shop.run("scale", "mail", "--workers", "3")
    assert said.code == 2
    assert "is a supervisor" in said.only()


def test_no_slot_is_free_while_there_are_to_be_fewer(shop: Shop) -> None:
    jobs = tuple(running(f"shop.{name}") for name in ("A", "B", "C"))
    register(shop, state="running", jobs=jobs, concurrency=2, pool=77)
    (row,) = shop.run("workers", "--json").rows
    assert (row["concurrency"], row["used"], row["free"], row["pool"]) == (2, 3, 0, 77)
    assert [job["name"] for job in row["jobs"]] == ["shop.A", "shop.B", "shop.C"]
    _, first, *others = shop.run("workers").lines
    assert first.split()[3:6] == ["3", "0", "shop.A"]
    assert [line.split()[0] for line in others] == ["shop.B", "shop.C"]
    assert all(line.split()[1].endswith("s") for line in others), "since when each runs"


def test_names_of_jobs_are_made_harmless(shop: Shop) -> None:
    register(shop, state="running", jobs=(running("\x1b]0;evil\x07 [red]x"),), host="h\x1b[2J")
    for command in (["workers"], ["workers", "--json"]):
        said = shop.run(*command)
        assert "\x1b" not in said.out
        assert "\x07" not in said.out
        assert "[red]x" in said.out


def test_a_store_shared_by_connections_is_shown_once_and_narrowed(shop: Shop) -> None:
    shop.write("qframe.toml", TWO)
    register(shop)
    register(shop, "main")  # so called in the configuration of that worker
    assert len(shop.run("workers", "--json").rows) == 2
    (row,) = shop.run("workers", "--connection", "database", "--json").rows
    assert row["connection"] == "database"
    assert shop.run("workers", "--connection", "other", "--json").rows == []


@pytest.mark.parametrize(
    ("command", "code"), [(["workers"], 0), (["counters"], 0), (["restart", "--wait", "0"], 69)]
)
def test_connections_that_do_not_answer_are_named(
    shop: Shop, command: list[str], code: int
) -> None:
    shop.write("qframe.toml", AWAY)
    said = shop.run(*command)
    assert said.code == code
    assert "cannot be opened" in said.err
    assert len(said.err.splitlines()) == 1
    said = shop.run(*command, "--connection", "away")
    assert said.code in {2, 69}
    assert "cannot be opened" in said.err


def test_watch_shows_it_until_it_is_interrupted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            register(shop, state="running", jobs=(running("shop.Order"),))
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("qframe.console.workers.time.sleep", pause)
    said = shop.run("workers", "--watch")
    assert said.code == 0
    assert "shop.Order" in said.out
    assert pauses == [2, 2]
    said = shop.run("workers", "--watch", "--json")
    assert said.code == 2
    assert "do not go together" in said.only()


def test_counters_in_all_by_queue_and_by_class(shop: Shop) -> None:
    shop.write("qframe.toml", TWO)
    assert shop.run("counters").out == "nothing was counted yet\n"
    for name in ("database", "other"):
        recorder = Recorder()
        for _ in range(5):
            recorder.ended("shop.Order", "emails", "done")
        for _ in range(2):
            recorder.ended("\x1b[31m", "default", "given back")
        Metrics(shop.manager.connection(name).store, name).write(recorder)
    said = shop.run("counters")
    assert "\x1b" not in said.out
    rows = [row.split()[:4] for row in said.lines]
    assert rows == [
        ["what", "connection", "name", "processed"], ["total", "10", "0", "0"],
        ["queue", "database", "default", "0"], ["queue", "database", "emails", "5"],
        ["job", "database", "\\x1b[31m", "0"], ["job", "database", "shop.Order", "5"],
        ["queue", "other", "default", "0"], ["queue", "other", "emails", "5"],
        ["job", "other", "\\x1b[31m", "0"], ["job", "other", "shop.Order", "5"],
    ]  # fmt: skip
    total, *_ = shop.run("counters", "--connection", "other", "--json").rows
    assert (total["what"], total["processed"], total["given_back"]) == ("total", 5, 2)
    said = shop.run("counters", "--connection", "other", "--reset")
    assert said.out == "reset the counters of other\n"
    total, *_ = shop.run("counters", "--json").rows
    assert total["processed"] == 5


def test_restart_refuses_a_wrong_time(shop: Shop) -> None:
    for seconds in ("nan", "inf", "soon", "1e400"):
        said = shop.run("restart", "--wait", seconds)
        assert (said.code, "Invalid value for 'seconds'" in said.only()) == (2, True)
    assert "--wait must not be" in shop.run("restart", "--wait", "--", "-1").only()


def test_restart_does_not_wait_for_one_that_is_gone(shop: Shop) -> None:
    register(shop, born="1")
    said = shop.run("restart", "--wait", "5")
    assert (said.code, said.lines[1:]) == (0, ["no worker is registered"])


def test_restart_does_not_take_a_silent_worker_for_one_that_exited(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry runs out while it is still there."""
    entry = register(shop, beat_at=time.time() - roster.TTL)

    def pause(_seconds: float) -> None:
        shop.manager.connection("database").store.delete(entry.key)

    monkeypatch.setattr("qframe.console.restart.time.sleep", pause)
    said = shop.run("restart", "--wait", "0.2")
    assert said.code == 1
    assert said.lines[-1].endswith("has not exited: idle")
