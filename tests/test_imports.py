"""What is imported when: qframe itself and its help are light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qframe
from qframe import exceptions
from qframe.console.app import COMMANDS
from tests.support.redis_server import RedisServer

CLIENTS = ["redis", "greenstalk", "sqlalchemy", "sqlite3", "psycopg", "pymysql"]
REPORT = "import sys; print([n for n in {names!r} if n in sys.modules], file=sys.stderr)"


def loaded(program: str, names: list[str], folder: Path) -> list[str]:
    """Run a program and give which of these modules it has loaded in the end."""
    finished = subprocess.run(
        [sys.executable, "-c", f"{program}\n{REPORT.format(names=names)}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    found: list[str] = ast.literal_eval(finished.stderr.splitlines()[-1])
    return found


HELP = """
import sys
sys.argv = ["qframe", *{arguments!r}]
try:
    from qframe.console.app import main
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def test_importing_qframe_loads_no_client_no_worker_and_no_command_line(tmp_path: Path) -> None:
    names = [*CLIENTS, "typer", "rich", "qframe.worker", "qframe.console", "resource"]
    assert loaded(["import qframe", " from qframe import *"][0], names, tmp_path) == []


@pytest.mark.parametrize("arguments", [["--help"], ["work", "--help"], ["failed", "--help"]])
def test_help_loads_no_client(tmp_path: Path, arguments: list[str]) -> None:
    assert loaded(HELP.format(arguments=arguments), CLIENTS, tmp_path) == []


@pytest.mark.parametrize(
    ("command", "used"),
    [
        ("work", ["health", "work"]),  # `work --health-file` is an option of both
        ("size", ["queues"]),
        ("import", ["importing"]),
        ("schedule list", ["schedule"]),
    ],
)
def test_a_command_loads_the_module_of_no_other(
    tmp_path: Path, command: str, used: list[str]
) -> None:
    program = HELP.format(arguments=[*command.split(), "--help"])
    modules = {f"qframe.console.{each}" for group in COMMANDS.values() for each in group}
    assert loaded(program, sorted(modules), tmp_path) == [f"qframe.console.{each}" for each in used]


def test_the_collector_runs_once_all_is_imported(tmp_path: Path) -> None:
    program = """
import gc, sys
sys.argv = ["qframe", "size", "--help"]
from qframe_health import main
try:
    main()
except SystemExit:
    assert gc.isenabled()
    assert gc.get_freeze_count()
"""
    assert loaded(program, ["qframe.console.queues"], tmp_path) == ["qframe.console.queues"]


UNUSED = [
    *("sqlalchemy", "sqlite3", "greenstalk", "rich", "jinja2", "http.server"),
    *("qframe.web", "qframe.operations.doctor", "qframe.alerts.checker", "qframe.alerts.channels"),
    *("qframe.forecast", "qframe.testing", "qframe.celery", "qframe.importing", "qframe.moving"),
]


def test_a_worker_on_redis_loads_nothing_that_it_does_not_use(
    tmp_path: Path, redis_running: RedisServer
) -> None:
    (tmp_path / "qframe.toml").write_text(
        f'default = "redis"\n[connections.redis]\nurl = "{redis_running.url}"\n'
    )
    program = HELP.format(arguments=["work", "--stop-when-empty"])
    assert loaded(program, [*UNUSED, "redis"], tmp_path) == ["redis"]


def test_declaring_jobs_and_running_them_here_loads_no_client(tmp_path: Path) -> None:
    (tmp_path / "light.py").write_text(
        "from qframe import Queueable, dispatch_sync\n"
        "class Job(Queueable):\n"
        "    connection = 'null'\n"
        "    def handle(self): ...\n"
    )
    program = "import light\nlight.Job.dispatch().send()\nlight.dispatch_sync(light.Job())"
    assert loaded(program, CLIENTS, tmp_path) == []


def test_the_first_use_of_the_database_loads_its_client_alone(tmp_path: Path) -> None:
    program = "import qframe; qframe.QueueManager().connection('database')"
    assert loaded(program, CLIENTS, tmp_path) == ["sqlalchemy", "sqlite3"]


def test_every_public_name_of_the_design_is_there() -> None:
    for name in (
        *("Queueable", "dispatch", "queueable", "QueueManager", "Worker", "WorkerOptions"),
        *("events", "bulk", "dispatch_sync", "dispatch_if", "dispatch_unless", "PendingDispatch"),
    ):
        assert name in qframe.__all__
        assert getattr(qframe, name) is not None


def test_every_exception_is_public() -> None:
    made_here = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and value.__module__ == exceptions.__name__
    }
    assert made_here == {
        name
        for name in qframe.__all__
        if isinstance(getattr(qframe, name), type)
        and issubclass(getattr(qframe, name), BaseException)
    }


def test_what_is_named_is_there_and_sorted() -> None:
    assert sorted({*qframe.__all__}) == sorted(qframe.__all__)
    for name in qframe.__all__:
        assert getattr(qframe, name) is not None


def test_a_wrong_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'qframe' has no attribute 'Wroker'"):
        qframe.Wroker  # type: ignore[attr-defined] # noqa: B018 (the point)


def test_the_functions_are_not_hidden_by_the_modules_of_their_names() -> None:
    assert callable(qframe.dispatch)
    assert callable(qframe.queueable)


def test_the_types_are_shipped() -> None:
    assert (Path(qframe.__file__).parent / "py.typed").is_file()
