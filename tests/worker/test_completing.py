"""Which jobs may complete within a transaction, so that a worker waits for their start."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text

from qframe.jobs import completing
from qframe.jobs import project as projects
from tests.support.process import wait_for
from tests.support.projects import DatabaseProject

Finds = Callable[..., bool]

HELPERS = """
import functools
from contextlib import contextmanager

from bookings import tools

def finish(job, session):
    job.complete(within=session)

def count(session):
    return len(session)

def in_steps(job, session):
    def last():
        return finish(job, session)
    return last()

def traced(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call

@traced
def decorated(job, session):
    finish(job, session)

class Desk:
    name = "desk"

    def __init__(self, job=None):
        self.job = job

    def close(self, session):
        self._end(session)

    def open(self, session):
        return count(session)

    def _end(self, session):
        finish(self.job, session)

    @classmethod
    def of(cls, job):
        return cls(job)

class Quiet(Desk):
    def _end(self, session):
        pass

class Block:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        finish(self, None)

desk = Desk()
shut = desk._end
later = functools.partial(finish, None)
"""


@pytest.fixture
def finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Finds]:
    """Say whether a job whose module has these lines, and this handler, may complete."""
    package = tmp_path / "bookings"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text(HELPERS)
    (package / "tools.py").write_text("def end(job):\n    job.complete()\n")
    monkeypatch.syspath_prepend(tmp_path)
    projects.set_root(tmp_path)
    before = set(sys.modules)

    def found(handler: str, lines: str = "") -> bool:
        text = f"from qframe import Queueable\n{lines}\nclass Book(Queueable):\n    x: int = 0\n"
        text += "    def handle(self) -> None:\n        session = None\n"
        text += "".join(f"        {line}\n" for line in handler.splitlines())
        (package / "jobs.py").write_text(text)
        sys.modules.pop("bookings.jobs", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return completing.may_complete(importlib.import_module("bookings.jobs").Book)

    yield found
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"bookings", "lazily"}:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("lines", "handler"),
    [
        ("", "self.job.complete(within=session)"),
        ("from bookings.helpers import finish", "finish(self.job, session)"),
        ("from .helpers import finish as done", "done(self.job, session)"),
        ("from bookings import helpers", "helpers.finish(self.job, session)"),
        ("import bookings.helpers", "bookings.helpers.finish(self.job, session)"),
        ("import bookings.helpers", "bookings.helpers.tools.end(self.job)"),
        ("from bookings.helpers import in_steps", "in_steps(self.job, session)"),
        ("from bookings.helpers import decorated", "decorated(self.job, session)"),
        ("from bookings.helpers import later", "later(session)"),
        ("from bookings.helpers import shut", "shut(session)"),
        ("from bookings.helpers import Desk", "Desk(self.job).close(session)"),
        ("from bookings.helpers import Desk", "Desk.of(self.job).close(session)"),
        ("from bookings.helpers import desk", "desk.close(session)"),
        ("from bookings.helpers import Block", "with Block(): pass"),
        ("from bookings import helpers", "(lambda: helpers.desk.close(session))()"),
        ("import bookings.helpers", "from bookings.helpers import finish\nfinish(self.job, None)"),
        ("import bookings.helpers", "from .helpers import finish\nfinish(self.job, None)"),
        ("import bookings.helpers", "from . import helpers\nhelpers.finish(self.job, None)"),
        ("import bookings.helpers", "import bookings.helpers as h\nh.finish(self.job, None)"),
    ],
)
def test_a_call_in_another_module_of_the_project(finds: Finds, lines: str, handler: str) -> None:
    assert finds(handler, lines)


@pytest.mark.parametrize(
    ("lines", "handler"),
    [
        ("", "print(self.x)"),
        ("from bookings import helpers", "helpers.count(session)"),
        ("from bookings.helpers import Desk", "Desk(self.job).open(session)"),
        ("from bookings.helpers import desk", "print(desk.name)"),
        ("from bookings.helpers import Quiet", "print(Quiet.__name__)"),
        ("from bookings.helpers import finish", "print(self.x)"),
        # readline has a function `complete`, and code that calls one
        ("import rlcompleter", "rlcompleter.Completer().complete_('x', 0)"),
        ("import asyncio", "asyncio.run(None)"),
    ],
)
def test_who_names_no_call_is_not_waited_for(finds: Finds, lines: str, handler: str) -> None:
    assert not finds(handler, lines)


def test_a_class_without_a_file() -> None:
    space: dict[str, Any] = {"__name__": "typed_in"}
    exec(
        "from qframe import Queueable\n"
        "def finish(job):\n    job.complete()\n"
        "class Book(Queueable):\n    def handle(self):\n        finish(self.job)\n"
        "class Other(Queueable):\n    def handle(self):\n        pass\n",
        space,
    )
    assert completing.may_complete(space["Book"])
    assert not completing.may_complete(space["Other"])


LAZY = """
class Lazy:
    @property
    def __class__(self):
        raise AssertionError("asked for its class")
    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")

class Field:
    def __get__(self, owner, kind):
        raise AssertionError("asked for its value")

class Meta(type):
    __hash__ = None
    def __getattr__(cls, name):
        raise AssertionError(f"asked for {name}")

class Model(metaclass=Meta):
    objects = Field()

def __getattr__(name):
    if name.startswith("__"):  # the import system asks for these
        raise AttributeError(name)
    raise AssertionError(f"asked for {name}")

proxy = Lazy()
"""


def test_nothing_is_imported_or_asked_for_its_attributes(
    finds: Finds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazily.py").write_text(LAZY)

    class Unloaded(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"loaded for {name}")

    monkeypatch.setitem(sys.modules, "unloaded", Unloaded("unloaded"))
    lines = "import lazily\nimport unloaded\nfrom lazily import proxy, Model"
    handler = "proxy.get(); lazily.missing(); lazily.proxy.x(); unloaded.load(); Model.objects.all"
    before = set(sys.modules)
    assert not finds(f"{handler}\nimport bookings.absent\nbookings.absent.run()", lines)
    assert set(sys.modules) - before <= {"lazily", "bookings", "bookings.jobs"}


def test_the_look_is_bounded(finds: Finds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = "".join(f"def f{each}(a):\n    return f{each + 1}(a)\n" for each in range(5000))
    (tmp_path / "bookings" / "far.py").write_text(far + "def f5000(a):\n    a.complete()\n")
    assert not finds("far.f0(self.job)", "from bookings import far")
    monkeypatch.setattr(completing, "_MOST", 10**6)
    assert finds("far.f0(self.job)", "from bookings import far")


# -- a worker with slots --------------------------------------------------------------------------

SALES = """
from qframe import Queueable
from sqlalchemy import create_engine
from jobs import note
from till import finishing

engine = create_engine(URL, isolation_level="REPEATABLE READ")
ways = {"chosen": vars(finishing)["fin" + "ish"]}

class Other(Queueable):
    def handle(self):
        pass

class Sale(Queueable):
    way: str = ""
    tries = 1

    def handle(self):
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM jobs").scalar()
            note("ran", self.job.uuid)
            if self.way == "called":
                finishing.finish(self.job, connection)
            elif self.way:
                ways[self.way](self.job, connection)
            connection.commit()
"""
LATE = """
CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
CREATE TRIGGER late BEFORE UPDATE ON jobs FOR EACH ROW
WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION late();
"""


@contextmanager
def starts_late(url: str) -> Iterator[None]:
    """Have the server take a moment to start jobs."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(LATE))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER late ON jobs; DROP FUNCTION late"))


@pytest.mark.parametrize("project", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("first", "way"),
    [
        ("sales.Sale", "called"),  # by a name that the worker finds
        ("sales.Other", "chosen"),  # by one that is in no code
    ],
)
def test_no_handler_runs_twice_because_its_start_came_late(
    project: DatabaseProject, first: str, way: str
) -> None:
    project.write("till/__init__.py", "")
    project.write(
        "till/finishing.py", "def finish(job, session):\n    job.complete(within=session)\n"
    )
    project.write("sales.py", SALES.replace("URL", repr(project.url)))
    project.queue.size()
    with starts_late(project.url):
        worker = project.work("--concurrency", 20)
        project.push(first)  # after which the worker knows the class
        wait_for(lambda: "DONE" in worker.out, "the first")
        sales = [project.push("sales.Sale", {"way": way})]  # one start is not waited for
        wait_for(project.empty, "a sale")
        sales += [project.push("sales.Sale", {"way": way}) for _ in range(20)]
        wait_for(project.empty, "all sales")
        assert project.stop([worker]) == [0]
    ran = [words[1] for words in project.notes("ran")]
    assert sorted(each for each in ran if each in sales) == sorted(sales)
    assert project.failed() == []
