"""What others may leave under our keys, and a server that would lose jobs."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from qframe.config import RedisSettings
from qframe.contracts import Sizes
from qframe.drivers.redis import checks
from qframe.drivers.redis.links import Links
from qframe.drivers.redis.queue import RedisQueue
from qframe.exceptions import BackendUnusable
from tests.drivers.redis.conftest import Command, Connect, MakeProject
from tests.drivers.redis.support import (
    RedisProject,
    begin,
    body,
    drain,
    lines_with,
    push,
    wait_for_line,
)
from tests.support.process import wait_for
from tests.support.redis_server import RedisServer

# -- members ------------------------------------------------------------------------------------

DEEP = 2000
NO_PAYLOADS: dict[str, bytes] = {
    "nothing": b"",
    "a space": b" ",
    "text": b"hello",
    "half a payload": b'{"job": "jobs.Note", "data": {',
    "a list": b'["jobs.Note"]',
    "a number": b"7",
    "null": b"null",
    "no job": b'{"uuid": "u", "data": {}}',
    "a job that is no text": b'{"job": {"name": "jobs.Note"}}',
    "invalid UTF-8": b'{"job": "jobs.Note", "data": {"word": "\xff\xfe"}}',
    "NUL bytes": b"\0\0\0",
    "a NUL byte in JSON": b'{"job": "jobs.Note\0"}',
    "nested deep": b'{"job": "jobs.Note", "data": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested deep without an end": b"[" * DEEP,
    "a number of 5,000 digits": b'{"job": "jobs.Note", "attempts": ' + b"9" * 5000 + b"}",
    "PHP serialized": b'O:11:"App\\Jobs\\A":0:{}',
    "a PHP-serialized command": json.dumps({
        "uuid": "php", "displayName": "App\\Jobs\\A",
        "job": "Illuminate\\Queue\\CallQueuedHandler@call",
        "data": {"commandName": "App\\Jobs\\A", "command": 'O:11:"App\\Jobs\\A":0:{}'},
        "attempts": 0,
    }).encode(),
    "notes of ours that are none": b'{"job": 1, "qframe": {"sent": 7, "history": "{"}}',
    "a line of ours without an end": b'x\n#"qframe":{',
}  # fmt: skip
ATTEMPTS: dict[str, object] = {
    "text": "many",
    "null": None,
    "true": True,
    "a list": [],
    "an object": {},
    "less than none": -1,
    "a fraction": 0.5,
    "more than anything": 10**30,
}


def test_what_is_no_payload_is_failed_with_its_bytes(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url)
    for raw in NO_PAYLOADS.values():
        server.command("RPUSH", "queues:default", raw)
    app.push("Note")
    worker = app.work("redis", "--stop-when-empty")
    assert worker.wait() == 0
    assert app.done() == ["word"]
    assert [record.payload for record in app.failed()] == list(NO_PAYLOADS.values())
    assert all("InvalidPayload" in record.exception for record in app.failed())
    assert len(lines_with(worker, "FAIL")) == len(NO_PAYLOADS)
    assert worker.err == ""
    assert app.empty()


def test_attempts_that_are_no_number_are_none(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url)
    for name, attempts in ATTEMPTS.items():
        message = {"job": "jobs.Note", "data": {"word": name.replace(" ", "-")}}
        message["attempts"] = attempts  # type: ignore[assignment]
        server.command("RPUSH", "queues:default", json.dumps(message))
    server.command("RPUSH", "queues:default", '{"job": "jobs.Note", "data": {"word": "missing"}}')
    worker = app.work("redis", "--stop-when-empty")
    assert worker.wait() == 0
    words = [*(name.replace(" ", "-") for name in ATTEMPTS), "missing"]
    assert [words[1:3] for words in app.notes("note")] == [[word, "1"] for word in words]
    assert app.failed() == []
    assert worker.err == ""


def test_each_failure_of_the_same_message_without_uuid_is_recorded(
    server: RedisServer, queue: RedisQueue
) -> None:
    failed = queue.own_failed_store()
    raw = b'{"job":"jobs.T","data":{"n":1}}'
    for _ in range(3):
        server.command("RPUSH", "queues:emails", raw)
    for _ in range(3):
        begin(queue).fail(ValueError("no"))
    records = failed.page()
    assert [record.payload for record in records] == [raw] * 3
    assert len({record.uuid for record in records}) == 3
    for left, record in enumerate(records[1:], 1):
        assert queue.requeue(record, record.payload, failed)
        assert not queue.requeue(record, record.payload, failed)
        assert failed.count() == 3 - left
    assert queue.sizes("emails") == Sizes(ready=2)


def test_a_member_of_64_megabytes_is_failed_with_its_bytes(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url, timeout=30)
    large = b"x" * 64_000_000
    server.command("RPUSH", "queues:default", large)
    job = b'{"job": "jobs.Note", "attempts": 0, "data": {"word": "large", "more": "%s"}}'
    server.command("RPUSH", "queues:default", job % large[:8_000_000])
    app.push("Note")
    worker = app.work("redis", "--stop-when-empty", "--memory", 0)
    assert worker.wait(60) == 0
    assert app.failure().payload == large
    assert app.done() == ["large", "word"]
    assert len(lines_with(worker, "FAIL")) == 1
    assert app.empty()


def test_every_member_comes_back_as_it_was(server: RedisServer, queue: RedisQueue) -> None:
    """Released, held, buried, failed and queued again, whatever it is."""
    failed = queue.own_failed_store()
    assert failed is not None
    for raw in NO_PAYLOADS.values():
        server.command("RPUSH", "queues:emails", raw)
        for _ in range(2):
            begin(queue).release()
        begin(queue).bury()
        assert queue.kick("emails") == 1
        job = begin(queue)
        assert (job.raw_body, job.attempts()) == (raw, 4)
        job.fail(ValueError("no"))
        (record,) = failed.page()
        assert (record.payload, record.attempts) == (raw, 4)
        assert queue.requeue(record, record.payload, failed)
        job = begin(queue)
        assert (job.raw_body, job.attempts()) == (raw, 1)
        job.delete()
        assert queue.sizes("emails") == Sizes()


# -- keys of the wrong type -----------------------------------------------------------------------

KEYS = {"": "list", ":notify": "list", ":delayed": "zset", ":reserved": "zset"}


@pytest.mark.parametrize("end", KEYS)
def test_a_key_of_the_wrong_type_is_named_and_costs_no_job(
    server: RedisServer, queue: RedisQueue, end: str
) -> None:
    """Also not those that the same script had taken before it met the key."""
    server.command("HSET", f"queues:bad{end}", "field", "value")
    uuids = [push(queue, "good") for _ in range(3)]
    with pytest.raises(BackendUnusable) as error:
        queue.reserve(["good", "bad"], 10)
    assert f"queues:bad{end} is a hash, not a {KEYS[end]}: somebody else's key" in str(error.value)
    assert wait_for(lambda: drain(queue, "good"), "what was held") == uuids


def test_a_bulk_of_which_some_met_a_key_of_the_wrong_type_raises(
    server: RedisServer, queue: RedisQueue
) -> None:
    server.command("SET", "queues:bad", "value")
    groups = [([(body(name).encode(), name)], name, 0.0) for name in ("good", "bad", "better")]
    with pytest.raises(BackendUnusable, match="somebody else's key is in the way"):
        queue.put_groups(groups)
    assert server.command("GET", "queues:bad") == b"value"


@pytest.mark.parametrize("end", ["", ":reserved"])
def test_a_worker_does_not_start_on_a_key_of_the_wrong_type(
    server: RedisServer, make_project: MakeProject, end: str
) -> None:
    app = make_project(url=server.url)
    server.command("SET", f"queues:bad{end}", "value")
    app.push("Note", queue="good")
    words = f"queues:bad{end} is a string, not a {KEYS[end]}"
    said = app.work("redis", "--queue", "bad,good").finished()
    assert (said.code, said.one_line().count(words)) == (2, 1)
    listed = app.qframe("size")
    assert (listed.code, listed.one_line().count(words)) == (0, 1)
    assert "good" in listed.out
    assert app.sizes("good") == Sizes(ready=1)


def test_a_key_of_the_wrong_type_hides_no_queue_from_a_pattern(
    server: RedisServer, make_project: MakeProject
) -> None:
    server.command("SET", "queues:alien", "value")
    app = make_project(url=server.url)
    worker = app.work("redis", "--queue", "mail-*")
    app.push("Note", queue="mail-9")
    app.wait_for_note("note")
    assert worker.stop() == 0
    assert worker.err.count("queues:alien is a string, not a list") == 1


def test_a_worker_does_not_start_on_a_queue_that_cannot_be(
    server: RedisServer, make_project: MakeProject
) -> None:
    said = make_project(url=server.url).work("redis", "--queue", "good,x:delayed").finished()
    assert (said.code, "'x:delayed' is not a queue name on Redis" in said.one_line()) == (2, True)


def test_a_worker_that_meets_a_key_of_the_wrong_type_waits_until_it_is_gone(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url, block_for=0.5)
    worker = app.work("redis", "--queue", "good,bad")
    app.push("Note", queue="good")
    app.wait_for_note("note")
    server.command("SET", "queues:bad", "value")
    gone = wait_for_line(worker, "redis gone: ")
    assert "queues:bad is a string, not a list" in gone
    app.push("Note", {"word": "after"}, queue="good")
    server.command("DEL", "queues:bad")
    app.wait_for_note("note", "after")
    assert worker.stop() == 0
    assert app.done() == ["word", "after"]
    assert len(lines_with(worker, "gone")) == 1
    assert worker.err == ""


@pytest.mark.parametrize("end", ["", ":order"])
def test_a_failed_job_stays_where_it_is_while_it_cannot_be_recorded(
    server: RedisServer, queue: RedisQueue, end: str
) -> None:
    server.command("SET", f"qframe:{{failed}}{end}", "value")
    uuid = push(queue)
    job = begin(queue)
    with pytest.raises(BackendUnusable, match=rf"qframe:{{failed}}{end} is a string, not a "):
        job.fail(ValueError("no"))
    assert queue.sizes("emails") == Sizes(reserved=1)
    job.renew()
    server.command("DEL", f"qframe:{{failed}}{end}")
    job.fail(ValueError("no"))
    failed = queue.own_failed_store()
    assert failed is not None
    assert [record.uuid for record in failed.page()] == [uuid]
    assert queue.sizes("emails") == Sizes()


def test_a_worker_tries_again_to_record_a_failed_job(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url, retry_after=60)
    server.command("SET", "qframe:{failed}", "value")
    app.push("Flaky")
    worker = app.work("redis")
    wait_for(lambda: "cannot be settled yet" in worker.err, "the worker to say so")
    assert app.sizes() == Sizes(reserved=1)
    server.command("DEL", "qframe:{failed}")
    wait_for(app.failed, "the failed job")
    assert worker.stop() == 0
    (line,) = worker.err.splitlines()
    assert "qframe:{failed} is a string, not a hash" in line
    assert len(app.notes("start")) == 1
    assert app.empty()


# -- a server that would lose jobs ----------------------------------------------------------------

UNSAFE: dict[str, tuple[dict[str, str], str]] = {
    "jobs evicted": (
        {"maxmemory-policy": "allkeys-lru"},
        "maxmemory-policy allkeys-lru deletes waiting jobs",
    ),
    "locks evicted": (
        {"maxmemory-policy": "volatile-ttl"},
        "maxmemory-policy volatile-ttl deletes locks and pauses",
    ),
    "nothing written": (
        {"appendonly": "no"},
        "nothing is written to disk, a restart loses all jobs, set appendonly yes",
    ),
    "snapshots only": (
        {"appendonly": "no", "save": "3600 1"},
        "a restart loses the jobs since the last snapshot, set appendonly yes",
    ),
    "written whenever": (
        {"appendfsync": "no"},
        "appendfsync no: a power loss can lose many seconds of jobs, set everysec",
    ),
}


@pytest.mark.parametrize(("config", "words"), UNSAFE.values(), ids=UNSAFE.keys())
def test_check_says_what_would_lose_jobs(
    own_server: RedisServer, app: RedisProject, run: Command, config: dict[str, str], words: str
) -> None:
    for name, value in config.items():
        own_server.set(name, value)
    said = run(app, "check")
    (line,) = [line for line in said.out.splitlines() if line.startswith("warning  redis:")]
    assert said.code == 0
    assert words in line


def test_check_finds_nothing_unsafe_about_a_server_as_the_page_sets_it_up(
    own_server: RedisServer, app: RedisProject, run: Command
) -> None:
    own_server.set("appendfsync", "everysec")
    said = run(app, "check")
    assert (said.code, said.err) == (0, "")
    assert "\nok       redis: Redis " in said.out
    assert "warning  redis" not in said.out


def test_check_says_who_else_could_reach_a_server(
    own_server: RedisServer, connect: Connect
) -> None:
    queue = connect(url=f"redis://0.0.0.0:{own_server.port}")
    place = f"0.0.0.0:{own_server.port}"
    assert queue.warnings() == [
        f"{place} is reached without a password: whoever reaches it runs jobs here",
        f"{place} is reached without TLS: passwords and jobs can be read on the way",
    ]


def test_check_says_that_a_replica_takes_no_jobs(
    server: RedisServer, connect: Connect, tmp_path: Path
) -> None:
    replica = RedisServer(tmp_path / "replica")
    replica.follow(server)
    with replica:
        said = connect(url=replica.url).warnings()
    assert "the server is a replica: pushes are refused, connect to its master" in said
    assert not any("replica" in text for text in connect(url=server.url).warnings())


def test_check_says_that_a_full_server_takes_no_jobs(
    own_server: RedisServer, own_queue: RedisQueue
) -> None:
    words = "the memory is full (maxmemory): pushes are refused"
    own_server.set("maxmemory", 1_000_000_000)
    assert words not in own_queue.warnings()
    own_server.set("maxmemory", 100_000)
    assert words in own_queue.warnings()


@pytest.mark.parametrize("host", ["[::1]", "localhost", "127.0.0.1"])
def test_check_asks_for_no_password_and_no_tls_on_this_machine(host: str) -> None:
    links = Mock(spec=Links)
    assert checks._about_access(links, RedisSettings(url=f"redis://{host}:6379")) == []
