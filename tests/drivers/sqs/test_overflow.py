"""Large payloads are in S3, as in Laravel's cache store `storage`, and messages point there."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from qframe.contracts.step import Outcome, Release
from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.sqs.backend import SqsBackend
from qframe.drivers.sqs.settings import SqsSettings
from qframe.exceptions import BackendUnavailable
from tests.drivers.broker.acts import begin, do, push, taken
from tests.support.sqs_server import SqsServer

BUCKET = "payloads"
LARGE = json.dumps({"uuid": "u-1", "job": "app.Job", "data": "ü" * 2_000_000}).encode()
Objects = Callable[[], dict[str, bytes]]


@pytest.fixture
def s3(moto_running: str) -> Any:
    """Give a client of moto's S3, in which the bucket is empty."""
    from qframe.drivers.sqs import aws

    kind = aws._ClientKind("s3", "us-east-1", moto_running, 10, 5)
    client = aws._clients.client(kind)
    client.create_bucket(Bucket=BUCKET)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    return client


@pytest.fixture
def objects(s3: Any) -> Objects:
    """Give what lists the objects in the bucket."""

    def found() -> dict[str, bytes]:
        keys = [each["Key"] for each in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())]
        return {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    return found


@pytest.fixture
def backend(sqs_running: SqsServer, moto_running: str, s3: Any) -> Iterator[SqsBackend]:
    """Give a backend on the strict SQS, and moto's S3."""
    facts = MemoryBackend()
    settings = SqsSettings(
        **{**sqs_running.settings, "region": "us-east-1"},
        prefix=f"o{uuid.uuid4().hex[:8]}-",
        overflow=BUCKET,
        overflow_endpoint=moto_running,
        overflow_prefix="shop-cache-",
        block_for=1,
        max_payload=10_000_000,
    )
    backend = SqsBackend("o", settings, lambda: facts)
    yield backend
    backend.close()


def path_of(key: str) -> str:
    digest = hashlib.sha1(f"shop-cache-{key}".encode()).hexdigest()
    return f"framework/cache/data/{digest[:2]}/{digest[2:4]}/{digest}"


def test_a_large_payload_is_where_laravel_looks_for_it(
    backend: SqsBackend, sqs_running: SqsServer, objects: Objects
) -> None:
    push(backend, LARGE, b"small")
    queue = sqs_running.queues[backend.settings.name_of("default")]
    pointer, small = (each.body for each in queue.messages)
    assert small == "small"
    (key,) = json.loads(pointer).values()
    assert list(json.loads(pointer)) == ["@pointer"]
    assert key.startswith("laravel:sqs-payloads:")
    assert objects() == {path_of(key): b'9999999999s:%d:"%b";' % (len(LARGE), LARGE)}


def test_it_is_read_and_deleted_with_its_message(backend: SqsBackend, objects: Objects) -> None:
    push(backend, LARGE, LARGE)
    first, second = begin(backend), begin(backend)
    assert first.raw_body == second.raw_body == LARGE
    assert do(backend, first, Release()) is Outcome.APPLIED
    assert len(objects()) == 2
    again = begin(backend)
    assert (again.raw_body, again.attempts) == (LARGE, 2)
    assert all(each.applied for each in backend.apply(again.delete(), second.delete()))
    assert objects() == {}


def test_a_copy_that_waits_outlives_its_message(backend: SqsBackend, objects: Objects) -> None:
    push(backend, LARGE)
    assert do(backend, begin(backend), Release(priority=5)) is Outcome.APPLIED  # a copy
    assert len(objects()) == 1
    copy = begin(backend)
    assert (copy.raw_body, copy.attempts) == (LARGE, 2)
    assert do(backend, copy) is Outcome.APPLIED
    assert objects() == {}


def test_what_laravel_has_put_there_is_read(
    backend: SqsBackend, sqs_running: SqsServer, s3: Any, objects: Objects
) -> None:
    key = "laravel:sqs-payloads:0199-uuid"
    kept = b'9999999999s:10:"{"a":"\xc3\xa9"}";'
    s3.put_object(Bucket=BUCKET, Key=path_of(key), Body=kept)
    push(backend, json.dumps({"@pointer": key}).encode())
    job = begin(backend)
    assert job.raw_body == '{"a":"é"}'.encode()
    assert do(backend, job) is Outcome.APPLIED
    assert objects() == {}


@pytest.mark.parametrize(
    "kept", [None, b"", b'1000000000s:1:"x";', b'9999999999s:5:"x";', b"9999999999i:1;"]
)
def test_a_payload_that_cannot_be_read_is_said_and_its_pointer_is_the_job(
    backend: SqsBackend, s3: Any, kept: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    key = "laravel:sqs-payloads:gone"
    if kept is not None:
        s3.put_object(Bucket=BUCKET, Key=path_of(key), Body=kept)
    pointer = json.dumps({"@pointer": key}).encode()
    push(backend, pointer)
    with caplog.at_level(logging.ERROR):
        job = taken(backend)
    assert job is not None
    assert job.raw_body == pointer
    assert key in caplog.text


def test_check_says_that_there_is_no_bucket(backend: SqsBackend, s3: Any) -> None:
    assert backend.check().warnings == ()
    s3.delete_bucket(Bucket=BUCKET)
    (warning,) = backend.check().warnings
    assert "S3 (payloads)" in warning


def test_what_only_looks_like_a_pointer_is_a_payload(backend: SqsBackend) -> None:
    bodies = [b'{"@pointer": 7}', b'["@pointer"]', b'"@pointer"', b'{"@pointer"']
    push(backend, *bodies)
    assert {begin(backend).raw_body for _ in bodies} == set(bodies)


def test_while_s3_is_away_jobs_wait_uncounted(
    backend: SqsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(backend, b"small", LARGE, b"small")
    assert backend._overflow is not None
    client = backend._overflow._client

    def away(*_: object, **__: object) -> bytes:
        raise BackendUnavailable("S3 is away")

    with monkeypatch.context() as patch:
        patch.setattr(client, "content", away)
        for _ in range(3):
            with suppress(BackendUnavailable):
                backend.give_back_all(backend.receive(["default"], 10))
    found = [begin(backend) for _ in range(3)]
    assert sorted(len(each.raw_body) for each in found) == [5, 5, len(LARGE)]
    assert {each.attempts for each in found} == {1}
