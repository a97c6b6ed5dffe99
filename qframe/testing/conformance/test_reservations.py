"""Reservations: held, started, renewed, settled once, and fenced when their lease has passed on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import (
    Bury,
    Delete,
    Operation,
    Outcome,
    Push,
    Release,
    Renew,
    Reservation,
    Result,
    Set,
    Start,
    Step,
)
from qframe.testing.conformance.bench import Bench
from qframe.testing.conformance.steps import (
    QUEUE,
    apply,
    drained,
    needs,
    needs_lapse,
    push,
    reserve,
    started,
    tried,
)

OF_RESERVATION: Sequence[Operation] = [Start(60), Renew(60), Delete(), Release(), Bury()]


def _name(operation: Operation) -> str:
    return type(operation).__name__


# -- held -----------------------------------------------------------------------------------------


def test_what_is_held_is_nobody_elses(backend: Backend, other: Backend) -> None:
    push(backend, b"1")
    reserve(backend)
    assert not drained(other)


def test_what_is_held_and_not_started_comes_back_uncounted(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    needs(backend, Capability.COUNTS)
    bench.timing.hold = bench.seconds(10)
    push(backend, b"1", b"2")
    reserve(backend)
    bench.pass_time(20)
    job = reserve(other)
    assert (job.raw_body, job.attempts) == (b"1", 0)


def test_a_long_message_is_held_longer(bench: Bench, backend: Backend) -> None:
    needs(backend, Capability.AHEAD | Capability.COUNTS)
    bench.timing.hold = bench.seconds(1)
    bench.timing.bytes_a_second = int(1000 / bench.seconds(1))
    push(backend, b"x" * 30_000)
    reserve(backend)
    bench.pass_time(25)
    assert not drained(backend)
    bench.pass_time(10)
    assert drained(backend)


def test_the_lease_is_sure_no_longer_than_it_lasts(bench: Bench, backend: Backend) -> None:
    push(backend, b"1")
    job = reserve(backend)
    if Capability.AHEAD in backend.capabilities:
        assert job.sure_until <= backend.clock() + bench.timing.hold
    apply(backend, job, Start(60))
    assert job.sure_until <= backend.clock() + 120


# -- started --------------------------------------------------------------------------------------


def test_a_start_counts_an_attempt(bench: Bench, backend: Backend, other: Backend) -> None:
    push(backend, b"1")
    job, lease = reserve(backend), bench.seconds(60)
    apply(backend, job, Start(lease))
    assert (job.attempts, job.started, job.lease) == (1, True, lease)
    apply(backend, job, Release())
    again = started(other)
    assert again.attempts == 2


def test_a_start_said_twice_counts_once(backend: Backend) -> None:
    push(backend, b"1")
    job = reserve(backend)
    start = Step(job, Start(60))
    assert all(result.applied for result in backend.apply(start, start))
    apply(backend, job, Start(60))
    assert job.attempts == 1
    apply(backend, job, Release())
    assert reserve(backend).attempts == 1


def test_what_was_started_comes_back_when_nobody_renews_it(bench: Bench, backend: Backend) -> None:
    needs_lapse(bench)
    push(backend, b"1")
    started(backend, lease=bench.seconds(60))
    bench.pass_time(50)
    assert not drained(backend)
    bench.pass_time(20)
    job = reserve(backend)
    assert (job.raw_body, job.attempts) == (b"1", 1)


def test_what_nobody_renewed_comes_before_those_that_are_ready(
    bench: Bench, backend: Backend
) -> None:
    needs_lapse(bench)
    needs(backend, Capability.ORDER)
    push(backend, b"1", b"2", b"3")
    started(backend, lease=bench.seconds(60))
    bench.pass_time(70)
    push(backend, b"4")
    assert drained(backend) == [b"1", b"2", b"3", b"4"]


def test_a_renewed_lease_lasts_so_long_from_now(bench: Bench, backend: Backend) -> None:
    needs_lapse(bench)
    push(backend, b"1")
    job = started(backend, lease=bench.seconds(60))
    bench.pass_time(50)
    apply(backend, job, Renew(bench.seconds(60)))
    bench.pass_time(50)
    assert not drained(backend)
    bench.pass_time(20)
    assert drained(backend)


def test_a_start_that_is_told_counts_as_done_at_once(backend: Backend, other: Backend) -> None:
    push(backend, b"1")
    job = reserve(backend)
    heard: list[Result] = []
    backend.apply_async([Step(job, Start(60))], heard.extend)
    assert (job.started, job.attempts) == (True, 1)
    apply(backend, job, Release())
    assert [result.outcome for result in heard] == [Outcome.APPLIED]
    assert reserve(other).attempts == 1


def test_a_start_that_is_told_too_late_is_heard_of_at_the_next_call(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    needs_lapse(bench)
    needs(backend, Capability.COUNTS)
    bench.timing.hold = bench.seconds(10)
    push(backend, b"1")
    job = reserve(backend)
    bench.pass_time(20)
    started(other)
    heard: list[Result] = []
    backend.apply_async([Step(job, Start(bench.seconds(60)))], heard.extend)
    backend.reserve(["none"])
    assert [result.outcome for result in heard] == [Outcome.LOST]


# -- settled --------------------------------------------------------------------------------------


def test_a_deleted_message_is_gone(bench: Bench, backend: Backend) -> None:
    push(backend, b"1")
    apply(backend, started(backend), Delete())
    if bench.skews:
        bench.pass_time(10_000)
    assert not drained(backend)


def test_what_is_pushed_beside_the_end_of_a_job_is_there(backend: Backend) -> None:
    push(backend, b"1")
    apply(backend, started(backend), Push(QUEUE, b"2"), Delete())
    assert drained(backend) == [b"2"]


def test_one_that_is_only_held_can_be_settled(backend: Backend) -> None:
    push(backend, b"1", b"2", b"3")
    apply(backend, reserve(backend), Delete())
    apply(backend, reserve(backend), Release())
    jobs = [reserve(backend), reserve(backend)]
    assert sorted((job.raw_body, job.attempts) for job in jobs) == [(b"2", 0), (b"3", 0)]


def test_an_attempt_can_be_taken_back(backend: Backend) -> None:
    needs(backend, Capability.UNCOUNT)
    push(backend, b"1")
    apply(backend, started(backend), Release())
    apply(backend, started(backend), Release(counted=False))
    assert reserve(backend).attempts == 1


def test_of_one_that_was_never_started_no_attempt_is_taken_back(backend: Backend) -> None:
    needs(backend, Capability.UNCOUNT)
    push(backend, b"1")
    apply(backend, started(backend), Release())
    apply(backend, reserve(backend), Release(counted=False))
    assert reserve(backend).attempts == 1


@pytest.mark.parametrize("notes", [b"n", b"\x00\xff\n", b'{"a": []}', b"x" * 3000])
def test_notes_are_kept_beside_the_message(backend: Backend, other: Backend, notes: bytes) -> None:
    needs(backend, Capability.NOTES)
    push(backend, b"1")
    job = reserve(backend)
    assert job.notes == b""
    apply(backend, job, Start(60, notes))
    apply(backend, job, Release())
    job = reserve(other)
    assert (job.raw_body, job.notes) == (b"1", notes)
    apply(other, job, Release(notes=b"other"))
    assert reserve(backend).notes == b"other"


def test_notes_outlive_the_worker(bench: Bench, backend: Backend) -> None:
    needs_lapse(bench)
    needs(backend, Capability.NOTES | Capability.COUNTS)
    push(backend, b"1")
    apply(backend, reserve(backend), Start(bench.seconds(60), b"notes"))
    bench.pass_time(70)
    assert reserve(backend).notes == b"notes"


def test_notes_stay_with_one_that_is_buried(backend: Backend) -> None:
    needs(backend, Capability.NOTES | Capability.BURY)
    push(backend, b"1")
    job = reserve(backend)
    apply(backend, job, Start(60, b"started"))
    apply(backend, job, Bury(b"buried"))
    backend.kick(QUEUE)
    assert reserve(backend).notes == b"buried"


# -- fenced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", OF_RESERVATION, ids=_name)
@pytest.mark.parametrize("settling", [Delete(), Release(), Bury()], ids=_name)
def test_what_was_settled_is_lost(backend: Backend, settling: Operation, late: Operation) -> None:
    if Bury in {type(settling), type(late)}:
        needs(backend, Capability.BURY)
    push(backend, b"1")
    job = started(backend)
    apply(backend, job, settling)
    assert tried(backend, job, late).lost


@pytest.mark.parametrize("late", OF_RESERVATION, ids=_name)
def test_what_another_has_taken_is_lost(
    bench: Bench, backend: Backend, other: Backend, late: Operation
) -> None:
    needs_lapse(bench)
    push(backend, b"1")
    job = started(backend, lease=bench.seconds(60))
    bench.pass_time(70)
    theirs = started(other, lease=bench.seconds(60))
    assert tried(backend, job, late).lost
    bench.pass_time(50)
    assert not drained(backend), "the late step has moved the message"
    apply(other, theirs, Delete())
    bench.pass_time(200)
    assert not drained(backend)


def test_a_lost_step_does_nothing_at_all(bench: Bench, backend: Backend, other: Backend) -> None:
    needs_lapse(bench)
    needs(backend, Capability.FACTS)
    push(backend, b"1")
    job = started(backend, lease=bench.seconds(60))
    bench.pass_time(70)
    started(other)
    assert tried(backend, job, Push(QUEUE, b"2"), Set("key", "value"), Delete()).lost
    assert backend.read("key") == [None]
    assert not drained(backend)


def test_of_several_steps_each_is_applied_by_itself(backend: Backend) -> None:
    push(backend, b"1", b"2")
    gone, job = started(backend), started(backend)
    apply(backend, gone, Delete())
    results = backend.apply(gone.delete(), job.release(), Step(None, Push(QUEUE, b"3")))
    assert [result.outcome for result in results] == [
        Outcome.LOST, Outcome.APPLIED, Outcome.APPLIED,
    ]  # fmt: skip
    assert sorted(drained(backend)) == [b"2", b"3"]


def test_the_same_reservation_can_be_started_and_settled_in_one_exchange(backend: Backend) -> None:
    push(backend, b"1")
    job = reserve(backend)
    results = backend.apply(Step(job, Start(60)), job.delete(), job.delete())
    assert [result.outcome for result in results] == [
        Outcome.APPLIED, Outcome.APPLIED, Outcome.LOST,
    ]  # fmt: skip
    assert not drained(backend)


def test_a_step_without_operations_asks_for_the_fence(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    needs_lapse(bench)
    needs(backend, Capability.JOINT)
    push(backend, b"1")
    job = started(backend, lease=bench.seconds(60))
    assert tried(backend, job).applied
    bench.pass_time(70)
    started(other)
    assert tried(backend, job).lost


def test_each_reservation_of_a_message_has_a_fence_of_its_own(backend: Backend) -> None:
    needs(backend, Capability.UNCOUNT | Capability.AHEAD)
    push(backend, b"1")
    first = started(backend)
    apply(backend, first, Release(counted=False, notes=b""))
    second = reserve(backend)
    assert tried(backend, first, Delete()).lost
    apply(backend, second, Start(60))
    assert second.fence != first.fence
    assert tried(backend, first, Delete()).lost
    apply(backend, second, Delete())


# -- adopted --------------------------------------------------------------------------------------


def _adopted(bench: Bench, backend: Backend, other: Backend) -> tuple[Reservation, Reservation]:
    needs(backend, Capability.ADOPT)
    push(backend, b"1")
    job = reserve(backend)
    apply(backend, job, Start(bench.seconds(60), b"notes"))
    backend.close()  # its worker is dead
    found = other.adopt(job.fence)
    assert found is not None
    return job, found


def test_a_reservation_is_adopted_by_its_fence(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    job, found = _adopted(bench, backend, other)
    assert (found.raw_body, found.queue, found.attempts) == (b"1", QUEUE, 1)
    assert found.started
    if Capability.NOTES in backend.capabilities:
        assert found.notes == b"notes"
    apply(other, found, Release(counted=False))
    assert tried(backend, job, Delete()).lost
    assert reserve(other).attempts == 0


def test_what_was_settled_is_not_adopted(backend: Backend, other: Backend) -> None:
    needs(backend, Capability.ADOPT)
    push(backend, b"1")
    job = started(backend)
    apply(backend, job, Delete())
    assert other.adopt(job.fence) is None


def test_what_another_has_taken_is_not_adopted(
    bench: Bench, backend: Backend, other: Backend
) -> None:
    job, _ = _adopted(bench, backend, other)
    bench.pass_time(70)
    started(other)
    assert other.adopt(job.fence) is None
