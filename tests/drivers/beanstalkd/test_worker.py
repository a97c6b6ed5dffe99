"""Real workers on beanstalkd: killed, cut off, told to stop; what they are told by its settings."""

from __future__ import annotations

import signal
import time

import pytest

from qframe.contracts import Sizes
from tests.drivers.beanstalkd.support import BeanstalkdProject, lines_with
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import Process, wait_for
from tests.support.proxy import Mode, Proxy


def _is_told_again(worker: Process) -> bool:
    """Tell a worker once more to stop; says whether it has."""
    worker.signal(signal.SIGTERM)
    return not worker.alive()


def test_one_try_whose_worker_was_killed_is_failed_not_run_twice(app: BeanstalkdProject) -> None:
    uuid = app.push("Kill", maxTries=1)
    worker = app.work()
    assert worker.wait() == -signal.SIGKILL
    assert app.work("--max-jobs", 1).wait() == 0
    assert len(app.notes("start")) == 1
    record = app.failure()
    assert (record.uuid, record.attempts) == (uuid, 1)
    reason = record.exception.strip().splitlines()[-1]
    assert "was started once: attempt 1: nothing on record, so its worker died" in reason
    assert app.empty()


def test_one_that_ran_for_a_while_is_on_record(app: BeanstalkdProject) -> None:
    app.push("Sleep", {"seconds": 60}, maxTries=1)
    worker = app.work()
    app.wait_for_note("start")
    store = app.manager.store("beanstalkd")
    wait_for(lambda: store.keys("beanstalkd:job:"), "the start to be noted")
    worker.end()
    assert app.work("--max-jobs", 1).wait() == 0
    reason = app.failure().exception.strip().splitlines()[-1]
    assert f"pid {worker.pid}" in reason
    assert "never ended: its worker died" in reason
    assert store.keys("beanstalkd:job:") == []


def test_a_poison_job_is_ended_by_its_tries(app: BeanstalkdProject) -> None:
    app.push("Kill", maxTries=3)
    for _ in range(3):
        assert app.work().wait() == -signal.SIGKILL
    app.drain()
    assert [words[2] for words in app.notes("start")] == ["1", "2", "3"]
    assert app.failure().attempts == 3


def test_also_when_the_server_is_restarted_each_time(
    app: BeanstalkdProject, own_server: BeanstalkdServer
) -> None:
    """One more start than its tries at most: the first was nowhere on record."""
    app.configure(**own_server.settings)
    app.push("Kill", maxTries=2)
    starts = 0
    while not app.failed():
        worker = app.work("--stop-when-empty")
        starts += worker.wait() == -signal.SIGKILL
        assert starts <= 3
        app.close()
        own_server.restart(kill=True)
    assert len(app.notes("start")) == starts
    assert app.empty()


@pytest.mark.parametrize("answer", ["finish", "interrupt"])
def test_a_connection_lost_while_a_job_runs(
    app: BeanstalkdProject, server: BeanstalkdServer, answer: str
) -> None:
    with Proxy(*server.address) as proxy:
        app.push("Sleep", {"seconds": 4}, maxTries=3)
        app.configure(port=proxy.address[1], on_lost_connection=answer)
        first = app.work()
        app.wait_for_note("start")
        app.configure()
        proxy.switch(Mode.CUT)
        lost = time.monotonic()
        second = app.work("--max-jobs", 1)
        wait_for(lambda: "its lease has passed" in first.err, "the loss to be noticed")
        assert time.monotonic() - lost < 1 + 2, "within a second, on a machine that may be busy"
        proxy.switch(Mode.PASS)
        if answer == "interrupt":
            assert first.wait() == 1
            assert time.monotonic() - lost < 4, "at once"
        assert second.wait() == 0
        assert len(app.notes("end")) == (1 if answer == "interrupt" else 2)
        wait_for(lambda: lines_with(first, "LOST"), "the loss to be told")
        assert len(lines_with(first, "LOST")) == 1
        if answer == "finish":
            assert first.stop() == 0
        assert app.empty()
        assert app.failed() == []


def test_a_job_longer_than_its_lease_of_a_second_runs_once(app: BeanstalkdProject) -> None:
    app.configure(retry_after=1)
    app.push("Sleep", {"seconds": 4})
    workers = [app.work(), app.work()]
    app.wait_for_note("end")
    for worker in workers:
        assert worker.stop() == 0
    assert len(app.notes("start")) == 1
    assert app.empty()


def test_a_stop_ends_the_wait_of_an_idle_worker_at_once(app: BeanstalkdProject) -> None:
    worker = app.idle(block_for=3600)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 5


def test_a_second_stop_gives_the_job_back_uncounted(app: BeanstalkdProject) -> None:
    app.push("Sleep", {"seconds": 60}, maxTries=1)
    worker = app.work()
    app.wait_for_note("start")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: _is_told_again(worker), "its end")
    assert app.sizes() == Sizes(ready=1)
    (job,) = app.queue.reserve(["default"])
    assert job.attempts() == 0


def test_failed_jobs_that_are_buried_are_listed_and_kicked(app: BeanstalkdProject) -> None:
    app.configure(on_failure="bury")
    uuid = app.push("Raise", maxTries=1)
    app.drain()
    assert app.sizes() == Sizes(buried=1)
    assert uuid in app.qframe("failed").out
    assert "kicked 1 jobs" in app.qframe("kick", "beanstalkd").out
    assert app.sizes() == Sizes(ready=1)
    app.drain()
    assert (len(app.failed()), app.sizes()) == (1, Sizes(buried=1))
    assert app.qframe("retry", uuid).code == 0
    assert (app.failed(), app.sizes()) == ([], Sizes(ready=1))


def test_pause_resume_and_restart_are_in_the_database(app: BeanstalkdProject) -> None:
    worker = app.idle()
    assert app.qframe("pause", "default").code == 0
    app.push("Note")
    assert app.qframe("resume").code == 0
    app.wait_for_note("note")
    assert app.qframe("restart").code == 0
    assert worker.wait() == 0


def test_it_works_without_a_file(app: BeanstalkdProject, server: BeanstalkdServer) -> None:
    """But for the port, which tests cannot have."""
    app.push("Note", queue="x")
    (app.root / "qframe.toml").unlink()
    environment = {"QFRAME_CONNECTIONS__BEANSTALKD__PORT": str(server.port)}
    arguments = ("beanstalkd", "--queue", "x", "--timeout", 60, "--tries", 5, "--max-jobs", 1)
    worker = app.work(*arguments, environment=environment)
    assert worker.wait() == 0
    assert len(app.notes("note")) == 1


def test_check_names_the_server(app: BeanstalkdProject, server: BeanstalkdServer) -> None:
    checked = app.qframe("check")
    assert "ok       beanstalkd: beanstalkd 1." in checked.out
    assert checked.code == 0
