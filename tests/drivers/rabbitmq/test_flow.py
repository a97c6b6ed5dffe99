"""Messages that come unasked while many brief jobs run, and what a delivery counts for."""

from __future__ import annotations

import os

import pytest

from qframe.contracts.step import APPLIED, LOST, Outcome, Release, Result, Start, Step
from qframe.drivers.broker.message import BrokerJob
from qframe.drivers.rabbitmq import consumer
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.delivery import Delivery
from tests.drivers.broker.acts import LEASE, again, begin, do, push, taken
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.process import wait_for


def some(backend: RabbitmqBackend, limit: int, *ended: BrokerJob) -> list[BrokerJob]:
    """Delete jobs, and reserve and start others, as a worker with slots does."""
    jobs, results = backend.reserve(["default"], limit, first=[job.delete() for job in ended])
    assert all(each.applied for each in results)
    assert all(each.applied for each in backend.apply(*(Step(job, Start(LEASE)) for job in jobs)))
    assert all(isinstance(job, BrokerJob) for job in jobs)
    return jobs  # type: ignore[return-value] # as was looked at


def flowing(backend: RabbitmqBackend) -> list[BrokerJob]:
    """Push a hundred messages, and take ten of them when they flow."""
    push(backend, *(b"%d" % number for number in range(100)))
    jobs = some(backend, 10)
    while backend._consumers.mine._flow is None:
        jobs = some(backend, 10, *jobs)
    while len(jobs) < 10:  # the others are on their way
        jobs += some(backend, 10 - len(jobs))
    return jobs


def at_once(backend: RabbitmqBackend) -> int:
    """Count the messages that the server has delivered, and that are not acknowledged."""
    mine = backend._consumers.mine
    mine._catch_up()
    return len(mine.held) + len(mine._arrived)


def beginning(backend: RabbitmqBackend, ended: int) -> list[BrokerJob]:
    """Let messages flow when so many of ten jobs have ended. Returns those that run."""
    push(backend, *(b"%d" % number for number in range(100)))
    jobs = some(backend, 10)
    return jobs[ended:] + some(backend, ended, *jobs[:ended])


def test_all_arrive_once_in_their_order_and_no_more_at_once_than_there_are_slots(
    backend: RabbitmqBackend,
) -> None:
    jobs = flowing(backend)
    mine = backend._consumers.mine
    seen = [job.raw_body for job in jobs]
    while jobs:
        ended, jobs = jobs[:4], jobs[4:]  # some run on
        more = some(backend, 10 - len(jobs), *ended)
        assert at_once(backend) <= 10
        jobs += more
        seen += [job.raw_body for job in more]
    assert seen == [b"%d" % number for number in range(100 - len(seen), 100)]
    assert some(backend, 10) == []
    assert mine._flow is None
    assert backend.sizes("default").ready == 0


@pytest.mark.parametrize("ended", [2, 5, 9])
def test_a_flow_that_begins_while_jobs_run_gets_their_slots_as_they_end(
    backend: RabbitmqBackend, ended: int
) -> None:
    jobs = beginning(backend, ended)
    assert at_once(backend) <= 10
    mine = backend._consumers.mine
    flow = mine._flow
    assert flow is not None
    assert flow.window == ended
    seen = [b"%d" % number for number in range(ended)] + [job.raw_body for job in jobs]
    while jobs:
        more = some(backend, 11 - len(jobs), jobs[0])
        assert at_once(backend) <= 10
        jobs = jobs[1:] + more
        seen += [job.raw_body for job in more]
    assert flow.window == 10
    assert len(flow.tags) > 1
    assert sorted(seen, key=int) == [b"%d" % number for number in range(100)]
    assert seen == sorted(seen, key=int)
    assert mine._flow is None


def test_a_flow_whose_first_jobs_run_on_is_no_idle_one(backend: RabbitmqBackend) -> None:
    jobs = beginning(backend, 2)
    wake, waker = os.pipe()
    os.write(waker, b"x")
    try:
        for job in jobs[:3]:  # of those that ran before, whose slots are free now
            assert do(backend, job) is Outcome.APPLIED
        while some(backend, 2):
            pass
        backend.wait(["default"], 5, wake)
    finally:
        os.close(wake)
        os.close(waker)
    assert backend._consumers.mine._flow is not None


def test_a_flow_whose_messages_are_long_on_their_way_does_not_end(
    backend: RabbitmqBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those on their way to a consumer that is cancelled would come behind all others."""
    jobs = flowing(backend)
    mine = backend._consumers.mine
    flow, has_input = mine._flow, mine._has_input
    on_their_way, waits = list[tuple[str, Delivery]](), list[float]()

    def has_input_later(seconds: float) -> bool:
        if seconds:
            waits.append(seconds)
            if len(waits) == 3:
                monkeypatch.undo()
                for each in on_their_way:
                    mine.arrive(*each)
        return has_input(seconds)

    monkeypatch.setattr(mine, "arrive", lambda *each: on_their_way.append(each))
    monkeypatch.setattr(mine, "_has_input", has_input_later)
    assert some(backend, 10, *jobs)
    assert len(waits) == 3
    assert mine._flow is flow


def test_what_flows_is_given_back_uncounted_by_a_worker_that_pauses(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    jobs = flowing(backend)
    left = backend.sizes("default").ready
    some(backend, 1, *jobs)
    backend.wait((), 0)
    other = connect()
    wait_for(lambda: other.sizes("default").ready >= left - 1, "the messages")
    found = [taken(other) for _ in range(left - 1)]
    assert {each.attempts for each in found if each is not None} == {0}
    assert None not in found


def test_a_flow_ends_when_a_job_takes_long(backend: RabbitmqBackend) -> None:
    jobs = flowing(backend)
    mine = backend._consumers.mine
    some(backend, 5, *jobs[:5])
    mine._oldest = (mine._oldest[0], mine._oldest[1] - 2 * consumer._BRIEF)
    some(backend, 1)
    assert mine._flow is None


def test_an_acknowledgement_of_several_leaves_those_that_run(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, *(b"%d" % number for number in range(6)))
    jobs = some(backend, 6)
    assert all(each.applied for each in backend.apply(*(jobs[n].delete() for n in (4, 0, 1, 3))))
    jobs[2].delivery[0].drop()
    other = connect()
    found = [again(other), again(other)]
    assert {(each.raw_body, each.attempts) for each in found} == {(b"2", 1), (b"5", 1)}
    assert taken(other) is None


def test_a_delivery_that_nobody_started_counts_for_nothing(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1")
    for _ in range(3):
        job = again(backend)
        assert (job.attempts, job.worker_died) == (0, False)
        job.delivery[0].drop()
    job = again(backend)
    assert do(backend, job, Start(LEASE)) is Outcome.APPLIED
    job.delivery[0].drop()
    again(backend).delivery[0].drop()
    other = connect()
    second = again(other)
    assert (second.attempts, second.worker_died) == (1, True)
    assert do(other, second, Start(LEASE)) is Outcome.APPLIED
    assert do(other, second, Release(0)) is Outcome.APPLIED


def test_a_first_start_is_known_wherever_the_message_comes_next(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1", b"2")
    first, beside = begin(backend), taken(backend)
    assert beside is not None
    first.delivery[0].drop()
    found = [again(connect()), again(connect())]
    assert {(each.raw_body, each.attempts) for each in found} == {(b"1", 1), (b"2", 0)}


def test_a_message_that_comes_again_and_again_counts_as_the_server_counts(
    backend: RabbitmqBackend,
) -> None:
    push(backend, b"1")
    job = taken(backend)
    assert job is not None
    job.attempts, job.deliveries = 10, 11
    assert backend.starts_before(job, None) == 10


def test_what_is_not_waited_for_is_answered_by_the_next_request(
    backend: RabbitmqBackend,
) -> None:
    push(backend, b"1", b"2", b"3")
    answers: list[list[Result]] = []
    jobs = some(backend, 3)
    backend.apply_async([jobs[0].delete()], answers.append)
    assert answers == []
    backend.read_replies()
    assert answers == [[APPLIED]]
    backend.apply_async([jobs[1].delete()], answers.append)
    assert backend.sizes("default").ready == 0
    assert answers == [[APPLIED]] * 2
    backend.apply_async([jobs[2].delete()], answers.append)
    assert backend.apply(Step(None)) == [APPLIED]
    assert answers == [[APPLIED]] * 3


def test_a_job_whose_start_is_lost_does_not_run(
    backend: RabbitmqBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(backend, b"1", b"2")
    answers: list[list[Result]] = []
    ended, starting = begin(backend), again(backend)

    def cut(_: object) -> None:  # as the heartbeat's thread notices it
        backend._consumers.mine.drop()

    monkeypatch.setattr(backend, "note_first_starts", cut)
    backend.apply_async([ended.delete(), Step(starting, Start(LEASE))], answers.append)
    assert answers == [[LOST, LOST]]


def test_an_acknowledgement_that_was_lost_is_not_said_to_be_done(
    backend: RabbitmqBackend, connect: Connect
) -> None:
    push(backend, b"1", b"2")
    answers: list[list[Result]] = []
    jobs = some(backend, 2)
    jobs[0].delivery[0]._channel.basic_ack(4711)  # no such delivery: the channel is closed
    backend.apply_async([jobs[0].delete()], answers.append)
    backend.read_replies()
    assert answers == [[LOST]]
    assert len([again(connect()), again(connect())]) == 2


def test_in_a_flow_the_answer_comes_without_a_wait(backend: RabbitmqBackend) -> None:
    answers: list[list[Result]] = []
    jobs = flowing(backend)
    mine = backend._consumers.mine
    backend.apply_async([jobs[0].delete(), jobs[1].delete()], answers.append)
    backend.apply_async([jobs[2].delete()], answers.append)
    before = len(answers)

    def is_answered() -> bool:
        mine.read_pending()
        return not mine.is_unproved

    wait_for(is_answered, "the answer")
    backend.read_replies()
    assert before < 2
    assert answers == [[APPLIED] * 2, [APPLIED]]
    assert not mine.started._facts.keys() & {job.id for job in jobs[:3]}


def test_in_a_flow_a_lost_acknowledgement_is_not_said_to_be_done(backend: RabbitmqBackend) -> None:
    answers: list[list[Result]] = []
    jobs = flowing(backend)
    jobs[0].delivery[0]._channel.basic_ack(4711)  # no such delivery: the channel is closed
    backend.apply_async([jobs[0].delete()], answers.append)
    backend.read_replies()
    assert answers == [[LOST]]


def test_large_and_empty_messages_flow_as_the_others(backend: RabbitmqBackend) -> None:
    bodies = [b"x" * (300_000 * (number % 3)) + b"%d" % number for number in range(20)]
    bodies[7] = b""
    push(backend, *bodies)
    seen, jobs, has_flowed = list[bytes](), some(backend, 5), False
    while jobs:
        seen += [job.raw_body for job in jobs]
        has_flowed = has_flowed or backend._consumers.mine._flow is not None
        jobs = some(backend, 5, *jobs)
    assert seen == bodies
    assert has_flowed
    push(backend, b"")
    assert [job.raw_body for job in some(backend, 1)] == [b""]
