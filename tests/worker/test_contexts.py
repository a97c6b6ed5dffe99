"""Each attempt has a context of its own: what one sets in a `ContextVar` no other finds."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path

import pytest

from qframe import Queueable, dispatch_sync
from qframe.testing import run
from tests.support.process import Project

MODULE = """
from contextvars import ContextVar
from jobs import note
from qframe import Queueable, events

tenant = ContextVar("tenant", default="none")
seen_by_listener = ContextVar("seen", default="none")

@events.listen(events.JobProcessing)
def bind(event):
    note("listener", tenant.get(), seen_by_listener.get())
    seen_by_listener.set("listener")

def middle(job, call_next):
    note("middleware", tenant.get(), seen_by_listener.get())
    tenant.set("middleware")
    try:
        return call_next(job)
    finally:
        note("behind", tenant.get())

class Plain(Queueable):
    middleware = (middle,)
    tries = 2
    fails: bool = False

    def handle(self):
        note("handle", tenant.get(), seen_by_listener.get())
        tenant.set("handle")
        if self.fails:
            raise ValueError("no")

    def failed(self, error):
        note("failed", tenant.get())

class Later(Plain):
    async def handle(self):
        Plain.handle(self)

@events.listen(events.JobAttempted)
def unbind(event):
    note("attempted", seen_by_listener.get())
"""
WORKERS: dict[str, tuple[object, ...]] = {
    "alone": (),
    "slots": ("--concurrency", 2),
    "isolated": ("--isolate", "--preload"),
    "a slot": ("--isolate", "--concurrency", 2, "--preload"),
}


@pytest.mark.parametrize("worker", WORKERS)
def test_each_attempt_begins_with_the_workers_context(project: Project, worker: str) -> None:
    project.write("contexts.py", MODULE)
    project.configure('jobs = ["contexts"]')
    for fails in (False, True, False):
        project.push("contexts.Plain", {"fails": fails})
        project.push("contexts.Later", {"fails": fails})
    project.drain(*WORKERS[worker])
    notes = [tuple(line) for line in project.notes()]
    began = {line for line in notes if line[0] in {"listener", "middleware", "handle"}}
    assert began == {
        ("listener", "none", "none"),
        ("middleware", "none", "listener"),
        ("handle", "middleware", "listener"),
    }
    # Of an isolated job the one listener hears in its process, the other in the worker.
    bound = "none" if "--isolate" in WORKERS[worker] else "listener"
    assert {line for line in notes if line[0] == "attempted"} == {("attempted", bound)}
    assert sum(line[0] == "handle" for line in notes) == 8
    assert sum(line[0] == "failed" for line in notes) == 2


tenant: ContextVar[str] = ContextVar("tenant", default="none")
seen: list[str] = []


class Binds(Queueable):
    def handle(self) -> str:
        seen.append(tenant.get())
        tenant.set("job")
        return tenant.get()


def test_failed_sees_what_handle_has_set(project: Project) -> None:
    project.write("contexts.py", MODULE)
    project.configure('jobs = ["contexts"]')
    project.push("contexts.Plain", {"fails": True}, maxTries=1)
    project.drain()
    assert project.notes("failed") == [["failed", "handle"]]


@pytest.mark.parametrize("how", ["sync", "run"])
def test_a_job_in_the_callers_thread_sees_its_context_and_leaves_it_alone(
    how: str, fresh: Path
) -> None:
    seen.clear()
    token = tenant.set("caller")
    try:
        for _ in range(2):
            result = dispatch_sync(Binds()) if how == "sync" else run(Binds()).result
            assert result == "job"
        assert seen == ["caller", "caller"]
        assert tenant.get() == "caller"
    finally:
        tenant.reset(token)


BESIDE = """
from contextvars import ContextVar
from jobs import note
from qframe import Queueable, current_job, events

tenant = ContextVar("tenant", default="none")
bound = ContextVar("bound", default="none")

@events.listen(events.JobPopped)
def popped(event):
    note("popped", bound.get(), current_job().uuid == event.job.uuid)
    bound.set("popped")

@events.listen(events.JobQueued)
def queued(event):
    note("queued", bound.get(), tenant.get(), getattr(current_job(), "name", "-"))
    bound.set("queued")

class Binds(Queueable):
    def handle(self):
        note("handle", bound.get(), tenant.get())
        tenant.set("of " + type(self).__name__)

class First(Binds):
    pass

class Last(Binds):
    pass
"""
FIRST_BUT_ONE = """
from beside import Binds, First, Last
from qframe import chain, dispatch
chain([First(), Last()]).dispatch()
dispatch(Binds()).send()
"""


@pytest.mark.parametrize("worker", WORKERS)
def test_what_a_listener_beside_an_attempt_sets_reaches_no_job(
    project: Project, worker: str
) -> None:
    project.write("beside.py", BESIDE)
    project.configure('jobs = ["beside"]')
    assert project.program(FIRST_BUT_ONE).code == 0
    project.ledger.write_text("")
    project.drain(*WORKERS[worker])
    notes = [tuple(line) for line in project.notes()]
    assert {line for line in notes if line[0] == "popped"} == {("popped", "none", "True")}
    assert [line for line in notes if line[0] == "handle"] == [("handle", "none", "none")] * 3
    # Of an isolated job the end is settled in the worker.
    seen = ["none"] if "--isolate" in WORKERS[worker] else ["of", "First"]
    assert [line for line in notes if line[0] == "queued"] == [
        ("queued", "none", *seen, "beside.First")
    ]
