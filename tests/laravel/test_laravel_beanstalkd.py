"""One beanstalkd shared with a real Laravel: its queue, its worker, and ours, both directions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from qframe import foreign
from qframe.contracts import Sizes
from tests.laravel.conftest import MakeOnBeanstalkd
from tests.laravel.on_beanstalkd import BeanstalkdApplication
from tests.support.later import LaterServer
from tests.support.process import wait_for

IMPORT = "App\\Handlers\\Import@handle"
NESTED: dict[str, Any] = {
    "name": "Łukasz Übergröße \U0001f600 'quoted' \"twice\" back\\slash /slash",
    "list": [1, -2.5, True, None, "", [], ["\u2028", "日本語"]],
    "nested": {"ключ": {"deep": [{"er": 1}]}, "0": "a key of digits"},
    "numbers": [123456789012345, 2**63 - 1, 1700000000.123456],
}
SLACK = 20.0
"""Seconds that a wake may take on a busy machine; what it must not be is the wait's 30."""


@pytest.fixture
def app(make_on_beanstalkd: MakeOnBeanstalkd) -> BeanstalkdApplication:
    return make_on_beanstalkd()


# -- what is on the wire ------------------------------------------------------------------------


def test_php_puts_its_payload_with_its_priority_and_retry_after(
    app: BeanstalkdApplication,
) -> None:
    (identity,) = app.php_push(["push", "app.jobs.SendWelcome", {"word": "hé"}, "emails"])
    found = app.one("emails")
    payload = json.loads(found["body"])
    assert (found["id"], found["pri"], found["delay"], found["ttr"]) == (identity, 1024, 0, 90)
    assert (payload["job"], payload["data"]) == ("app.jobs.SendWelcome", {"word": "hé"})
    assert "attempts" not in payload
    assert "id" not in payload
    app.php_push(["later", 7, "app.jobs.SendWelcome", {}, "later"])
    assert app.one("later")["delay"] == 7


def test_what_python_puts_looks_the_same_to_php(make_on_beanstalkd: MakeOnBeanstalkd) -> None:
    app = make_on_beanstalkd(retry_after=12.5)
    uuid = app.queue.push(foreign(IMPORT, {"id": 7}), "php")
    found = app.one("php")
    payload = json.loads(found["body"])
    assert (found["pri"], found["delay"], found["ttr"]) == (1024, 0, 13)
    assert (payload["uuid"], payload["job"], payload["data"]) == (uuid, IMPORT, {"id": 7})
    assert app.php_push(["size", "php"]) == [1]


# -- (a) PHP pushes, Python works ---------------------------------------------------------------


def test_a_job_pushed_by_php_is_run_by_python(app: BeanstalkdApplication) -> None:
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "hé", "data": NESTED}, "emails"])
    body = app.one("emails")["body"]
    assert app.queue.sizes("emails") == Sizes(ready=1)
    app.drain("--queue", "emails")
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["queue"]) == ("python", 1, "emails")
    assert (end["data"]["word"], end["data"]["data"]) == ("hé", NESTED)
    assert end["uuid"] == json.loads(body)["uuid"]
    assert app.empty("emails")


def test_a_job_delayed_by_php_wakes_an_idle_python_worker_when_it_is_due(
    make_on_beanstalkd: MakeOnBeanstalkd,
) -> None:
    app = make_on_beanstalkd(block_for=30)
    app.idle_worker("--sleep", 30)
    app.wait_for_blocked()
    app.php_push(
        ["later", 2, "app.jobs.SendWelcome", {"word": "later"}],
        ["push", "app.jobs.SendWelcome", {"word": "now"}],
    )
    now, later = app.wait_for("end", count=2)
    assert (now["data"]["word"], later["data"]["word"]) == ("now", "later")
    assert 1 < later["time"] - now["time"] < 2 + SLACK


def test_many_pushed_at_once_by_php_come_in_order(app: BeanstalkdApplication) -> None:
    steps = [["push", "app.jobs.SendWelcome", {"word": str(n)}] for n in range(50)]
    app.php_push(*steps, ["bulk", ["app.jobs.SendWelcome"] * 3, {"word": "bulk"}])
    assert app.queue.sizes() == Sizes(ready=53)
    app.drain()
    words = [entry["data"]["word"] for entry in app.entries("end")]
    assert words == [*map(str, range(50)), "bulk", "bulk", "bulk"]
    assert app.empty()


def test_php_s_job_is_tried_again_as_its_python_class_says(app: BeanstalkdApplication) -> None:
    app.php_push(["push", "app.jobs.Careful", {"python_fails": 2}])
    app.drain_all()
    assert app.starts() == [("python", 1), ("python", 2), ("python", 3)]
    first, second, third = [entry["time"] for entry in app.entries("start")]
    assert second - first >= 0.2
    assert third - second >= 0.5
    assert app.ends() == [("python", 3)]
    assert app.failed() == []


def test_php_s_job_is_tried_again_as_its_payload_says(app: BeanstalkdApplication) -> None:
    payload = {
        "uuid": "from-php", "displayName": "welcome", "job": "app.jobs.SendWelcome",
        "maxTries": 3, "backoff": "1,2", "data": {"python_fails": 9},
    }  # fmt: skip
    app.php_push(["raw", json.dumps(payload), "default"])
    app.drain_all("--tries", 1, "--backoff", 30)
    first, second, third = [entry["time"] for entry in app.entries("start")]
    assert second - first >= 0.9  # beanstalkd counts whole seconds of its own
    assert third - second >= 1.9
    record = app.failure()
    assert (record.uuid, record.attempts, record.name) == ("from-php", 3, "welcome")
    assert "Python does not like attempt 3" in record.exception
    assert json.loads(record.payload) == payload
    (failed,) = app.entries("failed")
    assert failed["error"] == "Python does not like attempt 3"


def test_php_s_job_is_tried_again_as_the_worker_says(app: BeanstalkdApplication) -> None:
    app.php_push(["push", "app.jobs.SendWelcome", {"python_fails": 9}])
    app.drain_all("--tries", 2)
    assert app.starts() == [("python", 1), ("python", 2)]
    assert app.failure().attempts == 2


def test_an_idle_python_worker_is_woken_by_a_push_of_php(
    make_on_beanstalkd: MakeOnBeanstalkd,
) -> None:
    app = make_on_beanstalkd(block_for=30)
    app.idle_worker("--sleep", 30)
    app.wait_for_blocked()
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "wake"}])
    app.wait_for("end", seconds=SLACK)


# -- (b) Python dispatches, Laravel works -------------------------------------------------------


def test_a_foreign_job_is_run_by_laravels_worker(app: BeanstalkdApplication) -> None:
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
    assert app.empty("php")


def test_it_may_be_dispatched_with_every_word_of_the_fluent_call(
    app: BeanstalkdApplication,
) -> None:
    program = app.python(
        "import time\n"
        "from qframe import dispatch, foreign\n"
        'job = foreign("App\\\\Handlers\\\\Import@handle", {"id": 7})\n'
        "print(time.time())\n"
        'print(dispatch(job).on_connection("beanstalkd").on_queue("php").delay(1).send())\n'
    )
    sent, uuid = program.out.split()
    worker = app.php_worker("php", queue={"block_for": 1})
    (end,) = app.wait_for("end", side="php")
    assert (end["uuid"], end["data"]) == (uuid, {"id": 7})
    assert end["time"] >= float(sent) + 0.9
    assert worker.stop() == 0


def test_many_at_once(app: BeanstalkdApplication) -> None:
    ids = app.queue.bulk([foreign(IMPORT, {"number": n}) for n in range(100)])
    app.php_drains()
    ends = app.entries("end", side="php")
    assert [entry["uuid"] for entry in ends] == ids
    assert [entry["data"]["number"] for entry in ends] == list(range(100))
    assert app.empty()


def test_it_is_tried_again_as_its_options_say(app: BeanstalkdApplication) -> None:
    app.queue.push(foreign(IMPORT, {"php_fails": 2, **NESTED}, tries=3, backoff=(1, 2)))
    worker = app.php_worker(tries=1, backoff=60, queue={"block_for": 1})
    app.wait_for("end")
    assert app.starts() == [("php", 1), ("php", 2), ("php", 3)]
    assert worker.stop() == 0
    assert all(entry["data"] == {"php_fails": 2, **NESTED} for entry in app.entries("start")), (
        "a server that reads no payload changes none"
    )


def test_a_failure_for_good_is_laravels_to_record(app: BeanstalkdApplication) -> None:
    uuid = app.queue.push(foreign(IMPORT, {"php_fails": 9}, tries=2))
    worker = app.php_worker(queue={"block_for": 1})
    (recorded,) = app.wait_for("recorded")
    assert (recorded["uuid"], recorded["error"]) == (uuid, "PHP does not like attempt 2")
    assert worker.stop() == 0
    assert app.empty()
    assert app.failed() == []


def test_laravels_blocking_pop_is_woken_by_a_push_of_python(app: BeanstalkdApplication) -> None:
    worker = app.php_worker("php", queue={"block_for": 30})
    app.wait_for_blocked()
    app.queue.push(foreign(IMPORT, {"word": "wake"}), "php")
    app.wait_for("end", seconds=SLACK)
    worker.end()


# -- (c) both work one tube ---------------------------------------------------------------------


def test_workers_of_both_drain_one_tube_and_each_job_is_run_once(
    app: BeanstalkdApplication,
) -> None:
    each = 150
    python = app.idle_worker("--queue", "shared", "--tries", 3)
    php = app.php_worker("shared", tries=3, queue={"block_for": 1})
    app.php_push(
        *(["push", "app.jobs.Shared", {"word": f"p{n}", "sleep": 0.004}, "shared"]
          for n in range(each))
    )  # fmt: skip
    app.python(
        "from app.jobs import Shared\n"
        "from qframe import bulk\n"
        f'bulk([Shared(word=f"q{{n}}", sleep=0.004) for n in range({each})], "shared")\n'
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
    assert not app.entries("recorded")


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_an_attempt_failed_by_python_is_followed_by_one_of_php(
    app: BeanstalkdApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"python_fails": 1, "data": NESTED})
    app.works_once("--tries", 3, "--backoff", 1)
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    assert app.starts() == [("python", 1), ("php", 2)]
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("php", 2, NESTED)
    assert len({entry["uuid"] for entry in app.entries("start")}) == 1


def test_attempts_are_counted_together_and_the_tries_end_on_either_side(
    app: BeanstalkdApplication,
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


def test_the_last_try_may_be_php_s(app: BeanstalkdApplication) -> None:
    push_shared(app, "python", {"python_fails": 9, "php_fails": 9})
    app.works_once("--tries", 2)
    app.php_drains(tries=2)
    assert app.starts() == [("python", 1), ("php", 2)]
    (recorded,) = app.entries("recorded")
    assert recorded["error"] == "PHP does not like attempt 2"
    assert app.failed() == []
    assert app.empty()


def test_what_failed_in_python_begins_anew_in_php_when_it_is_retried(
    app: BeanstalkdApplication,
) -> None:
    push_shared(app, "python", {"python_fails": 9, "data": "ü"})
    app.works_once("--tries", 3)
    app.works_once("--tries", 2)
    assert app.failure().attempts == 2
    assert app.qframe("retry", "all").code == 0
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("php", 1, "ü")


def test_a_job_of_a_killed_php_worker_is_run_by_python_at_once(app: BeanstalkdApplication) -> None:
    push_shared(app, "php", {"word": "killed", "sleep": 1.5})  # its lease would last 90 s
    worker = app.php_worker(tries=3)
    app.wait_for("start", side="php")
    worker.end()
    app.drain_all("--tries", 3)
    assert app.starts() == [("php", 1), ("python", 2)]
    assert app.ends() == [("python", 2)]


def test_a_job_of_a_killed_python_worker_is_run_by_php_at_once(app: BeanstalkdApplication) -> None:
    push_shared(app, "python", {"word": "killed", "sleep": 1.5})
    worker = app.work("--tries", 3)
    app.wait_for("start", side="python")
    worker.end()
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    assert (end["side"], end["attempts"]) == ("php", 2)
    wait_for(app.empty, "an empty queue")


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_php_does_not_take_a_job_whose_lease_python_renews(
    make_on_beanstalkd: MakeOnBeanstalkd, pushed_by: str
) -> None:
    app = make_on_beanstalkd(retry_after=3)
    app.php_options = {"queue": {"retry_after": 3}}
    push_shared(app, pushed_by, {"sleep": 7})
    assert app.one()["ttr"] == 3
    worker = app.work()
    app.wait_for("start", side="python")
    php = app.php_worker(tries=9)
    app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    assert (worker.stop(), php.stop()) == (0, 0)
    assert app.starts() == [("python", 1)]


def test_a_php_worker_that_is_late_changes_nothing_of_python_s(
    on_a_later_beanstalkd: BeanstalkdApplication,
) -> None:
    app, server = on_a_later_beanstalkd, on_a_later_beanstalkd.server
    assert isinstance(server, LaterServer)
    app.php_options = {"queue": {"retry_after": 60}}
    push_shared(app, "php", {"sleep": 10})
    php = app.php_worker(tries=9)
    app.wait_for("start", side="php")
    worker = app.work("--tries", 9)
    server.forward(61)
    app.wait_for("start", side="python", attempts=2)
    app.wait_for("end", side="php")  # it deletes: what it had reserved is not there any more
    app.wait_for("end", side="python")
    wait_for(app.empty, "an empty queue")
    assert worker.stop() == 0
    php.end()
    assert app.starts() == [("php", 1), ("python", 2)]
    assert "NOT_FOUND" in php.err


# -- (d) what PHP has released ------------------------------------------------------------------


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_a_job_released_by_php_is_run_by_python_as_it_was_sent(
    app: BeanstalkdApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"php_fails": 1, "data": NESTED})
    before = app.one()["body"]
    app.php_works_once(tries=3)
    after = app.one()
    assert after["body"] == before, "beanstalkd keeps the bytes, and PHP sends none back"
    assert (after["reserves"], after["releases"]) == (1, 1)
    app.drain_all("--tries", 3)
    (end,) = app.entries("end")
    assert app.starts() == [("php", 1), ("python", 2)]
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("python", 2, NESTED)
    assert len({entry["uuid"] for entry in app.entries("start")}) == 1


def test_php_s_backoff_is_waited_for_by_python(app: BeanstalkdApplication) -> None:
    push_shared(app, "php", {"php_fails": 1})
    app.php_works_once(tries=3, backoff=2)
    assert app.one()["state"] == "delayed"
    app.drain_all("--tries", 3)
    first, second = app.entries("start")
    assert second["time"] - first["time"] >= 1.9


# -- (e) what only Laravel can run --------------------------------------------------------------


def test_a_command_serialized_by_php_is_failed_with_the_message_that_helps(
    app: BeanstalkdApplication,
) -> None:
    app.php_push(["report", 7, "default"])
    body = app.one()["body"]
    finished = app.drain("--tries", 5)
    record = app.failure()
    assert (
        "the payload holds a PHP-serialized command, which only Laravel can run; dispatch it "
        "from PHP as Queue::push('app.jobs.SendWelcome', ['user_id' => 7], 'queue')"
    ) in record.exception
    assert record.payload == body
    assert record.name == "App\\Jobs\\SendReport"
    assert "App\\Jobs\\SendReport" in finished.out
    assert "FAIL" in finished.out
    assert app.empty()


def test_it_is_not_lost_and_laravel_runs_it_after_all(app: BeanstalkdApplication) -> None:
    app.php_push(["report", 7, "default"])
    app.drain()
    retried = app.qframe("retry", "all")
    assert retried.code == 0, retried.err
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["data"]) == ("php", {"id": 7})
    assert app.failed() == []


def test_a_foreign_job_that_a_python_worker_meets_is_kept_and_can_be_given_to_php(
    app: BeanstalkdApplication,
) -> None:
    app.queue.push(foreign(IMPORT, {"id": 7}))
    app.drain()
    record = app.failure()
    assert "UnknownJob: App\\Handlers\\Import is not" in record.exception
    assert app.qframe("retry", record.uuid).code == 0
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["data"]) == ("php", 1, {"id": 7})


# -- helpers ------------------------------------------------------------------------------------


def push_shared(app: BeanstalkdApplication, by: str, data: dict[str, Any]) -> None:
    """Push a job that both sides have, from either."""
    if by == "php":
        app.php_push(["push", "app.jobs.Shared", data])
    else:
        app.queue.push(foreign("app.jobs.Shared", data))
