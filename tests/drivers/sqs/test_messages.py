"""What goes over the wire, in how many calls, and what becomes of a lease."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from typing import Any

import pytest

from qframe.contracts.step import (
    APPLIED,
    LOST,
    Delete,
    Outcome,
    Push,
    Release,
    Renew,
    Start,
    Step,
)
from qframe.drivers.sqs.backend import SqsBackend
from qframe.exceptions import BackendUnavailable, InvalidQueueName, PayloadTooLarge
from tests.drivers.broker.acts import LEASE, begin, do, push, taken
from tests.drivers.sqs.conftest import Connect
from tests.support.process import wait_for
from tests.support.sqs_server import Refusal, SqsServer

HOURS = 3600.0


def body(**more: object) -> bytes:
    return json.dumps({"uuid": "u", "job": "app.Job", "data": {}, **more}).encode()


# -- the wire -------------------------------------------------------------------------------------


def test_a_payload_is_the_body_as_laravel_reads_it(server: SqsServer, backend: SqsBackend) -> None:
    raw = '{"job": "é 🎈\\u0000", "data": []}'.encode()
    push(backend, raw)
    (message,) = server.queues["default"].messages
    assert message.body == raw.decode()
    assert begin(backend).raw_body == raw


@pytest.mark.parametrize(
    "raw", [b"\xff\x00", b"", "{\uffff}".encode(), b"\x01", "\ufeffx".encode()]
)
def test_what_is_no_text_for_sqs_comes_back_as_it_was(backend: SqsBackend, raw: bytes) -> None:
    push(backend, raw)
    assert begin(backend).raw_body == raw


def test_a_message_of_another_program(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, b"makes the queue")
    (message,) = server.queues["default"].messages
    message.attributes, message.body = {}, '{"job": "App\\\\Jobs\\\\Import@handle"}'
    message.receives = 1  # a worker of Laravel has had it
    job = taken(backend)
    assert job is not None
    assert (job.id, job.attempts, job.raw_body) == (message.id, 1, message.body.encode())


def test_a_message_that_is_too_large_is_refused(connect: Connect, server: SqsServer) -> None:
    backend = connect()
    longest = backend.longest_message()
    assert longest is not None
    push(backend, b"x" * longest)
    with pytest.raises(PayloadTooLarge, match="reference"):
        push(backend, b"x" * (longest + 2000))
    assert len(server.queues["default"].messages) == 1


# -- calls ----------------------------------------------------------------------------------------


def test_many_are_pushed_received_and_deleted_ten_at_a_time(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, *(b"%d" % number for number in range(25)))
    assert server.calls["SendMessageBatch"] == 3
    jobs, _ = backend.reserve(["default"], 25)
    assert len(jobs) == 25
    assert server.calls["ReceiveMessage"] == 3
    backend.apply(*(Step(job, Start(LEASE)) for job in jobs))
    backend.apply(*(Step(job, Delete()) for job in jobs))
    assert server.calls["DeleteMessageBatch"] == 3
    assert server.calls["DeleteMessage"] == server.calls["ChangeMessageVisibility"] == 0
    assert server.queues["default"].messages == []


def test_a_batch_that_is_not_deleted_holds_up_no_other(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, *(b"%d" % number for number in range(25)))
    jobs, _ = backend.reserve(["default"], 25)
    backend.apply(*(Step(job, Start(LEASE)) for job in jobs))
    server.refusals = [("DeleteMessageBatch", Refusal("InternalError", status=500))] * 2
    deletes = [Step(job, Delete()) for job in jobs]
    with pytest.raises(BackendUnavailable):
        backend.apply(*deletes)
    assert len(server.queues["default"].messages) == 10
    server.timing.skew += LEASE
    results = backend.apply(*deletes)  # what was deleted is, although its lease has ended
    assert results == [LOST] * 10 + [APPLIED] * 15


def test_a_release_that_is_refused_holds_up_no_deletion(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"1", b"2", b"3", b"4")
    jobs = [begin(backend) for _ in range(4)]
    server.refusals = [("ChangeMessageVisibility", Refusal("InternalError", status=500))] * 2
    steps = [Step(job, Release() if job is jobs[1] else Delete()) for job in jobs]
    with pytest.raises(BackendUnavailable):
        backend.apply(*steps)
    assert [each.body for each in server.queues["default"].messages] == ["2"]
    assert backend.apply(*steps)[2:] == [APPLIED, APPLIED]


def test_a_batch_has_no_more_bytes_than_sqs_takes(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, *(b"x" * 400_000 for _ in range(5)))
    assert server.calls["SendMessageBatch"] == 3
    assert backend.sizes("default").ready == 5


def test_a_plain_job_takes_three_calls_and_no_fact(server: SqsServer, connect: Connect) -> None:
    backend = connect()
    push(backend, b"1")
    server.calls.clear()
    push(backend, b"2")
    job = begin(backend)
    assert do(backend, job) is Outcome.APPLIED
    assert dict(server.calls) == {
        "SendMessageBatch": 1, "ReceiveMessage": 1, "DeleteMessage": 1,
    }  # fmt: skip
    assert backend._facts().scan("") == []


def test_only_what_sqs_did_not_take_is_sent_again(server: SqsServer, backend: SqsBackend) -> None:
    server.not_taken = [{1, 3}, {0}]
    push(backend, *(b"%d" % number for number in range(5)))
    bodies = [each.body for each in server.queues["default"].messages]
    assert sorted(bodies) == ["0", "1", "2", "3", "4"]
    assert server.calls["SendMessageBatch"] == 3


def test_only_what_sqs_did_not_delete_is_deleted_again(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"1", b"2", b"3")
    jobs = [begin(backend) for _ in range(3)]
    server.not_taken = [{1}]
    results = backend.apply(*(Step(job, Delete()) for job in jobs))
    assert all(result.applied for result in results)
    assert server.queues["default"].messages == []


def test_a_job_is_deleted_once_in_a_batch(backend: SqsBackend) -> None:
    push(backend, b"1", b"2")
    one, two = begin(backend), begin(backend)
    outcomes = [
        each.outcome for each in backend.apply(*(Step(j, Delete()) for j in (one, two, one)))
    ]
    assert outcomes == [Outcome.APPLIED, Outcome.APPLIED, Outcome.LOST]


def test_what_one_queue_gave_is_kept_if_the_next_refuses(connect: Connect) -> None:
    push(connect(), b"1", queue="a")
    backend = connect(create=False)
    jobs, _ = backend.reserve(["a", "missing"], 5)
    assert [(each.raw_body, each.attempts) for each in jobs] == [(b"1", 0)]
    with pytest.raises(BackendUnavailable, match="no queue missing"):
        backend.reserve(["a", "missing"], 5)


def test_a_push_of_which_sqs_took_a_part_is_in_doubt(
    server: SqsServer, backend: SqsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, call = 0, backend._client.on_queue

    def refuses_the_second(queue: str, action: str, **arguments: Any) -> dict[str, Any]:
        nonlocal sent
        sent += 1
        if sent == 2:
            error = BackendUnavailable("throttled")
            error.in_doubt = False
            raise error
        return call(queue, action, **arguments)

    monkeypatch.setattr(backend._client, "on_queue", refuses_the_second)
    with pytest.raises(BackendUnavailable) as raised:
        push(backend, *(b"%d" % number for number in range(15)))
    assert raised.value.in_doubt
    assert len(server.queues["default"].messages) == 10


def test_a_release_that_is_repeated_behind_the_end_of_the_job_brings_it_not_back(
    backend: SqsBackend, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(backend, b"1")
    job, other, call = begin(backend), connect(), backend._client.on_queue

    def loses_the_answer(queue: str, action: str, **arguments: Any) -> dict[str, Any]:
        if action == "change_message_visibility":
            call(queue, action, **arguments)
            assert do(other, begin(other)) is Outcome.APPLIED
        return call(queue, action, **arguments)

    monkeypatch.setattr(backend._client, "on_queue", loses_the_answer)
    do(backend, job, Release())
    assert taken(other) is None
    assert other.sizes("default").delayed == 0


@pytest.mark.parametrize("delay", [0, 60])
def test_a_release_without_an_answer_is_not_said_again(
    backend: SqsBackend, connect: Connect, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    """Another worker may have the message by then, and the old receipt is still good for it."""
    push(backend, b"1")
    job, call, calls = begin(backend), backend._client.call, list[str]()

    def without_an_answer(action: str, *, twice: bool = False, **arguments: Any) -> dict[str, Any]:
        for _ in range(1 + twice):
            calls.append(action)
            call(action, **arguments)
        raise BackendUnavailable("no answer")

    monkeypatch.setattr(backend._client, "call", without_an_answer)
    with pytest.raises(BackendUnavailable):
        do(backend, job, Release(delay))
    assert do(backend, job, Release(delay)) is Outcome.LOST
    assert calls == ["change_message_visibility"]
    other = taken(connect())
    assert (other is None) is bool(delay)


# -- leases ---------------------------------------------------------------------------------------


def test_a_job_is_hidden_for_its_lease_and_then_comes_again(
    server: SqsServer, backend: SqsBackend, connect: Connect
) -> None:
    push(backend, b"1")
    job, other = begin(backend), connect()
    server.timing.skew += 50
    assert do(backend, job, Renew(LEASE)) is Outcome.APPLIED
    server.timing.skew += 50
    assert taken(other) is None
    server.timing.skew += 11
    second = taken(other)
    assert second is not None
    assert second.attempts == 1
    assert do(backend, job) is Outcome.LOST
    assert do(other, second, Start(LEASE)) is Outcome.APPLIED


@pytest.mark.parametrize("operation", [Renew(LEASE), Release()])
def test_what_another_worker_has_received_is_not_taken_for_deleted(
    server: SqsServer,
    backend: SqsBackend,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    operation: Renew | Release,
) -> None:
    """SQS: "Message does not exist or is not available", of both."""
    push(backend, b"1")
    job, other, call = begin(backend), connect(), backend._client.call

    def late(action: str, **arguments: Any) -> dict[str, Any]:
        server.timing.skew += LEASE + 1
        begin(other)
        return call(action, **arguments)

    monkeypatch.setattr(backend._client, "call", late)
    assert do(backend, job, operation) is Outcome.LOST
    assert other.sizes("default").delayed == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_deletion_after_the_lease_does_not_count_although_sqs_takes_it(
    server: SqsServer,
    backend: SqsBackend,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    push(backend, *(b"%d" % number for number in range(count)))
    jobs, call = [begin(backend) for _ in range(count)], backend._client.call

    def late(action: str, **arguments: Any) -> dict[str, Any]:
        server.timing.skew += LEASE + 1
        again, _ = connect().reserve(["default"], count)
        assert len(again) == count
        return call(action, **arguments)

    monkeypatch.setattr(backend._client, "call", late)
    assert backend.apply(*(Step(job, Delete()) for job in jobs)) == [LOST] * count


def test_sqs_hides_a_message_for_twelve_hours_and_the_log_says_when_they_end(
    server: SqsServer, backend: SqsBackend, caplog: pytest.LogCaptureFixture
) -> None:
    push(backend, b"1")
    job = begin(backend)
    assert do(backend, job, Renew(HOURS)) is Outcome.APPLIED
    for _ in range(21):
        server.timing.skew += HOURS / 2
        assert do(backend, job, Renew(HOURS)) is Outcome.APPLIED
    assert not caplog.records
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            server.timing.skew += HOURS / 2
            assert do(backend, job, Renew(HOURS)) is Outcome.APPLIED
    (record,) = caplog.records
    assert "43140 seconds at most" in record.getMessage()
    server.timing.skew += HOURS / 2
    assert do(backend, job, Renew(HOURS)) is Outcome.LOST
    second = taken(backend)
    assert second is not None
    assert second.attempts == 1


def test_a_release_is_by_visibility_where_it_fits_and_by_a_fact_elsewhere(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"1")
    assert do(backend, begin(backend), Release(10 * HOURS, notes=b"n")) is Outcome.APPLIED
    (message,) = server.queues["default"].messages
    assert math.isclose(message.due - server.now(), 10 * HOURS, abs_tol=60)
    server.timing.skew += 10 * HOURS + 1
    job = taken(backend)
    assert job is not None
    assert (job.attempts, job.notes) == (1, b"n")
    assert do(backend, job, Start(LEASE)) is Outcome.APPLIED
    assert do(backend, job, Release(13 * HOURS)) is Outcome.APPLIED
    assert server.queues["default"].messages == []
    server.timing.skew += 13 * HOURS + 1
    assert begin(backend).attempts == 3


def test_a_delay_of_more_than_a_quarter_of_an_hour_is_kept_as_a_fact(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"soon", delay=899.5)
    push(backend, b"later", delay=901)
    assert [each.body for each in server.queues["default"].messages] == ["soon"]
    sizes = backend.sizes("default")
    assert (sizes.ready, sizes.delayed, sizes.approximate) == (0, 2, True)
    assert taken(backend) is None
    server.timing.skew += 902
    assert {begin(backend).raw_body for _ in range(2)} == {b"soon", b"later"}


# -- waiting --------------------------------------------------------------------------------------


def test_a_wait_that_is_woken_hides_no_message(
    server: SqsServer, backend: SqsBackend, connect: Connect
) -> None:
    other = connect()
    push(other, b"1")
    job = begin(other)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    began = time.monotonic()
    backend.wait(["default"], 60, reader)
    assert time.monotonic() - began < 30
    assert do(other, job, Release()) is Outcome.APPLIED  # the call that goes on gets it
    backend.close()
    assert server.in_flight("default") == []
    again = begin(other)
    assert (again.raw_body, again.attempts) == (b"1", 2)
    os.close(reader)
    os.close(writer)


def test_a_wait_goes_on_with_the_call_of_the_one_before(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, b"1")
    assert do(backend, begin(backend)) is Outcome.APPLIED
    server.calls.clear()
    for _ in range(20):
        backend.wait(["default"], 0.01)
    assert server.calls["ReceiveMessage"] <= 3


def test_one_message_of_those_that_come_at_once_is_kept(
    server: SqsServer, backend: SqsBackend, connect: Connect
) -> None:
    push(backend, b"b", queue="b")
    push(backend, b"a", queue="a")
    backend.wait(["a", "b"], 60)
    backend.wait(["a", "b"], 0)
    first = begin(backend, "a", "b")
    found = [first.raw_body]

    def comes() -> bool:
        job = taken(connect(), "a", "b")
        if job is not None:
            found.append(job.raw_body)
            assert job.attempts == 0
        return job is not None

    wait_for(comes, "the other")
    assert sorted(found) == [b"a", b"b"]


def test_an_idle_worker_is_woken_by_a_push(backend: SqsBackend, connect: Connect) -> None:
    timer = threading.Timer(0.2, push, (connect(), b"1"), {"queue": "b"})
    timer.start()
    began = time.monotonic()
    while (job := taken(backend, "a", "b")) is None:
        backend.wait(["a", "b"], 60)
        assert time.monotonic() - began < 60
    assert (job.raw_body, job.attempts) == (b"1", 0)
    timer.join()


# -- queues ---------------------------------------------------------------------------------------


def test_a_purge_spares_what_is_to_be_retried(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, b"runs", b"ready")
    push(backend, b"later", delay=10)
    push(backend, b"much later", delay=3600)
    job = begin(backend)
    assert backend.purge("default") == 3
    assert server.queues["default"].messages == []
    assert backend.purge("default") == 0
    assert do(backend, job, Renew(LEASE)) is Outcome.APPLIED
    assert do(backend, job, Release(5)) is Outcome.APPLIED
    server.timing.skew += 6
    again = begin(backend)
    assert (again.raw_body, again.attempts) == (b"runs", 2)


@pytest.mark.parametrize("name", ["a.b", "a:b", "x" * 81, "x.fifo.fifo", "x" * 76 + ".fifo"])
def test_names_that_sqs_cannot_have(backend: SqsBackend, name: str) -> None:
    with pytest.raises(InvalidQueueName, match="of SQS"):
        backend.check_queue(name)


def test_threads_push_at_once(server: SqsServer, backend: SqsBackend) -> None:
    def many() -> None:
        for _ in range(10):
            backend.apply(Step(None, Push("default", b"x")))

    threads = [threading.Thread(target=many) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert backend.sizes("default").ready == 60
