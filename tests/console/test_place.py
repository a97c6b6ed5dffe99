"""A command says where it works: the database, the configuration, and whose project this is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from qframe import QueueManager, config
from qframe.console import place
from qframe.contracts.backend import Capability
from qframe.jobs import project
from qframe.metrics.kept import Metrics
from qframe.metrics.recorder import Recorder
from qframe.operations import names
from tests.console.conftest import Shop
from tests.support.process import Project
from tests.support.redis_server import RedisServer

MANAGE = "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\n"


@pytest.fixture
def bare(tmp_path: Path) -> Project:
    """A folder in which nothing is configured."""
    made = Project(tmp_path / "app")
    (made.root / "qframe.toml").unlink()
    return made


def _worked(made: Project, folder: Path, *arguments: str) -> tuple[list[str], str]:
    command = [sys.executable, "-m", "qframe", "work", "--stop-when-empty", *arguments]
    ended = made.run(["env", "-C", str(folder), *command]).finished()
    assert ended.code == 0, ended
    return ended.out.splitlines(), ended.err


def test_the_first_lines_of_work_name_database_and_configuration(bare: Project) -> None:
    root = bare.root
    with bare:
        lines, said = _worked(bare, root)
        assert lines[0].startswith(f"  qframe  database ({root}/qframe.sqlite3, just created)  ")
        assert lines[1] == (
            f"  config  none: neither qframe.toml nor [tool.qframe] in {root} or above"
        )
        assert said == ""
        (root / "qframe.sqlite3").unlink()
        _, said = _worked(bare, root, "--quiet")
        assert f"created the database {root}/qframe.sqlite3: no qframe.toml in {root}" in said
        lines, said = _worked(bare, root)
        assert lines[0].startswith(f"  qframe  database ({root}/qframe.sqlite3)  ")
        assert said == ""
        inner = root / "app"
        inner.mkdir()
        lines, said = _worked(bare, inner, "--workers", "1", "--max-time", "1")
        assert f"({inner}/qframe.sqlite3, just created)" in lines[0]
        assert said == ""
        assert lines[2] == (
            f"  note    {root}/qframe.sqlite3 is there already: is this the right folder?"
        )
        (root / "qframe.toml").touch()
        lines, said = _worked(bare, inner, "--workers", "1", "--max-time", "1")
        assert f"({root}/qframe.sqlite3)" in lines[0]
        assert lines[1] == f"  config  {root}/qframe.toml"
        assert said == ""


def test_json_has_them_as_fields(bare: Project) -> None:
    with bare:
        (bare.root / "pyproject.toml").write_text("[tool.qframe]\ndefault = 'database'\n")
        lines, said = _worked(bare, bare.root, "--json")
    first = json.loads(lines[0])
    assert first["database"] == str(bare.root / "qframe.sqlite3")
    assert first["created"] is True
    assert first["config"] == str(bare.root / "pyproject.toml")
    assert first["looked_in"] is None
    assert said == ""  # a configuration says that it belongs here


def test_a_dispatch_that_makes_a_database_where_nothing_is_configured_says_so(
    bare: Project,
) -> None:
    code = "from qframe import dispatch; import shop; dispatch(shop.Order(number=1)).send()"
    bare.write("shop.py", "from qframe import Queueable\nclass Order(Queueable):\n number: int\n"
        " def handle(self): ...\n")  # fmt: skip
    with bare:
        assert f"created the database {bare.root}/qframe.sqlite3" in bare.python(code).err
        assert bare.python(code).err == ""


def test_migrate_names_the_database_that_it_makes_and_the_configuration(shop: Shop) -> None:
    root = shop.root
    lines = shop.run("migrate").lines
    assert lines[0].startswith("database: created the table ")
    assert lines[-2:] == [
        f"database ({root}/qframe.sqlite3, just created)",
        f"config  none: neither qframe.toml nor [tool.qframe] in {root} or above",
    ]
    assert shop.run("migrate").lines == ["database: nothing to do"]
    (root / "qframe.sqlite3").unlink()
    shop.write("manage.py", MANAGE)
    said = shop.run("migrate")
    assert said.lines[-1].startswith(f"note    this is a Django project ({root}/manage.py), ")
    assert said.lines[-1].endswith("use python manage.py qframe migrate")
    assert said.err == ""
    said = shop.run("migrate", "--sql")
    assert said.err.endswith("use python manage.py qframe migrate --sql\n")
    (root / "manage.py").unlink()
    shop.write("qframe.toml", "connections.reports = {driver = 'database', "
        "url = 'sqlite:///reports.sqlite3'}\n")  # fmt: skip
    assert shop.run("migrate").lines[-2:] == [
        f"reports ({root}/reports.sqlite3, just created)", f"config  {root}/qframe.toml",
    ]  # fmt: skip


def test_migrate_asks_whether_this_is_the_right_folder(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = shop.root / "app"
    inner.mkdir()
    shop.run("migrate")
    monkeypatch.chdir(inner)
    assert shop.run("migrate").lines[-1] == (
        f"note    {shop.root}/qframe.sqlite3 is there already: is this the right folder?"
    )


@pytest.mark.parametrize(
    "words",
    [("size",), ("failed",), ("workers",), ("batches",), ("pause",), ("schedule", "list")],
    ids=" ".join,
)
def test_a_command_that_makes_a_database_in_a_frameworks_project_says_so_once(
    bare: Project, words: tuple[str, ...]
) -> None:
    bare.write("manage.py", MANAGE)
    with bare:
        ended = bare.run([sys.executable, "-m", "qframe", *words]).finished()
    made = f"created the database {bare.root}/qframe.sqlite3: no qframe.toml in {bare.root} or"
    (line,) = [line for line in ended.err.splitlines() if line.startswith(made)]
    assert f"; this is a Django project ({bare.root}/manage.py), " in line
    command = " ".join(word for word in words if not word.startswith("-"))
    assert line.endswith(f"use python manage.py qframe {command}")
    assert ended.err.count("this is a Django project") == 1


def test_dispatch_says_it_once_and_a_program_never(bare: Project) -> None:
    bare.write("manage.py", MANAGE)
    bare.write("shop.py", "from qframe import Queueable\nclass Order(Queueable):\n number: int\n"
        " def handle(self): ...\n")  # fmt: skip
    code = "from qframe import dispatch; import shop; dispatch(shop.Order(number=1)).send()"
    command = [sys.executable, "-m", "qframe", "dispatch", "shop.Order", '{"number": 1}']
    with bare:
        said = bare.run(command).finished().err
        assert "created the database" in said
        assert said.count("this is a Django project") == 1
        (bare.root / "qframe.sqlite3").unlink()
        assert "Django" not in bare.python(code).err


@pytest.mark.parametrize(
    ("files", "variable", "known_by", "command"),
    [
        ({"manage.py": MANAGE}, "", "{root}/manage.py", "python manage.py qframe"),
        ({"../manage.py": MANAGE}, "", "{above}/manage.py", "python manage.py qframe"),
        ({}, "DJANGO_SETTINGS_MODULE", "DJANGO_SETTINGS_MODULE=x", "python manage.py qframe"),
        ({"app.py": "from flask import Flask\n"}, "", "{root}/app.py", "flask qframe"),
        ({"wsgi.py": "import flask\n"}, "", "{root}/wsgi.py", "flask qframe"),
        ({}, "FLASK_APP", "FLASK_APP=x", "flask qframe"),
    ],
)
def test_a_frameworks_project_is_named_with_its_command(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    variable: str,
    known_by: str,
    command: str,
) -> None:
    for name, text in files.items():
        shop.write(name, text)
    if variable:
        monkeypatch.setenv(variable, "x")
    known_by = known_by.format(root=shop.root, above=shop.root.parent)
    try:
        where = place.of(shop.manager, "work")
        assert where.hint in dict(where.lines())["note"]
        assert f"({known_by})" in where.hint
        (note,) = [line for line in shop.run("check").lines if line.startswith("note ")]
        assert note.endswith(f"use {command} work")
        assert f"use {command} work" in shop.run("check", "--json").rows["note"]
        assert f"use {command} dispatch" in shop.run("dispatch", "shop.Order", '{"number": 1}').err
        assert f"use {command}\n" in shop.run().err
    finally:
        for name in files:
            (shop.root / name).unlink()


@pytest.mark.parametrize("text", ["from fastapi import FastAPI\n", "# no flask here\n", "\udce4"])
def test_other_programs_are_no_framework(shop: Shop, text: str) -> None:
    (shop.root / "app.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    shop.write("manage.py", "print('a program of mine')\n")
    assert not [line for line in shop.run("check").lines if line.startswith("note")]


def test_a_project_that_has_joined_gets_no_note(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("manage.py", MANAGE)
    given = ("settings.QFRAME", {"root": str(shop.root)})
    monkeypatch.setattr(config.framework, "source", lambda: given)
    said = shop.run("check")
    assert "config   settings.QFRAME" in said.lines
    assert not [line for line in said.lines if line.startswith("note")]


def test_a_project_that_has_joined_and_has_no_settings_is_told_where_they_could_be(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.root / "qframe.toml").unlink(missing_ok=True)
    monkeypatch.setattr(config.framework, "source", lambda: None)
    monkeypatch.setattr(config.framework, "setting", "settings.QFRAME")
    line, *_ = [line for line in shop.run("check").lines if line.startswith("config")]
    assert line == (
        "config   none: no settings.QFRAME, and neither qframe.toml nor [tool.qframe] in "
        f"{shop.root} or above"
    )


def test_check_names_the_file_that_is_read_and_those_that_are_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = shop.root / "app"
    inner.mkdir()
    for folder in (shop.root, inner):
        (folder / "qframe.toml").touch()
    (inner / "pyproject.toml").write_text("[tool.qframe]\n")
    (shop.root / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(inner)
    monkeypatch.setenv("QFRAME_METRICS", "true")
    said = shop.run("check")
    assert f"config   {inner}/qframe.toml, and QFRAME_METRICS" in said.lines
    ignored = [line.split()[1] for line in said.lines if line.startswith("ignored")]
    assert ignored == [f"{inner}/pyproject.toml:", f"{shop.root}/qframe.toml:"]
    rows = shop.run("check", "--json").rows
    assert rows["config"] == f"{inner}/qframe.toml"
    assert rows["ignored"] == [f"{inner}/pyproject.toml", f"{shop.root}/qframe.toml"]
    assert rows["variables"] == ["QFRAME_METRICS"]
    named = shop.run("check", "--config", shop.root / "qframe.toml")
    assert f"ignored  {inner}/qframe.toml: another configuration is read" in named.lines


def test_a_broken_file_further_up_is_nobodys_trouble(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = shop.root / "app"
    inner.mkdir()
    (inner / "qframe.toml").touch()
    (shop.root / "pyproject.toml").write_text("[[[")
    monkeypatch.chdir(inner)
    assert shop.run("check").code == 0


def test_the_state_begins_with_where_it_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.root / "qframe.toml").touch()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = shop.run()
    assert said.lines[0] == f"database ({shop.root}/qframe.sqlite3, just created)"
    assert said.lines[1] == f"config  {shop.root}/qframe.toml"
    assert len(said.lines) <= 10


def test_a_root_is_assumed_only_where_nothing_is_configured(fresh: Path) -> None:
    QueueManager()
    assert project.is_assumed()
    QueueManager({"default": "database"})
    assert not project.is_assumed()
    (fresh / "qframe.toml").touch()
    QueueManager()
    assert not project.is_assumed()
    os.environ.pop("QFRAME_CONFIG", None)


# -- names of queues --------------------------------------------------------------------------


def test_check_tells_of_names_that_are_nearly_anothers(shop: Shop) -> None:
    shop.write("qframe.toml", "[queues.emial]\nconcurrency = 2\n[queues.reports]\nper_worker = 1\n")
    push = ("dispatch", "shop.Order", '{"number": 1}', "--queue")
    shop.run(*push, "email")
    shop.run(*push, "defaults")
    shop.run(*push, "default")
    warned = [line for line in shop.run("check").lines if line.startswith("warning  database")]
    near = [line for line in warned if "queue '" in line]
    assert near == [
        (
            "warning  database: nobody has pushed to the queue 'emial', which is worked or "
            "configured, and nobody works 'email', which has had jobs: is it the same?"
        ),
        (
            "warning  database: the queue 'defaults' has had jobs, and no worker or configuration "
            "names it: is 'default' meant?"
        ),
    ]


def test_a_queue_that_had_jobs_once_was_pushed_to(shop: Shop) -> None:
    shop.write("qframe.toml", "[queues.email]\nconcurrency = 2\n[queues.emails]\nconcurrency = 2\n")
    recorder = Recorder()
    for queue in ("email", "emails"):
        recorder.started("shop.Order", queue, None)
    Metrics(shop.queue.store, "database").write(recorder)
    assert names.unlikely(shop.manager, shop.queue) == []


def test_check_names_queues_under_another_prefix(shop: Shop, redis_running: RedisServer) -> None:
    redis_running.command("FLUSHALL")
    shop.write(
        "qframe.toml", f"default = 'redis'\n[connections.redis]\nurl = '{redis_running.url}'\n"
    )
    shop.run("dispatch", "shop.Order", '{"number": 1}')
    redis_running.command("RPUSH", "shop_database_queues:default", "{}")
    redis_running.command("RPUSH", "shop_database_queues:default:notify", "1")
    redis_running.command("ZADD", "shop_database_queues:mail:delayed", "1", "{}")
    redis_running.command("SET", "cache:queues:counted", "1")  # no queue
    said = shop.run("check")
    found = [line for line in said.lines if "another prefix" in line]
    assert found == [
        (
            "warning  redis: there are queues under another prefix as well (default, mail): "
            "where they are meant, set prefix = 'shop_database_'"
        )
    ]
    redis_running.command("FLUSHALL")


def test_of_a_huge_redis_so_many_are_named(shop: Shop, redis_running: RedisServer) -> None:
    redis_running.command("FLUSHALL")
    shop.write("qframe.toml", f"[connections.redis]\nurl = '{redis_running.url}'\n")
    for number in range(60):
        redis_running.command("RPUSH", f"other{number % 30}:queues:q{number}", "x")
    backend = shop.manager.connection("redis").backend
    assert Capability.RESERVE in backend.capabilities
    assert len(backend.queues_elsewhere()) <= 20
    redis_running.command("FLUSHALL")


@pytest.mark.parametrize("words", [(), ("size",), ("schedule",), ("check",)])
def test_a_folder_that_was_removed_is_said_in_one_line(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    gone = tmp_path / "release"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        said = shop.run(*words)
    finally:
        monkeypatch.chdir(tmp_path)
    assert (said.code, said.only()) == (
        2,
        "qframe: the working directory was removed: change to another",
    )
