"""What people do wrong at first ends in one line that says how to mend it.

Each line is a heading of when-something-is-wrong.md, where dots stand for what differs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import docs_page
from tests.support.process import Finished, Project, wait_for
from tests.support.redis_server import RedisServer
from tests.support.sql_server import SqlServer

_PAGE = docs_page("when-something-is-wrong.md").read_text(encoding="utf-8")
_HEADINGS = re.findall(r"^## `(.+)`$", _PAGE, re.MULTILINE)
pytestmark = pytest.mark.slow  # a hundred processes
_JOBS = """
from typing import Any
from qframe import Queueable, queueable

class Mail(Queueable):
    user_id: int
    def handle(self) -> None:
        print("mail to", self.user_id, flush=True)

@queueable
def add(a: int, b: int) -> int:
    return a + b

@queueable
def show(what) -> None: ...

def plain() -> None: ...
"""
_MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "psycopg", "flask"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Project]:
    """A folder with a module of jobs, and nothing configured."""
    with Project(tmp_path / "app") as made:
        made.write("jobs.py", _JOBS)
        (made.root / "qframe.toml").unlink()
        yield made


def told(said: Finished, begins: str) -> None:
    """Check that a line is the heading that has these words."""
    (heading,) = (each for each in _HEADINGS if begins in each)
    parts = (re.escape(part) for part in heading.split("..."))
    pattern = re.compile(".*".join(parts))
    lines = (said.out + said.err).splitlines()
    found = [line for line in lines if pattern.search(line)]
    assert found, f"{heading}\n{said.out}\n{said.err}"


def by_command(place: Project, *words: str, **environment: str) -> Finished:
    """Run `qframe`, which never shows a traceback."""
    said = place.start(*words, environment=environment).finished()
    assert "Traceback" not in said.err
    return said


def dispatched(place: Project, code: str, **environment: str) -> Finished:
    """Run a program that imports everything of `jobs`."""
    program = f"from jobs import *\nfrom qframe import *\n{code}\n"
    if not environment:
        return place.program(program)
    place.write("program.py", program)
    return place.run([sys.executable, "program.py"], environment=environment).finished()


def test_a_worker_in_the_wrong_folder(place: Project) -> None:
    assert dispatched(place, "Mail.dispatch(user_id=7).send()").code == 0
    (place.root / "elsewhere").mkdir()
    command = ["env", "-C", str(place.root.parent), sys.executable, "-m", "qframe", "work"]
    told(place.run([*command, "--stop-when-empty"]).finished(), "no job waits in a new database")


def test_a_worker_of_another_queue(place: Project) -> None:
    assert dispatched(place, "Mail.dispatch(user_id=7).on_queue('mail').send()").code == 0
    told(by_command(place, "work", "--stop-when-empty"), "waits on mail")
    said = by_command(place, "work", "--stop-when-empty", "--queue", "default,mail")
    assert "mail to 7" in said.out
    assert "waits on" not in said.out


def test_a_queue_that_another_worker_names_is_no_mistake(place: Project) -> None:
    place.configure()
    worker = place.work("--queue", "mai*")
    wait_for(lambda: "mai*" in by_command(place, "workers").out, "the worker's entry")
    by_command(place, "pause", "mail")
    assert dispatched(place, "Mail.dispatch(user_id=7).on_queue('mail').send()").code == 0
    assert "waits on" not in by_command(place, "work", "--stop-when-empty").out
    assert worker.stop() == 0


def test_a_worker_without_the_module_of_the_job(place: Project) -> None:
    place.configure()
    assert dispatched(place, "Mail.dispatch(user_id=7).send()").code == 0
    (place.root / "jobs.py").unlink()
    told(by_command(place, "work", "--stop-when-empty"), "is not a job of this project")


def test_two_projects_with_one_prefix(place: Project, redis_running: RedisServer) -> None:
    address = {"QFRAME_DEFAULT": "redis", "QFRAME_CONNECTIONS__REDIS__URL": redis_running.url}
    mine = "Mail.dispatch(user_id=7).on_queue('of-mistakes').send()"
    assert dispatched(place, mine, **address).code == 0
    place.write("jobs.py", _JOBS.replace("Mail", "Letter"))
    work = ["work", "--queue", "of-mistakes", "--stop-when-empty"]
    said = by_command(place, *work, QFRAME_UNKNOWN_JOB_DELAYS="[]", **address)
    told(said, "is not a job of this project")


def test_code_that_was_edited_under_a_worker(place: Project) -> None:
    place.configure()
    worker = place.run([sys.executable, "-m", "qframe", "work", "--max-jobs", "2"])
    assert dispatched(place, "Mail.dispatch(user_id=7).send()").code == 0
    wait_for(lambda: "mail to 7" in worker.out, "the first job")
    place.write("jobs.py", _JOBS.replace("user_id: int", "user_id: int\n    lang: str"))
    assert dispatched(place, "Mail.dispatch(user_id=8, lang='de').send()").code == 0
    told(worker.finished(), "has no field")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["work", "--quue", "mail"], "No such option"),
        (["wrok"], "No such command"),
        (["work", "databse"], "unknown connection"),
        (["web"], "the dashboard needs"),
    ],
)
def test_a_wrong_command(place: Project, words: list[str], line: str) -> None:
    place.write("missing/sitecustomize.py", _MISSING)
    said = by_command(place, *words, PYTHONPATH=str(place.root / "missing"))
    told(said, line)
    assert said.code == 2
    said.one_line()


def test_a_wrong_key(place: Project) -> None:
    place.write("qframe.toml", "defualt = 'redis'\n")
    said = by_command(place, "work")
    told(said, "unknown key")
    assert said.code == 2


@pytest.mark.parametrize(
    ("url", "line", "code"),
    [
        ("redis://127.0.0.1:1/0", "does not answer", 69),
        ("http://127.0.0.1:6379", "must begin with", 2),
    ],
)
def test_a_redis_that_is_not_there(place: Project, url: str, line: str, code: int) -> None:
    address = {"QFRAME_DEFAULT": "redis", "QFRAME_CONNECTIONS__REDIS__URL": url}
    said = by_command(place, "size", **address)
    told(said, line)
    assert said.code == code
    told(dispatched(place, "Mail.dispatch(user_id=7).send()", **address), line)


@pytest.mark.parametrize(
    ("user", "line"), [("", "asks for a password"), (":wrong@", "refuses the user name")]
)
def test_a_wrong_password(place: Project, tmp_path: Path, user: str, line: str) -> None:
    with RedisServer(tmp_path / "redis", password="open") as server:
        address = f"redis://{user}127.0.0.1:{server.port}/0"
        where = {"QFRAME_DEFAULT": "redis", "QFRAME_CONNECTIONS__REDIS__URL": address}
        said = by_command(place, "work", **where)
    told(said, line)
    assert said.code == 2


def test_tables_that_were_not_made(place: Project, postgres_running: SqlServer) -> None:
    address = postgres_running.database()
    where = {"QFRAME_DEFAULT": "database", "QFRAME_CONNECTIONS__DATABASE__URL": address}
    said = by_command(place, "work", **where)
    told(said, "qframe migrate")
    assert said.code == 2
    told(dispatched(place, "Mail.dispatch(user_id=7).send()", **where), "qframe migrate")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import qframe.flask", "qframe.flask needs"),
        ("QueueManager().connection('pg').size()", "needs the package psycopg"),
    ],
)
def test_an_extra_that_is_not_installed(place: Project, code: str, line: str) -> None:
    place.write("missing/sitecustomize.py", _MISSING)
    place.write("qframe.toml", "[connections.pg]\ndriver = 'database'\nurl = 'postgresql:///a'\n")
    told(dispatched(place, code, PYTHONPATH=str(place.root / "missing")), line)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("Mail.dispatch().send()", "Field required"),
        ("Mail.dispatch(user_id=7, user=8).send()", "Unexpected keyword argument"),
        ("Mail.dispatch(user_id='x').send()", "valid integer"),
        ("Mail.dispatch(7).send()", "not by position"),
        ("show.dispatch(object()).send()", "Unable to serialize"),
        ("dispatch(plain).send()", "not function"),
        ("dispatch(add(1, 2)).send()", "not int"),
        ("add.delay(1, 2)", "has no 'delay'"),
        ("import threading\nclass A(Queueable):\n    lock: threading.Lock", "cannot check or send"),
        ("class A(Queueable):\n    def __init__(self, a): self.a = a", "would never be called"),
        ("class A(Queueable):\n    def handle(self, user): ...", "it is called without arguments"),
        ("class A(Queueable):\n    trys = 3", "is no option"),
        ("class A(Queueable):\n    user: int\nA.dispatch(user=7).send()", "has no handle"),
        ("@queueable\ndef f(): ...\nf.dispatch().send()", "is defined in the script"),
        (
            "import asyncio\nasync def f(): chain([add.job(1, 2)]).dispatch()\nasyncio.run(f())",
            "an event loop runs",
        ),
    ],
)
def test_a_wrong_dispatch(place: Project, code: str, line: str) -> None:
    said = dispatched(place, code)
    assert said.code == 1
    told(Finished(said.code, "", said.err.splitlines()[-1]), line)
    assert not (place.root / "qframe.sqlite3").exists(), "something may be queued"


def test_a_job_that_is_typed(place: Project) -> None:
    code = "from qframe import queueable\n@queueable\ndef f(): ...\nf.dispatch().send()\n"
    told(place.run([sys.executable, "-c", code]).finished(), "an interactive session")


def test_a_dispatch_without_send_is_sent(place: Project) -> None:
    assert dispatched(place, "Mail.dispatch(user_id=7)").code == 0
    assert "mail to 7" in by_command(place, "work", "--stop-when-empty").out


def test_a_row_that_is_not_committed_yet(place: Project) -> None:
    place.configure()
    place.write(
        "jobs.py",
        """
from qframe import Queueable, models
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

class Base(DeclarativeBase): ...

class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)

engine = create_engine("sqlite:///users.sqlite3")
models.sessions(sessionmaker(engine))

class Greet(Queueable):
    user: User
    def handle(self) -> None: ...
""",
    )
    code = """
Base.metadata.create_all(engine)
session = Session(engine)
user = User(id=7)
session.add(user)
session.flush()
Greet.dispatch(user=user).send()
"""
    assert dispatched(place, code).code == 0
    told(by_command(place, "work", "--stop-when-empty"), "not committed yet")


def test_a_session_that_is_not_committed(place: Project) -> None:
    code = """
import logging
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
logging.basicConfig(level=logging.INFO)
with Session(create_engine("sqlite://")) as session:
    session.execute(text("select 1"))
    Mail.dispatch(user_id=7).after_commit(session)
"""
    told(dispatched(place, code), "not dispatched")


def test_each_message_of_the_page_is_seen_here() -> None:
    nodes = ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    named = [str(each.value) for each in nodes if isinstance(each, ast.Constant)]
    named = [each for each in named if len(each) > 6]
    unseen = [each for each in _HEADINGS if not any(word in each for word in named)]
    assert not unseen
