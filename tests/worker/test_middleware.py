"""Middleware in real workers: what becomes of the job, its tries, and in each way to run one."""

from __future__ import annotations

import json

import pytest

from qframe import JobStatus, State
from qframe.features import status
from tests.support.process import Project

JOBS = '''
import asyncio, os, time
from jobs import note
from qframe import Queueable, events, queueable
from qframe.middleware import FailOn, Skip


class Around:
    def __init__(self, name="global"):
        self.name = name
        note("made", name)

    def __call__(self, job, call_next):
        note("in", self.name, job.attempts, job.job.queue)
        result = call_next(job)
        note("out", self.name)
        return result


class Turnstile:
    """Puts a job back until its n-th attempt."""
    def __init__(self, attempts, how="release"):
        self.attempts, self.how = attempts, how

    def __call__(self, job, call_next):
        if job.attempts < self.attempts:
            return getattr(job, self.how)()
        return call_next(job)


class Noted(Queueable):
    word: str = "word"

    def handle(self):
        note("note", self.word, self.attempts, os.getpid())

    def succeeded(self):
        note("succeeded", self.word)

    def failed(self, error):
        note("failed", type(error).__name__, error)


class Both(Noted):
    middleware = [Around("outer"), Around("inner")]


class Tracked(Both):
    track = True

    def handle(self):
        return {"answer": 42}


class Late(Noted):
    """Passes at its fourth attempt, although it has one try."""
    tries = 1
    max_exceptions = 1
    middleware = [Turnstile(4)]


class Ended(Noted):
    how: str

    def middleware(self):
        return [Turnstile(9, self.how)]


class Skipped(Noted):
    track = True
    tries = 3
    middleware = [Around("a"), Skip.when(lambda job: job.word == "word"), Around("b")]


class Broken(Noted):
    """Its middleware cannot be had."""
    tries = 2

    def middleware(self):
        note("asked", self.attempts)
        raise LookupError("no such limit")


class Raises(Noted):
    tries = 5
    middleware = [Around("a"), FailOn(LookupError)]

    def handle(self):
        note("handle", self.attempts)
        raise KeyError("gone") if self.attempts == 2 else ValueError("not today")


class Alone(Noted):
    """Is on an event loop with what is around it."""
    async def around(self, job, call_next):
        note("async in")
        await asyncio.sleep(0)
        result = await call_next(job)
        note("async out")
        return result

    def middleware(self):
        return [self.around]

    async def handle(self):
        await asyncio.sleep(0)
        note("async", self.attempts)


class Stuck(Noted):
    """Does not come out of its middleware."""
    timeout = 0.3

    def middleware(self):
        return [self.wait]

    def wait(self, job, call_next):
        try:
            time.sleep(60)
        finally:
            note("cleaned up")
        return call_next(job)


@queueable(middleware=[Around("function")])
def double(number: int) -> None:
    note("double", number * 2)


@events.listen(events.JobSkipped)
def hear(event):
    note("skipped", event.job.name, event.reason)


@events.listen(events.JobProcessed)
def hear_done(event):
    note("processed", event.job.name)
'''


@pytest.fixture(autouse=True)
def jobs(project: Project) -> None:
    project.write("through.py", JOBS)


WAYS = pytest.mark.parametrize(
    "way",
    [pytest.param((), id="here"), pytest.param(("--isolate",), id="apart", marks=pytest.mark.slow)],
)


def status_of(project: Project, uuid: str) -> JobStatus:
    """Give the status of a tracked job."""
    found = status.read(project.queue.backend, uuid)
    assert found is not None
    return found


@WAYS
def test_a_job_goes_through_those_of_the_configuration_and_its_own(
    project: Project, way: tuple[str, ...]
) -> None:
    project.configure('middleware = ["through:Around"]')
    for job in ("through.Both", "through.double", "jobs.Note"):
        project.push(job, {"number": 4} if "double" in job else {}, queue="emails")
    project.drain(*way, "--queue", "emails")
    words = [line[:2] for line in project.notes() if line[0] != "made"]
    around = [["in", "global"], ["out", "global"]]
    assert [line for line in words if line[1] != "through.Both"] == [
        around[0], ["in", "outer"], ["in", "inner"], ["note", "word"], ["out", "inner"],
        ["out", "outer"], around[1], ["succeeded", "word"],
        around[0], ["in", "function"], ["double", "8"], ["out", "function"], around[1],
        ["processed", "through.double"],
        around[0], ["note", "word"], around[1], ["processed", "jobs.Note"],
    ]  # fmt: skip
    assert project.empty("emails")
    assert len(project.notes("made")) >= 4
    if not way:
        assert project.notes("made").count(["made", "global"]) == 1


@WAYS
def test_what_middleware_releases_uses_up_no_try(project: Project, way: tuple[str, ...]) -> None:
    project.push("through.Late")
    out = project.drain(*way).out
    (line,) = project.notes("note")
    assert line[2] == "4"
    assert project.failed() == []
    assert project.empty()
    assert project.notes("processed") == [["processed", "through.Late"]]
    assert "FAIL" not in out


@WAYS
def test_one_not_called_on_is_skipped_and_no_success(
    project: Project, way: tuple[str, ...]
) -> None:
    uuid = project.push("through.Skipped", track=3600)
    project.push("through.Skipped", {"word": "other"})
    out = project.drain(*way, "--json").out
    (told,) = project.notes("skipped")
    assert " ".join(told) == "skipped through.Skipped the middleware Skip did not call on"
    assert [line[1] for line in project.notes("note")] == ["other"]
    assert project.notes("succeeded") == [["succeeded", "other"]]
    assert project.notes("in").count(["in", "b", "1", "default"]) == 1
    assert len(project.notes("processed")) == 1
    assert project.empty()
    assert project.failed() == []
    assert status_of(project, uuid).state is State.SKIPPED
    assert [row for row in map(json.loads, out.splitlines()) if "skipped" in json.dumps(row)]


@WAYS
@pytest.mark.parametrize(("how", "failed"), [("delete", 0), ("fail", 1)])
@pytest.mark.slow
def test_what_it_makes_of_the_job_is_the_outcome(
    project: Project, way: tuple[str, ...], how: str, failed: int
) -> None:
    project.push("through.Ended", {"how": how})
    project.drain(*way)
    assert project.empty()
    assert len(project.failed()) == failed
    assert len(project.notes("failed")) == failed
    assert project.notes("note") == project.notes("skipped") == []


@WAYS
@pytest.mark.slow
def test_an_error_of_the_method_is_the_attempts(project: Project, way: tuple[str, ...]) -> None:
    project.push("through.Broken")
    project.drain(*way)
    assert project.notes("asked") == [["asked", "1"], ["asked", "2"]]
    assert "LookupError: no such limit" in project.failure().exception
    assert len(project.notes("failed")) == 1
    assert project.notes("note") == []


@WAYS
def test_an_error_to_fail_on_ends_the_job_whatever_tries_are_left(
    project: Project, way: tuple[str, ...]
) -> None:
    project.push("through.Raises")
    project.drain(*way)
    assert project.notes("handle") == [["handle", "1"], ["handle", "2"]]
    record = project.failure()
    assert "KeyError: 'gone'" in record.exception
    assert record.attempts == 2
    assert project.notes("failed") == [["failed", "KeyError", "'gone'"]]
    assert project.notes("out") == []
    assert project.empty()


@WAYS
def test_async_middleware_shares_the_loop_of_an_async_job(
    project: Project, way: tuple[str, ...]
) -> None:
    for _ in range(3):
        project.push("through.Alone")
    project.drain(*way)
    assert project.notes("async") == [["async", "in"], ["async", "1"], ["async", "out"]] * 3
    assert len(project.notes("succeeded")) == 3


def test_middleware_is_under_the_timeout(project: Project) -> None:
    project.push("through.Stuck")
    worker = project.work("--stop-when-empty")
    assert worker.wait() == 1
    assert project.notes("cleaned") == [["cleaned", "up"]]
    assert "JobTimedOut" in project.failure().exception


def test_it_is_that_of_the_class_as_deployed_when_it_runs(project: Project) -> None:
    project.push("through.Both")
    project.write("through.py", JOBS.replace('Around("outer"), Around("inner")', 'Around("later")'))
    project.drain()
    assert [line[1] for line in project.notes("in")] == ["later"]


def test_a_result_goes_through_it(project: Project) -> None:
    uuid = project.push("through.Tracked", track=3600)
    project.drain()
    assert status_of(project, uuid).result == {"answer": 42}


@pytest.mark.slow
def test_workers_of_a_pool_have_it(project: Project) -> None:
    project.configure('middleware = ["through:Around"]')
    for _ in range(6):
        project.push("jobs.Note")
    finished = project.work("--workers", 2, "--stop-when-empty").finished(60)
    assert finished.code == 0, finished.err
    assert len(project.notes("in")) == len(project.notes("out")) == len(project.notes("note")) == 6


@WAYS
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "nowhere:Around",
            "'nowhere:Around' cannot be loaded (module:name): ModuleNotFoundError: No module",
        ),
        ("through:Turnstile", "'through:Turnstile' cannot be made without arguments"),
        ("through:Missing", "'through:Missing' cannot be loaded (module:name)"),
    ],
)
@pytest.mark.slow
def test_a_wrong_one_in_the_configuration_ends_the_worker_with_2(
    project: Project, way: tuple[str, ...], name: str, words: str
) -> None:
    project.configure(f'middleware = ["{name}"]')
    finished = project.work("--stop-when-empty", *way).finished()
    assert finished.code == 2
    assert f"middleware: {words}" in finished.one_line()
    checked = project.qframe("check")
    assert checked.code == 1
    assert f"middleware: {words}" in checked.err


def test_a_program_runs_it_with_dispatch_sync(project: Project) -> None:
    project.configure('middleware = ["through:Around"]')
    finished = project.program(
        "from through import Both, Skipped\nBoth.dispatch_sync()\nprint(Skipped.dispatch_sync())\n"
    )
    assert finished.code == 0, finished.err
    assert finished.out.strip() == "None"
    assert [line[1] for line in project.notes("in")] == [
        "global", "outer", "inner", "global", "a",
    ]  # fmt: skip
    assert project.notes("skipped")
