"""What RabbitMQ makes of messages: queues that are declared, confirms, order, waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import pytest

from qframe.contracts.queue import Sizes
from qframe.contracts.step import Outcome, Release
from qframe.drivers.broker.message import BrokerMessage
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.publisher import Publisher
from qframe.exceptions import BackendUnavailable, InvalidQueueName, PayloadTooLarge
from tests.drivers.broker.acts import begin, do, push, taken
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.process import wait_for
from tests.support.rabbitmq_server import RabbitmqServer


def test_a_message_is_persistent_in_a_durable_quorum_queue(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    push(backend, b"\x00\xff")
    with server.client() as channel:
        # the same declaration is no error, another one would be
        arguments = {"x-queue-type": "quorum"}
        channel.queue_declare(
            f"{prefix}default", durable=True, auto_delete=False, arguments=arguments
        )
        message = channel.basic_get(f"{prefix}default", no_ack=True)
    assert message.body == b"\x00\xff"
    assert message.properties["delivery_mode"] == 2


def test_what_others_published_is_worked_on(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    import amqp

    push(backend, b"ours")
    with server.client() as channel:
        message = amqp.Message(
            "d\u00e9j\u00e0", content_encoding="utf-8", application_headers={"a": 1}
        )
        channel.basic_publish(message, "", f"{prefix}default")
    assert begin(backend).raw_body == b"ours"
    job = begin(backend)
    assert (job.raw_body, job.attempts) == ("d\u00e9j\u00e0".encode(), 1)


def test_a_push_of_which_a_part_is_confirmed_is_in_doubt(
    backend: RabbitmqBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = Publisher._send_once, 0

    def refused(publisher: Publisher, messages: Sequence[BrokerMessage], ends: float) -> None:
        nonlocal sent
        sent += 1
        if sent % 2 == 0:
            error = BackendUnavailable("no node answers")
            error.in_doubt = False
            raise error
        send(publisher, messages, ends)

    monkeypatch.setattr(Publisher, "_send_once", refused)
    for count, in_doubt in ((501, True), (1, False)):
        sent += count == 1
        with pytest.raises(BackendUnavailable) as raised:
            push(backend, *(b"1" for _ in range(count)))
        assert raised.value.in_doubt is in_doubt


def test_the_order_of_the_queues_is_strict(backend: RabbitmqBackend) -> None:
    for number in range(3):
        push(backend, b"low%d" % number, queue="low")
        push(backend, b"high%d" % number, queue="high")
    found = [begin(backend, "high", "low").raw_body for _ in range(6)]
    assert found == [b"high0", b"high1", b"high2", b"low0", b"low1", b"low2"]


def test_an_idle_worker_is_woken_by_a_push(backend: RabbitmqBackend, connect: Connect) -> None:
    assert taken(backend, "a", "b") is None
    timer = threading.Timer(0.2, push, (connect(), b"1"), {"queue": "b"})
    timer.start()
    began = time.monotonic()
    backend.wait(["a", "b"], 60)
    assert time.monotonic() - began < 30
    job = taken(backend, "a", "b")
    assert job is not None
    assert (job.raw_body, job.attempts) == (b"1", 0)
    timer.join()


def test_an_idle_worker_is_woken_by_its_descriptor(backend: RabbitmqBackend) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    began = time.monotonic()
    backend.wait(["a"], 60, reader)
    assert time.monotonic() - began < 30
    os.close(reader)
    os.close(writer)


def test_one_message_of_those_that_come_at_once_is_kept(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"b", queue="b")
    push(backend, b"a", queue="a")
    backend.wait(["a", "b"], 60)
    first = begin(backend, "a", "b")
    second = begin(connect(), "a", "b")
    assert {first.raw_body, second.raw_body} == {b"a", b"b"}
    assert (first.attempts, second.attempts) == (1, 1)


def test_nothing_waits_behind_a_running_job(backend: RabbitmqBackend, connect: Connect) -> None:
    push(backend, b"1", b"2", b"3")
    backend.wait(["default"], 60)
    assert begin(backend).raw_body == b"1"
    other = connect()
    assert [begin(other).raw_body for _ in range(2)] == [b"2", b"3"]


def test_a_delay_is_kept_as_a_fact_until_it_ends(backend: RabbitmqBackend) -> None:
    push(backend, b"later", delay=60)
    push(backend, b"much later", delay=3600)
    assert taken(backend) is None
    assert backend.sizes("default").delayed == 2
    backend.timing.skew += 61
    began = time.monotonic()
    backend.wait(["default"], 60)
    assert time.monotonic() - began < 30
    assert begin(backend).raw_body == b"later"
    assert backend.sizes("default").delayed == 1


def test_a_released_message_comes_again_with_its_attempts(backend: RabbitmqBackend) -> None:
    push(backend, b"1")
    for attempt in (1, 2, 3):
        job = begin(backend)
        assert job.attempts == attempt
        do(backend, job, Release(0, notes=b"n%d" % attempt))
    last = taken(backend)
    assert last is not None
    assert (last.attempts, last.notes) == (3, b"n3")
    assert not last.worker_died


def test_what_is_ready_is_counted_and_purged(backend: RabbitmqBackend, connect: Connect) -> None:
    assert backend.sizes("default") == Sizes(unknown=frozenset({"reserved"}))
    push(backend, b"1", b"2", b"3")
    job = begin(backend)
    assert connect().sizes("default").counted == {
        "ready": 2, "delayed": 0, "reserved": None, "buried": 0,
    }  # fmt: skip
    assert connect().purge("default") == 2
    assert do(backend, job).name == "APPLIED"
    assert backend.purge("none") == 0


def test_many_messages_are_confirmed_together(backend: RabbitmqBackend) -> None:
    push(backend, *(b"%d" % number for number in range(1200)))
    assert backend.sizes("default").ready == 1200


def test_a_message_that_was_refused_is_sent_again_on_another_channel(
    backend: RabbitmqBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One opened before goes on asking the queue's old leader."""
    push(backend, b"0")
    plain, channels = Publisher._send_once, list[object]()

    def refused_once(self: Publisher, messages: Sequence[BrokerMessage], ends: float) -> None:
        channels.append(self.open())
        if len(channels) == 1:
            self._refused = [*messages]
        else:
            plain(self, messages, ends)

    monkeypatch.setattr(Publisher, "_send_once", refused_once)
    push(backend, b"1")
    assert channels[0] is not channels[1]
    assert backend.sizes("default").ready == 2


def test_jobs_are_taken_together_and_no_more_than_asked_for(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, *(b"%d" % number for number in range(30)))
    push(backend, b"low", queue="low")
    jobs, _ = backend.reserve(["default", "low"], 20)
    assert [each.raw_body for each in jobs] == [b"%d" % number for number in range(20)]
    assert connect().sizes("default").ready == 10
    done = [each.delete() for each in jobs]
    more, results = backend.reserve(["default", "low"], 20, first=[*done, done[0]])
    assert [each.outcome for each in results] == [Outcome.APPLIED] * 20 + [Outcome.LOST]
    assert [each.raw_body for each in more][-2:] == [b"29", b"low"]
    backend.close()
    again_there = connect()
    wait_for(lambda: again_there.sizes("default").ready == 10, "what was held")


def test_a_queue_that_somebody_deleted_is_declared_again(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    push(backend, b"1")
    server.delete(f"{prefix}default")
    push(backend, b"2")
    assert begin(backend).raw_body == b"2"


def test_a_message_that_is_too_large_is_refused(backend: RabbitmqBackend, connect: Connect) -> None:
    with pytest.raises(PayloadTooLarge, match="larger than"):
        push(backend, b"x" * (128 * 1024 * 1024 + 1))
    push(backend, b"1")
    assert begin(backend).raw_body == b"1"


def test_names_that_the_server_keeps_for_itself(backend: RabbitmqBackend, connect: Connect) -> None:
    backend.check_queue("amq.x")  # behind its prefix
    with pytest.raises(InvalidQueueName, match=r"amq\."):
        connect(prefix="").check_queue("amq.x")


def test_threads_push_at_once(backend: RabbitmqBackend) -> None:
    def many() -> None:
        for _ in range(20):
            push(backend, b"x")

    threads = [threading.Thread(target=many) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert backend.sizes("default").ready == 160
