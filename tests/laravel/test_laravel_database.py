"""One table shared with a real Laravel: its queue, its worker, its commands, and ours."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

from qframe import foreign
from qframe.contracts import Sizes
from qframe.exceptions import LeaseLost
from tests.laravel.conftest import MakeOnDatabase
from tests.laravel.on_database import DatabaseApplication
from tests.support.process import wait_for

IMPORT = "App\\Handlers\\Import@handle"
NESTED: dict[str, Any] = {
    "name": "Łukasz Übergröße \U0001f600 'quoted' \"twice\" back\\slash /slash 100% :name ?",
    "list": [1, -2.5, True, None, "", [], ["\u2028", "日本語"]],
    "nested": {"ключ": {"deep": [{"er": 1}]}, "0": "a key of digits"},
    "numbers": [123456789012345, 2**63 - 1, 1700000000.123456],
}
LARGE = {"text": "\U0001f600é" * 160_000}
"""A megabyte of UTF-8, nearly."""
SHORT = 2
"""Seconds of `retry_after` where a lease has to run out."""
LATE = 10.0
"""Seconds a job may start late on a busy machine."""


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(params=["postgresql", "mariadb"])
def served(request: pytest.FixtureRequest) -> str:
    """Name a database that lets two work at once; Laravel's workers fail on SQLite's one lock."""
    kind: str = request.param
    return kind


@pytest.fixture
def app(make_on_database: MakeOnDatabase, kind: str) -> DatabaseApplication:
    return make_on_database(kind)


# -- what is in the table -----------------------------------------------------------------------


def test_a_row_of_python_is_one_of_laravel_s(app: DatabaseApplication) -> None:
    before = app.now()
    uuid = app.queue.push(foreign(IMPORT, {"id": 7}), "php")
    app.php_push(["later", 7, "app.jobs.SendWelcome", {"word": "hé"}, "emails"])
    ours, theirs = app.rows()
    payload = json.loads(ours["payload"])
    assert (payload["uuid"], payload["job"], payload["data"]) == (uuid, IMPORT, {"id": 7})
    assert (ours["queue"], ours["attempts"], ours["reserved_at"]) == ("php", 0, None)
    assert int(before) <= ours["available_at"] == ours["created_at"] <= app.now()
    assert (theirs["queue"], theirs["attempts"], theirs["reserved_at"]) == ("emails", 0, None)
    assert theirs["available_at"] == theirs["created_at"] + 7
    ours_only = ("due", "lease", "lease_end", "leased_at", "started", "notes")
    assert [theirs[each] for each in ours_only] == [None] * 6
    assert app.php_push(["size", "php"], ["size", "emails"]) == [1, 1]
    assert app.queue.sizes("emails") == Sizes(delayed=1)


def test_python_s_delay_is_in_seconds_for_php_and_never_too_short(
    app: DatabaseApplication,
) -> None:
    app.queue.later(3.2, foreign(IMPORT, {}))
    row = app.one()
    assert row["available_at"] * 1_000_000 >= row["due"]
    assert row["available_at"] - row["created_at"] in {4, 5}


def test_attempts_are_counted_beyond_what_laravel_s_column_holds(
    make_on_database: MakeOnDatabase, served: str
) -> None:
    app = make_on_database(served)
    most = {"mariadb": 255, "postgresql": 32_767}[served]
    push_shared(app, "php", {"python_fails": most + 1})
    with app.engine.connect() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET attempts = {most}")
    app.works_once("--tries", 0)
    with app.engine.connect() as connection:  # without number and pause, it waits a while
        connection.exec_driver_sql("UPDATE jobs SET available_at = 0, due = NULL")
    app.php_works_once(tries=0)
    assert app.starts() == [("python", most + 1), ("php", most + 2)]
    assert app.empty()


@pytest.mark.parametrize("made_by", ["laravel", "python"])
def test_the_tables_may_be_made_by_either(
    make_on_database: MakeOnDatabase, kind: str, made_by: str
) -> None:
    app = make_on_database(kind, made_by=made_by)
    for number in range(2):  # also after a migration that has nothing to do
        push_shared(app, "php", {"word": "for Python"})
        app.works_once()
        push_shared(app, "python", {"word": "for PHP"})
        app.php_works_once()
        app.queue.push(foreign(IMPORT, {"php_fails": 1}))
        app.php_works_once()
        (failed,) = app.failed()
        assert app.qframe("forget", failed.uuid).code == 0
        assert len(app.ends()) == 2 * (number + 1)
        assert app.qframe("migrate").out == "database: nothing to do\n"


# -- (a) PHP pushes, Python works ---------------------------------------------------------------


def test_a_job_pushed_by_php_is_run_by_python(app: DatabaseApplication) -> None:
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "hé", "data": NESTED}, "emails"])
    payload = app.one()["payload"]
    assert app.queue.sizes("emails") == Sizes(ready=1)
    app.drain("--queue", "emails")
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["queue"]) == ("python", 1, "emails")
    assert (end["data"]["word"], end["data"]["data"]) == ("hé", NESTED)
    assert end["uuid"] == json.loads(payload)["uuid"]
    assert app.rows() == []


def test_an_idle_python_worker_finds_what_php_pushes_and_what_php_delays(
    app: DatabaseApplication,
) -> None:
    app.idle_worker("--sleep", 30)
    app.php_push(
        ["later", 2, "app.jobs.SendWelcome", {"word": "later"}],
        ["push", "app.jobs.SendWelcome", {"word": "now"}],
    )
    due = max(row["available_at"] for row in app.rows())
    now, later = app.wait_for("end", count=2, seconds=2 + LATE)
    assert (now["data"]["word"], later["data"]["word"]) == ("now", "later")
    assert due <= later["time"]


def test_many_pushed_at_once_by_php_come_in_order(app: DatabaseApplication) -> None:
    steps = [["push", "app.jobs.SendWelcome", {"word": str(n)}] for n in range(30)]
    app.php_push(*steps, ["bulk", ["app.jobs.SendWelcome"] * 3, {"word": "bulk"}])
    assert app.queue.sizes() == Sizes(ready=33)
    app.drain()
    words = [entry["data"]["word"] for entry in app.entries("end")]
    assert words == [*map(str, range(30)), "bulk", "bulk", "bulk"]
    assert app.empty()


@pytest.mark.parametrize("side", ["php", "python"])
def test_what_either_pushes_comes_in_order_to_either(app: DatabaseApplication, side: str) -> None:
    for number, by in enumerate(["php", "python", "php", "python"]):
        push_shared(app, by, {"word": str(number)})
        wait_for(partial(app.is_past, int(app.now()) + 1), "the second in which PHP pushed")
    app.drain() if side == "python" else app.php_drains()
    assert [entry["data"]["word"] for entry in app.entries("end", side=side)] == [*"0123"]


def test_php_s_job_is_tried_again_as_its_payload_says(app: DatabaseApplication) -> None:
    payload = {
        "uuid": "from-php", "displayName": "welcome", "job": "app.jobs.SendWelcome",
        "maxTries": 3, "backoff": "0.3,1", "data": {"python_fails": 9},
    }  # fmt: skip
    app.php_push(["raw", json.dumps(payload), "default"])
    app.drain_all("--tries", 1, "--backoff", 30)
    first, second, third = [entry["time"] for entry in app.entries("start")]
    assert second - first >= 0.3
    assert third - second >= 1
    record = app.failure()
    assert (record.uuid, record.attempts, record.name) == ("from-php", 3, "welcome")
    assert "Python does not like attempt 3" in record.exception
    assert json.loads(record.payload) == payload


def test_a_large_payload_comes_as_it_was_sent_to_either(app: DatabaseApplication) -> None:
    app.queue.push(foreign(IMPORT, LARGE), "php")
    app.php_worker("php", max_jobs=1).wait()
    (end,) = app.entries("end", side="php")
    assert end["data"] == LARGE
    payload = json.dumps(
        {"uuid": "large", "job": "app.jobs.SendWelcome", "data": {"data": LARGE}},
        ensure_ascii=False,
    )
    file = app.write("payload.json", payload)
    assert app.php("push.php", json.dumps([["file", str(file), "default"]])).finished().code == 0
    app.drain()
    (end,) = app.entries("end", side="python")
    assert end["data"]["data"] == LARGE


# -- (b) Python dispatches, Laravel works -------------------------------------------------------


def test_a_foreign_job_is_run_by_laravels_worker(app: DatabaseApplication) -> None:
    job = foreign(
        IMPORT, NESTED, tries=4, max_exceptions=2, timeout=30, retry_until=3600, tags=["import"],
        display_name="One",
    )  # fmt: skip
    uuid = app.queue.push(job, "php")
    app.php_drains("php")
    (end,) = app.entries("end")
    assert (end["side"], end["data"], end["uuid"]) == ("php", NESTED, uuid)
    assert (end["name"], end["shown"], end["queue"]) == (IMPORT, "One", "php")
    assert (end["attempts"], end["tries"], end["max_exceptions"], end["timeout"]) == (1, 4, 2, 30)
    assert end["tags"] == ["import"]
    assert 3500 < end["retry_until"] - end["time"] <= 3601
    assert app.rows() == []


def test_what_python_delays_is_run_by_php_when_it_is_due(app: DatabaseApplication) -> None:
    sent = time.time()
    uuid = app.queue.later(1.5, foreign(IMPORT, {"id": 7}), "php")
    worker = app.php_worker("php")
    (end,) = app.wait_for("end", side="php")
    assert (end["uuid"], end["data"]) == (uuid, {"id": 7})
    assert end["time"] >= sent + 1.5
    assert worker.stop() == 0


def test_many_at_once(app: DatabaseApplication) -> None:
    ids = app.queue.bulk([foreign(IMPORT, {"number": n}) for n in range(100)])
    app.php_drains()
    ends = app.entries("end", side="php")
    assert [entry["uuid"] for entry in ends] == ids
    assert [entry["data"]["number"] for entry in ends] == list(range(100))
    assert app.empty()


def test_it_is_tried_again_as_its_options_say(app: DatabaseApplication) -> None:
    app.queue.push(foreign(IMPORT, {"php_fails": 2, **NESTED}, tries=3, backoff=(1, 2)))
    worker = app.php_worker(tries=1, backoff=60)
    app.wait_for("end")
    assert app.starts() == [("php", 1), ("php", 2), ("php", 3)]
    assert worker.stop() == 0
    assert all(entry["data"] == {"php_fails": 2, **NESTED} for entry in app.entries("start"))


# -- (c) both work one table --------------------------------------------------------------------


def test_workers_of_both_drain_one_table_and_each_job_is_run_once(
    make_on_database: MakeOnDatabase, served: str
) -> None:
    app = make_on_database(served)
    each = 150
    python = app.idle_worker("--queue", "shared", "--tries", 3)
    php = app.php_worker("shared", tries=3)
    app.php_push(
        *(["push", "app.jobs.Shared", {"word": f"p{n}", "sleep": 0.004}, "shared"]
          for n in range(each))
    )  # fmt: skip
    app.queue.bulk(
        [foreign("app.jobs.Shared", {"word": f"q{n}", "sleep": 0.004}) for n in range(each)],
        "shared",
    )
    app.wait_for("end", count=2 * each)
    wait_for(lambda: app.empty("shared"), "an empty queue")
    assert (python.stop(), php.stop()) == (0, 0)
    words = Counter(entry["data"]["word"] for entry in app.entries("start"))
    assert words == Counter([f"p{n}" for n in range(each)] + [f"q{n}" for n in range(each)])
    sides = Counter(entry["side"] for entry in app.entries("end"))
    assert min(sides["php"], sides["python"]) > 0, sides
    assert {entry["attempts"] for entry in app.entries("end")} == {1}
    assert not app.failed()
    assert php.err == ""


def test_in_a_storm_no_job_is_run_twice_and_none_fails_for_a_lock(
    make_on_database: MakeOnDatabase, served: str
) -> None:
    storm(make_on_database(served))


@pytest.mark.usefixtures("snapshot_isolation")
def test_a_storm_on_mariadb_with_snapshot_isolation(make_on_database: MakeOnDatabase) -> None:
    storm(make_on_database("mariadb"))


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_an_attempt_failed_by_python_is_followed_by_one_of_php(
    app: DatabaseApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"python_fails": 1, "data": NESTED})
    before = app.one()
    app.works_once("--tries", 3, "--backoff", 1)
    after = app.one()
    assert (after["id"], after["payload"]) == (before["id"], before["payload"])
    assert (after["attempts"], after["reserved_at"]) == (1, None)
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    first, second = app.entries("start")
    assert second["time"] - first["time"] >= 1
    assert app.starts() == [("python", 1), ("php", 2)]
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("php", 2, NESTED)
    assert len({entry["uuid"] for entry in app.entries("start")}) == 1


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_a_job_released_by_php_is_run_by_python_as_it_was_sent(
    app: DatabaseApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"php_fails": 1, "data": NESTED})
    before = app.one()
    app.php_works_once(tries=3, backoff=2)
    after = app.one()
    assert after["id"] > before["id"], "Laravel deletes the row and adds another"
    assert (after["payload"], after["attempts"]) == (before["payload"], 1)
    app.drain_all("--tries", 3)
    first, second = app.entries("start")
    assert app.starts() == [("php", 1), ("python", 2)]
    assert second["time"] >= after["available_at"] >= int(first["time"]) + 2
    (end,) = app.entries("end")
    assert (end["data"]["data"], end["uuid"]) == (NESTED, first["uuid"])


def test_attempts_of_both_are_counted_together_and_the_tries_end_on_either_side(
    app: DatabaseApplication,
) -> None:
    push_shared(app, "php", {"python_fails": 9, "php_fails": 9})
    app.php_works_once(tries=4)
    app.works_once("--tries", 4)
    app.php_works_once(tries=4)
    app.works_once("--tries", 4)
    assert app.starts() == [("php", 1), ("python", 2), ("php", 3), ("python", 4)]
    record = app.failure()
    assert record.attempts == 4
    assert "Python does not like attempt 4" in record.exception
    assert app.entries("recorded") == []
    assert app.empty()


def test_a_job_of_a_killed_php_worker_is_run_by_python_after_retry_after(
    make_on_database: MakeOnDatabase, kind: str
) -> None:
    app = make_on_database(kind, retry_after=SHORT)
    push_shared(app, "php", {"word": "killed", "sleep": 1.5})
    worker = app.php_worker(tries=3)
    app.wait_for("start", side="php")
    row = app.one()
    worker.end()
    app.drain_all("--tries", 3)
    assert app.starts() == [("php", 1), ("python", 2)]
    assert app.ends() == [("python", 2)]
    assert app.entries("start")[1]["time"] >= row["reserved_at"] + SHORT


def test_a_job_of_a_killed_python_worker_is_run_by_php_after_its_lease(
    make_on_database: MakeOnDatabase, kind: str
) -> None:
    app = make_on_database(kind, retry_after=SHORT)
    push_shared(app, "python", {"word": "killed", "sleep": 1.5})
    worker = app.work("--tries", 3)
    app.wait_for("start", side="python")
    wait_for(lambda: app.one()["started"], "the start in the table")
    worker.end()
    row = app.one()
    assert row["reserved_at"] + SHORT >= row["lease_end"] / 1_000_000
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    assert (end["side"], end["attempts"]) == ("php", 2)
    assert app.entries("start", side="php")[0]["time"] >= row["lease_end"] / 1_000_000
    wait_for(app.empty, "an empty queue")


def test_php_does_not_take_a_job_whose_lease_python_renews(
    make_on_database: MakeOnDatabase, kind: str
) -> None:
    app = make_on_database(kind, retry_after=SHORT)
    push_shared(app, "php", {"sleep": 2.5 * SHORT})
    worker = app.work()
    app.wait_for("start", side="python")
    php = app.php_worker(tries=9)
    app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    assert (worker.stop(), php.stop()) == (0, 0)
    assert app.starts() == [("python", 1)]


def test_python_does_not_take_a_job_that_php_has_reserved(
    make_on_database: MakeOnDatabase, kind: str
) -> None:
    app = make_on_database(kind, retry_after=15)
    push_shared(app, "python", {"sleep": 4})
    php = app.php_worker(tries=9)
    app.wait_for("start", side="php")
    assert app.queue.sizes() == Sizes(reserved=1)
    worker = app.idle_worker("--tries", 9)
    app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    assert (worker.stop(), php.stop()) == (0, 0)
    assert app.starts() == [("php", 1)]
    assert php.err == ""


def test_a_python_worker_that_is_late_changes_nothing_of_php_s(
    make_on_database: MakeOnDatabase, kind: str
) -> None:
    app = make_on_database(kind, retry_after=SHORT)
    push_shared(app, "python", {"sleep": 1})
    (job,) = app.queue.reserve(["default"])  # it is held for a second, and not started
    php = app.php_worker(tries=9)
    app.wait_for("start", side="php")
    with pytest.raises(LeaseLost):
        job.release(0)
    assert app.starts() == [("php", 1)]
    app.wait_for("end", side="php")
    wait_for(app.empty, "an empty queue")
    assert php.stop() == 0


# -- failed jobs --------------------------------------------------------------------------------


def test_what_python_failed_is_listed_and_retried_by_laravel(app: DatabaseApplication) -> None:
    push_shared(app, "python", {"python_fails": 9, "data": NESTED})
    app.works_once()
    uuid = app.failure().uuid
    row = app.one("failed_jobs")
    assert (row["uuid"], row["connection"], row["queue"]) == (uuid, "database", "default")
    assert "RuntimeError: Python does not like attempt 1" in row["exception"]
    listed = app.artisan("queue:failed").out
    assert uuid in listed
    assert "app.jobs.Shared" in listed
    assert uuid in app.artisan("queue:retry", uuid).out
    assert app.failed() == []
    assert json.loads(app.one()["payload"])["uuid"] == uuid
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["uuid"]) == ("php", 1, uuid)
    assert end["data"]["data"] == NESTED


def test_what_php_failed_is_listed_and_retried_by_python(app: DatabaseApplication) -> None:
    push_shared(app, "php", {"php_fails": 9, "data": NESTED})
    app.php_works_once()
    record = app.failure()
    assert (record.name, record.queue, record.connection) == (
        "app.jobs.Shared", "default", "database",
    )  # fmt: skip
    assert "RuntimeException: PHP does not like attempt 1" in record.exception
    assert abs(record.failed_at - app.now()) < LATE
    (row,) = json.loads(app.qframe("failed", "--json").out)
    assert (row["uuid"], row["job"]) == (record.uuid, "app.jobs.Shared")
    assert "PHP does not like attempt 1" in row["error"]
    assert app.qframe("retry", record.uuid).code == 0
    assert app.rows("failed_jobs") == []
    app.drain()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["uuid"]) == ("python", 1, record.uuid)
    assert end["data"]["data"] == NESTED


def test_a_job_may_fail_on_both_sides_one_after_the_other(app: DatabaseApplication) -> None:
    push_shared(app, "python", {"php_fails": 9, "python_fails": 9})
    app.works_once()
    app.artisan("queue:retry", "all")
    app.php_works_once()
    assert "RuntimeException" in app.failure().exception
    assert app.qframe("retry", "all").code == 0
    app.works_once()
    assert "RuntimeError" in app.failure().exception
    assert app.starts() == [("python", 1), ("php", 1), ("python", 1)]


def test_either_forgets_and_flushes_what_the_other_failed(app: DatabaseApplication) -> None:
    for side in ("python", "php") * 2:
        push_shared(app, side, {"php_fails": 9, "python_fails": 9})
        run = app.works_once if side == "python" else app.php_works_once
        run()
    mine, theirs = app.failed()[:2]
    app.artisan("queue:forget", mine.uuid)
    assert app.qframe("forget", theirs.uuid).code == 0
    assert len(app.failed()) == 2
    app.artisan("queue:flush")
    assert app.failed() == []
    push_shared(app, "php", {"php_fails": 9})
    app.php_works_once()
    assert app.qframe("flush").code == 0
    assert app.rows("failed_jobs") == []


def test_either_clears_the_queue_for_both(app: DatabaseApplication) -> None:
    push_shared(app, "python", {})
    push_shared(app, "php", {})
    app.artisan("queue:clear")
    assert app.rows() == []
    push_shared(app, "python", {})
    push_shared(app, "php", {})
    assert app.qframe("clear", "database").code == 0
    assert app.rows() == []


# -- (e) what only Laravel can run --------------------------------------------------------------


def test_a_command_serialized_by_php_is_kept_and_laravel_runs_it_after_all(
    app: DatabaseApplication,
) -> None:
    app.php_push(["report", 7, "default"])
    payload = app.one()["payload"]
    app.drain("--tries", 5)
    record = app.failure()
    assert "a PHP-serialized command, which only Laravel can run" in record.exception
    assert (record.name, record.payload) == ("App\\Jobs\\SendReport", payload.encode())
    app.artisan("queue:retry", "all")
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["data"]) == ("php", {"id": 7})
    assert app.failed() == []


# -- helpers ------------------------------------------------------------------------------------


def push_shared(app: DatabaseApplication, by: str, data: dict[str, Any]) -> None:
    """Push a job that both sides have, from either."""
    if by == "php":
        app.php_push(["push", "app.jobs.Shared", data])
    else:
        app.queue.push(foreign("app.jobs.Shared", data))


NOT_DELETED = "try restarting transaction (SQL: delete from `jobs` where"
EXPECTED = (
    "PHP does not like",
    "try restarting transaction (SQL: update `jobs` set",
    NOT_DELETED,
)
"""What Laravel's workers may report: a job's own error and, on MariaDB, a deadlock. As they take a
job, they have taken none then, and go on. As they delete one that is done, it runs again."""


def storm(app: DatabaseApplication) -> None:
    """Let two workers of each side and two programs of each side work on one queue at once."""
    each = 250
    python = [app.work("--queue", "shared", "--tries", 3) for _ in range(2)]
    php = [app.php_worker("shared", tries=3) for _ in range(2)]
    pushers = []
    for name in ("p", "P"):
        data = [{"word": f"{name}{n}", "php_fails": int(n % 7 == 0)} for n in range(each)]
        steps = [["push", "app.jobs.Shared", one, "shared"] for one in data]
        pushers.append(app.php("push.php", json.dumps(steps)))
    app.write(
        "push.py",
        "import sys\n"
        "from app.jobs import Shared\n"
        "from qframe import dispatch\n"
        f"for n in range({each}):\n"
        '    job = Shared(word=f"{sys.argv[1]}{n}", python_fails=int(n % 7 == 0))\n'
        '    dispatch(job).on_queue("shared").delay(n % 3 / 3).send()\n',
    )
    pushers += [app.run([sys.executable, "push.py", name]) for name in ("q", "Q")]
    for pusher in pushers:
        finished = pusher.finished(60)
        assert finished.code == 0, finished.err
    wait_for(lambda: app.empty("shared"), "an empty queue", 60)
    assert [each.stop() for each in (*python, *php)] == [0] * 4
    starts = Counter((entry["data"]["word"], entry["attempts"]) for entry in app.entries("start"))
    ends = Counter(entry["data"]["word"] for entry in app.entries("end"))
    reported = [line for one in php for line in one.err.splitlines()]
    not_deleted = sum(NOT_DELETED in line for line in reported)
    assert set(starts.values()) == {1}
    assert ends.total() - len(ends) <= not_deleted
    assert len(ends) == 4 * each
    assert app.failed() == []
    troubles = [line for line in reported if not any(each in line for each in EXPECTED)]
    assert troubles == []
    assert [one.err for one in python] == ["", ""]
    assert not any("gone" in one.out for one in python)


# -- priorities, which Laravel has not ----------------------------------------------------------


def test_a_priority_of_python_is_an_ordinary_row_of_php(app: DatabaseApplication) -> None:
    for number, priority in ((1, 5000), (2, None), (3, 0)):
        app.queue.push(foreign(IMPORT, {"id": number}, priority=priority), "php")
    assert app.php_push(["size", "php"]) == [3]
    app.php_drains("php")
    assert [entry["data"]["id"] for entry in app.entries("end", side="php")] == [1, 2, 3]
    assert app.empty("php")


def test_what_php_pushes_beside_priorities_is_in_the_middle(app: DatabaseApplication) -> None:
    for word, priority in (("last", 5000), ("first", 0)):
        app.queue.push(foreign("app.jobs.SendWelcome", {"word": word}, priority=priority))
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "php"}])
    app.drain()
    assert [end["data"]["word"] for end in app.entries("end")] == ["first", "php", "last"]
