"""Projects with bare settings, without the tables, or with logs of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.django_shop import DjangoShop, databases, in_database
from tests.support.postgres_server import PostgresServer

pytest.importorskip("django")
BARE = """
import json, os
SECRET_KEY = "of a worker"
INSTALLED_APPS = ["qframe.django"]
DATABASES = json.loads(os.environ["SHOP_DATABASES"])
QFRAME = json.loads(os.environ["SHOP_QFRAME"])
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
    assert "no issues" in bare.done("check")
    bare.done("check", "--deploy")
    warned = bare.manage("check", "--database", "default", "--tag", "database").stderr
    assert "qframe.W004" in warned
    assert "tables in the database 'default' are missing or to be upgraded" in warned
    assert "HINT: Run: manage.py migrate\n" in warned
    migrated = bare.manage("migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "WARNINGS" not in migrated.stderr, "it is what makes them"
    assert "no issues" in bare.done("check", "--database", "default")
    assert "no jobs" in bare.done("qframe", "work", "--stop-when-empty")


def test_forgotten_migrations_name_djangos_command(bare: DjangoShop) -> None:
    for words in (("work", "--stop-when-empty"), ("size",)):
        ran = bare.manage("qframe", *words)
        assert ran.returncode == 2, ran
        assert ran.stderr.count("\n") == 1, ran.stderr
        assert ran.stderr.endswith(": run `manage.py migrate`\n"), ran.stderr


def test_a_database_that_is_away_is_one_warning(bare: DjangoShop) -> None:
    away = json.loads(bare.environment["SHOP_DATABASES"])
    away["default"]["PORT"] = "1"
    bare.environment["SHOP_DATABASES"] = json.dumps(away)
    assert "no issues" in bare.done("check"), "nothing is asked"
    said = bare.manage("check", "--database", "default").stderr
    assert "qframe.W005" in said
    assert "Traceback" not in said


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
