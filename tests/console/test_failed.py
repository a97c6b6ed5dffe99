from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qframe.contracts import History, Sizes
from qframe.contracts.recording import Recording, SeenStack, UsedPoint
from qframe.features.status import cancel_key, cancelled_key
from qframe.payload import envelope
from tests.console.conftest import Shop
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import Project

EVIL = "a\x1b[31mred\x9b2J\u202e\r\n\x07b\x7f"


def fail_at_once(project: Project) -> None:
    """Let a worker fail the unknown jobs that wait."""
    text = (project.root / "qframe.toml").read_text()
    project.write("qframe.toml", text.replace("[0, 0]", "[]"))
    project.drain("--quiet")


def waiting(shop: Shop, queue: str = "default") -> list[dict[str, Any]]:
    return [job.payload for job in shop.queue.reserve([queue], 100)]


# -- failed -------------------------------------------------------------------------------------


def test_without_failed_jobs_there_is_one_line_or_an_empty_array(shop: Shop) -> None:
    assert shop.run("failed").out == "no failed jobs\n"
    assert shop.run("failed", "--json").out == "[]\n"


def test_the_table_has_a_row_each_latest_first(shop: Shop) -> None:
    shop.keep("u-1", queue="emails")
    shop.keep("u-2", exception="Traceback (most recent call last):\nKeyError: 'x'\n")
    said = shop.run("failed")
    header, *rows = said.lines
    assert header.split() == ["uuid", "connection", "queue", "job", "failed_at", "error"]
    assert [row.split()[0] for row in rows] == ["u-2", "u-1"]
    assert rows[0].rstrip().endswith("KeyError: 'x'")
    assert rows[1].split()[1:4] == ["database", "emails", "shop.Order"]
    assert (said.code, said.err) == (0, "")


def test_an_error_of_several_lines_is_its_type_and_the_first(shop: Shop) -> None:
    shop.keep(
        "u-1", exception="Traceback (most recent call last):\nValueError: boom\nsecond line\n"
    )
    assert shop.run("failed").lines[1].rstrip().endswith("ValueError: boom ...")
    assert shop.run("failed", "--json").rows[0]["error"] == "ValueError: boom ..."
    assert shop.run("status", "u-1", "--json").rows["exception"] == "ValueError: boom ..."


def test_json_is_one_array_whose_rows_have_their_uuid(shop: Shop) -> None:
    shop.keep("u-1")
    shop.keep("u-2")
    rows = shop.run("failed", "--json").rows
    assert [row["uuid"] for row in rows] == ["u-2", "u-1"]
    keys = [
        "uuid",
        "connection",
        "queue",
        "job",
        "attempts",
        "failed_at",
        "error",
        "arguments",
        "tags",
    ]
    assert [*rows[0]] == keys


def test_it_can_be_narrowed(shop: Shop) -> None:
    for number in range(5):
        shop.keep(f"u-{number}", queue="emails" if number % 2 else "default")
    rows = shop.run("failed", "--queue", "emails", "--json").rows
    assert [row["uuid"] for row in rows] == ["u-3", "u-1"]
    assert len(shop.run("failed", "--limit", 2, "--json").rows) == 2
    assert len(shop.run("failed", "--limit", 0, "--json").rows) == 5
    assert shop.run("failed", "--limit", 2).lines[-1] == "and 3 more: --limit 0 shows all"
    assert len(shop.run("failed", "--connection", "database", "--json").rows) == 5


def test_more_than_a_page_is_listed(shop: Shop) -> None:
    for number in range(450):
        shop.keep(f"u-{number}")
    rows = shop.run("failed", "--limit", 0, "--json").rows
    assert [row["uuid"] for row in rows] == [f"u-{n}" for n in reversed(range(450))]


def test_one_is_shown_whole_with_its_attempts(shop: Shop) -> None:
    history = History()
    for number, how in ((1, "timed out"), (2, "")):
        history = history.started(number, f"host{number}", 40 + number, 1e9)
        if how:
            history = history.ended(how, "JobTimedOut")
    head = "Traceback (most recent call last):\n"
    shop.keep("u-1", history=history, exception=f"{head}    deep\nValueError: no\n")
    out = shop.run("failed", "u-1").out
    for words in ("u-1", "shop.Order", "host1", "41", "timed out", "host2", "never ended"):
        assert words in out
    assert "2001-09-09 01:46:40" in out
    assert f"  {head}      deep\n  ValueError: no\n" in out
    shown = shop.run("failed", "u-1", "--json").rows
    assert shown["uuid"] == "u-1"
    assert shown["exception"].startswith("Traceback")
    assert [ran["host"] for ran in shown["ran"]] == ["host1", "host2"]
    assert json.loads(shown["payload"])["data"] == {"number": 7}


def test_the_newest_is_shown_whole(shop: Shop) -> None:
    assert "no failed jobs" in shop.run("failed", "--last").only()
    shop.keep("u-1", failed_at=1000.0)
    shop.keep("u-2", failed_at=2000.0, queue="mail")
    assert shop.run("failed", "--last", "--json").rows["uuid"] == "u-2"
    assert shop.run("failed", "--last", "--queue", "default", "--json").rows["uuid"] == "u-1"
    assert "Traceback" in shop.run("failed", "--last").out
    assert "no such job has failed" in shop.run("failed", "--last", "--queue", "x").only()
    assert "no failed job has the cause 'x'" in shop.run("failed", "--last", "--cause", "x").only()
    assert "leave out the uuid and --by" in shop.run("failed", "u-1", "--last").only()


def test_a_job_that_never_started_says_so(shop: Shop) -> None:
    shop.keep("u-1", history=History(), attempts=0)
    assert "never started" in shop.run("failed", "u-1").out


@pytest.mark.parametrize("command", [["failed"], ["retry"], ["forget"]])
def test_an_unknown_id_is_one_line_and_exit_2(shop: Shop, command: list[str]) -> None:
    shop.keep("u-1")
    said = shop.run(*command, "u-9\x1b[31m")
    assert said.code == 2
    assert r"no failed job 'u-9\x1b[31m'" in said.only()
    assert shop.kept() == ["u-1"]


def printed(text: str) -> str:
    """Check that a terminal is told nothing by a text."""
    bad = {c for c in text if not c.isprintable() and c != "\n"}
    assert not bad, bad
    return text


def test_what_came_from_jobs_is_escaped(shop: Shop) -> None:
    shop.keep(
        "u-1",
        name=EVIL,
        exception=f"Traceback (most recent call last):\n  {EVIL}\nValueError: {EVIL}",
        queue="q\x1b[0m",
    )
    table = printed(shop.run("failed").out)
    assert r"a\x1b[31mred\x9b2J\u202e" in table
    whole = printed(shop.run("failed", "u-1").out)
    assert whole.count(r"\x1b[31mred\x9b2J\u202e") >= 2
    rows = json.loads(printed(shop.run("failed", "--json").out))
    assert rows[0]["queue"] == "q\x1b[0m", "JSON escapes, and loses nothing"
    shown = json.loads(printed(shop.run("failed", "u-1", "--json").out))
    assert EVIL in shown["exception"]


def test_a_record_that_is_no_payload_is_listed_and_retried_as_it_is(shop: Shop) -> None:
    raw = b'{"job": \xff'
    record = dataclasses.replace(shop.keep("u-raw"), payload=raw, name="(not a payload)")
    shop.manager.failed_store().add(record)
    assert shop.run("failed", "--json").rows[0]["job"] == "(not a payload)"
    assert "\\xff" in shop.run("failed", "u-raw", "--json").rows["payload"]
    assert shop.run("retry", "u-raw").code == 0
    assert [job.raw_body for job in shop.queue.reserve(["default"], 9)] == [raw]


# -- retry --------------------------------------------------------------------------------------


def test_retry_moves_the_named_ones(shop: Shop) -> None:
    for number in (1, 2, 3):
        shop.keep(f"u-{number}", queue="emails")
    said = shop.run("retry", "u-1", "u-3")
    assert (said.code, said.out) == (0, "queued 2 failed jobs again\n")
    assert shop.kept() == ["u-2"]
    assert [job["uuid"] for job in waiting(shop, "emails")] == ["u-1", "u-3"]


def test_retry_all_and_of_one_queue(shop: Shop) -> None:
    for number in range(6):
        shop.keep(f"u-{number}", queue="emails" if number % 2 else "default")
    assert shop.run("retry", "--queue", "emails").out == "queued 3 failed jobs again\n"
    assert shop.run("retry", "all", "--queue", "default").out == "queued 3 failed jobs again\n"
    assert shop.kept() == []
    shop.keep("u-9")
    assert shop.run("retry", "all").out == "queued 1 failed job again\n"
    assert shop.run("retry", "all").out == "queued 0 failed jobs again\n"


def test_retry_wants_to_know_which(shop: Shop) -> None:
    shop.keep()
    said = shop.run("retry")
    assert said.code == 2
    assert "say which: uuids, all, --queue NAME" in said.only()
    assert shop.kept() == ["u-1"]


def test_one_unknown_id_among_others_moves_none(shop: Shop) -> None:
    shop.keep()
    assert shop.run("retry", "u-1", "u-2").code == 2
    assert shop.kept() == ["u-1"]


def test_an_id_given_twice_is_moved_once(shop: Shop) -> None:
    shop.keep()
    assert shop.run("retry", "u-1", "u-1").out == "queued 1 failed job again\n"
    assert shop.queue.size() == 1


def test_retry_begins_attempts_and_deadlines_anew_and_keeps_the_rest(shop: Shop) -> None:
    then = int(time.time()) - 10_000
    own = {
        "attempts": 4, "createdAt": then, "retryUntil": then + 60, "expiresAt": then + 120.5,
        "traceId": "00-ab", "data": {"number": 2**60, "text": "ü😀", "empty": [], "map": {}},
    }  # fmt: skip
    before = shop.keep("u-1", payload=own)
    shop.run("retry", "u-1")
    (job,) = waiting(shop)
    now = time.time()
    assert job.pop("attempts") == 0
    assert job.pop("createdAt") == pytest.approx(now, abs=3)
    assert job.pop("retryUntil") == pytest.approx(now + 60, abs=3)
    assert job.pop("expiresAt") == pytest.approx(now + 120.5, abs=3)
    for key, value in job.items():
        assert value == envelope.parse(before.payload)[key]
    assert job["uuid"] == "u-1"


def test_a_payload_without_attempts_or_deadlines_is_queued_byte_for_byte(shop: Shop) -> None:
    before = shop.keep("u-1", payload={"retryUntil": None, "attempts": 0, "x": "\u00e9"})
    shop.run("retry", "u-1")
    (job,) = shop.queue.reserve(["default"])
    assert job.raw_body == before.payload
    assert job.attempts() == 0


def test_a_payload_with_a_lone_surrogate_is_retried_as_it_is(shop: Shop) -> None:
    before = shop.keep("u-1", payload={"attempts": 1, "x": "\ud800", "y": "é"})
    assert shop.run("retry", "u-1").code == 0
    (job,) = shop.queue.reserve(["default"])
    assert job.raw_body == before.payload


def test_a_job_whose_connection_is_gone_is_kept_and_the_others_go(shop: Shop) -> None:
    shop.keep("u-1", connection="gone")
    shop.keep("u-2")
    said = shop.run("retry", "all")
    assert said.code == 1
    assert said.out == "queued 1 failed job again\n"
    assert "u-1 is kept: unknown connection 'gone'" in said.err
    assert shop.kept() == ["u-1"]


def test_retried_twice_at_once_each_is_moved_once(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        for number in range(200):
            project.push("Nowhere", {}, uuid=f"u-{number}")
        fail_at_once(project)
        assert len(project.failed()) == 200
        calls = [project.start("retry", "all") for _ in range(3)]
        counts = [int(call.finished().out.split()[1]) for call in calls]
        assert sum(counts) == 200
        assert project.failed() == []
        assert project.sizes() == Sizes(ready=200)
        uuids = {job.uuid for job in project.queue.reserve(["default"], 500)}
        assert len(uuids) == 200


def test_a_job_that_failed_for_real_is_shown_retried_and_done(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        uuid = project.push("Flaky", {"failures": 1})
        worker = project.drain()
        assert "FAIL" in worker.out
        (row,) = json.loads(project.qframe("failed", "--json").out)
        assert (row["uuid"], row["attempts"]) == (uuid, 1)
        assert row["error"] == "ValueError: not the 1. time"
        shown = json.loads(project.qframe("failed", uuid, "--json").out)
        (ran,) = shown["ran"]
        assert ran["ended"] == "error"
        assert ran["started_at"] <= ran["ended_at"] == shown["failed_at"]
        project.write("jobs.py", (project.root / "jobs.py").read_text().replace(
            "self.attempts <= self.failures", "False"))  # fmt: skip
        assert project.qframe("retry", uuid).out == "queued 1 failed job again\n"
        project.drain()
        assert project.notes("end") == [["end", "flaky", "1"]]
        assert project.failed() == []


# -- forget, flush, prune -----------------------------------------------------------------------


def test_forget_removes_the_named_ones(shop: Shop) -> None:
    for number in (1, 2, 3):
        shop.keep(f"u-{number}")
    assert shop.run("forget", "u-1", "u-3").lines == ["forgot u-1", "forgot u-3"]
    assert shop.kept() == ["u-2"]


def test_flush_removes_all_or_only_older_ones(shop: Shop) -> None:
    for number, hours in enumerate((0, 1, 30, 60)):
        shop.keep(f"u-{number}", failed_at=time.time() - hours * 3600)
    assert shop.run("flush", "--hours", 48).out == "removed 1 failed job\n"
    assert shop.run("prune").out == "removed 1 failed job\n", "older than a day"
    assert shop.run("prune", "--hours", 0.5).out == "removed 1 failed job\n"
    assert shop.kept() == ["u-0"]
    assert shop.run("flush").out == "removed 1 failed job\n"
    assert shop.run("flush").out == "removed 0 failed jobs\n"


@pytest.mark.parametrize("hours", ["-1", "nan", "inf"])
@pytest.mark.parametrize("command", ["flush", "prune"])
def test_hours_that_are_none_are_refused(shop: Shop, command: str, hours: str) -> None:
    shop.keep()
    said = shop.run(command, "--hours", hours)
    assert said.code == 2
    assert "--hours" in said.only()
    assert shop.kept() == ["u-1"]


def test_many_hours_are_only_long_ago(shop: Shop) -> None:
    shop.keep()
    assert shop.run("flush", "--hours", 800_000).out == "removed 0 failed jobs\n"


def test_a_negative_limit_is_refused(shop: Shop) -> None:
    assert "--limit must not be negative" in shop.run("failed", "--limit", -1).only()


# -- where they are -----------------------------------------------------------------------------


def test_the_stores_of_every_configured_connection_are_listed(shop: Shop) -> None:
    shop.write("qframe.toml", '[connections.database]\n[connections.other]\ndriver = "database"\n'
                              'url = "sqlite:///other.sqlite3"\n')  # fmt: skip
    here, there = shop.keep("u-1"), shop.keep("u-2")
    store = shop.manager.failed_store("other")
    store.add(there)
    shop.manager.failed_store("database").forget(there)
    assert [row["uuid"] for row in shop.run("failed", "--json").rows] == [here.uuid, there.uuid]
    assert [r["uuid"] for r in shop.run("failed", "--json", "--connection", "other").rows] == [
        "u-2"
    ]
    assert len(shop.run("failed", "--json", "--limit", 1).rows) == 1
    assert shop.run("forget", "u-2", "--connection", "database").code == 2


def test_a_connection_that_does_not_answer_is_named_and_the_others_are_used(shop: Shop) -> None:
    shop.write("qframe.toml", '[connections.database]\n[connections.other]\ndriver = "database"\n'
                              'url = "sqlite:////nowhere/at/all.sqlite3"\n')  # fmt: skip
    shop.keep("u-1")
    said = shop.run("failed", "--json")
    assert [row["uuid"] for row in said.rows] == ["u-1"]
    assert said.code == 0
    assert len(said.err.splitlines()) == 1
    assert "all.sqlite3 cannot be opened" in said.err
    alone = shop.run("failed", "--connection", "other")
    assert alone.code == 2, "it cannot be used as it is configured"
    assert "cannot be opened" in alone.only()


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        for number in range(300):
            project.push("Nowhere", {}, uuid=f"u-{number}")
        fail_at_once(project)
        command = "import sys; sys.argv[0] = 'qframe'; from qframe.console.app import main; main()"
        for more in ("", "--json"):
            piped = subprocess.run(
                ["/bin/sh", "-c", f'"$0" -c "$1" failed {more} | head -1', sys.executable, command],
                cwd=project.root,
                capture_output=True,
                text=True,
                check=True,
            )
            assert piped.stderr == ""
            assert len(piped.stdout.splitlines()) == 1


# -- causes and filters -------------------------------------------------------------------------


def keep_some(shop: Shop) -> None:
    """Keep three timeouts of mail, and one job whose order is unknown."""
    for number in range(3):
        text = f"Traceback (most recent call last):\nTimeoutError: host {number} is silent\n"
        shop.keep(f"t-{number}", queue="mail", exception=text)
    text = "Traceback (most recent call last):\nKeyError: 'order'\n"
    ship = {"name": "shop.ship", "payload": {"job": "shop.ship"}}
    shop.keep("k-1", exception=text, failed_at=time.time() - 7200, **ship)


def cause_of_timeouts(shop: Shop) -> str:
    return str(shop.run("failed", "--by", "cause", "--json").rows[0]["cause"])


def test_causes_have_a_row_each_the_most_frequent_first(shop: Shop) -> None:
    assert shop.run("failed", "--by", "cause").out == "no failed jobs\n"
    keep_some(shop)
    many, one = shop.run("failed", "--by", "cause", "--json").rows
    assert (many["count"], one["count"]) == (3, 1)
    assert (many["job"], many["error"]) == ("shop.Order", "TimeoutError: host * is silent")
    assert (one["job"], one["error"], one["example"]) == ("shop.ship", "KeyError: *", "k-1")
    assert (many["last_24_h"][-1], one["last_24_h"][-3]) == (3, 1)
    assert (sum(many["last_24_h"]), sum(one["last_24_h"])) == (3, 1)
    header, first, second = shop.run("failed", "--by", "cause").lines
    assert header.split() == ["cause", "count", "job", "error", "place", "last_at", "last_24_h"]
    assert first.split()[:3] == [many["cause"], "3", "shop.Order"]
    assert first.rstrip().endswith("·" * 23 + "█")
    assert second.rstrip().endswith("·" * 21 + "█··")
    assert len(shop.run("failed", "--by", "cause", "--limit", 1, "--json").rows) == 1
    (mail,) = shop.run("failed", "--by", "cause", "--where", "queue:mail", "--json").rows
    assert mail["cause"] == many["cause"]


def test_a_filter_and_a_cause_choose_what_is_listed(shop: Shop) -> None:
    keep_some(shop)
    key = cause_of_timeouts(shop)

    def listed(*arguments: object) -> list[str]:
        return [row["uuid"] for row in shop.run("failed", *arguments, "--json").rows]

    assert listed("--cause", key) == ["t-2", "t-1", "t-0"]
    assert listed("--where", "error:keyerror older:1h") == ["k-1"]
    assert listed("--where", "class:shop.Order", "--queue", "default") == []
    assert listed("--where", "!queue:mail") == ["k-1"]
    assert listed("--where", 'error:"host 1"', "--cause", key) == ["t-1"]


def test_a_cause_is_queued_again(shop: Shop) -> None:
    keep_some(shop)
    said = shop.run("retry", "--cause", cause_of_timeouts(shop))
    assert (said.code, said.out) == (0, "queued 3 failed jobs again\n")
    assert shop.kept() == ["k-1"]
    assert len(waiting(shop, "mail")) == 3


def test_what_a_filter_chooses_is_queued_again_or_forgotten(shop: Shop) -> None:
    keep_some(shop)
    said = shop.run("retry", "all", "--where", "uuid:t-1,t-2")
    assert said.out == "queued 2 failed jobs again\n"
    said = shop.run("forget", "--where", "queue:mail")
    assert said.out == "forgot 1 failed job\n"
    assert shop.run("forget", "--where", "queue:mail").out == "forgot 0 failed jobs\n"
    assert shop.kept() == ["k-1"]
    assert shop.run("forget", "--cause", cause_of_timeouts(shop)).out == "forgot 1 failed job\n"
    assert shop.kept() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["failed", "--by", "class"], "--by takes cause, not 'class'"),
        (["failed", "--where", "queu:mail"], "did you mean 'queue'?"),
        (["failed", "--cause", "0000000000"], "no failed job has the cause '0000000000'"),
        (["retry", "--cause", "0000000000"], "qframe failed --by cause lists them"),
        (["retry", "--cause", 'a" b'], "cannot be read"),
        (["retry"], "say which: uuids, all, --queue NAME, --cause KEY or --where FILTER"),
        (["retry", "t-1", "--where", "queue:mail"], "go with all, not with uuids"),
        (["forget"], "say which: uuids, or --cause KEY or --where FILTER"),
        (["forget", "t-1", "--where", "queue:mail"], "say which"),
    ],
)
def test_what_is_not_meant_is_one_line_and_nothing_is_lost(
    shop: Shop, arguments: list[str], said: str
) -> None:
    keep_some(shop)
    refused = shop.run(*arguments)
    assert refused.code == 2
    assert said in refused.only()
    assert len(shop.kept()) == 4


# -- silence ------------------------------------------------------------------------------------


def test_a_cause_is_silenced_and_told_again(shop: Shop) -> None:
    shop.keep("u-1")
    (row,) = shop.run("failed", "--by", "cause", "--json").rows
    key = row["cause"]
    assert not row["silenced"]
    assert shop.run("silence", "0123456789").code == 2
    assert shop.run("silence", key, "--off").code == 2
    assert shop.run("silence", key).out == f"silenced the cause {key} for 30 days\n"
    assert shop.run("failed", "--by", "cause", "--json").rows[0]["silenced"]
    assert "silenced" in shop.run("failed", "--by", "cause").lines[0]
    assert shop.run("silence", key, "--off").code == 0
    assert not shop.run("failed", "--by", "cause", "--json").rows[0]["silenced"]


@pytest.mark.parametrize(
    "command", ["failed", "size", "workers", "batches", "cancel", "schedule list"]
)
def test_a_filter_that_there_is_none_of_is_said_in_a_line(shop: Shop, command: str) -> None:
    said = shop.run(*command.split(), "--where", "sate:ready")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("qframe: there is no filter sate: (did you mean 'state'?)")
    assert len(said.err.splitlines()) == 1


def test_size_shows_the_queues_that_a_filter_chooses(shop: Shop) -> None:
    shop.run("pause", "emails")
    shop.queue.push_raw("{}", "emails")
    shop.queue.push_raw("{}", "sms")
    rows = shop.run("size", "--where", "state:paused", "--json").rows
    assert [each["queue"] for each in rows] == ["emails"]


def test_cancel_removes_those_that_wait_and_that_a_filter_chooses(shop: Shop) -> None:
    for number, tag in enumerate(["tenant:7", "tenant:8", "tenant:7"]):
        message = {"uuid": f"u-{number}", "job": "shop.Order", "tags": [tag]}
        shop.queue.push_raw(json.dumps(message), delay=60.0 * (number == 2))
    assert shop.run("cancel", "--where", "tag:tenant:7").out == "cancelled 2 jobs\n"
    assert [each["uuid"] for each in waiting(shop)] == ["u-1"]
    assert shop.run("cancel").code == 2
    assert shop.run("cancel", "u-1", "--where", "tag:x").code == 2
    assert "no filter error: of jobs that wait" in shop.run("cancel", "--where", "error:x").only()


def test_cancel_names_a_connection_whose_jobs_cannot_be_listed(
    shop: Shop, own_beanstalkd: BeanstalkdServer
) -> None:
    settings = "".join(f"{key} = {value!r}\n" for key, value in own_beanstalkd.settings.items())
    shop.write("qframe.toml", f"[connections.bean]\n{settings}")
    message = {"uuid": "u", "job": "shop.Order", "tags": ["tenant:7"]}
    shop.manager.connection("bean").push_raw(json.dumps(message))
    said = shop.run("cancel", "--where", "tag:tenant:7", "--connection", "bean")
    assert said.out == "cancelled 0 jobs\n"
    assert "bean cannot list its jobs: none of them was looked at" in said.err
    assert "no job 'u-12' waits or runs (bean cannot be searched)" in shop.run("cancel", "u-12").err
    noted = "noted: bean cannot be searched, so a worker that gets u will drop it\n"
    assert shop.run("cancel", "u", "--running").out == noted
    keys = cancelled_key("bean", "u"), cancel_key("u")
    assert shop.manager.connection("bean").store.get(*keys) == ["1", "1"]
    assert shop.manager.connection("bean").size() == 1


def test_what_was_recorded_of_a_killed_job_is_shown(shop: Shop) -> None:
    recorded = Recording(
        attempt=1,
        summary="killed by SIGKILL, 1.9 GB of 2 GB and rising 40 MB/s, in import.py:88",
        log=(f"10:00:00 INFO app: {EVIL}",),
        stacks=(SeenStack((0.4, 1.4), ("/app/import.py:88 handle",)), SeenStack((), ("x",))),
        curve=(UsedPoint(2.0, 900.0, 0.5), UsedPoint(1.0, 1900.0, 1.0)),
        memory_events={"oom_kill": 1},
    )
    history = History().started(1, "h", 1, 1e9).ended("error", "DirtyExit").recorded(recorded)
    shop.keep("u-1", history=history)
    shop.keep("u-2")
    said = shop.run("failed", "u-1").out
    for words in (
        f"recorded of attempt 1: {recorded.summary}", "▄█  900 to 1900 MB", "at most 100 %",
        "oom_kill +1", "stack 0.4 s before its end, seen 2 times", "    /app/import.py:88 handle",
        "10:00:00 INFO app: a\\x1b[31mred",
    ):  # fmt: skip
        assert words in said
    assert "\x1b" not in said
    kept = shop.run("failed", "u-1", "--json").rows["recording"]
    assert kept["summary"] == recorded.summary
    assert kept["memory_events"] == {"oom_kill": 1}
    assert shop.run("failed", "u-2", "--json").rows["recording"] is None
    assert "recorded" not in shop.run("failed", "u-2").out
