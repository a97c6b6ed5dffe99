from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from qframe import BackendUnavailable
from qframe.connection import Connection
from qframe.contracts import Sizes
from tests.console.conftest import Shop

COMMANDS = [
    *(
        "work",
        "restart",
        "scale",
        "workers",
        "counters",
        "pause",
        "resume",
        "size",
        "monitor",
        "clear",
        "failed",
        "retry",
        "kick",
        "migrate",
        "cancel",
        "jobs",
    ),
    *("forget", "flush", "prune", "dispatch", "init", "check"),
    *("top", "web", "metrics"),
    *("batch", "batches", "cancel-batch", "retry-batch", "prune-batches"),
    *("holds", "undo", "retries", "usage", "forecast", "doctor", "flows"),
]
_WITH_AN_ARGUMENT = [
    *("why", "hold", "unhold", "status", "event", "flow", "silence", "move", "import"),
]


def test_help_names_every_command_by_subject_with_a_line_for_each(shop: Shop) -> None:
    said = shop.run("--help")
    assert said.code == 0
    assert len(said.lines) <= 80
    for command in (*COMMANDS, *_WITH_AN_ARGUMENT, "schedule"):
        assert f"\n  {command} " in said.out
    subjects = [each for each in said.lines if each.endswith(":") and not each.startswith(" ")]
    assert subjects[:3] == ["Options:", "Work:", "Queues:"]
    assert "..." not in said.out.replace("[ARGS]...", ""), "no summary is cut off"
    assert shop.run().out == said.out, "and so it is without any argument"
    assert shop.run("-h").out == said.out


@pytest.mark.parametrize("command", [*COMMANDS, *_WITH_AN_ARGUMENT])
def test_each_help_fits_a_screen_and_has_an_example(shop: Shop, command: str) -> None:
    said = shop.run(command, "--help")
    assert said.code == 0
    assert len(said.lines) <= (44 if command == "work" else 40)
    assert max(map(len, said.lines)) <= 100
    assert f"\n    qframe {command}" in said.out, said.out
    assert not re.search(r"--\S+ <list", said.out), "an option says what it takes"


@pytest.mark.parametrize(
    "command", ["list", "next", "run", "test", "pause", "resume", "add", "remove", "work"]
)
def test_so_it_is_with_the_commands_of_schedule(shop: Shop, command: str) -> None:
    said = shop.run("schedule", command, "--help")
    assert said.code == 0
    assert len(said.lines) <= 40
    assert max(map(len, said.lines)) <= 100
    assert f"\n    qframe schedule {command}" in said.out, said.out
    assert "--config" in said.out


WITHOUT = {"init", "doctor"}
"""Commands that go on without a configuration, and say so."""


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in WITHOUT])
def test_each_command_takes_a_configuration_file(shop: Shop, command: str) -> None:
    assert "--config" in shop.run(command, "--help").out
    arguments = {"clear": ["database"], "forget": ["u"], "dispatch": ["shop.Order"]}
    arguments |= {"kick": ["database"], "cancel": ["u"]}
    arguments |= {"scale": ["mail", "3"], "hold": ["tag:a", "--for", "1h"]}
    arguments |= {each: ["b"] for each in ("why", "unhold", "status", "flow", "silence")}
    arguments |= {"event": ["b", "paid"], "move": ["database", "redis"]}
    arguments |= {"import": ["rq", "redis://localhost"]}
    arguments |= {each: ["b"] for each in ("batch", "cancel-batch", "retry-batch")}
    said = shop.run(command, *arguments.get(command, []), "--config", "gone.toml")
    assert said.code == 2
    assert "gone.toml: No such file" in said.only()


def test_a_configuration_file_may_be_named_by_option_or_variable(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.root / "etc").mkdir()
    shop.write("etc/other.toml", 'default = "null"\n')
    assert "default  null" in shop.run("check", "--config", "etc/other.toml").out
    assert f"root     {shop.root}/etc" in shop.run("check", "--config", "etc/other.toml").out
    monkeypatch.setenv("QFRAME_CONFIG", "etc/other.toml")
    assert "default  null" in shop.run("check").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wrok"], "No such command 'wrok'"),
        (["failed", "--jsn"], "No such option: --jsn"),
        (["failed", "--limit", "many"], "Invalid value for '--limit'"),
        (["size", "emails"], "unexpected extra argument"),
        (["status"], "Missing argument"),
        (["forget"], "say which: uuids, or --cause KEY"),
        (["monitor", "--max", "1.5"], "Invalid value for '--max'"),
        (["work", "--timeout", "-1"], "timeout must be a number, 0 or more, not -1.0"),
        (["work", "--memory", "banana"], "Invalid value for '--memory'"),
        (["work", "--tries", "1.5"], "Invalid value for '--tries'"),
        (["work", "--backoff", "1,x"], "--backoff takes seconds by commas"),
        (["work", "--queue", "a b"], "'a b' is not a queue name"),
        (["work", "nowhere"], "unknown connection 'nowhere'"),
        (["--nonsense"], "No such option: --nonsense"),
        (["clear", ""], "argument 2 is empty: give it a value, or leave it out"),
        (["cancel", "--where", " \t"], "--where is empty: give it a value, or leave it out"),
        (["retry", "--where= "], "--where is empty: give it a value, or leave it out"),
        (["pause", ""], "argument 2 is empty"),
        (["size", "--queue", ""], "--queue is empty"),
        (["size", "--queue="], "--queue is empty"),
        (["failed", "--connection", "\x1b[31m"], r"unknown connection"),
        (["monitor", "--max", "-1"], "--max must not be negative, got -1"),
        *(
            ([*command, "\udcff"], r"\udcff' is not UTF-8")
            for command in (
                ["failed"],
                ["failed", "--queue"],
                ["retry"],
                ["forget"],
                ["status"],
                ["cancel"],
            )
        ),
        (["dispatch", "shop.Order", "[" * 100_000], "the data is not JSON"),
        (["init", "a" * 300], "File name too long"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(shop: Shop, arguments: list[str], said: str) -> None:
    finished = shop.run(*arguments)
    assert finished.code == 2
    assert said.lower() in finished.only().lower()
    assert finished.err[:-1].isprintable()


@pytest.mark.parametrize("command", ["failed", "batches"])
def test_a_limit_may_be_large(shop: Shop, command: str) -> None:
    assert shop.run(command, "--limit", "1000000000", "--json").out == "[]\n"


def test_each_connection_that_does_not_answer_is_named_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("qframe.toml", '[connections.database]\n[connections.b]\ndriver = "database"\n')

    def away(self: Connection, queue: str | None = None) -> Sizes:
        raise BackendUnavailable(f"{self.name} is away")

    monkeypatch.setattr(Connection, "sizes", away)
    said = shop.run("size")
    assert said.code == 69
    assert said.err == "qframe: database is away\nqframe: b is away\n"


def test_a_broken_configuration_is_one_line_for_every_command(shop: Shop) -> None:
    shop.write("qframe.toml", "defualt = 1\n")
    for arguments in (["failed"], ["size"], ["check"], ["work"], ["dispatch", "shop.Order"]):
        said = shop.run(*arguments)
        assert said.code == 2
        assert "unknown key 'defualt' (did you mean 'default'?)" in said.only()


def test_a_backend_that_does_not_answer_is_one_line_and_exit_69(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: Connection, queue: str | None = None) -> int:
        raise BackendUnavailable("it is away")

    monkeypatch.setattr(Connection, "clear", away)
    said = shop.run("clear", "database")
    assert (said.code, said.only()) == (69, "qframe: it is away")


def test_an_interrupt_is_no_traceback(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Connection, queue: str | None = None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "clear", interrupted)
    said = shop.run("clear", "database")
    assert said.code == 130
    assert "Traceback" not in said.err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_reader_has_gone_exits_as_sigpipe_would(
    shop: Shop, unbuffered: str
) -> None:
    (shop.root / "qframe.toml").touch()
    shop.keep()
    reader, writer = os.pipe()
    os.close(reader)
    for command in (
        ["size"], ["size", "--json"], ["failed"], ["failed", "--json"], ["check"], ["--help"], [],
        ["schedule"], ["size", "--help"], ["work", "--help"], ["--version"], ["migrate"],
        ["health"],
    ):  # fmt: skip
        finished = subprocess.run(
            [sys.executable, "-c", "import qframe_health; qframe_health.main()", *command],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            cwd=shop.root,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (command, finished.returncode, finished.stderr) == (command, 141, "")
    os.close(writer)


def test_a_worker_whose_reader_has_gone_exits_as_its_work_does(shop: Shop) -> None:
    (shop.root / "qframe.toml").touch()
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "qframe", "work", "--stop-when-empty"]
    assert subprocess.run(command, cwd=shop.root, stdout=writer, check=False).returncode == 0
    os.close(writer)


def test_the_version(shop: Shop) -> None:
    assert shop.run("--version").out == f"qframe {metadata.version('qframe')}\n"


def test_the_help_of_a_group_cuts_no_summary(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["schedule", "--help"]):
        said = shop.run(*words)
        assert "..." not in said.out.replace("[ARGS]...", ""), said.out
        assert max(map(len, said.lines)) <= 80


TAKE_A_CONNECTION = [
    ["work", "--stop-when-empty"], ["clear"], ["kick"], ["migrate"], ["check"], ["top"],
    ["schedule", "list"], ["schedule", "next"], ["schedule", "run", "x"], ["size"], ["cancel", "u"],
]  # fmt: skip


@pytest.mark.parametrize("words", TAKE_A_CONNECTION, ids=" ".join)
def test_every_command_names_a_connection_by_the_same_option(shop: Shop, words: list[str]) -> None:
    said = shop.run(*words, "--connection", "databse")
    assert said.code == 2
    assert "unknown connection 'databse'" in said.only()


@pytest.mark.parametrize("words", TAKE_A_CONNECTION[:4], ids=" ".join)
def test_some_take_it_as_an_argument_too(shop: Shop, words: list[str]) -> None:
    command, *more = words
    assert "unknown connection 'databse'" in shop.run(command, "databse", *more).only()
    said = shop.run(command, "database", *more, "--connection", "redis")
    assert "two connections are named, 'database' and 'redis': name one" in said.only()


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("qframe")
    finished = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: qframe [OPTIONS] COMMAND" in finished.stdout
