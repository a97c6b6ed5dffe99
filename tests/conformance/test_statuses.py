"""What is kept of tracked jobs: the store by itself, and what queues and jobs write into it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.contracts import Cancelling, Capability, Job, JobStatus, Note, State, StatusStore
from qframe.contracts.status import FINAL
from qframe.drivers.base import HOLD
from qframe.exceptions import BackendUnavailable, LeaseLost
from qframe.failed.retry import retry
from qframe.status import cancel_on
from tests.conformance.drivers import RETRY_AFTER, Bench, RedisBench, SqliteBench
from tests.conformance.steps import TICK, begin, take

# -- the store ----------------------------------------------------------------------------------

KINDS: dict[str, type[Bench]] = {"sqlite": SqliteBench, "redis": RedisBench}


@pytest.fixture(params=list(KINDS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StatusStore]:
    made = KINDS[request.param](tmp_path)
    own = made.queue.own_statuses()
    assert own is not None
    yield own
    made.close()


QUEUED = '{"name":"x.Test","connection":"here","queue":"default","at":1000.5}'


def note(state: State, attempt: int = 0, life: int = 0, **more: object) -> Note:
    fields = {"counted": attempt, "ttl": 60.0, "queued": QUEUED, **more}
    return Note(uuid="a", life=life, attempt=attempt, state=state, **fields)  # type: ignore[arg-type]


def state(store: StatusStore) -> tuple[State, int, int]:
    found = store.read("a")
    assert found is not None
    return found.state, found.attempt, found.retries


def test_what_was_written_is_read(store: StatusStore) -> None:
    assert store.read("a") is None
    assert store.write(note(State.WAITING, started="", ended="", progress=""))
    assert store.read("a") == JobStatus("a", State.WAITING, "x.Test", "here", "default", 0, 1000.5)
    assert store.write(
        note(State.RUNNING, 1, started='{"at":2.5,"host":"h","pid":7}', ended="", progress="")
    )
    assert store.progress(note(State.RUNNING, 1, progress='{"done":0.5,"text":"h\\u00e4lf\\n"}'))
    assert store.write(
        note(State.FAILED, 1, ended='{"at":3.5,"error":["ValueError","no"],"remark":"r"}')
    )
    assert store.read("a") == JobStatus(
        "a", State.FAILED, "x.Test", "here", "default", 1, 1000.5, 2.5, 3.5, "h", 7, 0.5,
        "hälf\n", None, ("ValueError", "no"), "r",
    )  # fmt: skip
    assert store.read("b") is None


@pytest.mark.parametrize("end", sorted(FINAL))
@pytest.mark.parametrize("late", list(State))
def test_a_final_state_is_final(store: StatusStore, end: State, late: State) -> None:
    assert store.write(note(State.RUNNING, 1))
    assert store.write(note(end, 1))
    for attempt in (0, 1, 2):
        assert not store.write(note(late, attempt))
    assert not store.progress(note(State.RUNNING, 1, progress='{"done":1}'))
    assert state(store) == (end, 1, 0)


def test_an_earlier_attempt_changes_nothing(store: StatusStore) -> None:
    assert store.write(note(State.RUNNING, 2, started='{"pid":2}'))
    for late in State:
        assert not store.write(note(late, 1, started='{"pid":1}'))
    assert not store.progress(note(State.RUNNING, 1, progress='{"done":1}'))
    assert store.progress(note(State.RUNNING, 2, progress='{"done":0.25}'))
    found = store.read("a")
    assert found is not None
    assert (found.state, found.pid, found.progress) == (State.RUNNING, 2, 0.25)


def test_an_attempt_that_is_not_counted_comes_again(store: StatusStore) -> None:
    assert store.write(note(State.RUNNING, 1, started='{"pid":1}'))
    assert store.write(note(State.WAITING, 1, counted=0))
    assert state(store) == (State.WAITING, 0, 0)
    assert store.write(note(State.RUNNING, 1, started='{"pid":2}'))
    assert state(store) == (State.RUNNING, 1, 0)


def test_a_push_said_again_does_not_put_a_status_back(store: StatusStore) -> None:
    assert store.write(note(State.WAITING))
    assert store.write(note(State.RUNNING, 1))
    assert not store.write(note(State.WAITING))
    assert state(store) == (State.RUNNING, 1, 0)


def test_a_new_life_begins_and_the_old_one_is_over(store: StatusStore) -> None:
    assert store.write(note(State.RUNNING, 3, started='{"pid":1}', progress='{"done":1}'))
    assert store.write(note(State.FAILED, 3, ended='{"remark":"no"}'))
    anew = QUEUED.replace("1000.5", "2000")
    assert store.write(note(State.WAITING, 0, 1, queued=anew))
    assert store.read("a") == JobStatus(
        "a", State.WAITING, "x.Test", "here", "default", 0, 2000, retries=1
    )
    for late in State:
        assert not store.write(note(late, 4, 0))
    assert store.write(note(State.RUNNING, 1, 1))
    assert state(store) == (State.RUNNING, 1, 1)


def test_what_was_known_at_dispatch_stays(store: StatusStore) -> None:
    store.write(note(State.WAITING))
    store.write(note(State.RUNNING, 1, queued=QUEUED.replace("1000.5", "null")))
    found = store.read("a")
    assert found is not None
    assert found.queued_at == 1000.5


def test_a_status_expires_and_each_write_puts_that_off(store: StatusStore) -> None:
    assert store.write(note(State.RUNNING, 1, ttl=0.4))
    time.sleep(0.25)
    assert store.progress(note(State.RUNNING, 1, ttl=0.4, progress='{"done":1}'))
    time.sleep(0.25)
    assert store.read("a") is not None
    time.sleep(0.3)
    assert store.read("a") is None
    assert not store.progress(note(State.RUNNING, 1, progress='{"done":1}'))
    assert store.write(note(State.WAITING)), "one that has expired is none"
    assert state(store) == (State.WAITING, 0, 0)


def test_only_what_was_never_started_is_withdrawn(store: StatusStore) -> None:
    store.withdraw("a")
    store.write(note(State.WAITING))
    store.withdraw("a")
    assert store.read("a") is None
    store.write(note(State.RUNNING, 1))
    store.withdraw("a")
    assert state(store) == (State.RUNNING, 1, 0)


# -- queues and jobs ----------------------------------------------------------------------------


def body(uuid: str = "a", **more: object) -> str:
    fields = {"uuid": uuid, "displayName": "x.Test", "job": "x.Test", "data": {}, "attempts": 0}
    times = {"createdAt": int(time.time()), "trackedSince": time.time()}
    return json.dumps({**fields, **times, "track": 1000, **more})


def push(bench: Bench, uuid: str = "a", delay: float = 0, **more: object) -> None:
    bench.queue.push_raw(body(uuid, **more), "default", delay)
    bench.forward(TICK)


def started(bench: Bench, uuid: str = "a") -> JobStatus:
    """Give the status of a job, which must be running."""
    found = status(bench, uuid)
    assert found.state is State.RUNNING
    return found


def status(bench: Bench, uuid: str = "a") -> JobStatus:
    found = bench.manager.statuses().read(uuid)
    assert found is not None
    return found


def note_start(job: Job) -> None:
    """Do what a worker does where the queue does not, of a job that runs on."""
    job.note_start()
    job.catch_up()


needs_jobs = pytest.mark.needs(Capability.RESERVE)


@needs_jobs
class TestJobs:
    def test_a_life(self, bench: Bench) -> None:
        before = time.time()
        push(bench)
        waiting = status(bench)
        assert (waiting.state, waiting.attempt, waiting.name) == (State.WAITING, 0, "x.Test")
        assert (waiting.connection, waiting.queue) == ("here", "default")
        assert waiting.queued_at is not None
        assert before - 1 < waiting.queued_at < time.time() + 1
        job = begin(bench)
        note_start(job)
        assert started(bench).attempt == 1
        assert started(bench).pid is not None
        job.progress(0.5, "half")
        assert (started(bench).progress, started(bench).message) == (0.5, "half")
        job.progress(0.75, "more")
        job.keep_result({"n": 1})
        job.delete()
        done = status(bench)
        assert (done.state, done.result, done.progress) == (State.COMPLETE, {"n": 1}, 0.75)
        assert done.ended_at is not None
        assert done.started_at is not None
        assert done.ended_at >= done.started_at >= waiting.queued_at

    def test_the_end_comes_with_the_next_start_or_reservation(self, bench: Bench) -> None:
        push(bench, "a")
        push(bench, "b")
        first = begin(bench)
        note_start(first)
        second = take(bench)
        assert status(bench, "a").state is State.RUNNING
        assert bench.queue.start(second, finished=first)
        note_start(second)
        assert bench.queue.reserve(["other"], finished=second) == []
        assert status(bench, "a").state is State.COMPLETE
        assert status(bench, "b").state is State.COMPLETE

    def test_released_and_failed(self, bench: Bench) -> None:
        push(bench)
        job = begin(bench)
        note_start(job)
        job.retry(0, "error", "ValueError: no")
        found = status(bench)
        assert (found.state, found.exception) == (State.RELEASED, ("ValueError", "no"))
        bench.forward(TICK)
        job = begin(bench)
        note_start(job)
        assert started(bench).exception is None
        job.release()
        assert status(bench).state is State.RELEASED
        bench.forward(TICK)
        job = begin(bench)
        note_start(job)
        job.fail(KeyError("gone"))
        found = status(bench)
        assert (found.state, found.attempt) == (State.FAILED, 3)
        assert found.exception == ("KeyError", "'gone'")

    def test_an_end_that_is_no_success(self, bench: Bench) -> None:
        push(bench)
        job = begin(bench)
        job.ends_as(State.SKIPPED, "it had expired")
        job.delete()
        assert (status(bench).state, status(bench).remark) == (State.SKIPPED, "it had expired")

    def test_where_it_costs_a_write_the_start_of_a_job_that_is_over_at_once_is_left_out(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if bench.queue.notes_starts:
            pytest.skip("it is written with the job's own move")
        push(bench)
        written: list[State] = []
        store = bench.manager.statuses()
        write = type(store).write

        def seen(self: StatusStore, note: Note) -> bool:
            written.append(note.state)
            return write(self, note)

        monkeypatch.setattr(type(store), "write", seen)
        job = begin(bench)
        job.note_start()
        job.delete()
        job.catch_up()
        # What the job's own move writes is not written by the store's `write`.
        assert written == ([] if bench.queue.noting else [State.COMPLETE])
        assert status(bench).started_at is not None

    def test_a_lost_lease_writes_nothing(self, bench: Bench) -> None:
        push(bench)
        late = begin(bench)
        note_start(late)
        bench.forward(RETRY_AFTER + HOLD + 1)
        job = begin(bench.another())
        note_start(job)
        late.keep_result("late")
        late.progress(1.0, "late")
        with pytest.raises(LeaseLost):
            late.delete()
        found = started(bench)
        assert (found.attempt, found.progress, found.result) == (2, None, None)
        job.delete()
        assert status(bench).state is State.COMPLETE

    def test_one_retried_by_hand_lives_anew(self, bench: Bench) -> None:
        push(bench)
        job = begin(bench)
        note_start(job)
        job.fail(ValueError("no"))
        failed = bench.manager.failed_store()
        record = failed.find("a")
        assert record is not None
        assert retry(bench.manager, failed, record)
        bench.forward(TICK)
        found = status(bench)
        assert (found.state, found.attempt, found.retries) == (State.WAITING, 0, 1)
        assert (found.exception, found.started_at, found.pid) == (None, None, None)
        job = begin(bench)
        note_start(job)
        job.fail(ValueError("again"))
        found = status(bench)
        assert (found.state, found.attempt, found.retries) == (State.FAILED, 1, 1)

    def test_many_at_once(self, bench: Bench) -> None:
        bench.queue._put_groups(
            [([(body("a").encode(), "a"), (b'{"uuid":"b"}', "b")], "default", 0),
             ([(body("c").encode(), "c")], "other", 0)]
        )  # fmt: skip
        store = bench.manager.statuses()
        assert [bool(store.read(uuid)) for uuid in "abc"] == [True, False, True]
        assert status(bench, "c").queue == "other"

    def test_what_is_not_tracked_leaves_no_status(self, bench: Bench) -> None:
        store = bench.manager.statuses()
        wrong: list[object] = [None, 0, -1, "yes", True, []]
        for number, track in enumerate(wrong):
            push(bench, f"job-{number}", track=track)
            job = begin(bench)
            note_start(job)
            job.progress(0.5)
            job.keep_result(1)
            job.delete()
            assert store.read(f"job-{number}") is None

    def test_a_status_that_cannot_be_written_is_no_failure_of_the_job(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if bench.queue.noting:
            pytest.skip("it is written with the job's own move")
        push(bench)

        def gone(*_: object) -> None:
            raise BackendUnavailable("gone")

        monkeypatch.setattr(bench.queue, "find_statuses", gone)
        job = begin(bench)
        note_start(job)
        job.progress(0.5)
        job.delete()
        assert job.is_deleted


@pytest.mark.needs(Capability.UNCOUNTED)
def test_given_back_uncounted_it_waits_again(bench: Bench) -> None:
    push(bench)
    for _ in range(2):
        job = begin(bench)
        note_start(job)
        assert started(bench).attempt == 1
        job.give_back()
        assert (status(bench).state, status(bench).attempt) == (State.WAITING, 0)
    held = take(bench)
    held.give_back()
    assert status(bench).state is State.WAITING


@pytest.mark.needs(Capability.BURY)
def test_buried_and_kicked(bench: Bench) -> None:
    push(bench)
    job = begin(bench)
    note_start(job)
    job.bury()
    assert status(bench).state is State.BURIED
    assert bench.queue.kick("default") == 1
    bench.forward(TICK)
    note_start(begin(bench))
    assert started(bench).attempt == 2


def cancel(bench: Bench, uuid: str) -> Cancelling | None:
    return cancel_on(bench.queue, uuid, running=False)


@pytest.mark.needs(Capability.CANCEL)
class TestCancel:
    def test_one_that_waits_or_is_delayed_is_removed(self, bench: Bench) -> None:
        for number in range(30):
            push(bench, f"job-{number}", delay=60 if number % 2 else 0)
        for number in (0, 1, 14, 15, 28, 29):
            assert cancel(bench, f"job-{number}") is Cancelling.REMOVED
            assert status(bench, f"job-{number}").state is State.CANCELLED
            assert cancel(bench, f"job-{number}") is None
        assert bench.queue.size("default") == 24

    def test_one_that_only_names_it_stays(self, bench: Bench) -> None:
        push(bench, "other", data={"after": "a-uuid-of-its-own"})
        assert cancel(bench, "a-uuid-of-its-own") is None
        assert cancel(bench, "%") is None
        assert bench.queue.size("default") == 1

    def test_one_held_or_running_stays_and_one_whose_lease_ran_out_goes(self, bench: Bench) -> None:
        push(bench)
        held = take(bench)
        assert bench.queue.cancel("a") is Cancelling.HELD
        assert bench.queue.start(held)
        note_start(held)
        assert bench.queue.cancel("a", "default") is Cancelling.RUNNING
        assert status(bench).state is State.RUNNING
        bench.forward(RETRY_AFTER + HOLD + 1)
        assert cancel(bench, "a") is Cancelling.REMOVED
        assert (status(bench).state, status(bench).attempt) == (State.CANCELLED, 1)
        with pytest.raises(LeaseLost):
            held.delete()
        assert status(bench).state is State.CANCELLED

    def test_buried(self, bench: Bench) -> None:
        push(bench)
        begin(bench).bury()
        assert cancel(bench, "a") is Cancelling.REMOVED
        assert bench.queue.sizes("default").buried == 0

    def test_one_that_is_not_tracked(self, bench: Bench) -> None:
        push(bench, track=None)
        assert cancel(bench, "a") is Cancelling.REMOVED
        assert bench.manager.statuses().read("a") is None
