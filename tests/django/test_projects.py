"""Projects with bare settings, without the tables, or with logs of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.django_shop import DjangoShop, databases, in_database
from tests.support.postgres_server import PostgresServer
from tests.support.sql_server import USER

pytest.importorskip("django")
BARE = """
import json, os
SECRET_KEY = "of a worker"
INSTALLED_APPS = ["qframe.django"]
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
DATABASES = json.loads(os.environ["SHOP_DATABASES"])
QFRAME = json.loads(os.environ["SHOP_QFRAME"])
"""
CHECKED = """
import json, sys
from django.core.management import execute_from_command_line
sys.stderr = sys.stdout
for words in json.loads(sys.argv[1]):
    print("\\0", end="")
    sys.argv = ["manage.py", "check", *words]
    execute_from_command_line(sys.argv)
"""
LOGGING = """
from project.settings import *
INSTALLED_APPS.append("talking")
shown = {"handlers": ["shown"], "level": "INFO"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "shown": {"class": "logging.StreamHandler"},
        "never": {"class": "logging.StreamHandler", "level": "CRITICAL"},
        "kept": {"class": "logging.FileHandler", "filename": str(FOLDER / "kept.log")},
    },
    "loggers": {
        "django.tasks": shown,
        "django_tasks": shown,
        "talking": shown,
        "quiet": {"handlers": ["never", "kept"], "level": "INFO"},
    },
}
"""
TALKING = """
import logging
from qframe import Queueable


class Talk(Queueable):
    def handle(self):
        for name in ("talking", "talking.more", "quiet", "nobody"):
            logging.getLogger(name).warning("said by %s:", name)
        logging.getLogger("quiet").info("hushed")
"""


def away(shop: DjangoShop) -> None:
    found = json.loads(shop.environment["SHOP_DATABASES"])
    found["default"]["PORT"] = "1"
    shop.environment["SHOP_DATABASES"] = json.dumps(found)


def checked(shop: DjangoShop, *calls: Sequence[str]) -> list[str]:
    """Run `manage.py check` with each of some words; gives what each says."""
    ran = subprocess.run(
        [sys.executable, "-c", CHECKED, json.dumps(calls)],
        env=shop.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.split("\0")[1:]


@pytest.fixture
def bare(postgres_running: PostgresServer, tmp_path: Path) -> DjangoShop:
    """Give a project with settings for a worker alone, and an empty database."""
    (tmp_path / "bare.py").write_text(BARE)
    name = postgres_running.database().rpartition("/")[2]
    made = databases(postgres_running)
    made["default"]["NAME"] = name
    shop = DjangoShop(tmp_path, databases=made, qframe=in_database(), DJANGO_SETTINGS_MODULE="bare")
    shop.environment["PYTHONPATH"] += f":{tmp_path}"
    return shop


def test_without_addresses_all_is_checked_and_migrated(bare: DjangoShop) -> None:
    bare.done("check", "--deploy")
    migrated = bare.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "WARNINGS" not in migrated.stderr, "it is what makes them"
    assert all("no issues" in each for each in checked(bare, (), ("--database", "default")))
    assert "no jobs" in bare.done("qframe", "work", "--stop-when-empty")


def test_a_check_warns_of_forgotten_migrations(bare: DjangoShop) -> None:
    (bare.folder / "more.py").write_text(BARE + 'INSTALLED_APPS.append("django.contrib.sites")')
    bare.environment["DJANGO_SETTINGS_MODULE"] = "more"
    forgotten = (), ("qframe",), ("--tag", "qframe"), ("--database=default",)
    others = ("--tag", "urls"), ("sites",)
    said = checked(bare, *forgotten, *others)
    for each in said[: len(forgotten)]:
        assert each.count("qframe.W00") == 1, each
        assert "qframe.W004) settings.QFRAME: connections.database: the queue's tables are" in each
        assert "HINT: Run: manage.py migrate\n" in each
    for each in said[len(forgotten) :]:
        assert "no issues" in each


def test_a_check_names_the_command_of_each_connection(bare: DjangoShop) -> None:
    found = json.loads(bare.environment["SHOP_DATABASES"])
    there = found["default"]
    given = {"url": f"postgresql://{USER}@127.0.0.1:{there['PORT']}/{there['NAME']}"}
    connections = {
        "by_url": given,
        "by_hand": given | {"migrate_command": "make tables"},
        "other": {"django": "other"},
        "file": {"url": f"sqlite:///{bare.folder / 'jobs.sqlite3'}"},
        "redis": {"driver": "redis", "url": "redis://127.0.0.1:1"},
    }
    connections = {name: {"driver": "database"} | each for name, each in connections.items()}
    bare.environment |= {
        "SHOP_DATABASES": json.dumps(found | {"other": there}),
        "SHOP_QFRAME": json.dumps({"default": "by_url", "connections": connections}),
    }
    said = bare.manage("check").stderr
    named = re.findall(r"connections\.(\w+): .*\n\tHINT: Run: (.*)\n", said)
    assert dict(named) == {
        "by_url": "manage.py qframe migrate",
        "by_hand": "make tables",
        "other": "manage.py migrate --database other",
    }, said
    assert said.count("qframe.W00") == len(named), said
    assert not (bare.folder / "jobs.sqlite3").exists()
    ran = bare.manage("qframe", "size")
    assert ": run `manage.py qframe migrate`\n" in ran.stderr
    bare.done("qframe", "migrate", "by_url")
    assert "no issues" in bare.done("check"), "they are one database"


def test_forgotten_migrations_name_djangos_command(bare: DjangoShop) -> None:
    for words in (("work", "--stop-when-empty"), ("size",)):
        ran = bare.manage("qframe", *words)
        assert ran.returncode == 2, ran
        assert ran.stderr.count("\n") == 1, ran.stderr
        assert ran.stderr.endswith(": run `manage.py migrate`\n"), ran.stderr


def test_a_database_that_is_away_is_one_warning(bare: DjangoShop) -> None:
    away(bare)
    here = json.loads(bare.environment["SHOP_QFRAME"])
    here["connections"]["second"] = here["connections"]["database"]
    bare.environment["SHOP_QFRAME"] = json.dumps(here)
    for said in checked(bare, (), ("--database", "default")):
        assert said.count("qframe.W005") == 1, said
        assert "Traceback" not in said


@pytest.mark.parametrize(("default", "id_"), [("memory", "W005"), ("wrong", "E001")])
def test_a_check_says_once_which_connection_cannot_be_used(
    bare: DjangoShop, default: str, id_: str
) -> None:
    wrong = {"wrong": {"driver": "nothere"}, "memory": {"driver": "memory"}}
    bare.environment["SHOP_QFRAME"] = json.dumps({"default": default, "connections": wrong})
    said = bare.manage("check").stderr
    assert re.findall(r"qframe.(\w+)\) .*connections.wrong: unknown driver", said) == [id_], said
    assert said.count("connections.wrong") == 1, said


def test_other_commands_ask_no_database(bare: DjangoShop) -> None:
    """They run the same checks first."""
    away(bare)
    assert bare.manage("sendtestemail", "someone@example.com").stderr == ""


def test_a_line_of_a_log_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOGGING)
    (tmp_path / "talking").mkdir()
    (tmp_path / "talking" / "__init__.py").touch()
    (tmp_path / "talking" / "jobs.py").write_text(TALKING)
    shop = DjangoShop(tmp_path, DJANGO_SETTINGS_MODULE="loud")
    shop.environment["PYTHONPATH"] += f":{tmp_path}"
    shop.done("migrate", "--verbosity", "0")
    task = shop.run(
        "from talking.jobs import Talk; Talk.dispatch().send()\nprint(receipt.enqueue(order=1).id)"
    )
    ran = shop.manage("qframe", "work", "--stop-when-empty")
    assert ran.stdout.count("DONE") == 2, ran
    for name in ("talking", "talking.more", "quiet", "nobody"):
        assert ran.stderr.count(f"said by {name}:") == 1, ran.stderr
    assert "hushed" not in ran.stderr, "its own handler leaves it out"
    assert "hushed" in (tmp_path / "kept.log").read_text()
    for state in ("RUNNING", "SUCCESSFUL"):
        assert ran.stderr.count(f"id={task} path=shop.tasks.receipt state={state}") == 1, ran.stderr
