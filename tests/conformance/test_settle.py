"""What the end of a reservation promises: once, fenced, and nothing lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from qframe.contracts import Capability, FailedJob, FailedStore, Job
from qframe.drivers.reservation import BaseJob
from qframe.exceptions import JobAlreadySettled, LeaseLost
from tests.conformance.drivers import RETRY_AFTER, Bench
from tests.conformance.steps import at, begin, body, drain, push, take

pytestmark = pytest.mark.needs(Capability.RESERVE)


def _fail(job: Job) -> None:
    job.fail(ValueError("late"))


def _retry(job: Job) -> None:
    job.retry(0, "error", "late")


SETTLES: dict[str, Callable[[Job], None]] = {
    "delete": lambda job: job.delete(),
    "release": lambda job: job.release(),
    "release later": lambda job: job.release(30),
    "retry": _retry,
    "give back": lambda job: job.give_back(),
    "give back later": lambda job: job.give_back(30),
    "bury": lambda job: job.bury(),
    "fail": _fail,
    "fail unrun": lambda job: job.fail(ValueError("late"), ran=False),
}

NEEDED = {
    "release later": Capability.DELAY,
    "give back": Capability.UNCOUNTED,
    "give back later": Capability.UNCOUNTED | Capability.DELAY,
    "bury": Capability.BURY,
}


def settles(bench: Bench, *besides: str) -> dict[str, Callable[[Job], None]]:
    """Give the ways this driver can settle a started job."""
    return {
        name: act
        for name, act in SETTLES.items()
        if name not in besides and NEEDED.get(name, Capability.NONE) in bench.queue.capabilities
    }


class TestOnce:
    def test_a_second_settle_is_refused_and_changes_nothing(self, bench: Bench) -> None:
        for first, act in settles(bench).items():
            for second, again in settles(bench).items():
                push(bench, "a", queue="x")
                job = begin(bench, "x")
                act(job)
                with pytest.raises(JobAlreadySettled):
                    again(job)
                bench.forward(RETRY_AFTER + 1)
                if Capability.BURY in bench.queue.capabilities:
                    bench.queue.kick("x")
                gone = first in {"delete", "fail", "fail unrun"}
                assert drain(bench.queue, "x") == ([] if gone else ["a"]), (first, second)
                assert bench.failed.forget("a") == first.startswith("fail"), (first, second)

    @pytest.mark.needs(Capability.RENEW)
    def test_a_settled_job_cannot_be_renewed(self, bench: Bench) -> None:
        for act in settles(bench).values():
            push(bench, "a")
            job = begin(bench)
            act(job)
            with pytest.raises(JobAlreadySettled):
                job.renew()
            bench.forward(RETRY_AFTER + 1)
            drain(bench.queue)
            if Capability.BURY in bench.queue.capabilities:
                bench.queue.kick()
                drain(bench.queue)

    def test_a_job_knows_what_became_of_it(self, bench: Bench) -> None:
        expected = {
            "delete": (True, False, False),
            "fail": (True, False, True),
            "fail unrun": (True, False, True),
            "bury": (False, False, False),
        }
        for name, act in settles(bench).items():
            push(bench, "a", queue=name.replace(" ", "-"))
            job = begin(bench, name.replace(" ", "-"))
            assert (job.is_deleted, job.is_released, job.has_failed) == (False, False, False)
            assert not job.is_settled
            act(job)
            state = (job.is_deleted, job.is_released, job.has_failed)
            assert state == expected.get(name, (False, True, False)), name
            assert job.is_settled

    def test_the_error_it_was_failed_with_is_kept(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        assert job.failed_with is None
        error = ValueError("no")
        job.fail(error)
        assert job.failed_with is error


@pytest.mark.needs(Capability.FENCE)
class TestFence:
    def test_whoever_lost_the_lease_can_change_nothing(self, bench: Bench) -> None:
        """The other one has started it."""
        for name, act in settles(bench).items():
            push(bench, "a")
            late = begin(bench)
            bench.forward(RETRY_AFTER + 1)
            owner = begin(bench.another())
            with pytest.raises(LeaseLost):
                act(late)
            assert late.is_settled
            state = (late.is_deleted, late.is_released, late.has_failed)
            assert state == (False, False, False), name
            with pytest.raises(LeaseLost):
                act(late)
            assert bench.queue.reserve(["default"]) == [], name
            assert owner.attempts() == 2
            if name == "fail" and Capability.ATOMIC_FAIL in bench.queue.capabilities:
                assert bench.failed.count() == 0
            owner.delete()
            bench.forward(RETRY_AFTER + 1)
            assert bench.queue.reserve(["default"]) == [], name

    def test_nor_when_the_job_is_free_again(self, bench: Bench) -> None:
        """The other one has released it, so nobody holds it now."""
        for name, act in settles(bench).items():
            push(bench, "a")
            late = begin(bench)
            bench.forward(RETRY_AFTER + 1)
            begin(bench.another()).release()
            with pytest.raises(LeaseLost):
                act(late)
            job = take(bench)
            assert bench.queue.start(job)
            assert job.attempts() == 3, name
            job.delete()

    def test_nor_when_the_job_is_gone(self, bench: Bench) -> None:
        for name, act in settles(bench, "fail", "fail unrun").items():
            push(bench, "a")
            late = begin(bench)
            bench.forward(RETRY_AFTER + 1)
            begin(bench.another()).delete()
            with pytest.raises(LeaseLost):
                act(late)
            bench.forward(RETRY_AFTER + 1)
            assert bench.queue.reserve(["default"]) == [], name

    @pytest.mark.needs(Capability.UNCOUNTED)
    def test_nor_when_all_that_is_stored_looks_the_same(self, bench: Bench) -> None:
        """Given back uncounted and reserved anew, by the same process, the job is as before."""
        for name, act in settles(bench).items():
            push(bench, "a")
            late = begin(bench)
            bench.forward(RETRY_AFTER + 1)
            second = begin(bench)
            second.give_back()
            owner = begin(bench)
            assert owner.attempts() == 2
            assert owner.raw_body == late.raw_body
            with pytest.raises(LeaseLost):
                act(late)
            assert bench.queue.reserve(["default"]) == [], name
            owner.delete()
            bench.forward(RETRY_AFTER + 1)
            assert bench.queue.reserve(["default"]) == [], name
            bench.failed.flush()

    @pytest.mark.needs(Capability.AHEAD)
    def test_a_held_job_is_fenced_too(self, bench: Bench) -> None:
        for name, act in settles(bench).items():
            push(bench, "a")
            late = take(bench)
            bench.forward(2)
            owner = take(bench.another())
            with pytest.raises(LeaseLost):
                act(late)
            assert bench.queue.reserve(["default"]) == [], name
            owner.delete()
            assert bench.queue.reserve(["default"]) == [], name

    @pytest.mark.needs(Capability.RENEW)
    def test_a_lost_lease_cannot_be_renewed(self, bench: Bench) -> None:
        push(bench, "a")
        late = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        owner = begin(bench.another())
        with pytest.raises(LeaseLost):
            late.renew()
        bench.forward(RETRY_AFTER - 5)
        assert bench.queue.reserve(["default"]) == []
        bench.forward(10)
        assert take(bench).uuid == "a"
        assert owner.attempts() == 2
        with pytest.raises(LeaseLost):
            late.delete()

    def test_two_leases_of_one_job_are_told_apart_within_one_call_s_batch(
        self, bench: Bench
    ) -> None:
        push(bench, "a", "b")
        late = begin(bench)
        other = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        assert {take(bench).uuid, take(bench).uuid} == {"a", "b"}
        for job in (late, other):
            with pytest.raises(LeaseLost):
                job.delete()


@pytest.mark.needs(Capability.RENEW)
class TestRenew:
    def test_a_renewed_lease_lasts_from_then_on(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        for _ in range(3):
            bench.forward(RETRY_AFTER - 10)
            job.renew()
        bench.forward(RETRY_AFTER - 10)
        assert bench.another().reserve(["default"]) == []
        bench.forward(15)
        assert take(bench.another()).uuid == "a"

    def test_a_renewed_job_can_be_settled(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        bench.forward(RETRY_AFTER - 10)
        job.renew()
        bench.forward(20)
        job.delete()
        bench.forward(RETRY_AFTER + 1)
        assert bench.queue.reserve(["default"]) == []
        assert job.attempts() == 1


class TestRelease:
    @pytest.mark.by_readiness
    def test_a_released_job_is_ready_at_once_at_the_tail(self, bench: Bench) -> None:
        push(bench, *"abc")
        job = begin(bench)
        job.release()
        bench.forward(0.05)
        push(bench, "d")
        assert drain(bench.queue) == ["b", "c", "a", "d"]

    def test_its_attempts_are_kept(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).release()
        assert begin(bench).attempts() == 2

    @pytest.mark.needs(Capability.DELAY | Capability.SIZE)
    def test_released_with_a_delay_it_is_not_there_before(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).release(30)
        assert bench.queue.sizes() == at(delayed=1)
        bench.forward(25)
        assert bench.queue.reserve(["default"]) == []
        bench.forward(6)
        assert begin(bench).attempts() == 2

    def test_a_negative_delay_is_refused_and_the_job_still_held(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        with pytest.raises(ValueError, match="negative"):
            job.release(-1)
        assert not job.is_settled
        job.delete()

    @pytest.mark.needs(Capability.AHEAD)
    def test_a_held_job_can_be_released(self, bench: Bench) -> None:
        push(bench, "a", "b")
        take(bench).release()
        assert drain(bench.queue) == ["b", "a"]

    @pytest.mark.needs(Capability.HISTORY)
    def test_retry_keeps_how_it_ended(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).retry(0, "error", "ValueError: äö👍")
        begin(bench).retry(0, "timed out", "JobTimedOut: after 60 s")
        job = take(bench)
        first, second = job.history.attempts
        assert (first.ended, first.error) == ("error", "ValueError: äö👍")
        assert (second.ended, second.error) == ("timed out", "JobTimedOut: after 60 s")
        assert (job.history.exceptions, job.history.releases, job.attempts()) == (1, 0, 2)


@pytest.mark.needs(Capability.UNCOUNTED)
class TestGiveBack:
    def test_a_held_job_goes_to_the_head_of_its_queue(self, bench: Bench) -> None:
        push(bench, *"abc")
        take(bench).give_back()
        bench.forward(0.05)
        assert drain(bench.queue) == ["a", "b", "c"]

    def test_a_started_one_too_and_its_start_is_not_counted(self, bench: Bench) -> None:
        push(bench, *"abc")
        begin(bench).give_back()
        job = take(bench)
        assert (job.uuid, job.attempts()) == ("a", 0)
        assert bench.queue.start(job)
        assert job.attempts() == 1
        job.release()
        job = begin(bench, "default")
        assert job.uuid == ("b" if bench.by_readiness else "a")

    def test_attempts_before_this_one_stay_counted(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).retry(0, "error", "first")
        begin(bench).give_back()
        job = begin(bench)
        assert job.attempts() == 2
        if Capability.HISTORY in bench.queue.capabilities:
            assert [each.error for each in job.history.attempts] == ["first", ""]
            assert [each.number for each in job.history.attempts] == [1, 2]

    def test_several_given_back_last_first_are_in_order_again(self, bench: Bench) -> None:
        push(bench, *"abcd")
        jobs = bench.queue.reserve(["default"], 3)
        for job in reversed(jobs):
            job.give_back()
        assert drain(bench.queue) == ["a", "b", "c", "d"]

    def test_with_a_delay_it_is_not_there_before(self, bench: Bench) -> None:
        push(bench, "a", "b")
        begin(bench).give_back(30)
        assert drain(bench.queue) == ["b"]
        bench.forward(31)
        assert begin(bench).attempts() == 1

    @pytest.mark.needs(Capability.HISTORY)
    def test_refusals_are_counted(self, bench: Bench) -> None:
        push(bench, "a")
        take(bench).give_back(refused=True)
        begin(bench).give_back(refused=True)
        take(bench).give_back()
        job = take(bench)
        assert (job.history.refusals, job.attempts(), job.history.attempts) == (2, 0, ())


@pytest.mark.needs(Capability.BURY | Capability.SIZE)
class TestBury:
    def test_a_buried_job_stays_away_until_it_is_kicked(self, bench: Bench) -> None:
        push(bench, "a", "b")
        begin(bench).bury()
        assert bench.queue.sizes() == at(ready=1, buried=1)
        assert bench.queue.size() == 1
        bench.forward(10 * 365 * 86400)
        assert drain(bench.queue) == ["b"]
        assert bench.queue.kick() == 1
        assert bench.queue.sizes() == at(ready=1)
        job = begin(bench)
        assert (job.uuid, job.attempts()) == ("a", 2)

    def test_kick_acts_on_one_queue_and_on_buried_jobs_alone(self, bench: Bench) -> None:
        for queue in ("x", "y"):
            push(bench, f"{queue} buried", queue=queue)
            begin(bench, queue).bury()
            push(bench, f"{queue} late", queue=queue, delay=30)
        assert bench.queue.kick("x") == 1
        assert bench.queue.kick("x") == 0
        assert bench.queue.sizes("x") == at(ready=1, delayed=1)
        assert bench.queue.sizes("y") == at(delayed=1, buried=1)

    def test_a_held_job_can_be_buried(self, bench: Bench) -> None:
        push(bench, "a")
        take(bench).bury()
        bench.queue.kick()
        assert take(bench).attempts() == 0


class _Broken(FailedStore):
    """A failed store that cannot be written to."""

    def add(self, record: FailedJob) -> None:
        raise OSError("the disk is full")

    def find(self, uuid: str) -> FailedJob | None:
        return None

    def page(
        self, limit: int = 100, after: str | None = None, queue: str | None = None
    ) -> list[FailedJob]:
        return []

    def count(self) -> int:
        return 0

    def forget(self, uuid: str) -> bool:
        return False

    def flush(self, before: float | None = None) -> int:
        return 0


class TestFail:
    def test_a_failed_job_is_recorded_with_everything_and_gone(self, bench: Bench) -> None:
        raw = b'{"uuid":"u","displayName":"App\\\\Import","job":"x","data":[0.1,{}]}'
        bench.queue.push_raw(raw, "emails")
        begin(bench, "emails").retry(0, "error", "ValueError: first")
        job = begin(bench, "emails")
        cause = KeyError("the cause")
        try:
            raise ValueError("no ä👍") from cause
        except ValueError as error:
            job.fail(error)
        record = bench.failed.find("u")
        assert record is not None
        assert (record.uuid, record.connection, record.queue) == ("u", "here", "emails")
        assert record.payload == raw
        assert record.name == "App\\Import"
        assert record.attempts == 2
        assert "Traceback" in record.exception
        assert "KeyError: 'the cause'" in record.exception
        assert record.exception.strip().splitlines()[-1] == "ValueError: no ä👍"
        if Capability.HISTORY in bench.queue.capabilities:
            first, second = record.history.attempts
            assert (first.error, second.error) == ("ValueError: first", "ValueError: no ä👍")
            assert (second.host, second.pid) == (socket.gethostname(), os.getpid())
            assert record.history.exceptions == 2
        bench.forward(RETRY_AFTER + 1)
        assert bench.queue.reserve(["emails"]) == []

    def test_a_job_failed_before_it_ran_has_no_attempt_for_it(self, bench: Bench) -> None:
        push(bench, "a")
        begin(bench).release()
        begin(bench).fail(ValueError("tries are used up"), ran=False)
        record = bench.failed.find("a")
        assert record is not None
        assert record.attempts == 1
        if Capability.HISTORY in bench.queue.capabilities:
            assert len(record.history.attempts) == 1

    def test_failed_by_hand_it_says_so(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        job.fail()
        record = bench.failed.find("a")
        assert record is not None
        assert "JobFailedByHand" in record.exception
        assert type(job.failed_with).__name__ == "JobFailedByHand"

    def test_an_error_that_no_text_can_carry_is_recorded_all_the_same(self, bench: Bench) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        errors = [
            Mute(),
            ValueError("\ud800 lone"),
            ValueError("nul \x00"),
            ValueError("x" * 10**6),
        ]
        for number, error in enumerate(errors):
            push(bench, str(number))
            begin(bench).fail(error)
            assert bench.failed.find(str(number)) is not None
        assert drain(bench.queue) == []

    def test_when_recording_fails_the_job_is_kept(self, bench: Bench) -> None:
        push(bench, "a")
        job = begin(bench)
        bench.queue.failed_store = _Broken()
        with pytest.raises(OSError, match="disk is full"):
            job.fail(ValueError("no"))
        assert not job.is_settled
        assert not job.has_failed
        bench.queue.failed_store = bench.failed
        bench.forward(RETRY_AFTER + 1)
        again = begin(bench)
        assert (again.uuid, again.attempts()) == ("a", 2)

    @pytest.mark.in_client
    def test_when_the_backend_s_own_record_fails_the_job_is_kept(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        push(bench, "a")
        job = begin(bench)
        store = bench.queue.failed_store
        assert store is not None

        def broken(record: FailedJob) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(store, "add", broken)
            with pytest.raises(OSError, match="disk is full"):
                job.fail(ValueError("no"))
        assert not job.is_settled
        assert bench.failed.count() == 0
        job.fail(ValueError("at last"))
        assert bench.failed.count() == 1
        assert drain(bench.queue) == []

    @pytest.mark.needs(Capability.ATOMIC_FAIL)
    def test_a_stale_fail_leaves_no_record(self, bench: Bench) -> None:
        push(bench, "a")
        late = begin(bench)
        bench.forward(RETRY_AFTER + 1)
        begin(bench.another()).delete()
        with pytest.raises(LeaseLost):
            late.fail(ValueError("late"))
        assert bench.failed.count() == 0

    @pytest.mark.needs(Capability.ATOMIC_FAIL | Capability.DURABLE)
    @pytest.mark.in_client
    def test_failing_interrupted_half_way_leaves_the_job_where_it_was(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Removal and record are one step: what breaks between them undoes both."""
        push(bench, "a")
        job = begin(bench)
        store = bench.queue.failed_store
        assert store is not None
        add = store.add

        def interrupted(record: FailedJob) -> None:
            add(record)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(store, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                job.fail(ValueError("no"))
        assert bench.failed.count() == 0
        bench.forward(RETRY_AFTER + 1)
        assert begin(bench).uuid == "a"

    def test_failing_twice_under_one_uuid_keeps_the_last_record(self, bench: Bench) -> None:
        for text in ("first", "second"):
            bench.queue.push_raw(body("same"))
            begin(bench).fail(ValueError(text))
        assert bench.failed.count() == 1
        record = bench.failed.find("same")
        assert record is not None
        assert "second" in record.exception

    def test_a_reservation_has_one_name_for_its_record(self, bench: Bench) -> None:
        bench.queue.push_raw('{"job": "x.Test", "data": {}}')
        job = begin(bench)
        assert isinstance(job, BaseJob)
        first, second = (job.failure(ValueError("no"), counted=True) for _ in range(2))
        assert first.uuid == second.uuid
        assert first.uuid.startswith(job.uuid)
