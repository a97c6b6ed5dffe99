"""The program's own lifespan is around all jobs of a process, on their event loop."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

import pytest

from qframe import ConfigurationError
from qframe.config import load
from qframe.worker.lifespan import Lifespan
from tests.support.process import Project, wait_for

MODULE = """
import asyncio, os, signal, time
from contextlib import asynccontextmanager, contextmanager
from jobs import note
from qframe import Queueable

loop = None

@asynccontextmanager
async def lifespan():
    global loop
    loop = asyncio.get_running_loop()
    note("entered", os.getpid())
    try:
        yield
    finally:
        note("left", os.getpid(), asyncio.get_running_loop() is loop)

@contextmanager
def plain():
    note("entered", os.getpid())
    yield
    note("left", os.getpid())

@asynccontextmanager
async def broken():
    raise OSError("no route to the database")
    yield

@asynccontextmanager
async def raises_at_the_end():
    yield
    raise OSError("cannot say goodbye")

@asynccontextmanager
async def slow():
    note("entering")
    try:
        await asyncio.sleep(3600)
    finally:
        note("cancelled")
    yield

@asynccontextmanager
async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(3600)
    yield

@contextmanager
def exits():
    raise SystemExit(3)
    yield

@contextmanager
def exits_at_the_end():
    yield
    raise SystemExit(3)

@contextmanager
def deafens():
    signal.signal(signal.SIGTERM, lambda *_: None)
    note("entered")
    yield

@asynccontextmanager
async def deafens_on_loop():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    note("entered")
    yield

@asynccontextmanager
async def ends_early():
    async def fails():
        while not (failing and failing.is_set()):
            await asyncio.sleep(0.01)
        raise OSError("the connection was lost")
    global failing
    failing = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        yield

failing = None

class Breaks(Queueable):
    async def handle(self):
        failing.set()
        await asyncio.sleep(1)
        note("job")

class BreaksLater(Queueable):
    def handle(self):
        failing.set()

class Brief(Queueable):
    def handle(self):
        time.sleep(0.1)

class Inside(Queueable):
    async def handle(self):
        note("job", os.getpid(), asyncio.get_running_loop() is loop)

class Plain(Queueable):
    def handle(self):
        note("job", os.getpid(), True)
"""
WORKERS: dict[str, tuple[object, ...]] = {
    "alone": (),
    "slots": ("--concurrency", 2),
    "isolated": ("--isolate",),
}


def configured(
    project: Project, name: str = "lifespan", jobs: str = "Inside", count: int = 2
) -> None:
    project.write("life.py", MODULE)
    project.configure(f'jobs = ["life"]\nworker.lifespan = "life:{name}"')
    for _ in range(count):
        project.push(f"life.{jobs}", {})


@pytest.mark.parametrize("worker", WORKERS)
def test_it_is_entered_before_the_first_job_and_left_after_the_last(
    project: Project, worker: str
) -> None:
    configured(project)
    project.drain(*WORKERS[worker])
    notes = project.notes()
    pid = notes[0][1]
    around = [["entered", pid], ["job", pid, "True"], ["job", pid, "True"], ["left", pid, "True"]]
    if worker == "isolated":  # each job's process has its own
        assert [each[0] for each in notes] == ["entered", "job", "left"] * 2
        assert notes[2][2] == "True"
        assert len({each[1] for each in notes}) == 2
    else:
        assert notes == around


def test_one_that_is_not_async_and_jobs_in_threads(project: Project) -> None:
    configured(project, "plain", "Plain")
    project.drain("--concurrency", 2)
    assert [each[0] for each in project.notes()] == ["entered", "job", "job", "left"]


@pytest.mark.parametrize("worker", ["alone", "slots"])
def test_one_that_cannot_be_entered_ends_the_worker_with_a_line_and_nothing_reserved(
    project: Project, worker: str
) -> None:
    configured(project, "broken")
    ended = project.work(*WORKERS[worker], "--stop-when-empty").finished()
    assert ended.code == 2
    assert "worker.lifespan: 'life:broken' cannot be entered: " in ended.one_line()
    assert "no route to the database" in ended.one_line()
    assert project.sizes().ready == 2


def test_a_job_of_its_own_process_fails_for_it(project: Project) -> None:
    configured(project, "broken", count=1)
    project.drain("--isolate")
    assert "'life:broken' cannot be entered" in project.failure().exception


def test_an_error_at_the_end_is_logged(project: Project) -> None:
    configured(project, "raises_at_the_end")
    ended = project.work("--stop-when-empty").finished()
    assert ended.code == 0
    assert "cannot say goodbye" in ended.err
    assert project.empty()


@pytest.mark.parametrize("worker", ["alone", "slots"])
def test_a_signal_to_stop_ends_entering_it(project: Project, worker: str) -> None:
    configured(project, "slow")
    worker_process = project.work(*WORKERS[worker])
    project.wait_for_note("entering")
    worker_process.signal(signal.SIGTERM)
    assert worker_process.wait() == 0
    assert project.notes() == [["entering"], ["cancelled"]]
    assert project.sizes().ready == 2


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("cancels_itself", "RuntimeError: its own code cancelled it"), ("exits", "SystemExit: 3")],
)
def test_one_that_ends_itself_instead_is_an_error(
    project: Project, worker: str, name: str, said: str
) -> None:
    configured(project, name)
    ended = project.work(*WORKERS[worker], "--stop-when-empty").finished()
    assert ended.code == 2
    assert f"'life:{name}' cannot be entered: {said}" in ended.one_line()
    assert project.sizes().ready == 2


def test_an_exit_at_the_end_is_an_error_and_no_exit_code(project: Project) -> None:
    configured(project, "exits_at_the_end")
    ended = project.work("--stop-when-empty").finished()
    assert ended.code == 0
    assert "SystemExit: 3" in ended.err + ended.out
    assert "stopped (empty): 2 done" in ended.out


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize("name", ["deafens", "deafens_on_loop"])
def test_a_worker_hears_its_signals_whatever_it_installs(
    project: Project, worker: str, name: str
) -> None:
    configured(project, name, count=0)
    worker_process = project.work(*WORKERS[worker])
    project.wait_for_note("entered")
    wait_for(lambda: "replaced the worker's handler" in worker_process.err, "the warning")
    worker_process.signal(signal.SIGTERM)
    assert worker_process.wait() == 0
    assert f"the lifespan life:{name} replaced the worker's handler" in worker_process.err


@pytest.mark.parametrize("worker", ["alone", "slots"])
def test_one_that_ends_while_jobs_run_stops_the_worker_behind_them(
    project: Project, worker: str
) -> None:
    configured(project, "ends_early", "Breaks", count=1)
    worker_process = project.work(*WORKERS[worker])
    assert worker_process.wait() == 1
    assert project.notes() == [["job"]]
    assert "the lifespan life:ends_early ended while jobs ran" in worker_process.err
    assert "the connection was lost" in worker_process.err
    assert "stopped (lifespan ended): 1 done" in worker_process.out


@pytest.mark.parametrize("then", ["idle", "busy"])
def test_one_that_ends_is_noticed_where_no_job_is_async(project: Project, then: str) -> None:
    configured(project, "ends_early", "BreaksLater", count=1)
    for _ in range(200 if then == "busy" else 0):
        project.push("life.Brief")
    worker_process = project.work()
    assert worker_process.wait() == 1
    assert "the lifespan life:ends_early ended while jobs ran" in worker_process.err
    assert "the connection was lost" in worker_process.err
    assert "stopped (lifespan ended)" in worker_process.out
    assert (project.sizes().ready > 0) is (then == "busy")


def test_a_signal_to_stop_leaves_it_after_the_job(project: Project) -> None:
    configured(project, count=1)
    worker = project.work("--workers", 2)
    project.wait_for_note("entered", count=2)
    project.wait_for_note("job")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert len(project.notes("left")) == 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere_at_all:it", "cannot be loaded (module:function): "),
        ("qframe.worker.lifespan:nothing", "cannot be loaded (module:function): "),
        ("qframe.worker.lifespan:log", "is not a function"),
    ],
)
def test_one_that_is_not_there_is_refused_at_start(path: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Lifespan(path).load()
    assert str(raised.value).startswith(f"worker.lifespan: {path!r} {said}")


def no_context() -> int:
    return 1


def test_a_wrong_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"worker.lifespan: names a function, module:f"):
        load(worker={"lifespan": "no colon"})
    lifespan = Lifespan("m:no_context")
    lifespan._make = no_context
    with (
        pytest.raises(ConfigurationError, match=r"returns a context manager, .*not int"),
        lifespan.around(lambda _: None, lambda: False),
    ):
        pass


LEAVING = """
import asyncio, time
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated
from jobs import note
from qframe import Queueable, Resource

@asynccontextmanager
async def awaits():
    yield
    note("leaving")
    await asyncio.sleep(3600)

@asynccontextmanager
async def blocks_the_loop():
    yield
    note("leaving")
    time.sleep(3600)

@contextmanager
def blocks():
    yield
    note("leaving")
    time.sleep(3600)

@contextmanager
def last():
    yield
    note("left")

class OfLoop(Queueable):
    async def handle(self, it: Annotated[None, Resource(awaits)]): ...

class BlocksLoop(Queueable):
    async def handle(self, it: Annotated[None, Resource(blocks_the_loop)]): ...

class OfThread(Queueable):
    def handle(self, it: Annotated[None, Resource(blocks)]): ...
"""


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize("name", ["awaits", "blocks_the_loop", "blocks"])
def test_one_that_hangs_as_it_is_left_is_ended_by_a_second_signal(
    project: Project, worker: str, name: str
) -> None:
    project.write("life.py", LEAVING)
    toml = f'[worker]\nlifespan = "life:{name}"'
    process = project.idle(*WORKERS[worker], "--grace", 600, toml=toml)
    process.signal(signal.SIGTERM)
    project.wait_for_note("leaving")
    for _ in range(10):  # one that comes while the note is closed may end in a finalizer
        process.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(5)
            break
    ended = process.finished()
    assert ended.code == 0
    assert f"the lifespan life:{name} had not closed when the worker was asked again" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("name", ["awaits", "blocks_the_loop", "blocks"])
def test_one_that_hangs_as_it_is_left_has_its_grace(
    project: Project, worker: str, name: str
) -> None:
    project.write("life.py", LEAVING)
    project.configure(f'worker.lifespan = "life:{name}"')
    project.push("Note", {"word": "done"})
    ended = project.drain(*WORKERS[worker], "--grace", 1)
    assert f"the lifespan life:{name} did not close in 1 s" in ended.err
    assert "Traceback" not in ended.err
    assert [each[0] for each in project.notes()] == ["note", "leaving"]
    assert not project.failed()


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize(
    ("job", "name"),
    [("OfLoop", "awaits"), ("BlocksLoop", "blocks_the_loop"), ("OfThread", "blocks")],
)
def test_a_resource_that_hangs_as_it_is_closed_has_its_grace(
    project: Project, worker: str, job: str, name: str
) -> None:
    project.write("life.py", LEAVING)
    project.configure('jobs = ["life"]\nworker.lifespan = "life:last"')
    project.push(f"life.{job}")
    ended = project.drain(*WORKERS[worker], "--grace", 1)
    assert f"the resource {name} did not close in 1 s" in ended.err
    assert "Traceback" not in ended.err
    assert project.notes() == [["leaving"], ["left"]]
