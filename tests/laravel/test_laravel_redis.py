"""One Redis shared with a real Laravel: its queue, its worker, and ours, in both directions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe import foreign
from qframe.contracts import Sizes
from tests.laravel.conftest import MakeApplication
from tests.laravel.on_redis import RedisApplication
from tests.support.process import wait_for
from tests.support.redis_server import RedisCluster

IMPORT = "App\\Handlers\\Import@handle"
PREFIXES = ["", "laravel_database_"]
NESTED: dict[str, Any] = {
    "name": "Łukasz Übergröße \U0001f600 'quoted' \"twice\" back\\slash /slash",
    "list": [1, -2.5, True, None, "", [], ["\u2028", "日本語"]],
    "nested": {"ключ": {"deep": [{"er": 1}]}, "0": "a key of digits"},
}


# -- (a) PHP pushes, Python works ---------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_job_pushed_by_php_is_run_by_python(make: MakeApplication, prefix: str) -> None:
    app = make(prefix)
    (identity,) = app.php_push(
        ["push", "app.jobs.SendWelcome", {"word": "hé", "data": NESTED}, "emails"]
    )
    (member,) = app.members("emails")
    assert app.queue.sizes("emails") == Sizes(ready=1)
    app.drain("--queue", "emails")
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["queue"]) == ("python", 1, "emails")
    assert (end["data"]["word"], end["data"]["data"]) == ("hé", NESTED)
    assert json.loads(member)["id"] == identity
    assert json.loads(member)["uuid"] == end["uuid"]
    assert app.empty("emails")
    assert app.php_push(["size", "emails"]) == [0]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_delayed_job_pushed_by_php_is_run_by_python_when_it_is_due(
    make: MakeApplication, prefix: str
) -> None:
    app = make(prefix, block_for=1)
    app.idle_worker()
    app.php_push(["later", 2, "app.jobs.SendWelcome", {"word": "later"}])
    (scored,) = app.scores("default", "delayed")
    (end,) = app.wait_for("end")
    assert end["data"]["word"] == "later"
    # What PHP delays starts within block_for of the second it is due in.
    assert scored <= end["time"] <= scored + 1 + SLACK


def test_many_pushed_at_once_by_php_come_in_order(app: RedisApplication) -> None:
    steps = [["push", "app.jobs.SendWelcome", {"word": str(n)}] for n in range(50)]
    app.php_push(*steps, ["bulk", ["app.jobs.SendWelcome"] * 3, {"word": "bulk"}])
    assert app.queue.sizes() == Sizes(ready=53)
    app.drain()
    words = [entry["data"]["word"] for entry in app.entries("end")]
    assert words == [*map(str, range(50)), "bulk", "bulk", "bulk"]
    assert app.empty()


@pytest.mark.parametrize("suffix", ["@handle", "@fire"])
def test_the_method_in_laravels_name_is_accepted(app: RedisApplication, suffix: str) -> None:
    app.php_push(["push", f"app.jobs.SendWelcome{suffix}", {"word": "method"}])
    app.drain()
    assert app.ends() == [("python", 1)]


def test_a_class_may_answer_to_a_name_of_php(app: RedisApplication) -> None:
    app.php_push(["push", "App\\Jobs\\ImportFeed", {"word": "renamed"}])
    app.drain()
    (end,) = app.entries("end")
    assert (end["name"], end["data"]["word"]) == ("App\\Jobs\\ImportFeed", "renamed")


def test_without_data_php_sends_text_or_an_empty_array(app: RedisApplication) -> None:
    app.php_push(["push", "app.jobs.SendWelcome"], ["push", "app.jobs.SendWelcome", []])
    assert [json.loads(member)["data"] for member in app.members("default")] == ["", []]
    app.drain()
    assert app.ends() == [("python", 1), ("python", 1)]


def test_php_s_job_is_tried_again_as_its_python_class_says(app: RedisApplication) -> None:
    app.php_push(["push", "app.jobs.Careful", {"python_fails": 2}])
    app.drain_all()
    assert app.starts() == [("python", 1), ("python", 2), ("python", 3)]
    first, second, third = [entry["time"] for entry in app.entries("start")]
    assert second - first >= 0.2
    assert third - second >= 0.5
    assert app.ends() == [("python", 3)]
    assert app.failed() == []


def test_php_s_job_is_tried_again_as_its_payload_says(app: RedisApplication) -> None:
    payload = {
        "uuid": "from-php", "displayName": "welcome", "job": "app.jobs.SendWelcome",
        "maxTries": 3, "backoff": "0.3,1", "data": {"python_fails": 9}, "id": "x1", "attempts": 0,
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
    (failed,) = app.entries("failed")
    assert failed["error"] == "Python does not like attempt 3"


def test_php_s_job_is_tried_again_as_the_worker_says(app: RedisApplication) -> None:
    app.php_push(["push", "app.jobs.SendWelcome", {"python_fails": 9}])
    app.drain_all("--tries", 2)
    assert app.starts() == [("python", 1), ("python", 2)]
    assert app.failure().attempts == 2


def test_an_idle_python_worker_is_woken_by_a_push_of_php(make: MakeApplication) -> None:
    app = make("laravel_database_", block_for=30)
    app.idle_worker("--sleep", 30)
    app.wait_for_blocked()
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "wake"}])
    app.wait_for("end", seconds=SLACK)


# -- (b) Python dispatches, Laravel works -------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_foreign_job_is_run_by_laravels_worker(make: MakeApplication, prefix: str) -> None:
    app = make(prefix)
    job = foreign(
        IMPORT, NESTED, tries=4, max_exceptions=2, timeout=30, retry_until=3600, tags=["import"],
        display_name="One",
    )  # fmt: skip
    identity = app.queue.push(job, "php")
    assert app.php_push(["size", "php"]) == [1]
    app.php_drains("php")
    (end,) = app.entries("end")
    assert end["side"] == "php"
    assert end["data"] == NESTED
    assert (end["uuid"], end["id"]) == (identity, identity)
    assert (end["name"], end["shown"], end["queue"]) == (IMPORT, "One", "php")
    assert (end["attempts"], end["tries"], end["max_exceptions"], end["timeout"]) == (1, 4, 2, 30)
    assert (end["tags"], end["retry_until"]) == (["import"], math.ceil(end["retry_until"]))
    assert 3500 < end["retry_until"] - end["time"] <= 3601
    assert app.empty("php")


def test_it_may_be_dispatched_with_every_word_of_the_fluent_call(app: RedisApplication) -> None:
    program = app.python(
        "from qframe import dispatch, foreign\n"
        'job = foreign("App\\\\Handlers\\\\Import@handle", {"id": 7})\n'
        'print(dispatch(job).on_connection("redis").on_queue("php").delay(5).send())\n'
    )
    assert app.queue.sizes("php") == Sizes(delayed=1)
    (due,) = app.scores("php", "delayed")
    worker = app.php_worker("php")
    (end,) = app.wait_for("end", side="php")
    assert (end["uuid"], end["data"]) == (program.out.strip(), {"id": 7})
    assert end["time"] >= due
    assert worker.stop() == 0


def test_many_at_once(app: RedisApplication) -> None:
    ids = app.queue.bulk([foreign(IMPORT, {"number": n}) for n in range(100)])
    app.php_drains()
    ends = app.entries("end", side="php")
    assert [entry["uuid"] for entry in ends] == ids
    assert [entry["data"]["number"] for entry in ends] == list(range(100))
    assert app.empty()


@pytest.mark.parametrize(
    "data", [None, "text", 7, 0.5, True, [], [1, [2]], {"a": []}, {}, 99_999_999_999_999]
)
def test_any_json_value_reaches_the_handler(app: RedisApplication, data: Any) -> None:
    app.queue.push(foreign("App\\Handlers\\Import", data))
    app.php_drains()
    (end,) = app.entries("end")
    assert end["data"] == ([] if data == {} else data), "PHP has one kind of empty array"


def test_the_deepest_data_and_the_largest_integers(app: RedisApplication) -> None:
    deepest: Any = 2**63 - 1
    for _ in range(510):
        deepest = [deepest]
    app.queue.push(foreign(IMPORT, deepest))
    app.php_drains()
    (end,) = app.entries("end")
    assert end["data"] == deepest


def test_it_is_tried_again_as_its_options_say(app: RedisApplication) -> None:
    app.queue.push(foreign(IMPORT, {"php_fails": 2, "text": "ü"}, tries=3, backoff=(1, 2)))
    worker = app.php_worker(tries=1, backoff=60)
    app.wait_for("end")
    assert app.starts() == [("php", 1), ("php", 2), ("php", 3)]
    assert worker.stop() == 0
    _, second, third = [entry["time"] for entry in app.entries("start")]
    assert third - second >= 1, "PHP counts in whole seconds: two of them are more than one"
    assert {entry["data"]["text"] for entry in app.entries("start")} == {"ü"}


def test_a_failure_for_good_is_laravels_to_record(app: RedisApplication) -> None:
    identity = app.queue.push(foreign(IMPORT, {"php_fails": 9}, tries=2))
    worker = app.php_worker()
    (recorded,) = app.wait_for("recorded")
    assert (recorded["uuid"], recorded["error"]) == (identity, "PHP does not like attempt 2")
    (told,) = app.entries("failed")
    assert (told["uuid"], told["data"]) == (identity, {"php_fails": 9})
    assert worker.stop() == 0
    assert app.empty()
    assert app.failed() == []


def test_its_delay_is_not_taken_for_its_backoff(app: RedisApplication) -> None:
    app.queue.later(8, foreign(IMPORT, {"php_fails": 1}, tries=2))
    app.php_worker(backoff=0)
    app.wait_for("end")
    first, second = [entry["time"] for entry in app.entries("start")]
    assert second - first < 7


def test_laravels_blocking_pop_is_woken_by_a_push_of_python(app: RedisApplication) -> None:
    app.php_worker("php", queue={"block_for": 30})
    app.wait_for_blocked()
    app.queue.push(foreign(IMPORT, {"word": "wake"}), "php")
    app.wait_for("end", seconds=SLACK)


def test_a_command_that_php_has_serialized_may_be_sent_by_python(app: RedisApplication) -> None:
    command = 'O:19:"App\\Jobs\\SendReport":1:{s:2:"id";i:7;}'
    app.queue.push(
        foreign(
            "Illuminate\\Queue\\CallQueuedHandler@call",
            {"commandName": "App\\Jobs\\SendReport", "command": command},
            display_name="App\\Jobs\\SendReport",
        )
    )
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["name"], end["data"]) == ("App\\Jobs\\SendReport", {"id": 7})


def test_what_laravels_lua_changes_when_it_tries_again(app: RedisApplication) -> None:
    sent = {
        "number": 123456789012345,
        "round": 10**15,
        "float": 1700000000.123456,
        "text": "123456789012345",
        "php_fails": 1,
    }
    app.queue.push(foreign("App\\Handlers\\Import", sent, tries=2))
    app.php_worker()
    app.wait_for("end")
    first, second = [entry["data"] for entry in app.entries("start")]
    assert first == sent
    assert second == {
        "number": 1.2345678901234e14,
        "round": 1e15,
        "float": 1700000000.1235,
        "text": "123456789012345",
        "php_fails": 1,
    }


# -- (c) both work one queue --------------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
def test_workers_of_both_drain_one_queue_and_each_job_is_run_once(
    make: MakeApplication, prefix: str
) -> None:
    app = make(prefix)
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
def test_an_attempt_failed_by_php_is_followed_by_one_of_python(
    app: RedisApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"php_fails": 1, "data": NESTED})
    app.php_works_once(tries=3)
    app.drain_all("--tries", 3)
    assert app.starts() == [("php", 1), ("python", 2)]
    assert app.ends() == [("python", 2)]
    assert len({entry["uuid"] for entry in app.entries("start")}) == 1


@pytest.mark.parametrize("pushed_by", ["php", "python"])
def test_an_attempt_failed_by_python_is_followed_by_one_of_php(
    app: RedisApplication, pushed_by: str
) -> None:
    push_shared(app, pushed_by, {"python_fails": 1, "data": NESTED})
    app.works_once("--tries", 3, "--backoff", 1)
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    first, second = app.entries("start")
    assert second["time"] - first["time"] >= 1
    assert app.starts() == [("python", 1), ("php", 2)]
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("php", 2, NESTED)
    assert len({entry["uuid"] for entry in app.entries("start")}) == 1
    assert app.empty()


def test_attempts_are_counted_together_and_the_tries_end_on_either_side(
    app: RedisApplication,
) -> None:
    push_shared(app, "php", {"python_fails": 9, "php_fails": 9})
    (pushed,) = app.members("default")
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
    assert json.loads(record.payload).keys() == json.loads(pushed).keys()


def test_what_failed_in_python_begins_anew_in_php_when_it_is_retried(app: RedisApplication) -> None:
    push_shared(app, "python", {"python_fails": 9, "data": "ü"})
    app.works_once("--tries", 3)
    app.works_once("--tries", 2)
    assert app.failure().attempts == 2
    assert app.qframe("retry", "all").code == 0
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["data"]["data"]) == ("php", 1, "ü")


def test_the_last_try_may_be_php_s(app: RedisApplication) -> None:
    push_shared(app, "python", {"python_fails": 9, "php_fails": 9})
    app.works_once("--tries", 2)
    app.php_drains(tries=2)
    assert app.starts() == [("python", 1), ("php", 2)]
    (recorded,) = app.entries("recorded")
    assert recorded["error"] == "PHP does not like attempt 2"
    assert app.failed() == []
    assert app.empty()


def test_a_job_of_a_killed_php_worker_is_run_by_python(app: RedisApplication) -> None:
    push_shared(app, "php", {"word": "killed", "sleep": 1.5})
    worker = app.php_worker(tries=3, queue={"retry_after": 1})
    app.wait_for("start", side="php")
    worker.end()
    app.drain_all("--tries", 3)
    assert app.starts() == [("php", 1), ("python", 2)]
    assert app.ends() == [("python", 2)]


def test_a_job_of_a_killed_python_worker_is_run_by_php(make: MakeApplication) -> None:
    app = make("laravel_database_", retry_after=1)
    push_shared(app, "python", {"word": "killed", "sleep": 1.5})
    worker = app.work("--tries", 3)
    app.wait_for("start", side="python")
    worker.end()
    app.php_worker(tries=3)
    (end,) = app.wait_for("end")
    assert (end["side"], end["attempts"]) == ("php", 2)
    wait_for(app.empty, "an empty queue")


def test_php_does_not_take_a_job_whose_lease_python_renews(make: MakeApplication) -> None:
    app = make("laravel_database_", retry_after=3)
    push_shared(app, "python", {"sleep": 7})
    worker = app.work()
    app.wait_for("start", side="python")
    php = app.php_worker(tries=9)
    app.wait_for("end")
    wait_for(app.empty, "an empty queue")
    assert (worker.stop(), php.stop()) == (0, 0)
    assert app.starts() == [("python", 1)]


def test_a_php_worker_that_is_late_changes_nothing_of_python_s(make: MakeApplication) -> None:
    app = make("laravel_database_", retry_after=30)
    push_shared(app, "php", {"sleep": 10})
    php = app.php_worker(tries=9, queue={"retry_after": 1})
    app.wait_for("start", side="php")
    worker = app.work("--tries", 9)
    app.wait_for("start", side="python", attempts=2)
    app.wait_for("end", side="php")  # it deletes: what it had reserved is not there any more
    assert php.stop() == 0
    assert app.queue.sizes().total == 1
    app.wait_for("end", side="python")
    wait_for(app.empty, "an empty queue")
    assert worker.stop() == 0
    assert app.starts() == [("php", 1), ("python", 2)]


# -- (d) what Laravel's Lua has rewritten -------------------------------------------------------


def test_a_job_released_by_php_is_run_by_python_whatever_order_its_keys_have(
    app: RedisApplication,
) -> None:
    (identity,) = app.php_push(["push", "app.jobs.Shared", {"php_fails": 1, "data": NESTED}])
    (before,) = app.members("default")
    app.php_works_once(tries=2)
    (after,) = app.members("default", "delayed")
    assert list(json.loads(after)) != list(json.loads(before)), "Lua keeps no order"
    assert json.loads(after)["attempts"] == 1
    app.drain_all("--tries", 2)
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"]) == ("python", 2)
    emptied: dict[str, Any] = {
        **NESTED,
        "list": [1, -2.5, True, None, "", {}, ["\u2028", "日本語"]],
    }
    assert end["data"]["data"] == emptied, "Lua makes an object of an empty array"
    assert json.loads(after)["id"] == identity


def test_keys_that_come_in_any_order_and_with_spaces_are_read(app: RedisApplication) -> None:
    for number, order in enumerate([(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]):
        items = [
            f'"attempts" : {number}',
            '"data": {"word": "\\u00fc", "attempts": 7}',
            f'"uuid":"u{number}"',
            '"job":"app.jobs.SendWelcome@handle"',
        ]
        raw = "{ " + " , ".join(items[place] for place in order) + " }"
        app.php_push(["raw", raw, "default"])
    app.drain("--tries", 9)
    assert app.ends() == [("python", 1), ("python", 2), ("python", 3)]
    assert {entry["data"]["word"] for entry in app.entries("end")} == {"ü"}


# -- (e) what only Laravel can run --------------------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_command_serialized_by_php_is_failed_with_the_message_that_helps(
    make: MakeApplication, prefix: str
) -> None:
    app = make(prefix)
    app.php_push(["report", 7, "default"])
    (member,) = app.members("default")
    finished = app.drain("--tries", 5)
    record = app.failure()
    assert (
        "the payload holds a PHP-serialized command, which only Laravel can run; dispatch it "
        "from PHP as Queue::push('app.jobs.SendWelcome', ['user_id' => 7], 'queue')"
    ) in record.exception
    assert record.payload == member
    assert record.name == "App\\Jobs\\SendReport"
    assert "App\\Jobs\\SendReport" in finished.out
    assert "FAIL" in finished.out
    assert app.empty()


def test_it_is_not_lost_and_laravel_runs_it_after_all(app: RedisApplication) -> None:
    app.php_push(["report", 7, "default"])
    app.drain()
    retried = app.qframe("retry", "all")
    assert retried.code == 0, retried.err
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["data"]) == ("php", {"id": 7})
    assert app.failed() == []


def test_a_foreign_job_that_a_python_worker_meets_is_kept_and_can_be_given_to_php(
    app: RedisApplication,
) -> None:
    app.queue.push(foreign(IMPORT, {"id": 7}))
    app.drain()
    record = app.failure()
    assert "UnknownJob: App\\Handlers\\Import is not" in record.exception
    assert app.qframe("retry", record.uuid).code == 0
    app.php_drains()
    (end,) = app.entries("end")
    assert (end["side"], end["attempts"], end["data"]) == ("php", 1, {"id": 7})


# -- on a Cluster ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_on_a_cluster_laravels_names_in_braces_are_our_queues(
    cluster: RedisCluster, tmp_path: Path, php: str
) -> None:
    with RedisApplication(
        tmp_path / "app", cluster.nodes[0], php, "laravel_database_", cluster=True
    ) as app:
        app.php_options = {"cluster": [node.port for node in cluster.nodes]}
        app.php_push(
            ["push", "app.jobs.Shared", {"word": "to python", "php_fails": 1}, "{emails}"],
            ["later", 5, "app.jobs.Shared", {"word": "delayed to python"}, "{emails}"],
        )
        assert app.queue.sizes("emails") == Sizes(ready=1, delayed=1)
        app.php_works_once("{emails}", tries=3)
        worker = app.work("--queue", "emails", "--tries", 3)
        app.wait_for("end", count=2, side="python")
        assert worker.stop() == 0
        assert sorted(app.starts()) == [("php", 1), ("python", 1), ("python", 2)]
        app.queue.bulk([foreign(IMPORT, {"word": f"to php {n}"}) for n in range(3)], "emails")
        app.php_drains("{emails}")
        assert len(app.entries("end", side="php")) == 3
        assert app.empty("emails")


# -- helpers ------------------------------------------------------------------------------------

SLACK = 20.0
"""Seconds that a wake may take on a busy machine; what it must not be is the wait's 30."""


def push_shared(app: RedisApplication, by: str, data: dict[str, Any]) -> None:
    """Push a job that both sides have, from either."""
    if by == "php":
        app.php_push(["push", "app.jobs.Shared", data])
    else:
        app.queue.push(foreign("app.jobs.Shared", data))


# -- priorities, which Laravel has not ----------------------------------------------------------


def test_a_priority_of_python_is_an_ordinary_job_of_php(make: MakeApplication) -> None:
    app = make("")
    for number, priority in ((1, 5000), (2, None), (3, 0)):
        app.queue.push(foreign(IMPORT, {"id": number}, priority=priority), "php")
    assert app.php_push(["size", "php"]) == [3]
    app.php_drains("php")
    assert {entry["data"]["id"] for entry in app.entries("end", side="php")} == {1, 2, 3}
    assert app.empty("php")


def test_what_php_pushes_beside_priorities_is_in_the_middle(make: MakeApplication) -> None:
    app = make("")
    for word, priority in (("last", 5000), ("first", 0)):
        job = foreign("app.jobs.SendWelcome", {"word": word}, priority=priority)
        app.queue.push(job)
    app.php_push(["push", "app.jobs.SendWelcome", {"word": "php"}])
    app.drain()
    assert [end["data"]["word"] for end in app.entries("end")] == ["first", "php", "last"]
