"""The status of tracked jobs, as real workers leave it; and cancelling."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Any

import pytest

from qframe import JobStatus, NotTracked, State, WaitTimedOut, job_status, manager
from qframe.dispatch.status import wait_for as wait_for_job
from qframe.features import status
from tests.support.process import Process, Project, wait_for

pytestmark = pytest.mark.on_redis_too


def read(project: Project, uuid: str) -> JobStatus:
    found = status.read(project.queue.backend, uuid)
    assert found is not None
    return found


def until(project: Project, uuid: str, state: State) -> JobStatus:
    wait_for(lambda: read(project, uuid).state is state, f"{state}, not {read(project, uuid)}")
    return read(project, uuid)


def push(project: Project, job: str, data: object = None, delay: float = 0, **more: Any) -> str:
    return project.push(job, data, delay=delay, track=1000, **more)


def steps(project: Project, delay: float = 0, **fields: object) -> str:
    more = {key: fields.pop(key) for key in ("maxTries", "backoff") if key in fields}
    return push(project, "Steps", fields, delay, **more)


def began(worker: Process, project: Project, uuid: str) -> None:
    project.wait_for_note("start")
    assert until(project, uuid, State.RUNNING).pid == worker.pid


# -- what becomes of a job ------------------------------------------------------------------------


@pytest.mark.every_backend
def test_it_waits_runs_and_is_complete(project: Project) -> None:
    uuid = steps(project, gives={"rows": [1, 2.5, "ä"]})
    waiting = read(project, uuid)
    assert (waiting.state, waiting.attempt, waiting.name) == (State.WAITING, 0, "Steps")
    worker = project.work()
    done = until(project, uuid, State.COMPLETE)
    assert (done.attempt, done.host, done.pid) == (1, socket.gethostname(), worker.pid)
    assert done.result == {"rows": [1, 2.5, "ä"]}
    assert (done.progress, done.message) == (1.0, "step 10"), "the last one is never lost"
    assert done.queued_at is not None
    assert done.started_at is not None
    assert done.ended_at is not None
    assert done.queued_at <= done.started_at < done.ended_at
    wait_for(project.empty, "its deletion")
    assert worker.stop() == 0


def test_progress_is_seen_while_it_runs_and_what_was_held_back_too(project: Project) -> None:
    uuid = steps(project, steps=2, pause=0.01, then_wait=3)
    worker = project.work()
    wait_for(lambda: read(project, uuid).message == "step 2", "the progress held back")
    assert read(project, uuid).state is State.RUNNING
    assert worker.stop() == 0
    assert read(project, uuid).state is State.COMPLETE


@pytest.mark.parametrize(
    ("gives", "result", "remark"),
    [
        (None, None, ""),
        (0, 0, ""),
        ("a set", [1, 2], ""),
        ("?", None, "the result is a object, which JSON cannot carry"),
        ("long", None, "the result has 70,002 bytes of JSON, more than 65,536"),
    ],
    ids=["none", "zero", "set", "object", "long"],
)
@pytest.mark.slow
def test_what_it_gives(project: Project, gives: object, result: object, remark: str) -> None:
    uuid = steps(project, steps=0, gives=gives)
    project.drain()
    found = read(project, uuid)
    assert (found.state, found.result, found.remark) == (State.COMPLETE, result, remark)


@pytest.mark.slow
def test_failed_retried_by_hand_and_done(project: Project) -> None:
    uuid = steps(project, steps=1, fails=True, maxTries=2, backoff="30")
    worker = project.work()
    found = until(project, uuid, State.RELEASED)
    assert (found.attempt, found.exception) == (1, ("ValueError", "not today"))
    assert worker.stop() == 0
    other = steps(project, steps=1, fails=True)
    project.drain()
    found = read(project, other)
    assert (found.state, found.exception) == (State.FAILED, ("ValueError", "not today"))
    assert project.qframe("retry", other).code == 0
    found = read(project, other)
    assert (found.state, found.attempt, found.retries) == (State.WAITING, 0, 1)
    project.drain()
    found = read(project, other)
    assert (found.state, found.attempt, found.retries) == (State.FAILED, 1, 1)


@pytest.mark.parametrize(
    ("settles", "state"),
    [("release", State.RELEASED), ("fail", State.FAILED), ("delete", State.COMPLETE)],
)
@pytest.mark.slow
def test_settled_by_itself(project: Project, settles: str, state: State) -> None:
    uuid = steps(project, steps=1, settles=settles)
    assert project.work("--max-jobs", 1).wait() == 0
    assert read(project, uuid).state is state


@pytest.mark.slow
def test_skipped(project: Project) -> None:
    uuid = push(project, "Note", expiresAt=time.time() - 5)
    project.drain()
    found = read(project, uuid)
    assert (found.state, found.remark) == (State.SKIPPED, "it had expired")


@pytest.mark.slow
def test_timed_out(project: Project) -> None:
    uuid = push(project, "Sleep", {"seconds": 30}, timeout=1.5, maxTries=1)
    assert project.work().wait() == 1
    found = read(project, uuid)
    assert found.state is State.FAILED
    assert found.exception is not None
    assert found.exception[0] == "JobTimedOut"


def test_given_back_at_a_second_stop(project: Project) -> None:
    uuid = push(project, "Sleep", {"seconds": 30})
    worker = project.work()
    began(worker, project, uuid)
    worker.signal(signal.SIGTERM)
    time.sleep(0.2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    told = "the worker was asked twice to stop"
    found = read(project, uuid)
    assert (found.state, found.attempt, found.remark) == (State.WAITING, 0, told)


def test_a_killed_worker_leaves_it_running_until_the_next_attempt(project: Project) -> None:
    project.configure(retry_after=1)
    uuid = push(project, "Sleep", {"seconds": 2}, maxTries=2)
    first = project.work()
    began(first, project, uuid)
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert (read(project, uuid).state, read(project, uuid).pid) == (State.RUNNING, first.pid)
    second = project.work("--max-jobs", 1)
    assert second.wait() == 0
    found = read(project, uuid)
    assert (found.state, found.attempt, found.pid) == (State.COMPLETE, 2, second.pid)


@pytest.mark.slow
def test_one_that_was_started_too_often_is_failed_with_its_reason(project: Project) -> None:
    project.configure(retry_after=1)
    uuid = push(project, "Kill", maxTries=1)
    assert project.work().wait() == -signal.SIGKILL
    assert project.work("--max-jobs", 1).wait() == 0
    found = read(project, uuid)
    assert found.state is State.FAILED
    assert found.exception is not None
    assert found.exception[0] == "MaxAttemptsExceeded"
    assert "started once" in found.exception[1]


@pytest.mark.slow
def test_a_stopped_worker_comes_back_too_late(project: Project) -> None:
    """Its job has been done by another: what it says of it is refused."""
    project.configure(retry_after=1)
    uuid = push(project, "Sleep", {"seconds": 2, "word": "two"}, maxTries=0)
    late = project.work()
    began(late, project, uuid)
    late.signal(signal.SIGSTOP)
    other = project.work()
    done = until(project, uuid, State.COMPLETE)
    assert (done.attempt, done.pid) == (2, other.pid)
    late.signal(signal.SIGCONT)
    wait_for(lambda: "LOST" in late.out or "lost" in late.err, "its report")
    assert read(project, uuid) == done
    assert late.stop() == 0
    assert other.stop() == 0


@pytest.mark.slow
def test_many_short_ones_by_two_workers_are_all_complete(project: Project) -> None:
    uuids = [push(project, "Note", {"word": str(number)}) for number in range(400)]
    workers = [project.work("--quiet", "--stop-when-empty") for _ in range(2)]
    for worker in workers:
        assert worker.wait(60) == 0, worker.err
    assert project.empty()
    assert {read(project, uuid).state for uuid in uuids} == {State.COMPLETE}
    pids = {read(project, uuid).pid for uuid in uuids}
    assert pids <= {worker.pid for worker in workers}


def test_in_a_process_of_its_own(project: Project) -> None:
    uuid = steps(project, gives=[1])
    project.drain("--isolate")
    found = read(project, uuid)
    assert (found.state, found.result) == (State.COMPLETE, [1])
    assert (found.progress, found.message) == (1.0, "step 10")
    uuid = push(project, "Note", expiresAt=time.time() - 5)
    project.drain("--isolate")
    assert read(project, uuid).state is State.SKIPPED


# -- asking ---------------------------------------------------------------------------------------


def test_from_a_program(project: Project) -> None:
    """Dispatched, tracked by its class or by the call, waited for."""
    worker = project.work()
    told = project.program(PROGRAM)
    assert told.code == 0, told.err
    assert json.loads(told.out) == ["COMPLETE", 5, "COMPLETE", None, "no status"]
    assert worker.stop() == 0


PROGRAM = """
import asyncio, json
from jobs import Note, Steps
from qframe import await_for, dispatch, job_status, wait_for
first = Steps.dispatch(steps=1, gives=5).send()
second = dispatch(Note()).track(60).send()
third = dispatch(Note()).send()
one = wait_for(first, 20)
async def later():
    return await await_for(second, 20)
two = asyncio.run(later())
print(json.dumps([one.state, one.result, two.state, two.result, job_status(third) or "no status"]))
"""


def test_waiting_ends_with_what_is_known(project: Project) -> None:
    uuid = push(project, "Note")
    manager.use(project.manager)
    try:
        before = time.monotonic()
        with pytest.raises(WaitTimedOut, match=r"is WAITING after 0\.3 s") as caught:
            wait_for_job(uuid, 0.3)
        assert 0.3 <= time.monotonic() - before < 30
        assert caught.value.status.state is State.WAITING
        with pytest.raises(NotTracked, match="not tracked, or expired"):
            wait_for_job("no-such-job", 0.3)
        assert job_status("no-such-job") is None
    finally:
        manager.use(None)


@pytest.mark.slow
def test_status_shows_it(project: Project) -> None:
    uuid = steps(project, steps=1, gives=[1])
    shown = project.qframe("status", uuid)
    assert shown.code == 0
    assert "state       WAITING" in shown.out
    project.drain()
    rows = dict(line.split(None, 1) for line in project.qframe("status", uuid).out.splitlines())
    assert (rows["uuid"], rows["state"], rows["progress"]) == (uuid, "COMPLETE", "100%")
    assert rows["result"] == "[1]"
    row = json.loads(project.qframe("status", uuid, "--json").out)
    assert (row["uuid"], row["state"], row["result"], row["attempt"]) == (uuid, "COMPLETE", [1], 1)


def test_status_follows_it_to_its_end(project: Project) -> None:
    good, bad = steps(project, steps=20, pause=0.05), steps(project, steps=1, fails=True)
    following = project.start("status", good, "--follow")
    wait_for(lambda: "WAITING" in following.out, "its first line")
    worker = project.work()
    told = following.finished()
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0] == "WAITING"
    assert any(line.startswith("RUNNING") and "step" in line for line in lines)
    assert "state       COMPLETE" in lines
    until(project, bad, State.FAILED)
    told = project.qframe("status", bad, "--follow", "--json")
    assert told.code == 1
    assert json.loads(told.out)["exception"] == {"type": "ValueError", "message": "not today"}
    assert worker.stop() == 0


@pytest.mark.slow
def test_status_of_one_that_is_not_tracked(project: Project) -> None:
    uuid = project.push("Flaky", maxTries=1)
    told = project.qframe("status", uuid)
    assert told.code == 2
    assert "it was not tracked, or it has expired" in told.one_line()
    project.drain()
    told = project.qframe("status", uuid)
    assert told.code == 0
    assert "FAILED" in told.out
    assert f"not tracked; qframe failed {uuid} shows more" in told.out


# -- cancelling -----------------------------------------------------------------------------------


@pytest.mark.not_on_beanstalkd("which cannot look for a job")
def test_cancel_one_that_waits_and_one_that_is_delayed(project: Project) -> None:
    for delay in (0, 60):
        uuid = steps(project, delay)
        other = project.push("Note", delay=delay)
        assert project.qframe("cancel", uuid).out == f"cancelled {uuid}\n"
        assert read(project, uuid).state is State.CANCELLED
        again = project.qframe("cancel", uuid)
        assert (again.code, again.one_line()) == (
            2, f"qframe: {uuid} has ended already: CANCELLED",
        )  # fmt: skip
        assert project.qframe("cancel", other).code == 0
        assert project.empty()
    told = project.qframe("cancel", "no-such-job")
    assert (told.code, told.one_line()) == (2, "qframe: no job 'no-such-job' waits or runs")


def test_cancel_one_that_runs(project: Project) -> None:
    uuid = push(project, "Sleep", {"seconds": 60}, maxTries=5)
    cancel_while_it_runs(project, uuid)
    found = read(project, uuid)
    assert (found.state, found.remark) == (State.CANCELLED, "cancelled while it ran")


@pytest.mark.not_on_beanstalkd("which cannot look for a job")
@pytest.mark.slow
def test_cancel_one_that_runs_and_is_not_tracked(project: Project) -> None:
    cancel_while_it_runs(project, project.push("Sleep", {"seconds": 60}, maxTries=5))


def test_a_wish_that_came_too_late_ends_no_later_life(project: Project) -> None:
    uuid = push(project, "Raise", {"kind": "ValueError"}, maxTries=1)
    project.drain()
    store = project.manager.connection(project.queue.name).store
    store.set(status.cancel_key(uuid), "1", 30)
    assert project.qframe("retry", uuid).code == 0
    assert store.get(status.cancel_key(uuid)) == [None]


def test_cancel_one_that_runs_in_a_process_of_its_own(project: Project) -> None:
    uuid = push(project, "Sleep", {"seconds": 60}, maxTries=5)
    worker = project.work("--isolate")
    began_somewhere(project, uuid)
    told = project.qframe("cancel", uuid, "--running")
    assert told.code == 0, told.err
    assert project.notes("finally")
    assert until(project, uuid, State.CANCELLED).remark == "cancelled while it ran"
    assert project.failed() == []
    if worker.alive():
        worker.signal(signal.SIGTERM)
    worker.wait()


def began_somewhere(project: Project, uuid: str) -> None:
    project.wait_for_note("start")
    until(project, uuid, State.RUNNING)


def cancel_while_it_runs(project: Project, uuid: str) -> None:
    worker = project.work("--json")
    project.wait_for_note("start")
    told = project.qframe("cancel", uuid)
    assert (told.code, told.one_line()) == (
        1, f"qframe: {uuid} is running: --running interrupts it",
    )  # fmt: skip
    told = project.qframe("cancel", uuid, "--running")
    assert told.code == 0, told.err
    assert told.out == f"cancelled {uuid}, which was running\n"
    assert project.notes("finally"), "what it had begun was cleaned up"
    assert worker.wait() == 1, "as after USR1: what was interrupted is not to be trusted"
    rows = [row for row in worker.rows if row.get("uuid") == uuid]
    assert [row["status"] for row in rows] == ["running", "cancelled"]
    assert rows[-1]["message"] == "cancelled while it ran"
    assert project.empty()
    assert project.failed() == []


@pytest.mark.slow
def test_a_wish_to_cancel_that_came_too_late_ends_no_other_job(project: Project) -> None:
    first = project.push("Sleep", {"seconds": 1.5, "word": "first"})
    second = project.push("Sleep", {"seconds": 2.5, "word": "second"})
    worker = project.work()
    project.wait_for_note("end", "first")
    store = project.manager.connection(project.queue.name).store
    store.set(status.cancel_key(first), "1", 30)
    project.wait_for_note("end", "second")
    assert worker.stop() == 0
    assert "done" in worker.out
    assert second


@pytest.mark.slow
def test_all_that_run_and_a_filter_chooses_are_cancelled(project: Project) -> None:
    for word in ("one", "other", "waits"):
        project.push("Sleep", {"seconds": 60, "word": word}, delay=600 * (word == "waits"))
    workers = [project.work("--isolate") for _ in range(2)]
    project.wait_for_note("start", count=2)

    def said() -> str:
        """Say what is told; a worker lists its job within a second."""
        told = project.qframe("cancel", "--where", "args.word:one,waits", "--running").out
        return told if "1 running job" in told else ""

    told = wait_for(said, "that the job is found")
    assert told.endswith("asked the workers to end 1 running job\n")
    project.wait_for_note("finally", "one")
    wait_for(lambda: project.sizes().reserved == 1, "the end of the one")
    assert project.sizes().delayed == 0
    assert [note[1] for note in project.notes("finally")] == ["one"]
    for worker in workers:
        worker.end()
