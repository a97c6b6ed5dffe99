"""Workers of a Flask application: each kind of them runs jobs in an application context."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.process import Project

pytestmark = pytest.mark.slow

APP = """
from flask import Flask
from qframe.flask import QFrame
from shop.tasks import note

queue = QFrame()

def create_app() -> Flask:
    app = Flask("shop")
    queue.init_app(app)

    @app.teardown_appcontext
    def end(error):
        note("end", error)

    return app
"""
TASKS = """
import time
from flask import current_app, g
from qframe import Queueable, queueable

def note(*words):
    with open("ledger", "a") as ledger:
        ledger.write(" ".join(str(word).replace(" ", "-") for word in words) + "\\n")

def count(kind):
    g.count = g.get("count", 0) + 1
    note(kind, current_app.name, g.count)

@queueable
def plain(fails: bool = False):
    count("plain")
    time.sleep(0.05)
    if fails:
        raise ValueError("as-asked")

class OnLoop(Queueable):
    async def handle(self):
        count("loop")
"""


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--concurrency", "4"],
        ["--isolate"],
        ["--isolate", "--concurrency", "3"],
        ["--workers", "2"],
    ],
    ids=" ".join,
)
def test_jobs_have_a_context_in_each_kind_of_worker(options: list[str], tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        project.write("shop/__init__.py", APP)
        project.write("shop/tasks.py", TASKS)
        for _ in range(5):
            project.push("shop.tasks.plain")
            project.push("shop.tasks.OnLoop")
        project.push("shop.tasks.plain", {"fails": True})
        flask = [sys.executable, "-m", "flask", "--app", "shop"]
        project.run([*flask, "qframe", "work", "--sleep", "0.1", *options])
        project.wait_for_note("end", "as-asked")
        project.wait_for_note("end", "None", count=10)
        ran = [words for words in project.notes() if words[0] in {"plain", "loop"}]
        assert sorted(ran) == [["loop", "shop", "1"]] * 5 + [["plain", "shop", "1"]] * 6
