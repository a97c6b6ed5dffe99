from __future__ import annotations

import time
from pathlib import Path

import pytest

from qframe.drivers.store import pause_key
from qframe.worker.control import RESTART
from tests.console.conftest import Shop, started
from tests.support.process import Project, wait_for

TWO = """\
[connections.database]
[connections.other]
driver = "database"
url = "sqlite:///other.sqlite3"
[connections.now]
driver = "sync"
"""
AWAY = """\
[connections.database]
[connections.away]
driver = "database"
url = "sqlite:////nowhere/at/all.sqlite3"
"""


def fill(shop: Shop) -> None:
    for number in range(3):
        shop.queue.push_raw(f'{{"n": {number}}}', "emails")
    shop.queue.push_raw("{}", "emails", delay=60)
    shop.queue.push_raw("{}")
    (job,) = shop.queue.reserve(["default"])
    started(job)


def paused(shop: Shop, queue: str = "") -> bool:
    return shop.manager.connection("database").store.get(pause_key("database", queue)) != [None]


# -- size, monitor ------------------------------------------------------------------------------


def test_size_counts_each_queue_by_state(shop: Shop) -> None:
    fill(shop)
    header, *rows = shop.run("size").lines
    assert header.split() == ["connection", "queue", "ready", "delayed", "reserved", "buried"]
    assert [row.split() for row in rows] == [
        ["database", "default", "0", "0", "1", "0"],
        ["database", "emails", "3", "1", "0", "0"],
    ]
    (row,) = shop.run("size", "--queue", "emails", "--json").rows
    assert row == {
        "connection": "database", "queue": "emails", "ready": 3, "delayed": 1, "reserved": 0,
        "buried": 0, "approximate": False,
    }  # fmt: skip


def test_size_shows_the_permits_of_bounded_queues(shop: Shop) -> None:
    shop.write("qframe.toml", TWO + '[queues."e*"]\nconcurrency = 3\n')
    fill(shop)
    shop.queue.store.set("permit:queue:database:emails:1", "somebody", 60)
    header, *rows = shop.run("size", "--connection", "database").lines
    assert header.split()[-1] == "permits"
    assert [row.split()[1:] for row in rows] == [
        ["default", "0", "0", "1", "0"], ["emails", "3", "1", "0", "0", "1/3"],
    ]  # fmt: skip
    default, emails = shop.run("size", "--connection", "database", "--json").rows
    assert default["permits"] is None
    assert emails["permits"] == {"taken": 1, "of": 3}


def test_size_of_an_empty_database(shop: Shop) -> None:
    (row,) = shop.run("size", "--json").rows
    assert (row["queue"], row["ready"]) == ("default", 0)


def test_size_of_every_configured_connection_that_holds_jobs(shop: Shop) -> None:
    shop.write("qframe.toml", TWO)
    rows = shop.run("size", "--json").rows
    assert [row["connection"] for row in rows] == ["database", "other"]
    rows = shop.run("size", "--connection", "other", "--json").rows
    assert [row["connection"] for row in rows] == ["other"]


def test_monitor_exits_1_when_a_queue_holds_more_than_its_limit(shop: Shop) -> None:
    fill(shop)
    fine = shop.run("monitor", "--max", 4)
    assert fine.code == 0
    assert [row.split()[1:] for row in fine.lines[1:]] == [
        ["default", "1", "OK"],
        ["emails", "4", "OK"],
    ]
    busy = shop.run("monitor", "--max", 3, "--json")
    assert busy.code == 1
    assert {row["queue"]: row["status"] for row in busy.rows} == {"default": "OK", "emails": "BUSY"}
    assert shop.run("monitor", "--max", 3, "--queue", "default").code == 0


def test_monitor_tells_the_listeners(shop: Shop) -> None:
    shop.write("hears.py", "heard = []\ndef hear(event): heard.append((event.queue, event.size))\n")
    shop.write("qframe.toml", '[listeners]\nQueueBusy = ["hears:hear"]\n')
    fill(shop)
    shop.run("monitor", "--max", 0)
    import hears  # type: ignore[import-not-found]

    # Two managers of one process listen here: the shop's and the command's.
    assert {*hears.heard} == {("default", 1), ("emails", 4)}


# -- clear --------------------------------------------------------------------------------------


def test_clear_deletes_what_waits_and_leaves_what_runs(shop: Shop) -> None:
    fill(shop)
    said = shop.run("clear", "database", "--queue", "emails")
    assert said.out == "deleted 4 jobs from database:emails\n"
    assert shop.run("clear", "database").out == "deleted 0 jobs from database:default\n"
    assert shop.queue.size("default") == 1


def test_clear_wants_a_connection(shop: Shop) -> None:
    assert "say which connection: qframe clear CONNECTION" in shop.run("clear").only()
    assert "unknown connection 'databse'" in shop.run("clear", "databse").only()
    said = shop.run("clear", "sync")
    assert said.code == 2
    assert "the connection 'sync' (sync) cannot clear" in said.only()
    assert shop.run("clear", "database", "--queue", "a b").code == 2


# -- kick ---------------------------------------------------------------------------------------


def bury(shop: Shop, queue: str, count: int) -> None:
    for _ in range(count):
        shop.queue.push_raw("{}", queue)
        (job,) = shop.queue.reserve([queue])
        started(job)
        job.bury()


def test_kick_makes_what_is_buried_ready(shop: Shop) -> None:
    bury(shop, "emails", 2)
    bury(shop, "default", 1)
    shop.queue.push_raw("{}", "emails", delay=60)
    said = shop.run("kick", "database", "--queue", "emails")
    assert (said.code, said.out) == (0, "kicked 2 jobs of database:emails\n")
    sizes = shop.queue.sizes("emails")
    assert (sizes.ready, sizes.delayed, sizes.buried) == (2, 1, 0)
    assert shop.queue.sizes("default").buried == 1
    assert shop.run("kick", "database").out == "kicked 1 job of database:default\n"
    assert shop.run("kick", "database").out == "kicked 0 jobs of database:default\n"


def test_kick_as_json(shop: Shop) -> None:
    bury(shop, "emails", 2)
    assert shop.run("kick", "database", "--queue", "emails", "--json").rows == {
        "connection": "database", "queue": "emails", "kicked": 2,
    }  # fmt: skip
    assert shop.run("kick", "database", "--json").rows["kicked"] == 0


def test_kick_wants_a_connection_that_buries_and_a_queue_name(shop: Shop) -> None:
    assert "say which connection: qframe kick CONNECTION" in shop.run("kick").only()
    for name in ("sync", "null"):
        said = shop.run("kick", name, "--json")
        assert said.code == 2
        assert said.only() == f"qframe: the connection '{name}' ({name}) cannot bury"
    said = shop.run("kick", "database", "--queue", "a b")
    assert said.code == 2
    assert "'a b' is not a queue name" in said.only()


# -- pause, resume, restart ---------------------------------------------------------------------


def test_pause_and_resume_one_queue_or_all(shop: Shop) -> None:
    assert shop.run("pause", "emails").out == "paused emails of database\n"
    assert paused(shop, "emails")
    assert not paused(shop)
    assert shop.run("pause").out == "paused every queue of database\n"
    assert paused(shop)
    assert shop.run("resume", "emails").out == "resumed emails of database\n"
    assert (paused(shop, "emails"), paused(shop)) == (False, True)
    shop.run("pause", "a")
    shop.run("pause", "b")
    assert shop.run("resume").out == "resumed every queue of database\n"
    assert not any(paused(shop, queue) for queue in ("", "a", "b"))


def test_a_pause_may_end_by_itself(shop: Shop) -> None:
    shop.run("pause", "--for", 3)
    assert paused(shop)
    wait_for(lambda: not paused(shop), "the end of the pause")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_pause_of_no_time_is_refused(shop: Shop, seconds: str) -> None:
    said = shop.run("pause", "--for", seconds)
    assert said.code == 2
    assert "--for" in said.only()
    assert not paused(shop)


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_wrong_queue_name_is_refused(shop: Shop, command: str) -> None:
    said = shop.run(command, "a b")
    assert said.code == 2
    assert "'a b' is not a queue name" in said.only()


def test_restart_writes_a_fresh_token_for_every_connection(shop: Shop) -> None:
    shop.write("qframe.toml", TWO)
    tokens = []
    for _ in range(2):
        assert shop.run("restart").out == (
            "workers of database, other exit after their current job\n"
        )
        tokens += [
            shop.manager.connection(name).store.get(RESTART)[0] for name in ("database", "other")
        ]
    assert None not in tokens
    assert len({*tokens}) == 2
    shop.run("restart", "--connection", "other")
    assert shop.manager.connection("database").store.get(RESTART) == [tokens[-1]]
    assert shop.manager.connection("other").store.get(RESTART) != [tokens[-1]]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        *((command, 69) for command in ("restart", "pause", "resume", "schedule pause")),
        *((command, 0) for command in ("size", "monitor")),
    ],
)
def test_a_connection_that_does_not_answer_is_named_and_the_others_act(
    shop: Shop, command: str, code: int
) -> None:
    shop.write("qframe.toml", AWAY)
    said = shop.run(*command.split())
    assert said.code == code
    assert "all.sqlite3 cannot be opened" in said.err
    assert len(said.err.splitlines()) == 1
    assert "database" in said.out
    assert "away" not in said.out


def test_a_real_worker_pauses_resumes_and_restarts(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        worker = project.idle()
        project.qframe("pause")
        wait_for(lambda: "paused" in worker.out, "the pause")
        project.push("Note", {"word": "later"})
        time.sleep(0.5)
        assert project.notes("note") == []
        project.qframe("resume")
        project.wait_for_note("note", "later")
        project.qframe("restart")
        assert worker.wait() == 0
