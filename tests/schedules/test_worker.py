"""A worker dispatches beside its jobs, calls the hooks, and takes up what is added meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import (
    Queueable,
    QueueManager,
    Worker,
    WorkerOptions,
    current_job,
    events,
    manager,
    queueable,
    schedule,
)
from qframe.exceptions import BackendUnavailable
from qframe.schedules.definition import book
from qframe.schedules.rows import ScheduleRow, ScheduleRows, keys_of
from qframe.schedules.schedulers import Schedulers
from qframe.worker import side_tasks
from tests.schedules.conftest import Bench
from tests.support.process import wait_for

OWN = "qframe schedules"
REPOSITORY = Path(__file__).resolve().parents[2]
ran: list[str] = []


class Planned(Queueable):
    fails: bool = False

    def handle(self) -> None:
        assert self.scheduled_for is not None
        ran.append(f"job {self.scheduled_for.microsecond}")
        if self.fails:
            raise ValueError("no")


@queueable
def noting(word: str) -> None:
    job = current_job()
    assert job is not None
    assert job.scheduled_for is not None
    ran.append(word)


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@pytest.fixture
def here(fresh: Path) -> Iterator[Bench]:
    """Give one whose jobs may be those of this module."""
    queues = QueueManager({"default": "memory", "root": REPOSITORY})
    manager.use(queues)
    yield Bench(queues)
    manager.use(None)


@contextlib.contextmanager
def working(bench: Bench, *, wanted: bool = True) -> Iterator[Worker]:
    worker = Worker(bench.queues, WorkerOptions(schedule=wanted, memory=0))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore")
def test_a_worker_dispatches_what_is_due_and_calls_the_hooks(here: Bench) -> None:
    good = schedule(Planned()).every_second().name("good").before(lambda: ran.append("before"))
    good.on_success(lambda job: ran.append(f"done {job.attempts()}"))
    good.after(lambda: ran.append("after")).on_failure(lambda: ran.append("never"))
    schedule(noting.job("called")).every_second()
    with working(here):
        wait_for(lambda: ran.count("after") > 1 and "called" in ran, "two runs")
    own = [each for each in ran if each != "called"]
    assert own[:4] == ["before", "job 0", "done 1", "after"]
    assert "never" not in ran


@pytest.mark.filterwarnings("ignore")
def test_a_failure_calls_its_hook_and_is_seen(here: Bench) -> None:
    schedule(Planned(fails=True)).every_second().on_failure(lambda: ran.append("failed"))
    with working(here):
        wait_for(lambda: "failed" in ran, "the hook")


@pytest.mark.filterwarnings("ignore")
def test_a_row_is_taken_up_where_the_code_has_no_schedules(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fresh: Path
) -> None:
    monkeypatch.setattr(side_tasks, "LOOK_EVERY", 0.1)
    (fresh / "jobs_of_rows.py").write_text(
        "from qframe import Queueable\nfrom tests.schedules.test_worker import ran\n"
        "class Order(Queueable):\n    def handle(self) -> None:\n        ran.append('row')\n"
    )
    with working(bench):
        assert not [each for each in threading.enumerate() if each.name.startswith(OWN)]
        row = ScheduleRow(job="jobs_of_rows.Order", when="every 1s")
        ScheduleRows(bench.queues).add(bench.queue, "extra", row)
        wait_for(lambda: "row" in ran, "the row's job")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("wanted", "enabled"), [(False, True), (True, False)], ids=["--no-schedule", "enabled = false"]
)
def test_a_worker_may_be_told_not_to(
    here: Bench, monkeypatch: pytest.MonkeyPatch, wanted: bool, enabled: bool
) -> None:
    schedule(Planned()).every_second()
    monkeypatch.setattr(here.queues.settings.schedule, "enabled", enabled)
    idle = threading.Event()
    with events.kept():
        events.listen(events.WorkerIdle)(lambda _: idle.set())
        with working(here, wanted=wanted):
            assert idle.wait(60)
            assert not [each for each in threading.enumerate() if each.name.startswith(OWN)]


def test_it_goes_on_when_the_backend_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(Planned()).every_second()
    schedulers = Schedulers(bench.queues)
    backend, real = bench.queue.backend, bench.queue.backend.apply
    dispatched: list[object] = []
    gone = True

    def apply(*steps: object) -> object:
        if gone:
            raise BackendUnavailable("gone")
        return real(*steps)  # type: ignore[arg-type] # what it was given

    monkeypatch.setattr(backend, "apply", apply)
    with events.kept():
        events.listen(events.ScheduledJobDispatched)(dispatched.append)
        schedulers.start()
        wait_for(lambda: "cannot reach memory" in caplog.text, "the warning")
        gone = False
        wait_for(lambda: dispatched, "a run")
        schedulers.stop()
    assert "again, after" in caplog.text


# -- what older code had --------------------------------------------------------------------------


@pytest.fixture
def two(fresh: Path) -> Iterator[Bench]:
    """Give one whose schedules are those of this module, with another connection."""
    memory = {"memory": {"driver": "memory"}, "other": {"driver": "memory"}}
    settings = {"default": "memory", "connections": memory, "root": REPOSITORY, "jobs": [__name__]}
    queues = QueueManager(settings)
    manager.use(queues)
    yield Bench(queues)
    manager.use(None)


@pytest.mark.filterwarnings("ignore")
def test_a_worker_without_schedules_ends_those_of_older_code(
    two: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_tasks, "LOOK_EVERY", 0.1)
    assert not Schedulers(two.queues, [two.queue]).is_needed()
    schedule(Planned()).every_seconds(10).name("last")
    old = two.host()
    two.pass_(old, seconds=10)
    assert len(two.times()) == 1
    there = keys_of(two.queues, two.queue).release(__name__)
    (before,) = two.queue.store.get(there)
    two.queue.clear()
    book.clear()
    with working(two):
        wait_for(lambda: two.queue.store.get(there)[0] != before, "the end of it")
    two.pass_(old, seconds=30)
    assert two.times() == []


@pytest.mark.filterwarnings("ignore")
def test_the_last_schedule_of_another_connection_is_ended(two: Bench) -> None:
    schedule(Planned()).every_seconds(10).name("there").on_connection("other")
    schedule(Planned()).every_seconds(10).name("here")
    old = Schedulers(two.queues, [two.queue])
    old.start()
    other = two.queues.connection("other")
    there = keys_of(two.queues, other).release(__name__)
    wait_for(lambda: other.store.get(there)[0], "the schedule there")
    wait_for(lambda: [*two.queue.store.items(keys_of(two.queues, two.queue).beside())], "its name")
    old.stop()
    (before,) = other.store.get(there)
    book.clear()
    schedule(Planned()).every_seconds(10).name("here")
    new = Schedulers(two.queues, [two.queue])
    assert new.connections == [two.queue]
    new.start()
    wait_for(lambda: other.store.get(there)[0] != before, "the end of it")
    new.stop()
