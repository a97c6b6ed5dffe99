from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qframe import config
from qframe.connection import Connection
from qframe.console import setup
from qframe.contracts.backend import Health
from qframe.drivers.redis.backend import RedisBackend
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.manager import QueueManager
from qframe.operations import payload_reports
from qframe.operations.payload_reports import PayloadReport
from tests.console.conftest import Shop
from tests.support.process import Project


def test_init_writes_a_configuration_and_a_first_job_that_work(tmp_path: Path) -> None:
    with Project(tmp_path / "app") as project:
        for name in ("qframe.toml", "jobs.py"):
            (project.root / name).unlink()
        said = project.qframe("init")
        assert said.out.splitlines() == [
            "wrote qframe.toml", "wrote jobs.py", "now: python jobs.py, then: qframe work",
        ]  # fmt: skip
        dispatched = project.run([sys.executable, "jobs.py"]).finished()
        assert dispatched.out.startswith("queued ")
        assert dispatched.err == ""
        worked = project.drain()
        assert "Hello, world!" in worked.out
        assert "DONE" in worked.out
        assert project.qframe("check").code == 0


def test_the_written_configuration_is_the_defaults(shop: Shop) -> None:
    shop.run("init")
    settings = config.load()
    assert settings.default == "database"
    assert settings.jobs == ["jobs"]
    queue = shop.manager.connection()
    assert (queue.default_queue, queue.retry_after) == ("default", 60)


def test_init_overwrites_nothing(shop: Shop) -> None:
    shop.write("jobs.py", "mine = True\n")
    said = shop.run("init")
    assert "jobs.py already exists and was not changed" in said.out
    assert (shop.root / "jobs.py").read_text() == "mine = True\n"
    (shop.root / "qframe.toml").write_text("default = 'sync'")
    assert "qframe.toml already exists" in shop.run("init").out
    assert (shop.root / "qframe.toml").read_text() == "default = 'sync'"


def test_init_into_another_folder(shop: Shop) -> None:
    assert shop.run("init", "deep/er").code == 0
    assert (shop.root / "deep" / "er" / "jobs.py").is_file()


@pytest.mark.parametrize("folder", ["shop.py", "shop.py/below", "/proc/nowhere"])
def test_init_where_nothing_can_be_written_is_one_line(shop: Shop, folder: str) -> None:
    said = shop.run("init", folder)
    assert said.code == 2
    assert folder.partition("/")[0] in said.only()


def test_check_says_what_is_configured_and_that_it_answers(shop: Shop) -> None:
    said = shop.run("check")
    assert said.code == 0
    assert f"root     {shop.root}" in said.lines
    assert "default  database" in said.lines
    assert "jobs     any job defined under the root" in said.lines
    for name in ("database: SQLite", "null: drops", "sync: runs"):
        assert any(line.startswith(f"ok       {name}") for line in said.lines), said.out


def test_what_nobody_configured_may_lack_its_package_and_aws_is_not_asked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = QueueManager.connection

    def lacking(queues: QueueManager, name: str | None = None) -> Connection:
        assert name != "sqs"
        if name == "rabbitmq":
            raise ConfigurationError("needs the package amqp")
        return connection(queues, name)

    monkeypatch.setattr(QueueManager, "connection", lacking)
    found = shop.run("check")
    assert found.code == 0, found.out
    assert "unused   rabbitmq: needs the package amqp" in found.lines
    assert "unused   sqs: not asked, as nobody configured it" in found.lines
    assert shop.run("check", "--connection", "rabbitmq").code == 1


@pytest.mark.parametrize(
    "toml",
    [
        '[store]\ndriver = "redis"',
        '[failed]\ndriver = "redis"',
        '[connections.both]\ndriver = "failover"\nconnections = ["database", "redis"]',
    ],
)
def test_check_asks_what_others_store_in_though_nobody_configured_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, toml: str
) -> None:
    def away(self: RedisBackend) -> Health:
        raise BackendUnavailable("Redis is away")

    monkeypatch.setattr(RedisBackend, "check", away)
    assert "unused   redis: Redis is away" in shop.run("check").lines
    shop.write("qframe.toml", toml)
    found = shop.run("check")
    assert "FAIL     redis: Redis is away" in found.lines
    assert found.code == 1


def test_check_as_json(shop: Shop) -> None:
    found = shop.run("check", "--json").rows
    assert found["root"] == str(shop.root)
    assert found["jobs"] == "ok"
    by_name = {row["connection"]: row for row in found["connections"]}
    assert by_name["database"]["error"] == ""
    assert by_name["database"]["ms"] >= 0
    assert {*by_name["database"]} == {"connection", "answer", "ms", "error", "unused", "warnings"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[connections.database]\nurl = "sqlite:////nowhere/at/all.db"', "all.db cannot be opened"),
        ('[connections.database]\nurl = "sqlite:///shop.py"', "shop.py is not an SQLite database"),
        ("[connections.database]\nretryafter = 5", "did you mean 'retry_after'"),
        ('[connections.mine]\ndriver = "mein"', "unknown driver 'mein'"),
        ('jobs = ["nowhere"]', "jobs: 'nowhere' cannot be imported"),
        ('jobs = ["broken"]', "jobs: 'broken' cannot be imported: ZeroDivisionError"),
        ('[listeners]\nJobQueued = ["nowhere:f"]', "listeners: 'nowhere:f' cannot be loaded"),
    ],
)
def test_check_exits_1_when_something_is_wrong(shop: Shop, text: str, said: str) -> None:
    shop.write("broken.py", "1 / 0\n")
    shop.write("qframe.toml", text)
    found = shop.run("check")
    assert found.code == 1
    assert said in found.out + found.err
    assert shop.run("check", "--json").code == 1


def test_check_says_which_queues_have_bounds(shop: Shop) -> None:
    toml = "[queues.mail]\nconcurrency = 20\nper_worker = 5\n[queues.'x-*']\nper_worker = 1\n"
    shop.write("qframe.toml", toml)
    out = shop.run("check").out
    assert "queue    mail: 20 at once over all workers, 5 in each worker\n" in out
    assert "queue    x-*: 1 in each worker\n" in out
    said = shop.run("check", "--json").rows
    assert said["queues"]["mail"] == {"concurrency": 20, "per_worker": 5}


def test_check_exits_2_when_the_configuration_cannot_be_read(shop: Shop) -> None:
    shop.write("qframe.toml", "defualt = 1")
    assert shop.run("check").code == 2


def test_check_names_what_is_unsafe(shop: Shop) -> None:
    shop.write("qframe.toml", "[connections.database]\nretry_after = 2\n")
    shop.queue.size()
    (shop.root / "qframe.sqlite3").chmod(0o666)
    said = shop.run("check")
    warned = "\n".join(line for line in said.lines if line.startswith("warning"))
    for words in ("retry_after = 2 is short", "can be written by every user", "power loss"):
        assert words in warned
    assert said.code == 0


def test_check_shows_no_password(shop: Shop) -> None:
    url = "postgresql://user:hunter2@127.0.0.1:1/x"
    shop.write("qframe.toml", f'[connections.pg]\ndriver = "database"\nurl = "{url}"\n')
    for arguments in (["check"], ["check", "--json"]):
        said = shop.run(*arguments)
        assert said.code == 1
        assert "hunter2" not in said.out + said.err


def test_check_payloads_tries_what_is_stored_and_changes_nothing(shop: Shop) -> None:
    shop.run("dispatch", "shop.Order", '{"number": 7}')
    shop.run("dispatch", "shop.Order", '{"number": 8}', "--delay", "3600")
    command = ("check", "--payloads", "--connection", "database")
    checked = shop.run(*command)
    assert (checked.code, checked.lines[-1]) == (0, "payloads 2 payloads read")
    shop.write(
        "shop.py", (shop.root / "shop.py").read_text().replace("note: str = ''", "carrier: str")
    )
    sys.modules.pop("shop", None)
    checked = shop.run(*command)
    assert checked.code == 1
    (failed,) = [line for line in checked.lines if line.startswith("FAIL")]
    assert failed.startswith("FAIL     2 of shop.Order lack `carrier` (due until ")
    assert failed.endswith(" UTC): 1 ready in database:default, 1 delayed in database:default")
    found = shop.run(*command, "--json").rows["payloads"]
    assert (found["read"], found["troubles"][0]["count"]) == (2, 2)
    assert shop.queue.size("default") == 2


def reports(shop: Shop) -> list[PayloadReport]:
    return payload_reports.reports_of(shop.queue)


def test_check_payloads_leaves_its_report_for_the_page(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QFRAME_VERSION", "2.4.1")
    monkeypatch.setattr(setup, "person", lambda: "ops@ci-3")
    shop.run("dispatch", "shop.Order", '{"number": 7}')
    command = ("check", "--payloads", "--connection", "database", "--at-most", "9")
    assert shop.run(*command, "--no-report").code == 0
    assert reports(shop) == []
    assert shop.run(*command).code == 0
    found = shop.run(*command, "--json", "--without-failed").rows
    assert found["report"] == {"kept_by": "database", "trouble": ""}
    last, first = sorted(reports(shop), key=lambda each: each.at, reverse=True)
    assert (first.who, first.where, first.version) == ("ops@ci-3", "the command", "2.4.1")
    assert (first.read, first.connection, first.at_most) == (1, "database", 9)
    assert (first.with_failed, last.with_failed) == (True, False)


def test_a_report_that_is_not_kept_changes_nothing_of_the_check(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("a read-only\nreplica")

    monkeypatch.setattr(payload_reports, "_keep_at", refuse)
    checked = shop.run("check", "--payloads", "--connection", "database")
    assert checked.code == 0
    assert checked.lines[-2:] == [
        "payloads 0 payloads read",
        "note     the report for the page was not kept: a read-only replica",
    ]
    found = shop.run("check", "--payloads", "--connection", "database", "--json")
    said = {"kept_by": "", "trouble": "a read-only replica"}
    assert (found.code, found.rows["report"]) == (0, said)


def test_the_options_of_check_payloads_need_it(shop: Shop) -> None:
    assert "are for --payloads" in shop.run("check", "--at-most", "5").only()
    assert shop.run("check", "--without-failed").code == 2
    assert shop.run("check", "--no-report").code == 2


def test_check_payloads_reads_no_negative_number(shop: Shop) -> None:
    said = shop.run("check", "--payloads", "--at-most", "-1")
    assert (said.code, said.only()) == (2, "qframe: --at-most must not be negative: 0 reads all")


def test_check_payloads_says_if_the_jobs_cannot_be_imported(shop: Shop) -> None:
    shop.write("qframe.toml", 'jobs = ["nowhere"]')
    checked = shop.run("check", "--payloads")
    assert checked.code == 1
    assert checked.lines[-1] == "payloads not checked, as the jobs cannot be imported"
