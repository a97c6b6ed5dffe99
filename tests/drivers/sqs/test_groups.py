"""FIFO queues: order within a group, and no copy of a push; fair queues know the groups of jobs."""

from __future__ import annotations

import json

from qframe.contracts.step import Outcome, Push, Release, Start, Step
from qframe.drivers.sqs.backend import SqsBackend
from tests.drivers.broker.acts import LEASE, begin, do, push, taken
from tests.drivers.sqs.conftest import Connect
from tests.support.sqs_server import SqsServer

QUEUE = "ledger.fifo"


def body(n: int, group: str | None = None) -> bytes:
    return json.dumps({"n": n, **({"group": group} if group else {})}).encode()


def test_jobs_of_a_group_run_one_after_the_other_and_others_beside_them(
    backend: SqsBackend, connect: Connect
) -> None:
    push(backend, body(1, "a"), body(2, "a"), body(3, "b"), body(4, "a"), queue=QUEUE)
    other = connect()
    jobs, _ = backend.reserve([QUEUE], 10)
    assert [job.raw_body for job in jobs] == [body(1, "a"), body(3, "b")]
    assert taken(other, QUEUE) is None
    backend.apply(*(Step(job, Start(LEASE)) for job in jobs))
    first, third = jobs
    backend.apply(third.delete(), first.delete())
    assert begin(other, QUEUE).raw_body == body(2, "a")
    assert taken(backend, QUEUE) is None


def test_a_job_that_is_tried_again_keeps_its_place(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, body(1, "a"), body(2, "a"), queue=QUEUE)
    job = begin(backend, QUEUE)
    assert do(backend, job, Release(30)) is Outcome.APPLIED
    assert taken(backend, QUEUE) is None
    server.timing.skew += 31
    again = begin(backend, QUEUE)
    assert (again.raw_body, again.attempts) == (body(1, "a"), 2)


def test_jobs_without_a_group_are_one_group(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, body(1), body(2), queue=QUEUE)
    assert {each.group for each in server.queues[QUEUE].messages} == {QUEUE}
    jobs, _ = backend.reserve([QUEUE], 10)
    assert [job.raw_body for job in jobs] == [body(1)]


def test_a_delay_is_a_fact_as_a_fifo_queue_has_none(server: SqsServer, backend: SqsBackend) -> None:
    push(backend, body(1), queue=QUEUE, delay=30)
    assert QUEUE not in server.queues or not server.queues[QUEUE].messages
    server.timing.skew += 31
    assert begin(backend, QUEUE).raw_body == body(1)


def test_a_push_whose_answer_was_lost_is_repeated_and_there_once(
    server: SqsServer, backend: SqsBackend
) -> None:
    server.lost = ["SendMessageBatch"]
    push(backend, body(1), body(2), queue=QUEUE)
    assert server.calls["SendMessageBatch"] == 2
    assert len(server.queues[QUEUE].messages) == 2


def test_the_same_bytes_twice_are_two_jobs_and_the_same_push_is_one(
    server: SqsServer, backend: SqsBackend
) -> None:
    push(backend, body(1), body(1), queue=QUEUE)
    for _ in range(2):
        backend.apply(Step(None, Push(QUEUE, body(2), id="outbox.1")))
    assert len(server.queues[QUEUE].messages) == 3


def test_a_standard_queue_is_told_the_group(server: SqsServer, backend: SqsBackend) -> None:
    names = ["tenant-7", "with space", "ä" * 200, None]
    push(backend, *(body(n, name) for n, name in enumerate(names)))
    groups = [each.group for each in server.queues["default"].messages]
    assert groups[0] == "tenant-7"
    assert groups[3] == ""
    assert all(len(each) == 64 for each in groups[1:3])
    jobs, _ = backend.reserve(["default"], 10)
    assert len(jobs) == 4
