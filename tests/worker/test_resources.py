"""Jobs are given what their process makes once; the worker closes it when it ends."""

from __future__ import annotations

import signal

import pytest

from tests.support.process import Project

MODULE = """
from __future__ import annotations

import asyncio, os, threading, time
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

from jobs import note
from qframe import Chunk, Queueable, Resource, queueable

tries = 0

@contextmanager
def lifespan():
    note("lifespan", "entered")
    yield
    note("lifespan", "left")

def make_settings():
    note("made", "settings", os.getpid())
    yield "settings"
    note("closed", "settings", os.getpid())

@contextmanager
def make_client(settings: Annotated[str, Resource(make_settings)]):
    time.sleep(0.2)                                # all threads ask meanwhile
    note("made", "client", os.getpid())
    yield f"client of {settings}"
    note("closed", "client", os.getpid())

class Pool:
    def __init__(self, client):
        self.client, self.loop = client, asyncio.get_running_loop()

@asynccontextmanager
async def make_pool(client: Annotated[str, Resource(make_client)]):
    async with asyncio.TaskGroup() as group:       # entered and left in one task
        beat = group.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0.2)
        note("made", "pool", os.getpid())
        yield Pool(client)
        await asyncio.sleep(0)
        note("closed", "pool", os.getpid())
        beat.cancel()

def broken():
    global tries
    tries += 1
    if tries < 3:
        raise OSError(f"no route to the database, {tries}")
    return "works at last"

async def hangs():
    if os.path.exists("hung"):
        return "here"
    open("hung", "x").close()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        note("broken off")
        raise

ClientOf = Annotated[str, Resource(make_client)]

class Plain(Queueable):
    word: str = "plain"
    def handle(self, client: ClientOf):
        note("job", os.getpid(), client)

class OnLoop(Queueable):
    async def handle(self, client: ClientOf, *, pool: Annotated[Pool, Resource(make_pool)]):
        note("job", os.getpid(), client, pool.client, pool.loop is asyncio.get_running_loop())

class InThread(OnLoop):
    def set_up(self):                              # so it needs a thread besides the loop
        note("up", threading.current_thread() is threading.main_thread())

@queueable
async def function(word: str, pool: Annotated[Pool, Resource(make_pool)]):
    note("job", os.getpid(), word, pool.client)

class Many(Queueable):
    chunk = Chunk(5)
    @classmethod
    def handle_many(cls, jobs, client: ClientOf):
        note("jobs", len(jobs), client)

class Tried(Queueable):
    tries = 5
    def handle(self, value: Annotated[str, Resource(broken)]):
        note("job", value, self.attempts)

class Failed(Queueable):
    def handle(self, value: Annotated[str, Resource(broken)]):
        note("job", value)

class Waits(Queueable):
    tries, timeout = 3, 1.5
    async def handle(self, value: Annotated[str, Resource(hangs)]):
        note("job", value, self.attempts)

class Forks(Queueable):
    def handle(self, client: ClientOf):
        note("job", os.getpid(), client)
        child = os.fork()
        if not child:
            Plain.dispatch_sync(word="in a child")
            return                                 # back into the worker's code, which ends it
        os.waitpid(child, 0)

class ForksOnLoop(Queueable):
    async def handle(self, pool: Annotated[Pool, Resource(make_pool)]):
        child = os.fork()
        if not child:
            raise SystemExit
        os.waitpid(child, 0)
        note("job", os.getpid())

class Stuck(Queueable):
    timeout = 1.5
    async def handle(self, pool: Annotated[Pool, Resource(make_pool)]):
        await asyncio.sleep(3600)

class LongOnLoop(Queueable):
    async def handle(self, pool: Annotated[Pool, Resource(make_pool)]):
        note("job")
        await asyncio.sleep(0.5)
        note("ended")
"""
WORKERS: dict[str, tuple[object, ...]] = {
    "alone": (),
    "slots": ("--concurrency", 10),
    "isolated": ("--isolate",),
    "isolated, many": ("--isolate", "--concurrency", 3),
    "pool": ("--workers", 2),
}


@pytest.fixture
def project(project: Project) -> Project:
    project.write("shop.py", MODULE)
    project.configure('jobs = ["shop"]\nworker.lifespan = "shop:lifespan"')
    return project


def kinds(project: Project) -> list[list[str]]:
    """The ledger without pids."""
    return [[word for word in line if not word.isdigit()] for line in project.notes()]


@pytest.mark.parametrize(
    ("worker", "job"),
    [
        *((worker, "OnLoop") for worker in WORKERS),
        *((worker, "Plain") for worker in WORKERS if worker not in {"isolated, many", "pool"}),
        ("slots", "InThread"),
    ],
)
def test_each_process_makes_it_once_and_closes_it_after_its_last_job(
    project: Project, worker: str, job: str
) -> None:
    for _ in range(6):
        project.push(f"shop.{job}", {})
    project.drain(*WORKERS[worker])
    assert not project.failed()
    jobs = project.notes("job")
    assert len(jobs) == 6
    pids = {each[1] for each in jobs}
    assert len(pids) == (6 if "isolated" in worker else len(pids))
    names = ["settings", "client", *(["pool"] if job != "Plain" else [])]
    for pid in pids:
        own = [
            line[:2] for line in project.notes() if line[0] in {"made", "closed"} and pid in line
        ]
        closed = [["closed", name] for name in reversed(names)]
        assert own == [*(["made", name] for name in names), *closed]
    told = kinds(project)
    if worker in {"alone", "slots"}:
        ends = told.index(["closed", names[-1]])
        assert max(at for at, line in enumerate(told) if line[0] == "job") < ends
        assert told[0] == ["lifespan", "entered"]
        assert told[-1] == ["lifespan", "left"]
    if job != "Plain":
        assert {" ".join(line[2:]) for line in jobs} == {
            "client of settings client of settings True"
        }


def test_one_that_no_job_needs_is_not_made(project: Project) -> None:
    project.push("Note")
    project.push("shop.Plain")
    project.drain()
    assert [line[:2] for line in project.notes("made")] == [
        ["made", "settings"],
        ["made", "client"],
    ]


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize("stops", [signal.SIGTERM, "--max-jobs"])
def test_it_is_closed_however_the_worker_ends(
    project: Project, worker: str, stops: signal.Signals | str
) -> None:
    for _ in range(3):
        project.push("shop.LongOnLoop")
    if isinstance(stops, str):
        process = project.work(*WORKERS[worker], stops, 1)
    else:
        process = project.work(*WORKERS[worker])
        project.wait_for_note("job")
        process.signal(stops)
    assert process.finished().code == 0
    closed = [line[:2] for line in project.notes("closed")]
    assert closed == [["closed", "pool"], ["closed", "client"], ["closed", "settings"]]
    assert len(project.notes("ended")) == len(project.notes("job"))


@pytest.mark.parametrize("worker", ["alone", "slots", "isolated"])
def test_it_is_closed_after_a_timeout(project: Project, worker: str) -> None:
    project.push("shop.Stuck")
    ended = project.work(*WORKERS[worker], "--stop-when-empty").finished()
    assert "JobTimedOut" in project.failure().exception
    assert ended.code == (1 if worker == "alone" else 0)
    closed = [line[:2] for line in project.notes("closed")]
    assert closed == [["closed", "pool"], ["closed", "client"], ["closed", "settings"]]


@pytest.mark.parametrize("worker", ["alone", "slots", "isolated"])
def test_functions_chunks_and_chains_have_them(project: Project, worker: str) -> None:
    project.push("shop.function", {"word": "one"})
    for _ in range(5):
        project.push("shop.Many")
    project.drain(*WORKERS[worker])
    assert not project.failed()
    (job,) = project.notes("job")
    assert job[2:] == ["one", "client", "of", "settings"]
    jobs = project.notes("jobs")
    assert sum(int(each[1]) for each in jobs) == 5
    assert {" ".join(each[2:]) for each in jobs} == {"client of settings"}
    data = project.program(
        "from qframe import chain, config\nimport shop\n"
        "shop.function.dispatch('two').send()\n"
        "chain([shop.Plain(), shop.function.job(word='three')]).dispatch()\n"
    )
    assert data.code == 0, data.err
    project.drain(*WORKERS[worker])
    words = sorted(line[2] for line in project.notes("job"))
    assert words == ["client", "one", "three", "two"]


@pytest.mark.parametrize("worker", ["alone", "slots"])
def test_an_attempt_whose_factory_raises_is_tried_again(project: Project, worker: str) -> None:
    project.push("shop.Tried")
    project.drain(*WORKERS[worker])
    assert project.notes("job") == [["job", "works", "at", "last", "3"]]
    assert not project.failed()


@pytest.mark.parametrize("worker", ["alone", "slots", "isolated"])
def test_a_failure_names_the_factory_and_its_place(project: Project, worker: str) -> None:
    project.push("shop.Failed")
    project.drain(*WORKERS[worker])
    text = project.failure().exception
    assert "OSError: no route to the database, 1" in text
    line = MODULE.splitlines().index("def broken():") + 1
    assert f"raised while the resource broken was made ({project.root}/shop.py:{line})" in text


@pytest.mark.parametrize("worker", ["alone", "slots"])
def test_making_one_takes_no_longer_than_the_job_may(project: Project, worker: str) -> None:
    """And it is broken off, so that the next attempt has another."""
    project.push("shop.Waits")
    first = project.work(*WORKERS[worker], "--stop-when-empty").finished()
    assert "JobTimedOut" in first.out
    assert project.notes("broken") == [["broken", "off"]]
    if worker == "alone":  # whose timeout ends it
        assert first.code == 1
        project.drain()
    assert project.notes("job") == [["job", "here", "2"]]


@pytest.mark.parametrize("worker", ["alone", "slots"])
@pytest.mark.parametrize("job", ["Forks", "ForksOnLoop"])
def test_a_fork_of_a_job_makes_its_own_and_closes_none_of_the_worker(
    project: Project, worker: str, job: str
) -> None:
    project.push(f"shop.{job}")
    project.push("shop.Plain")
    project.drain(*WORKERS[worker])
    assert not project.failed()
    made, closed = project.notes("made"), project.notes("closed")
    pids = {line[2] for line in made}
    assert len(pids) == (2 if job == "Forks" else 1)
    assert sorted(line[1:] for line in made) == sorted(line[1:] for line in closed)
    for pid in pids:
        own = [line[1] for line in closed if line[2] == pid]
        assert own == [line[1] for line in made if line[2] == pid][::-1]


FORKING = """
import os, sys
from typing import Annotated
from qframe import Queueable, Resource, dispatch_sync
from jobs import note

def make():
    note("made", os.getpid())
    try:
        yield "it"
    finally:
        note("closed", os.getpid())

class Forks(Queueable):
    def handle(self, it: Annotated[str, Resource(make)]):
        return os.fork()
"""


def test_a_fork_that_lives_on_closes_none_of_its_parent(project: Project) -> None:
    project.write("forking.py", FORKING)
    ended = project.program(
        "import gc, os, sys\nfrom qframe import dispatch_sync\nimport forking\n"
        "child = dispatch_sync(forking.Forks())\n"
        "gc.collect()\n"
        "if child: os.waitpid(child, 0)\n"
        "else: sys.exit()\n"
    )
    assert ended.code == 0, ended.err
    (made, closed) = project.notes()
    assert [made[0], closed[0]] == ["made", "closed"]
    assert made[1] == closed[1]


ON_LOOP = """
import asyncio, os, sys
from qframe import Queueable, dispatch_sync, testing

class ForksOnLoop(Queueable):
    how: str

    async def handle(self):
        child = os.fork()
        if not child:
            if self.how == "exits":
                sys.exit(3)
            if self.how == "raises":
                raise OSError("in the child")
            return None
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                await asyncio.to_thread(os.getpid)     # the parent's loop can still be woken
                return os.waitstatus_to_exitcode(status)
            await asyncio.sleep(0.01)
"""


def test_a_fork_of_a_job_that_runs_on_another_loop_ends(project: Project) -> None:
    project.write("looping.py", ON_LOOP)
    ended = project.program(
        "import asyncio\nfrom qframe import testing\nimport looping\n"
        "async def main():\n"
        "    for how in ('exits', 'raises', 'returns'):\n"
        "        print(testing.run(looping.ForksOnLoop(how=how)).result, flush=True)\n"
        "asyncio.run(main())\n"
    )
    assert (ended.code, ended.out.split()) == (0, ["3", "1", "0"]), ended.err
