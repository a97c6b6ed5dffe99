"""What Laravel finds in the queues, and what it leaves there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qframe.contracts.step import Delete, Push, Release, Reservation, Start, Step
from qframe.drivers.redis.backend import RedisBackend
from tests.support.redis_server import RedisServer

QUEUE = "q"
OURS = (
    b'{"uuid":"u","job":"app.Job","data":{"a":[],"n":1e2},"id":"the-id","attempts":0,"delay":null}'
)


def _push(backend: RedisBackend, *raws: bytes, delay: float = 0.0) -> None:
    backend.apply(*(Step(None, Push(QUEUE, raw, delay)) for raw in raws))


def _started(backend: RedisBackend, notes: bytes = b"") -> Reservation:
    (job,), _ = backend.reserve([QUEUE])
    assert backend.apply(Step(job, Start(60, notes)))[0].applied
    return job


def _members(server: RedisServer, key: str) -> list[bytes]:
    found: list[bytes] = server.command("ZRANGE", f"queues:{QUEUE}:{key}", 0, -1)
    return found


def test_a_push_is_stored_as_it_is(server: RedisServer, backend: RedisBackend) -> None:
    _push(backend, OURS)
    assert server.command("LRANGE", "queues:q", 0, -1) == [OURS]
    assert server.command("LLEN", "queues:q:notify") == 1
    _push(backend, OURS, delay=60)
    assert _members(server, "delayed") == [OURS]


def test_starts_are_counted_in_the_payload(server: RedisServer, backend: RedisBackend) -> None:
    _push(backend, OURS)
    job = _started(backend, b"notes")
    assert job.id == "the-id"
    (member,) = _members(server, "reserved")
    assert member.rstrip() == OURS.replace(b'"attempts":0', b'"attempts":1')
    backend.apply(Step(job, Release(60)))
    assert _members(server, "delayed") == [member]
    backend.timing.skew = 100
    again = _started(backend)
    assert (again.raw_body, again.attempts, job.notes) == (OURS, 2, b"notes")
    (member,) = _members(server, "reserved")
    assert json.loads(member)["attempts"] == 2
    backend.apply(Step(again, Release(counted=False)))
    (member,) = server.command("LRANGE", "queues:q", 0, -1)
    assert json.loads(member)["attempts"] == 1


def test_of_what_php_has_counted_and_encoded_anew_its_count_is_read(
    server: RedisServer, backend: RedisBackend
) -> None:
    _push(backend, OURS)
    backend.apply(Step(_started(backend, b"notes"), Release()))
    member: dict[str, Any] = json.loads(server.command("LPOP", "queues:q"))
    member["attempts"] += 1
    by_php = json.dumps(dict(reversed(member.items()))).encode()
    server.command("RPUSH", "queues:q", by_php)
    job = _started(backend)
    assert (job.attempts, job.raw_body) == (3, by_php)
    backend.apply(Step(job, Release()))
    (stored,) = server.command("LRANGE", "queues:q", 0, -1)
    assert json.loads(stored) == member | {"attempts": 3}, "PHP sees our start"
    (again,), _ = backend.reserve([QUEUE])
    assert (again.attempts, again.raw_body) == (3, by_php)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"job":"x","attempts":0}',
        b'{"job":"x","id":"the-id","attempts":7}',
        b' { "attempts" : 12 , "data" : {"attempts":5} } ',
        b'{"\xc3\xbc\xff":"\xc3","attempts":3,"z":[{}, 1e5, "\\u00fc"]}\n\n',
        b'{"attempts":1,"attempts":2}',
    ],
)
def test_starts_are_counted_wherever_the_count_is(
    server: RedisServer, backend: RedisBackend, raw: bytes
) -> None:
    _push(backend, raw)
    before = json.loads(raw.decode("latin-1"))
    for attempt in (1, 2):
        job = _started(backend)
        assert (job.raw_body, job.attempts) == (raw, before["attempts"] + attempt)
        (member,) = _members(server, "reserved")
        assert json.loads(member.decode("latin-1")) == before | {"attempts": job.attempts}
        backend.apply(Step(job, Release()))


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (b'{"attempts":007}', 0),
        (b'{"attempts":2.0,"z":1}', 2),
        (b'{"attempts":-1}', 0),
        (b'{"attempts":"3"}', 0),
        (b'{"attempts":true}', 0),
        (b'{"attempts":1,"z":' + b"[" * 100_000, 0),
        (b'{"data":{"attempts":4}}', 0),
        (b'["attempts", 4]', 0),
        (b'{"attempts":', 0),
    ],
)
def test_what_is_no_place_to_count_in_stays_as_it_is(
    server: RedisServer, backend: RedisBackend, raw: bytes, count: int
) -> None:
    _push(backend, raw)
    for attempt in (1, 2):
        job = _started(backend)
        assert (job.raw_body, job.attempts) == (raw, count + attempt)
        (member,) = _members(server, "reserved")
        assert member.rstrip() == raw
        backend.apply(Step(job, Release()))


def test_other_bytes_are_counted_beside_them(server: RedisServer, backend: RedisBackend) -> None:
    raws = [
        b"", b"\xff\x00", b'{"attempts":3}', b'{"attempts":2,"delay":null}', b"[1]",
        b'{"attempts":"x"}', b"x\n" + b" " * 60, b"x\n\t" + b" " * 40, OURS + b"\n", b"\n",
    ]  # fmt: skip
    for raw in raws:
        _push(backend, raw)
        before = {b'{"attempts":3}': 3, b'{"attempts":2,"delay":null}': 2}.get(raw, 0)
        for attempt in (1, 2):
            job = _started(backend, b"n%d" % attempt)
            assert (job.raw_body, job.attempts) == (raw, before + attempt)
            assert backend.apply(Step(job, Release()))[0].applied
        (held,), _ = backend.reserve([QUEUE])
        assert (held.raw_body, held.attempts, held.notes) == (raw, before + 2, b"n2")
        assert backend.apply(Step(held, Delete()))[0].applied
    assert server.command("KEYS", "*notes*") == []


def test_the_same_bytes_are_as_many_messages(server: RedisServer, backend: RedisBackend) -> None:
    for raw in (OURS, b"same"):
        _push(backend, raw, raw, raw, delay=5)
        server.command("RPUSH", "queues:q", raw, raw, raw, raw)
        running = _started(backend)
        backend.timing.skew += 10
        jobs, _ = backend.reserve([QUEUE], 10)
        assert [job.raw_body for job in jobs] == [raw] * 6
        for job in jobs[:3]:
            assert backend.apply(Step(job, Start(60)))[0].applied
        for job in (*jobs, running):
            assert backend.apply(Step(job, Delete()))[0].applied
        assert backend.sizes(QUEUE).total == 0


def test_what_php_reserved_comes_back(server: RedisServer, backend: RedisBackend) -> None:
    server.command("ZADD", "queues:q:reserved", 1, OURS.replace(b":0,", b":1,"))
    (job,), _ = backend.reserve([QUEUE])
    assert job.attempts == 1
