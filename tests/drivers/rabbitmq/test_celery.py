"""What becomes of Celery's messages, as Celery itself wrote them (scripts/capture_peers.py)."""

from __future__ import annotations

import base64
import json
import pickle
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import amqp
import pytest

from qframe import foreign
from qframe.contracts.step import Release
from qframe.drivers.broker.message import BrokerMessage
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.celery import TranslatedDelivery, for_celery, translated
from qframe.drivers.rabbitmq.delivery import Delivery
from qframe.exceptions import BackendUnavailable, InvalidPayload
from qframe.payload import envelope
from tests.drivers.broker.acts import begin, do, taken
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.process import wait_for
from tests.support.rabbitmq_server import RabbitmqServer

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "celery.json").read_text())


def delivered(name: str, body: bytes | None = None, **headers: object) -> TranslatedDelivery:
    """Translate a recorded message, with some things changed."""
    message = RECORDED[name]
    raw = base64.b64decode(message["body"]) if body is None else body
    all_headers = {**message["headers"], **headers}
    kind = message["content_type"]
    found = translated(Delivery("q", raw, all_headers, "", 1, 1, kind), {"old": "new"}, 10_000)
    assert found is not None
    return found


def payload(name: str, body: bytes | None = None, **headers: object) -> dict[str, Any]:
    return envelope.parse(delivered(name, body, **headers).raw)


@pytest.mark.parametrize(
    "hostile",
    [
        {"uuid": "u" * 200, "displayName": [1]},
        {"displayName": 10**30},
        {"expiresAt": 1e300, "timeout": 10**30},
        {"data": None},
        {"uuid": "\N{PILE OF POO}" * 100},
        {"uuid": "u" * 300},
        {"uuid": "a\nb"},
        {"data": "text"},
        {"data": 3},
        {"job": ""},
        {"job": 3},
    ],
)
def test_whatever_was_pushed_raw_becomes_a_message_that_can_be_sent(
    hostile: dict[str, Any],
) -> None:
    """What Celery could not read is pushed as it is."""
    job = {"uuid": "u", "job": "proj.add", "wire": "celery", "data": [1]}
    raw = json.dumps({**job, **hostile}).encode()
    message = for_celery(BrokerMessage("i", "q", raw))
    if message is not None:
        message._serialize_properties()
        args, kwargs, _ = json.loads(message.body)
        assert (type(args), type(kwargs)) == (list, dict)


@pytest.mark.parametrize("name", ["plain", "gzip", "bzip2", "later", "expired", "retried"])
def test_a_call_becomes_a_payload(name: str) -> None:
    made = payload(name)
    assert (made["uuid"], made["job"]) == (f"add-{name}", "shop.add")
    data = {"args": [1], "kwargs": {"y": 2}} if name == "plain" else {"args": [1, 2], "kwargs": {}}
    assert made["data"] == data


def test_eta_expiry_retries_and_limits_are_kept() -> None:
    later = delivered("later").delay + time.time()
    assert later == pytest.approx(datetime(2100, 1, 1, tzinfo=UTC).timestamp(), abs=60)
    assert delivered("plain", eta="2020-01-01T00:00:00").delay == 0
    expired = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    assert payload("expired")["expiresAt"] == expired
    assert delivered("retried").attempts == 2
    limited = payload("limited")
    assert (limited["timeout"], limited["ownTimeout"]) == (20, True)
    assert limited["displayName"] == "the sum"
    assert payload("plain", timelimit=[30, None])["timeout"] == 30
    assert payload("plain", task="old")["job"] == "new"


@pytest.mark.parametrize(
    ("name", "body", "headers", "why"),
    [
        ("pickled", None, {}, "pickled, which is never read here"),
        ("lzma", None, {}, "compressed as application/x-lzma; only gzip and bzip2 are read"),
        ("plain", None, {"compression": ["gzip"]}, "it is compressed as"),
        ("chained", None, {}, "it has a chain, which only Celery's workers continue"),
        ("linked", None, {}, "it has a callback, which"),
        ("plain", b"[]", {}, "its body is not that of Celery's protocol 2"),
        ("plain", b"[1, {}, null]", {}, "its body is not that of Celery's protocol 2"),
        ("plain", b"{", {}, "its body is no JSON"),
        ("plain", b"[[NaN], {}, {}]", {}, "its body is no JSON"),
        ("plain", None, {"eta": "soon"}, "its eta is no time"),
        ("plain", None, {"eta": float("nan")}, "its eta is no time"),
        ("gzip", b"no", {}, "its body cannot be decompressed"),
        ("gzip", zlib.compress(b" " * 20_000), {}, "more than 10,000 bytes"),
    ],
)
def test_what_cannot_be_run_is_a_job_that_fails_with_the_reason(
    name: str, body: bytes | None, headers: dict[str, object], why: str
) -> None:
    made = payload(name, body, **headers)
    assert envelope.display_name(made) == "shop.add"
    assert made["uuid"] == RECORDED[name]["headers"]["id"]
    with pytest.raises(InvalidPayload, match=why):
        envelope.job_name(made)
    kept = base64.b64decode(made["data"]["body"])
    assert kept == (base64.b64decode(RECORDED[name]["body"]) if body is None else body)


def test_nothing_is_unpickled() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("unpickled",)

    assert payload("pickled", pickle.dumps(Bomb()))["job"] is None


def test_messages_of_others_are_left_alone() -> None:
    assert translated(Delivery("q", b"{}", {"task": "x"}, "", 1, 1, ""), {}, 100) is None
    assert translated(Delivery("q", b"{}", {"task": 7, "id": "x"}, "", 1, 1, ""), {}, 100) is None


def test_a_task_that_is_tried_again_is_another_message() -> None:
    first, same, again = (
        delivered("plain"),
        delivered("plain", None, **{"x-a": 1}),
        delivered("retried"),
    )
    assert first.id == same.id
    assert first.id != again.id


def test_what_is_written_for_celery_is_what_it_writes() -> None:
    job = foreign("shop.add", [1, 2], wire="celery", timeout=30, display_name="the sum")
    made = for_celery(BrokerMessage("id", "q", envelope.encode(envelope.create(job))))
    assert made is not None
    recorded = RECORDED["limited"]
    assert made.application_headers.keys() == recorded["headers"].keys()
    for key in ("task", "shadow", "eta", "group", "retries", "lang", "stamps", "ignore_result"):
        assert made.application_headers[key] == recorded["headers"][key]
    assert made.application_headers["timelimit"] == [30, None]
    assert json.loads(made.body) == json.loads(base64.b64decode(recorded["body"]))
    for key in ("content_type", "content_encoding"):
        assert made.properties[key] == recorded[key]
    assert made.properties["correlation_id"] == made.application_headers["id"]


@pytest.mark.parametrize("raw", [b'{"data":{"wire":"celery"}}', b'{"wire"', b'{"wire":"php"}'])
def test_only_what_asks_for_it_is_written_for_celery(raw: bytes) -> None:
    assert for_celery(BrokerMessage("id", "q", raw)) is None


def publish(server: RabbitmqServer, queue: str, name: str, **headers: object) -> None:
    """Publish a recorded message as Celery does."""
    message = RECORDED[name]
    made = amqp.Message(
        base64.b64decode(message["body"]),
        content_type=message["content_type"],
        content_encoding=message["content_encoding"],
        application_headers={**message["headers"], **headers},
        **message["properties"],
    )
    with server.client() as channel:
        channel.basic_publish(made, "", queue)


def test_a_message_in_celerys_own_queue_is_worked_on(
    server: RabbitmqServer, backend: RabbitmqBackend, connect: Connect, prefix: str
) -> None:
    with server.client() as channel:  # as Celery declares it
        channel.queue_declare(f"{prefix}default", durable=True, auto_delete=False)
    publish(server, f"{prefix}default", "retried")
    job = begin(backend)
    assert (envelope.parse(job.raw_body)["uuid"], job.attempts) == ("add-retried", 3)
    backend.close()  # as if its worker died
    other = connect()
    job = begin(other)
    assert job.attempts == 4
    do(other, job, Release(0))
    job = begin(other)
    assert (envelope.parse(job.raw_body)["uuid"], job.attempts) == ("add-retried", 5)
    do(other, job)
    assert taken(other) is None


def test_an_eta_is_a_delay_that_holds_no_message(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    assert taken(backend) is None
    due = datetime.now(UTC) + timedelta(seconds=3)
    for _ in range(2):  # published twice, as Celery may after a lost connection
        publish(server, f"{prefix}default", "later", eta=due.isoformat())
    publish(server, f"{prefix}default", "plain")
    job = begin(backend)
    assert envelope.parse(job.raw_body)["uuid"] == "add-plain"
    do(backend, job)
    assert taken(backend) is None
    sizes = backend.sizes("default")
    assert (sizes.ready, sizes.delayed) == (0, 1)
    found: list[str] = []

    def comes() -> bool:
        if (there := taken(backend)) is not None:
            assert datetime.now(UTC) >= due
            found.append(envelope.parse(there.raw_body)["uuid"])
            assert there.attempts == 0
            do(backend, there)
        return bool(found)

    wait_for(comes, "the job that was delayed")
    assert found == ["add-later"]
    assert taken(backend) is None
    backend.close()  # which would put back what is held
    assert server.ready(f"{prefix}default") == 0


def test_an_eta_waits_for_the_store_and_nothing_is_lost(
    server: RabbitmqServer,
    backend: RabbitmqBackend,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object) -> NoReturn:
        raise BackendUnavailable("the store is away")

    assert taken(backend) is None
    for name in ("plain", "later"):
        publish(server, f"{prefix}default", name)
    with monkeypatch.context() as away:
        away.setattr(backend._facts(), "apply", lost)
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="the store is away"):
                backend.reserve(["default"], 2)
    jobs, _ = backend.reserve(["default"], 2)
    assert [envelope.parse(each.raw_body)["uuid"] for each in jobs] == ["add-plain"]
    assert backend.sizes("default").delayed == 1
    backend.close()
    assert server.ready(f"{prefix}default") == 1  # the plain one was only held
