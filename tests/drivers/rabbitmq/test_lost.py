"""A channel or connection that is lost takes its leases with it; what comes again is said so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from qframe.contracts.step import Outcome, Renew, Start
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.drivers.rabbitmq import consumer
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.sockets import readable
from qframe.exceptions import BackendUnavailable
from tests.drivers.broker.acts import LEASE, again, begin, do, push, taken
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.process import wait_for
from tests.support.rabbitmq_server import RabbitmqServer


def test_a_job_of_a_closed_connection_is_ready_at_once_and_lost_to_its_worker(
    server: RabbitmqServer, backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1")
    job = begin(backend)
    other = connect()
    assert taken(other) is None
    job.delivery[0].drop()
    second = again(other)
    assert (second.attempts, second.worker_died) == (1, True)
    assert job.sure_until == 0
    assert do(backend, job, Renew(LEASE)) is Outcome.LOST
    assert do(backend, job) is Outcome.LOST
    assert do(other, second, Start(LEASE)) is Outcome.APPLIED
    assert second.attempts == 2
    assert do(other, second) is Outcome.APPLIED


def test_a_channel_that_the_server_closed_is_noticed_by_the_renewal(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1", b"2")
    job, beside = begin(backend), begin(backend)
    job.delivery[0]._channel.basic_ack(4711)  # no such delivery: 406
    wait_for(lambda: do(backend, job, Renew(LEASE)) is Outcome.LOST, "the answer")
    assert do(backend, beside) is Outcome.LOST
    second = again(connect())
    assert second.raw_body in {b"1", b"2"}


def test_a_deletion_on_a_closed_channel_is_not_said_to_be_done(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1")
    job = begin(backend)
    job.delivery[0]._channel.basic_ack(4711)
    with pytest.raises(BackendUnavailable, match="PRECONDITION_FAILED"):
        do(backend, job)
    assert do(backend, job) is Outcome.LOST
    assert again(connect()).raw_body == b"1"


def test_a_process_that_stood_still_notices_the_loss_before_it_deletes(
    backend: RabbitmqBackend,
) -> None:
    push(backend, b"1")
    job = begin(backend)
    mine = job.delivery[0]
    mine._channel.basic_ack(4711)
    assert readable([mine.fileno()], 30)
    mine._spoke -= 2 * consumer._STILL
    assert do(backend, job) is Outcome.LOST


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_deletion_before_the_next_job_is_not_said_to_be_done(
    backend: RabbitmqBackend, connect: Connect, is_seen: bool
) -> None:
    push(backend, b"1", b"2")
    job = begin(backend)
    consumer = job.delivery[0]
    consumer._channel.basic_ack(4711)
    if is_seen:
        wait_for(lambda: consumer._has_input(0.0), "the answer")
        time.sleep(0.02)  # so long that the next use of the connection looks at it
    with pytest.raises(BackendUnavailable, match=r"PRECONDITION_FAILED"):
        backend.reserve(["default"], first=[job.delete()])
    assert do(backend, job) is Outcome.LOST
    other = connect()
    assert {again(other).raw_body for _ in range(2)} == {b"1", b"2"}


def test_the_server_is_killed_and_started_again(
    server: RabbitmqServer, backend: RabbitmqBackend
) -> None:
    push(backend, b"1", b"2")
    job = begin(backend)
    server.sync()
    server.kill()
    with pytest.raises(BackendUnavailable) as raised:
        push(backend, b"3")
    assert not raised.value.in_doubt
    with pytest.raises(BackendUnavailable):
        taken(backend)
    server.start()
    assert do(backend, job) is Outcome.LOST
    found = [again(backend) for _ in range(2)]
    assert {each.raw_body for each in found} == {b"1", b"2"}
    assert {each.worker_died for each in found} == {True, False}


def test_heartbeats_are_sent_beside_a_running_job(connect: Connect) -> None:
    backend = connect(heartbeat=1)
    push(backend, b"1")
    job = begin(backend)
    time.sleep(5)  # the server closes a silent connection after three seconds
    assert do(backend, job, Renew(LEASE)) is Outcome.APPLIED
    assert do(backend, job) is Outcome.APPLIED


def test_a_server_that_stands_still_is_noticed(server: RabbitmqServer, connect: Connect) -> None:
    backend = connect(heartbeat=1, timeout=1)
    push(backend, b"1")
    job = begin(backend)
    server.pause()
    try:
        wait_for(lambda: job.until == 0, "the end of the lease")
    finally:
        server.resume()
    assert again(backend).raw_body == b"1"


def test_a_push_that_is_not_confirmed_raises(server: RabbitmqServer, connect: Connect) -> None:
    backend = connect(timeout=0.5)
    push(backend, b"1")
    server.pause()
    try:
        with pytest.raises(BackendUnavailable, match="does not answer") as raised:
            push(backend, b"2")
    finally:
        server.resume()
    assert raised.value.in_doubt


def test_a_forked_child_uses_a_connection_of_its_own(backend: RabbitmqBackend) -> None:
    push(backend, b"1", b"2")
    job = begin(backend)
    child = os.fork()
    if child == 0:
        try:
            push(backend, b"3")
            is_own = do(backend, begin(backend)) is Outcome.APPLIED
            os._exit(0 if is_own else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert do(backend, job, Renew(LEASE)) is Outcome.APPLIED
    assert do(backend, job) is Outcome.APPLIED
    assert begin(backend).raw_body == b"3"


@pytest.mark.parametrize("is_started", [True, False])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_of_a_killed_process_is_ready_at_once(
    connect: Connect, number: signal.Signals, is_started: bool, tmp_path: Path
) -> None:
    facts = DatabaseBackend("f", DatabaseSettings(url=f"sqlite:///{tmp_path}/facts"))
    backend = connect(facts)
    push(backend, b"1")
    child = os.fork()
    if child == 0:
        (begin if is_started else taken)(backend)
        os.kill(os.getpid(), number)
        time.sleep(60)
        os._exit(0)
    os.waitpid(child, 0)
    second = again(backend)
    found = (second.raw_body, second.attempts, second.worker_died)
    assert found == (b"1", int(is_started), is_started)
    backend.close()
    facts.close()


def test_a_server_without_memory_takes_nothing_and_loses_nothing(
    server: RabbitmqServer, connect: Connect
) -> None:
    backend = connect(timeout=2)
    push(backend, b"1")
    server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.00001).")
    try:
        with pytest.raises(BackendUnavailable):
            push(connect(timeout=2), b"2")
        assert begin(backend).raw_body == b"1"
    finally:
        server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4).")
    wait_for(lambda: taken(backend) is None, "an empty queue")
    push(connect(), b"3")
    assert again(backend).raw_body == b"3"
