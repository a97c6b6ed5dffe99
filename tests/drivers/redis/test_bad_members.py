"""What others may leave under our keys."""

from __future__ import annotations

import json
import re

import pytest

from qframe.contracts.queue import Sizes
from qframe.contracts.step import Bury, Delete, Push, Record, Release, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnusable
from qframe.testing.conformance.steps import apply, failed, push, reserve, started
from tests.drivers.redis.acts import ready
from tests.drivers.redis.conftest import MakeProject
from tests.support.process import wait_for
from tests.support.projects import lines_with
from tests.support.redis_server import RedisServer

QUEUE = "q"
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
    "what looks like a start of ours": b'{"job": 1, "attempts":0}\n\t' + b" \t\r" * 11,
    "white space of ours in the middle": b"x\n\t" + b" " * 32 + b"x",
    "nothing but white space": b"\n " + b"\t" * 40,
}  # fmt: skip
ATTEMPTS: dict[str, object] = {
    "text": "many",
    "null": None,
    "true": True,
    "a list": [],
    "an object": {},
    "less than none": -1,
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
    found = [record.payload for record in app.failed()]
    # White space as ours, behind what another has pushed, is taken for ours.
    assert found == [_without_ours(raw) for raw in NO_PAYLOADS.values()]
    assert all("InvalidPayload" in record.exception for record in app.failed())
    assert len(lines_with(worker, "FAIL")) == len(NO_PAYLOADS)
    assert worker.err == ""
    assert app.empty()


def _without_ours(raw: bytes) -> bytes:
    return {
        NO_PAYLOADS["what looks like a start of ours"]: b'{"job": 1, "attempts":0}',
        NO_PAYLOADS["nothing but white space"]: b"",
    }.get(raw, raw)


def test_attempts_that_are_no_number_are_none(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url)
    for name, attempts in ATTEMPTS.items():
        message = {"job": "jobs.Note", "data": {"word": name.replace(" ", "-")}}
        server.command("RPUSH", "queues:default", json.dumps({**message, "attempts": attempts}))
    server.command("RPUSH", "queues:default", '{"job": "jobs.Note", "data": {"word": "missing"}}')
    worker = app.work("redis", "--stop-when-empty")
    assert worker.wait() == 0
    words = [*(name.replace(" ", "-") for name in ATTEMPTS), "missing"]
    assert [words[1:3] for words in app.notes("note")] == [[word, "1"] for word in words]
    assert app.failed() == []
    assert worker.err == ""


def test_every_message_comes_back_as_it_was(backend: RedisBackend) -> None:
    """Released, held, buried, kicked and delayed, whatever it is, and counted."""
    for name, raw in NO_PAYLOADS.items():
        push(backend, raw)
        for end in (
            Release(),
            Release(notes=b"n"),
            Bury(b"\0"),
            Release(5),
            Release(front=True, notes=b"\0"),
        ):
            job = started(backend)
            apply(backend, job, end)
            backend.kick(QUEUE)
            backend.timing.skew += 6 * (end == Release(5))
        job = reserve(backend)
        assert (job.raw_body, job.attempts, job.notes) == (raw, 5, b"\0"), name
        apply(backend, job, Start(60))
        assert backend.apply(job.delete())[0].applied
        assert backend.sizes(QUEUE) == Sizes()


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
    (record,) = app.failed()
    assert record.payload == large
    assert app.done() == ["large", "word"]
    assert len(lines_with(worker, "FAIL")) == 1
    assert app.empty()


# -- keys of the wrong type -----------------------------------------------------------------------


def test_of_a_bulk_what_met_a_key_of_the_wrong_type_raises_and_leaves_that_alone(
    server: RedisServer, backend: RedisBackend
) -> None:
    server.command("SET", "queues:bad", "value")
    names = ("good", "bad", "better")
    with pytest.raises(BackendUnusable, match="somebody else's key is in the way"):
        backend.apply(*(Step(None, Push(name, b"x")) for name in names))
    assert server.command("GET", "queues:bad") == b"value"
    server.command("DEL", "queues:bad")
    backend.apply(*(Step(None, Push(name, b"x")) for name in names))
    assert all(ready(backend, name) for name in names)


@pytest.mark.parametrize("key", ["qframe:{facts}failed", "qframe:{facts}order"])
def test_a_failed_job_stays_where_it_is_while_it_cannot_be_recorded(
    server: RedisServer, backend: RedisBackend, key: str
) -> None:
    push(backend, b"x")
    job = started(backend)
    server.command("SET", key, "value")
    with pytest.raises(BackendUnusable, match=f"{re.escape(key)} is a string, not a "):
        apply(backend, job, Record(failed("u")), Delete())
    assert backend.sizes(QUEUE) == Sizes(reserved=1)
    server.command("DEL", key)
    apply(backend, job, Record(failed("u")), Delete())
    assert backend.list_failed() == [failed("u")]
    assert backend.sizes(QUEUE) == Sizes()


@pytest.mark.parametrize("end", ["", ":reserved"])
def test_a_worker_does_not_start_on_a_key_of_the_wrong_type(
    server: RedisServer, make_project: MakeProject, end: str
) -> None:
    app = make_project(url=server.url)
    server.command("SET", f"queues:bad{end}", "value")
    kind = "zset" if end else "list"
    words = f"queues:bad{end} is a string, not a {kind}"
    said = app.work("redis", "--queue", "bad").finished()
    assert (said.code, said.one_line().count(words)) == (2, 1)
    app.push("Note", queue="good")
    worker = app.work("redis", "--queue", "bad,good")
    app.wait_for_note("note")
    assert worker.stop() == 0
    assert worker.err.count(words) == 1
    listed = app.qframe("size")
    assert (listed.code, listed.one_line().count(words)) == (0, 1)


def test_a_worker_does_not_start_on_a_queue_that_cannot_be(
    server: RedisServer, make_project: MakeProject
) -> None:
    said = make_project(url=server.url).work("redis", "--queue", "good,x:delayed").finished()
    assert (said.code, "'x:delayed' is not a queue name on Redis" in said.one_line()) == (2, True)


def test_a_worker_tries_again_to_record_a_failed_job(
    server: RedisServer, make_project: MakeProject
) -> None:
    app = make_project(url=server.url, retry_after=60)
    server.command("SET", "qframe:{facts}failed", "value")
    app.push("Flaky")
    worker = app.work("redis")
    wait_for(lambda: "cannot be settled yet" in worker.err, "the worker to say so")
    assert app.sizes() == Sizes(reserved=1)
    server.command("DEL", "qframe:{facts}failed")
    wait_for(app.failed, "the failed job")
    assert worker.stop() == 0
    (line,) = worker.err.splitlines()
    assert "somebody else's key is in the way" in line
    assert "qframe:{facts}failed is a string, not a hash" in line
    assert len(app.notes("start")) == 1
    assert app.empty()
