"""Workers of each kind: dependencies are made for each job, and closed after it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.process import Project

pytestmark = pytest.mark.slow

TASKS = """
from typing import Annotated
from fastapi import Depends
from qframe import Queueable, queueable
from qframe.fastapi import inject

def note(*words):
    with open("ledger", "a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\\n")

def session():
    try:
        yield "session"
    except Exception as error:
        note("saw", error)
        raise
    finally:
        note("closed")

async def client(session: Annotated[str, Depends(session)]):
    yield f"client-of-{session}"
    note("client-closed")

@queueable
@inject
def plain(session: Annotated[str, Depends(session)], fails: bool = False):
    note("plain", session)
    if fails:
        raise ValueError("as-asked")

@queueable
@inject
def mixed(client: Annotated[str, Depends(client)]):
    note("mixed", client)

class OnLoop(Queueable):
    @inject
    async def handle(self, client: Annotated[str, Depends(client)]):
        note("loop", client)
"""


@pytest.mark.parametrize(
    "options",
    [[], ["--concurrency", "4"], ["--isolate"], ["--workers", "2"]],
    ids=" ".join,
)
def test_jobs_take_dependencies_in_each_kind_of_worker(options: list[str], tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        project.write("tasks.py", TASKS)
        for _ in range(3):
            for name in ("plain", "mixed", "OnLoop"):
                project.push(f"tasks.{name}")
        project.push("tasks.plain", {"fails": True})
        project.run([sys.executable, "-m", "qframe", "work", "--sleep", "0.1", *options])
        project.wait_for_note("saw", "as-asked")
        project.wait_for_note("closed", count=10)
        project.wait_for_note("client-closed", count=6)
        ran = [words for words in project.notes() if words[0] in {"plain", "mixed", "loop"}]
        expected = [["loop", "client-of-session"]] * 3 + [["mixed", "client-of-session"]] * 3
        assert sorted(ran) == [*expected, *[["plain", "session"]] * 4]
