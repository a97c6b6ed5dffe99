"""An error names its place: the file and line, the class and field, the variable, the key."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe import config
from qframe.contracts import FailedJob
from qframe.exceptions import ConfigurationError
from qframe.payload import tracebacks
from tests.console.conftest import Shop
from tests.support.process import Project

BROKEN = "import json\ndef f():\n    return 1 / 0\nf()\n"
JOBS = """\
from qframe import Queueable

class Fails(Queueable):
    def handle(self):
        helper()

class Awaits(Queueable):
    async def handle(self):
        try:
            helper()
        except ValueError as error:
            raise KeyError("asked for") from error

def helper():
    raise ValueError("no\\x1b[31m")
"""


@pytest.fixture
def broken(shop: Shop) -> Iterator[Shop]:
    """A project in which the module `broken` raises when it is imported."""
    shop.write("broken.py", BROKEN)
    yield shop
    for name in ("broken", "fields", "syntax"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "toml",
    [
        "jobs = ['broken']",
        "middleware = ['broken:f']",
        "listeners.JobFailed = ['broken:f']",
        "schedule.modules = ['broken']",
        "otel = {enabled = true, setup = 'broken:f'}",
    ],
)
def test_a_module_that_raises_is_named_with_file_and_line(broken: Shop, toml: str) -> None:
    broken.write("qframe.toml", toml + "\n")
    said = broken.run("check")
    place = f"ZeroDivisionError: division by zero ({broken.root}/broken.py:3)"
    assert said.code != 0
    assert place in said.out + said.err


def test_so_is_the_module_of_a_job(broken: Shop) -> None:
    said = broken.run("dispatch", "broken.Job")
    assert said.code == 2
    broken.write("broken.py", BROKEN + JOBS.replace("Fails", "Job"))
    place = f"division by zero ({broken.root}/broken.py:3)"
    assert broken.run("dispatch", "broken.Job").only().endswith(place)


def test_a_module_that_is_no_python_is_named_with_its_line(broken: Shop) -> None:
    broken.write("syntax.py", "from qframe import Queueable\nclass A(Queueable)\n    pass\n")
    said = broken.run("dispatch", "syntax.A").only()
    assert "SyntaxError: expected ':'" in said
    assert said.endswith(f"{broken.root}/syntax.py:2)")
    broken.write("qframe.toml", "jobs = ['syntax']\n")
    assert f"{broken.root}/syntax.py:2)" in broken.run("dispatch", "syntax.A").only()


def test_a_module_that_exits_is_no_silent_end(broken: Shop) -> None:
    broken.write("broken.py", "raise SystemExit(0)\n")
    broken.write("qframe.toml", "listeners.JobFailed = ['broken:f']\n")
    said = broken.run("size")
    assert said.code == 2
    assert f"SystemExit: 0 ({broken.root}/broken.py:1)" in said.only()


@pytest.mark.parametrize("later", [False, True])
def test_a_type_that_cannot_be_sent_names_class_and_field(broken: Shop, *, later: bool) -> None:
    known = "import sqlite3\n" if not later else "from __future__ import annotations\n"
    after = "import sqlite3\nclass L(sqlite3.Connection): ...\n" if later else ""
    kind = "L" if later else "sqlite3.Connection"
    broken.write(
        "fields.py",
        f"{known}from qframe import Queueable\nclass C(Queueable):\n    n: int\n    db: {kind}\n"
        f"    def handle(self): ...\n{after}",
    )
    said = broken.run("dispatch", "fields.C", '{"n": 1, "db": 2}')
    assert "C.db: pydantic cannot check or send the type" in said.only()
    assert later or f"({broken.root}/fields.py:3)" in said.only()


# -- what a job raised ---------------------------------------------------------------------------


def test_with_v_a_failed_job_prints_its_traceback(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        project.write("jobs.py", JOBS)
        for name in ("Fails", "Awaits"):
            assert project.qframe("dispatch", f"jobs.{name}").code == 0
        said = project.drain("-v").out
        assert (
            f'    Traceback (most recent call last):\n      File "{project.root}/jobs.py", ' in said
        )
        assert "    ValueError: no\\x1b[31m\n" in said
        assert "\x1b" not in said
        assert "qframe/" not in "".join(said.splitlines(keepends=True)[2:])
        project.qframe("dispatch", "jobs.Fails")
        assert "Traceback" not in project.drain().out
        project.qframe("dispatch", "jobs.Fails")
        rows = [json.loads(line) for line in project.drain("-v", "--json").out.splitlines()]
        (failed,) = [each for each in rows if each["status"] == "fail"]
        assert failed["traceback"][-1] == "ValueError: no\\x1b[31m"


@pytest.mark.parametrize("options", [(), ("--concurrency", "2"), ("--isolate",)])
def test_what_is_kept_begins_with_the_jobs_own_frames(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with Project(tmp_path / "app") as project:
        project.write("jobs.py", JOBS)
        for name in ("Fails", "Awaits"):
            project.qframe("dispatch", f"jobs.{name}")
        project.drain(*options)
        kept: list[FailedJob] = project.failed()
        assert len(kept) == 2
        for each in kept:
            first = each.exception.splitlines()[1]
            assert first.startswith(f'  File "{project.root}/jobs.py", line'), each.exception
            assert "/qframe/worker/" not in each.exception


def test_what_no_frame_of_the_application_has_is_shown_whole() -> None:
    with pytest.raises(ConfigurationError) as raised:
        config.read(Path("/nowhere"))
    error = raised.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert "config/files.py" in tracebacks.full(error)
    assert tracebacks.placed(error) == "ConfigurationError: /nowhere: No such file or directory"


# -- the environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("JOBS", "app.jobs", ["app.jobs"]),
        ("JOBS", " a.jobs, b.jobs,", ["a.jobs", "b.jobs"]),
        ("JOBS", '["app.jobs"]', ["app.jobs"]),
        ("METRIC_TAGS", "5", ["5"]),
        ("UNKNOWN_JOB_DELAYS", "1,2", [1, 2]),
        ("SCHEDULE__MODULES", "a,b", ["a", "b"]),
        ("ALERTS__RULES", "wait > 60s on mail,other", ["wait > 60s on mail,other"]),
        ("WEB__ACCESS", "read", "read"),
        ("WEB__ACCESS", "retry,cancel", ["retry", "cancel"]),
        ("SUPERVISORS__MAIL__BACKOFF", "1,5", [1, 5]),
        ("SUPERVISORS__MAIL__BACKOFF", "2", [2]),
    ],
)
def test_lists_in_the_environment_are_written_with_commas_too(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: object
) -> None:
    monkeypatch.setenv(f"QFRAME_{variable}", value)
    found: object = config.load()
    for part in variable.lower().split("__"):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == expected


def test_so_are_those_of_a_connection(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QFRAME_CONNECTIONS__REDIS__SENTINELS", "a:1,b:2")
    settings = shop.manager.connection("redis").settings
    assert settings.model_dump()["sentinels"] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("JOBS", "[x", "QFRAME_JOBS: jobs: Input should be a valid list"),
        ("LISTENERS", "x", "QFRAME_LISTENERS is not JSON"),
        ("CONNECTIONS", "redis", "QFRAME_CONNECTIONS is not JSON"),
        ("SUPERVISORS__MAIL__WEIGHTS", "a=1", "QFRAME_SUPERVISORS__MAIL__WEIGHTS is not JSON"),
        ("UNKNOWN_JOB_DELAYS", "x", "QFRAME_UNKNOWN_JOB_DELAYS: unknown_job_delays.0: "),
        ("QUEUES__MAIL__CONCURRENCY", "x", "QFRAME_QUEUES__MAIL__CONCURRENCY: queues.mail.conc"),
        ("ENCRYPTION_KEYS", "[secret", "QFRAME_ENCRYPTION_KEYS: encryption_keys: is neither JSON"),
        ("SIGNING_KEY", "secret", "QFRAME_SIGNING_KEY: signing_key: has fewer than 16"),
    ],
)
def test_a_wrong_variable_is_named(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"QFRAME_{variable}", value)
    ended = shop.run("size")
    assert ended.code == 2
    assert f"in the environment: {said}" in ended.only()
    assert "secret" not in ended.err
    assert "EnvSettingsSource" not in ended.err


# -- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://a:secret@h:abc/x", "the port is no number"),
        ("mariadb://a:secret@h:abc/x", "the port is no number"),
        ("postgresql://a:secret@h:99999/x", "the port is from 1 to 65535"),
        ("mariadb://a:secret@h:0/x", "the port is from 1 to 65535"),
        ("postgresql://a:secret@h1:1,h2:99999/x", "the port is from 1 to 65535, not 99999"),
        ("postgresql://a:sec@ret@[::1/x", "the port is no number"),
        ("postgresql://a:se,cret@h1/x", "hosts are written host:port"),
        ("postgresql://a:secret@h1,:2/x", "hosts are written host:port"),
        ("postgresql://a:secret@127.0.0.1:1/x?sslmod=off", "did you mean 'sslmode'?"),
        ("postgresql://a:secret@127.0.0.1:1/x?port=abc", "non-integer port"),
        ("mariadb://a:secret@127.0.0.1:1/x?foo=bar", "unknown option 'foo'"),
        ("mariadb://a:secret@127.0.0.1:1/x?connect_timeout=abc", "invalid literal"),
        ("mariadb://a:secret@127.0.0.1:1/x?port=abc", "port should be of type int"),
        ("mariadb://a:secret@127.0.0.1:1/x?charset=nope", "encoding"),
        ("mariadb://a:secret@127.0.0.1:1/x?ssl_ca=/nope", "No such file"),
        ("sqlite:///x?foo=secret", "takes no options"),
        ("sqlite:///%00x", "NUL"),
        ("secret", "not a database URL"),
        ("oracle://a:secret@h/x", "not SQLite, PostgreSQL or MariaDB"),
        ("postgresql+asyncpg://a:secret@h/x", "used by psycopg, not by asyncpg"),
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(shop: Shop, url: str, said: str) -> None:
    shop.write("qframe.toml", f"connections.database.url = '{url}'\n")
    for command in ("size", "migrate", "failed"):
        ended = shop.run(command)
        assert ended.code == 2, ended
        assert said in ended.only()
        assert "secret" not in ended.err
        assert "sec@ret" not in ended.err


def test_which_connection_has_it_is_said(shop: Shop) -> None:
    shop.write("qframe.toml", "connections.reports = {driver = 'database', url = 'nonsense'}\n")
    assert shop.run("size").only().startswith("qframe: connections.reports: url: not a database")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_both_names_of_postgresqls_scheme_are_taken(shop: Shop, scheme: str) -> None:
    shop.write("qframe.toml", f"connections.database.url = '{scheme}://a:secret@127.0.0.1:1/x'\n")
    said = shop.run("size")
    assert (said.code, "postgresql://a:***@127.0.0.1:1/x does not answer" in said.only()) == (
        69,
        True,
    )


@pytest.mark.parametrize("port", ["", ":5432"])
def test_libpqs_form_with_several_hosts_is_taken(shop: Shop, port: str) -> None:
    url = f"postgresql://a:secret@127.0.0.1:1,[::1]{port}/x?sslmode=disable"
    shop.write("qframe.toml", f"connections.database.url = '{url}'\n")
    said = shop.manager.connection("database").described()
    assert "host=127.0.0.1%2C%3A%3A1&port=1%2C5432" in said
    assert "secret" not in said


def test_a_module_of_jobs_is_found_by_a_variable_without_json(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        project.write("mine.py", textwrap.dedent(JOBS))
        started = project.start("dispatch", "mine.Fails", environment={"QFRAME_JOBS": "mine"})
        assert started.finished().code == 0
