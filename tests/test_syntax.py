"""What a file's syntax tree shows of a job, so that nothing else of a project is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qframe.exceptions import UnknownJob
from qframe.jobs import project
from qframe.jobs.registry import Registry
from qframe.jobs.syntax import shows_job

Write = Callable[[str, str], Path]


@pytest.fixture
def write(fresh: Path) -> Write:
    project.set_root(fresh)

    def write(name: str, text: str) -> Path:
        file = fresh / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


SOURCE = """\
import decorators, qframe, qframe as q
import qframe.dispatch.queueable
from qframe import Queueable, Queueable as Base, queueable, queueable as job
from elsewhere import Imported
from elsewhere import *
try:
    from fast import Foreign
except ImportError:
    from qframe import Queueable as Foreign

class Job(Queueable): ...
class Renamed(Base): ...
class ByModule(qframe.Queueable): ...
class ByAlias(q.Queueable): ...
class ByPath(qframe.dispatch.queueable.Queueable): ...
class Second(Job): ...
class Mixed(object, Second): ...
class Given(Queueable[int]): ...
class InTry(Foreign): ...
class fix(Queueable): ...

Short = q.Queueable
Held = Queueable[int]
Typed = type("Typed", (q.Queueable,), {})
def make(name):
    class Inside(Base): ...
    return Inside
Given2 = make("x")
class OfShort(Short): ...
class OfHeld(Held): ...
class OfTyped(Typed): ...
class OfCall(make("y")): ...
class OfGiven(Given2): ...

def other(name):
    class Inside: ...
    return Inside
Model = other("x")
Round = q.Round(Round)
class OfOther(other("y")): ...
class OfModel(Model): ...
class OfRound(Round): ...

class Own: ...
class OwnToo(Own): ...
class Queue(q.QueueManager): ...
class Made(type("X", (), {})): ...
class Unknown(Missing): ...
class Loop(Loop): ...
class A(B): ...
class B(A): ...

@queueable
def decorated(): ...
@job(queue="x")
async def asynchronous(): ...
@q.queueable(tries=3)
def by_alias(): ...
@decorators.some
def foreign(): ...
@staticmethod
def static(): ...
@property
class Decorated: ...
def plain(): ...

Assigned = Job
Also = type("Also", (), {})

if True:
    class Conditional(Queueable): ...

class Outer(Queueable):
    class Inner(Queueable): ...

raise SystemExit("it was run")
"""


@pytest.mark.parametrize(
    "name",
    [
        *("Job", "Renamed", "ByModule", "ByAlias", "ByPath", "Second", "Mixed", "Given", "InTry"),
        *("fix", "Outer", "decorated", "asynchronous", "by_alias"),
        *("OfShort", "OfHeld", "OfTyped", "OfCall", "OfGiven"),
    ],
)
def test_a_base_or_a_decorator_of_ours_shows_a_job(write: Write, name: str) -> None:
    assert shows_job(write("myjobs.py", SOURCE), "myjobs", name)


@pytest.mark.parametrize(
    "name",
    [
        *("OfOther", "OfModel", "OfRound", "make", "Short", "Typed"),
        *("Own", "OwnToo", "Queue", "Made", "Unknown", "Loop", "A", "B", "foreign", "static"),
        *(
            "Decorated",
            "plain",
            "Assigned",
            "Also",
            "Imported",
            "Inner",
            "Outer.Inner",
            "Queueable",
        ),
        *("Conditional", "", "job", "__name__", "decorators", "ﬁx", "J\u043eb", "\uff2aob"),
    ],
)
def test_nothing_else_does(write: Write, name: str) -> None:
    assert not shows_job(write("myjobs.py", SOURCE), "myjobs", name)


FILES = {
    "shop/__init__.py": "from .base import *\n",
    "shop/base.py": "from qframe import Queueable\nclass Base(Queueable):\n    abstract = True\n",
    "shop/deep/__init__.py": "from ..base import Base as Mine\n",
    "shop/deep/jobs.py": "from . import Mine\nclass Relative(Mine): ...\n",
    "shop/jobs.py": "import shop\nimport shop.base as b\n"
    "class Starred(shop.Base): ...\nclass Aliased(b.Base): ...\nclass Not(shop.Other): ...\n",
    "shop/deco.py": "import qframe\ndef mine(f):\n    return qframe.queueable(tries=3)(f)\n"
    "short = qframe.queueable(tries=1)\n",
    "shop/other.py": "def traced(f): return f\n",
    "shop/calls.py": "from shop.deco import mine, short\nfrom shop.other import traced\n"
    "@mine\ndef one(): ...\n@short\ndef two(): ...\n@traced\ndef three(): ...\n",
    "loops/a.py": "from loops.b import Base\n",
    "loops/b.py": "from loops.a import Base\nclass Job(Base): ...\n",
}


@pytest.mark.parametrize(
    ("module", "name", "shown"),
    [
        ("shop.deep.jobs", "Relative", True),
        ("shop.jobs", "Starred", True),
        ("shop.jobs", "Aliased", True),
        ("shop.jobs", "Not", False),
        ("shop.calls", "one", True),
        ("shop.calls", "two", True),
        ("shop.calls", "three", False),
        ("loops.b", "Job", False),
    ],
)
def test_bases_are_followed_through_the_files_of_the_project(
    write: Write, module: str, name: str, shown: bool
) -> None:
    for name_, text in FILES.items():
        write(name_, text)
    file = project.source_of(module)
    assert file is not None
    assert shows_job(file, module, name) is shown
    assert "shop" not in sys.modules


def test_a_base_of_a_library_is_read_and_not_imported(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages" / "libjobs"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(
        "from qframe import Queueable\nclass Base(Queueable): ...\n"
    )
    monkeypatch.syspath_prepend(str(library.parent))
    assert shows_job(
        write("myjobs.py", "import libjobs\nclass Job(libjobs.Base): ...\n"), "myjobs", "Job"
    )
    assert "libjobs" not in sys.modules


@pytest.mark.parametrize("name", ["setup.Install", "manage.Command", "conftest.Fixture"])
def test_a_script_that_has_a_class_of_that_name_is_not_run(write: Write, name: str) -> None:
    module, attribute = name.split(".")
    text = f"from os import *\nclass {attribute}(object): ...\nopen('ran', 'w')\n"
    file = write(f"{module}.py", text)
    with pytest.raises(UnknownJob, match="is not a job of this project"):
        Registry().find(name)
    assert not (file.parent / "ran").exists()


@pytest.mark.parametrize(
    "raw", [b"class Job(:", b"\xff\xfe", b"class Job: ...\0", b"(" * 100_000, b""]
)
def test_a_file_that_is_no_source_shows_nothing(write: Write, fresh: Path, raw: bytes) -> None:
    (fresh / "jobs.py").write_bytes(raw)
    assert not shows_job(fresh / "jobs.py", "jobs", "Job")
    assert not shows_job(fresh / "gone.py", "jobs", "Job")


def test_a_declared_encoding_is_honoured(fresh: Path) -> None:
    source = "# coding: latin-1\nfrom qframe import Queueable\nclass Jöb(Queueable): ...\n"
    (fresh / "jobs.py").write_bytes(source.encode("latin-1"))
    assert shows_job(fresh / "jobs.py", "jobs", "Jöb")


def test_a_long_line_of_bases_ends(fresh: Path) -> None:
    lines = [f"class C{number}(C{number + 1}): ..." for number in range(5000)]
    (fresh / "jobs.py").write_text("\n".join(lines))
    assert not shows_job(fresh / "jobs.py", "jobs", "C0")
