from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from qframe import (
    BackendUnavailable,
    ConfigurationError,
    QueueManager,
    UnknownJob,
    WorkerOptions,
    bulk,
    events,
    manager,
)
from qframe.drivers.store import pause_key
from qframe.testing import Drained, drain, embedded, fake
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.testing.jobs import (
    Endless,
    OnSync,
    Parent,
    SendPatiently,
    SendWelcome,
    Settling,
    add,
    use,
)


@pytest.fixture
def queues(backend: dict[str, Any], fresh: Path) -> QueueManager:
    """Give queues on each backend, used by `dispatch`."""
    Settling.seen.clear()
    made = QueueManager(
        {
            "default": "used",
            "jobs": ["tests.testing.jobs"],
            "connections": {"used": backend},
        }
    )
    manager.use(made)
    return made


@pytest.fixture
def database(fresh: Path) -> QueueManager:
    Settling.seen.clear()
    return use()


def test_it_works_all_queues_to_empty(queues: QueueManager) -> None:
    Parent.dispatch()
    add.dispatch(1)
    bulk([SendWelcome(user_id=7), SendPatiently(user_id=0)])
    drained = drain()
    assert drained == Drained(done=5, retried=1)
    assert [str(error) for error in drained.errors] == ["nobody has number 0"]
    # The one that raised waits for its backoff.
    assert sum(queues.connection().size(each) for each in ("parents", "math", "emails")) == 1
    assert drain() == Drained()


def test_each_end_is_counted(queues: QueueManager) -> None:
    hows = ["release", "delete", "fail", "raise", "skip", "well"]
    bulk([Settling(how=how) for how in hows])
    drained = drain()
    assert drained == Drained(done=2, failed=2, released=1, skipped=1)
    assert {type(error) for error in drained.errors} == {KeyError, ValueError}
    assert queues.failed_store().count() == 2


def test_it_can_raise_what_a_job_raised(queues: QueueManager) -> None:
    bulk([Settling(how="well"), Settling(how="raise"), Settling(how="well")])
    with pytest.raises(ValueError, match="it broke"):
        drain(raises=True)
    assert queues.failed_store().count() == 1  # it was settled all the same
    assert queues.connection().size() == 1
    assert drain(raises=True) == Drained(done=1)


def test_queues_can_be_named(database: QueueManager) -> None:
    add.dispatch(1)
    add.dispatch(1).on_queue("low")
    add.dispatch(1).on_queue("lower")
    assert drain(queues="math") == Drained(done=1)
    assert drain("database", ["low*", "!lower"]) == Drained(done=1)
    assert database.connection().queues() == ["lower"]


def test_what_it_dispatches_can_be_faked_meanwhile(database: QueueManager) -> None:
    Parent.dispatch()
    with fake() as queued:
        assert drain() == Drained(done=1)
    queued.assert_dispatched(SendWelcome, times=2)
    assert database.connection().queues() == []


def test_it_runs_in_this_thread_and_leaves_signals_alone(
    database: QueueManager, caplog: pytest.LogCaptureFixture
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    threads: list[threading.Thread] = []

    def note(job: Any, call_next: Any) -> Any:
        now = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
        assert now == before
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        threads.append(threading.current_thread())
        return call_next(job)

    database._middleware = (note,)
    add.dispatch(1)
    with caplog.at_level(logging.WARNING):
        assert drain(raises=True) == Drained(done=1)
    assert threads == [threading.current_thread()]
    assert caplog.messages == []

    add.dispatch(1).send()  # dropped, only this thread would wait for it
    elsewhere = threading.Thread(target=drain)
    elsewhere.start()
    elsewhere.join()
    assert threads[1:] == [elsewhere]


def test_what_is_paused_is_left_and_not_waited_for(database: QueueManager) -> None:
    bulk([add.job(1), Settling(how="well")])
    database.connection().store.set(pause_key("database", "math"), "paused")
    assert drain() == Drained(done=1)
    database.connection().store.delete(pause_key("database", "math"))
    database.connection().store.set(pause_key("database"), "paused")
    assert drain() == Drained()
    assert drain(options=WorkerOptions(force=True)) == Drained(done=1)


def test_a_listener_that_holds_workers_back_does_not_hold_it(database: QueueManager) -> None:
    events.listen(events.Looping)(lambda event: False)
    add.dispatch(1)
    assert drain() == Drained(done=1)


def test_jobs_without_end_are_noticed(database: QueueManager) -> None:
    Endless.dispatch()
    with pytest.raises(AssertionError, match="after 20 attempts there are still jobs ready"):
        drain(at_most=20)
    database.connection().clear()
    bulk([add.job(1) for _ in range(20)])
    assert drain(at_most=20) == Drained(done=20)


def test_the_worker_s_options_hold(database: QueueManager) -> None:
    Settling.dispatch(how="raise")
    assert drain(options=WorkerOptions(tries=3)) == Drained(retried=2, failed=1)


def test_an_unknown_job_fails_at_once(database: QueueManager) -> None:
    database.connection().push_raw('{"uuid": "u", "job": "app.Gone", "data": {}}')
    drained = drain()
    assert drained == Drained(failed=1)
    assert isinstance(drained.errors[0], UnknownJob)
    database.connection().push_raw('{"uuid": "v", "job": "app.Gone", "data": {}}')
    with pytest.raises(UnknownJob):
        drain(raises=True)


def test_an_interrupt_of_the_test_is_passed_on(database: QueueManager) -> None:
    Settling.dispatch(how="stop the test")
    with pytest.raises(KeyboardInterrupt):
        drain()


def test_what_cannot_be_worked_is_said(fresh: Path, own_beanstalkd: BeanstalkdServer) -> None:
    with pytest.raises(ConfigurationError, match="holds no jobs"):
        drain("sync")
    with pytest.raises(ConfigurationError, match="unknown connection 'databse'"):
        drain("databse")
    use(gone={"driver": "redis", "url": "redis://127.0.0.1:1/0"})
    with pytest.raises(BackendUnavailable):
        drain("gone")


class TestEmbedded:
    def test_every_connection_is_a_file_in_the_folder(self, fresh: Path, tmp_path: Path) -> None:
        (fresh / "qframe.toml").write_text(
            'default = "redis"\njobs = ["tests.testing.jobs"]\n'
            '[connections.redis]\nurl = "redis://127.0.0.1:1/0"\nqueue = "mine"\n'
        )
        folder = tmp_path / "queues"
        folder.mkdir()
        before = manager.default()
        with embedded(folder) as queues:
            Settling.dispatch(how="well").send()
            add.dispatch(1).on_connection("beanstalkd").send()
            OnSync.dispatch().send()
            assert queues.connection().queues() == ["mine"]
            assert drain() == Drained(done=1)
            assert drain("beanstalkd", "math") == Drained(done=1)
        assert manager.default() is before
        assert [each.name for each in fresh.iterdir()] == ["qframe.toml"]
        assert {each.suffix for each in folder.iterdir()} <= {".sqlite3", ".sqlite3-wal",
                                                              ".sqlite3-shm"}  # fmt: skip

    def test_two_have_nothing_in_common(self, fresh: Path, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            with embedded(tmp_path / name) as queues:
                assert queues.connection().queues() == []
                add.dispatch(1).send()
