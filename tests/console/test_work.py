"""`qframe work` used wrongly: one line on stderr, exit 2, and nothing was made."""

from __future__ import annotations

import pytest

from tests.console.conftest import Shop

WRONG = [
    (["nosuch"], ["unknown connection 'nosuch'", "configured are database"]),
    (["databse"], ["did you mean 'database'?"]),
    (["sync"], ["'sync'", "holds no jobs to work on"]),
    (["null"], ["'null'", "holds no jobs to work on"]),
    (["--timeout", "-1"], ["timeout", "0 or more", "-1"]),
    (["--timeout", "nan"], ["timeout", "nan"]),
    (["--grace", "inf"], ["grace", "inf"]),
    (["--grace", "1e10"], ["--grace", "31,536,000"]),
    (["--timeout", "1e308"], ["--timeout", "31,536,000"]),
    (["--memory", "banana"], ["--memory", "number"]),
    (["--tries", "1.5"], ["--tries", "whole number"]),
    (["--tries", "-1"], ["tries", "-1"]),
    (["--concurrency", "-1"], ["concurrency must be 1 to 10000", "-1"]),
    (["--max-jobs", "-1"], ["max_jobs", "-1"]),
    (["--backoff", "1,x"], ["--backoff", "1,x"]),
    (["--backoff", "1,-5"], ["backoff", "-5"]),
    (["--backoff", ""], ["--backoff"]),
    (["--queue", "two words"], ["'two words' is not a queue name"]),
    (["--queue", "a\nb"], [r"'a\nb'", "is not a queue name"]),
    (["--queue", "x" * 300], ["is not a queue name"]),
    (["--queue", "a,,b"], ["is not a queue name"]),
    (["--queue", "ünïcode"], ["is not a queue name"]),
    (["--queue", "mail:0"], ["'mail:0'", "how many of its jobs run at once, from 1 to 1000"]),
    (["--queue", "a,mail:-3"], ["'mail:-3'", "from 1 to 1000"]),
    (["--queue", "mail-*:1001"], ["'mail-*:1001'", "from 1 to 1000"]),
    (["--queue", "mail:" + "9" * 500], ["from 1 to 1000"]),
    (["--queue", "mail:1.5"], ["'mail:1.5'", "from 1 to 1000"]),
    (["--queue", "two words:5"], ["'two words' is not a queue name"]),
    (["--nosuch"], ["nosuch"]),
    (["--config", "nosuch.toml"], ["nosuch.toml", "No such file"]),
    (["database", "second"], ["second"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_usage_is_one_line_and_exit_2(
    shop: Shop, arguments: list[str], words: list[str]
) -> None:
    said = shop.run("work", *arguments)
    assert said.code == 2, said
    line = said.only()
    assert len(line) < 400
    for word in words:
        assert word in line


TOML = [
    ("defualt = 'database'\n", ["qframe.toml", "unknown key 'defualt'", "did you mean 'default'?"]),
    ("[connections.database]\nretry_afer = 5\n", ["retry_afer", "did you mean 'retry_after'?"]),
    ("[connections.database]\nretry_after = 0.5\n", ["connections.database", "retry_after"]),
    ("[connections.database]\nqueue = 'a b'\n", ["connections.database", "queue", "'a b'"]),
    ("[connections.database]\ndriver = 'redys'\n", ["unknown driver 'redys'"]),
    ("[connections.database]\nurl = 'sqlite://'\n", ["in memory"]),
    ("[connections.database]\nurl = 'what is this'\n", ["url"]),
    ("[queues.mail]\nconcurency = 5\n", ["queues.mail.concurency", "mean 'concurrency'?"]),
    ("[queues.mail]\nconcurrency = 0\n", ["qframe.toml", "queues.mail.concurrency", "1"]),
    ("[queues.mail]\nper_worker = 1001\n", ["queues.mail.per_worker", "1000"]),
    ("[queues.mail]\nconcurrency = 'x'\n", ["queues.mail.concurrency", "integer"]),
    ("[queues.'a b']\nconcurrency = 5\n", ["queues.a b", "'a b' is not a queue name"]),
    ("[queues.'m[']\nconcurrency = 5\n", ["'m[' is not a pattern of queue names"]),
    ("[queues]\nmail = 5\n", ["queues.mail"]),
    ("jobs = ['nosuch']\n", ["jobs: 'nosuch' cannot be imported", "nosuch"]),
    ("jobs = ['broken']\n", ["jobs: 'broken' cannot be imported", "ZeroDivisionError"]),
    ("jobs = ['exits']\n", ["jobs: 'exits' cannot be imported", "SystemExit"]),
    ("[listeners]\nJobFaild = ['shop:hear']\n", ["JobFaild", "did you mean 'JobFailed'?"]),
    ("[listeners]\nJobFailed = ['shop:nosuch']\n", ["shop:nosuch", "cannot be loaded"]),
    ("[listeners]\nJobFailed = ['shop:note.x']\n", ["shop:note.x", "cannot be loaded"]),
    ("this is not toml\n", ["qframe.toml"]),
]


@pytest.mark.parametrize(("toml", "words"), TOML, ids=lambda value: str(value)[:40])
def test_a_wrong_configuration_is_one_line_and_exit_2(
    shop: Shop, toml: str, words: list[str]
) -> None:
    shop.write("qframe.toml", toml)
    shop.write("broken.py", "1 / 0\n")
    shop.write("exits.py", "import sys\nsys.exit(0)\n")
    said = shop.run("work", "--once", "--sleep", "0")
    assert said.code == 2, said
    (line,) = said.err.splitlines()
    for word in words:
        assert word in line
    assert not (shop.root / "qframe.sqlite3").exists()
