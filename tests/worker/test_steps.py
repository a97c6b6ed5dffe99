"""Durable steps with real workers: sleeps, events, stops, kills and stalls on each backend."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from qframe.contracts.step import Expect, Result, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.within import CallerDatabase
from qframe.exceptions import LeaseLost
from qframe.features.reserved import ReservedJob
from tests.console.conftest import started
from tests.support.process import Project, wait_for
from tests.support.shop import Shop
from tests.worker import stepping
from tests.worker.killed_in_turn import kill_oldest

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]
_SLOTS, _ISOLATED = ("--concurrency", 3), ("--isolate",)
KINDS = pytest.mark.parametrize("kind", [(), _SLOTS, _ISOLATED], ids=["line", "slots", "isolated"])
_KILLED = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((), id="line"),
        pytest.param(_SLOTS, id="slots", marks=pytest.mark.slow),
        pytest.param(_ISOLATED, id="isolated", marks=pytest.mark.slow),
    ],
)


@pytest.fixture
def steps(project: Project) -> Project:
    """Give a project with these jobs."""
    shutil.copy(Path(stepping.__file__), project.root / "stepping.py")
    (project.root / "marks").mkdir()
    return project


def facts(project: Project) -> list[str]:
    """Give the keys of all that is kept of jobs."""
    keys = [key for key, _ in project.queue.backend.scan("")]
    return [key for key in keys if key.startswith(("steps:", "event:", "waits:"))]


def dispatch(project: Project, job: str) -> str:
    finished = project.program(f"from stepping import *\nprint({job}.send())")
    assert finished.code == 0, finished.err
    return finished.out.strip()


def send(project: Project, uuid: str, value: str) -> None:
    finished = project.program(
        f"import qframe\nprint(qframe.send_event({uuid!r}, 'paid', {value}))"
    )
    assert finished.out.strip() == "True", finished


@pytest.mark.every_backend
@KINDS
@pytest.mark.parametrize("job", ["Order", "OrderAsync"])
def test_a_job_sleeps_and_waits_for_an_event(
    steps: Project, job: str, kind: tuple[object, ...]
) -> None:
    worker = steps.work(*kind)
    uuid = dispatch(steps, f"{job}.dispatch(word='a')")
    steps.wait_for_note("slept", "a")
    wait_for(lambda: steps.sizes().delayed == 1, "it to wait")
    early = dispatch(steps, f"{job}.dispatch(word='b', nap=2)")
    send(steps, early, "'early'")
    send(steps, uuid, "'card'")
    assert steps.wait_for_note("done", "a")[2:] == ["7", "card", "1"]
    assert steps.wait_for_note("done", "b")[2:] == ["7", "early", "1"]
    wait_for(lambda: steps.empty() and not facts(steps), "nothing to be left")
    assert Counter(words[1] for words in steps.notes("charge")) == {"a": 1, "b": 1}
    assert worker.stop() == 0
    assert not steps.failed()


@KINDS
def test_tasks_of_a_group_sleep_and_wait(steps: Project, kind: tuple[object, ...]) -> None:
    uuid = dispatch(steps, "Together.dispatch()")
    worker = steps.work(*kind)
    wait_for(lambda: steps.sizes().delayed == 1, "it to sleep")
    send(steps, uuid, "'card'")
    assert steps.wait_for_note("together") == ["together", "1"]
    assert steps.notes("event")[-1] == ["event", "card"]
    assert worker.stop() == 0
    assert not facts(steps)


@KINDS
def test_a_job_of_a_function_has_steps(steps: Project, kind: tuple[object, ...]) -> None:
    dispatch(steps, "by_function.dispatch('f')")
    assert steps.drain(*kind).code == 0
    assert steps.notes("done") == [["done", "f", "3"]]
    assert not facts(steps)


@pytest.mark.every_backend
@KINDS
def test_a_job_that_gives_itself_back_goes_on_where_it_was(
    steps: Project, kind: tuple[object, ...]
) -> None:
    uuid = dispatch(steps, "Pages.dispatch()")
    worker = steps.work(*kind)
    steps.wait_for_note("page", 30)
    assert worker.stop() == 0
    last = int(steps.notes("page")[-1][1])
    assert last < 4900
    assert steps.sizes().ready == 1
    worker = steps.work(*kind)
    assert steps.wait_for_note("from", last + 1)
    steps.wait_for_note("page", last + 20)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert uuid


@pytest.mark.on_redis_in_ci
@_KILLED
def test_killed_between_any_two_operations_a_finished_step_ran_once(
    steps: Project, kind: tuple[object, ...]
) -> None:
    steps.configure(retry_after=2)
    dispatch(steps, "Kills.dispatch(word='k')")
    environment = {
        "MARKS": str(steps.root / "marks"),
        "ISOLATED": "1" if kind == _ISOLATED else "",
    }
    died = kill_until_done(steps, *kind, environment=environment)
    assert died == 6
    assert steps.notes("done") == [["done", "k", "1"]]
    ran = Counter(words[2] for words in steps.notes("ran"))
    assert ran == {"0": 2, "1": 2}, "once where it was killed, and once more"
    assert not facts(steps)
    assert not steps.failed()


@pytest.mark.embedded_only  # it names its backends itself
@pytest.mark.parametrize(
    "project",
    ["redis", *(pytest.param(each, marks=pytest.mark.slow) for each in ("postgresql", "mariadb"))],
    indirect=True,
)
def test_a_stalled_worker_overwrites_nothing(steps: Project) -> None:
    # Not on SQLite: a process that is stopped amid a write keeps the lock of the file.
    steps.configure(retry_after=1.5)
    dispatch(steps, "Stalls.dispatch(word='s')")
    first = steps.work()
    _, pid, _ = steps.wait_for_note("stalls")
    assert int(pid) == first.pid
    second = steps.work()
    assert steps.wait_for_note("value")[1:] == ["attempt", "2"]
    first.signal(signal.SIGCONT)
    assert second.stop() == 0
    assert first.stop() == 0
    assert len(steps.notes("value")) == 1
    assert "Traceback" not in first.err
    assert not facts(steps)
    assert steps.empty()


def kill_until_done(project: Project, *kind: object, environment: dict[str, str]) -> int:
    """Let workers die until the job is done, and give how many did."""
    died = 0
    while True:
        worker = project.start("work", *kind, environment=environment)
        wait_for(lambda worker=worker: not worker.alive() or project.notes("done"), "an end")  # type: ignore[misc] # as bound
        if project.notes("done"):
            assert worker.stop() == 0
            return died
        died += worker.wait() == -signal.SIGKILL
        wait_for(lambda: project.sizes().ready == 1, "its lease to end")


@_KILLED
def test_a_step_within_a_transaction_runs_exactly_once(
    shop: Shop, tmp_path: Path, kind: tuple[object, ...]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    isolated = "1" if kind == _ISOLATED else ""
    environment = {"SHOP": shop.url, "MARKS": str(marks), "ISOLATED": isolated}
    with Project(tmp_path / "app", 'jobs = ["stepping"]', url=shop.url, retry_after=2) as project:
        shutil.copy(Path(stepping.__file__), project.root)
        project.push("stepping.Kills", {"word": "w", "steps": 1, "within": True})
        died = kill_until_done(project, *kind, environment=environment)
        assert died == 5
        assert shop.orders() == ["w"]
        assert not facts(project)
        assert not project.failed()


def test_several_steps_within_transactions_of_one_attempt(shop: Shop, tmp_path: Path) -> None:
    with Project(tmp_path / "app", 'jobs = ["stepping"]', url=shop.url) as project:
        shutil.copy(Path(stepping.__file__), project.root)

        def work() -> None:
            worker = project.start("work", "--stop-when-empty", environment={"SHOP": shop.url})
            assert worker.wait() == 0, worker.err

        project.push("stepping.Rows", {})
        work()
        assert project.notes("rows") == [["rows", "a", "b", "plain", "c", "last"]]
        assert shop.orders() == ["a", "b", "c", "last"]
        assert not facts(project)
        project.push("stepping.Rows", {"fails": True})
        work()
        assert shop.orders() == ["a", "a", "b", "b", "c", "c", "last"]
        assert len(facts(project)) == 5
        assert project.qframe("forget", project.failure().uuid).code == 0
        assert not facts(project)


@pytest.mark.parametrize(
    "shop", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True
)
def test_a_transaction_whose_job_another_worker_has_done_commits_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not on SQLite, where whoever is in a transaction of the file is alone.
    shop.queue.push_raw(json.dumps({"uuid": "u1", "job": "x", "displayName": "x", "data": {}}))

    def insert(session: Session, word: str) -> str:
        shop.order(session, word)
        return word

    def begun() -> ReservedJob:
        (job,) = shop.queue.reserve(["default"])
        assert started(job)
        return job

    def done_by(job: ReservedJob, word: str) -> None:
        with Session(shop.engine) as session, session.begin():
            job.step("row", insert, session, word, within=session)

    apply = DatabaseBackend.apply

    def overtaken(backend: DatabaseBackend, *steps: Step) -> list[Result]:
        if not any(isinstance(each, Expect) for each in steps[0].operations):
            return apply(backend, *steps)
        if isinstance(backend.database, CallerDatabase):  # its worker stalls here, past its lease
            monkeypatch.undo()
            shop.queue.backend.timing.skew += 3600
            other = begun()
            done_by(other, "other")
            other.delete()
        return apply(backend, *steps)

    late = begun()
    monkeypatch.setattr(DatabaseBackend, "apply", overtaken)
    with pytest.raises(LeaseLost):
        done_by(late, "late")
    assert shop.orders() == ["other"]
    assert not [key for key, _ in shop.queue.backend.scan("steps:")]


_MANY = int(os.environ.get("STEPS", "400"))
"""So many jobs in the long run: 5,000 take about a minute on each."""


@pytest.mark.timeout(1800)
@pytest.mark.embedded_only  # it names its backends itself
@pytest.mark.parametrize(
    ("project", "jobs"),
    [
        ("database", 40),
        *(
            pytest.param(each, _MANY, marks=[pytest.mark.slow, pytest.mark.long])
            for each in ("database", "redis", "beanstalkd", "postgresql", "mariadb")
        ),
    ],
    indirect=["project"],
)
def test_no_finished_step_is_done_again_whoever_is_killed(steps: Project, jobs: int) -> None:
    steps.configure(retry_after=1.5)
    code = "from stepping import *\nfrom qframe import bulk\nbulk(Six(number=n) for n in range({}))"
    assert steps.program(code.format(jobs)).code == 0
    workers = [steps.work("--quiet") for _ in range(3)]
    while len(steps.notes("done")) < jobs:
        kill_oldest(steps, workers)
    wait_for(steps.empty, "nothing to be left")
    assert steps.stop(workers) == [0, 0, 0]
    assert not steps.notes("wrong")
    assert not steps.failed()
    assert not facts(steps)
    lines = [line for line in steps.notes() if line[0] in {"ran", "done"}]
    ran = Counter((line[1], line[2]) for line in lines if line[0] == "ran")
    assert len(ran) == 6 * jobs
    for number in range(jobs):
        order = [line[2] for line in lines if line[:2] == ["ran", str(number)]]
        assert order == sorted(order), f"a finished step of {number} was done again: {order}"


@KINDS
def test_a_link_gets_what_the_one_before_it_returned(
    steps: Project, kind: tuple[object, ...]
) -> None:
    code = "from stepping import *\nfrom qframe import chain\nchain([{}]).dispatch()"
    links = ", ".join(f"Adds(number={number})" for number in (1, 10, 100))
    assert steps.program(code.format(links)).code == 0
    assert steps.drain(*kind).code == 0
    assert [words[1:] for words in steps.notes("previous")] == [
        ["1", "None", "-"], ["10", "1", "stepping.Adds"], ["100", "11", "stepping.Adds"],
    ]  # fmt: skip
