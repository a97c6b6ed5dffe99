"""The tests that are Django's own way to test, run as a project runs its tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.django_shop import DjangoShop

pytest.importorskip("django")


def test_the_suite(tmp_path: Path) -> None:
    ran = DjangoShop(tmp_path, SHOP_OTHER="1").manage(
        "test", "suite", "--noinput", "--pattern", "*ing.py"
    )
    assert ran.returncode == 0, ran.stderr
    assert int(re.findall(r"Ran (\d+) tests", ran.stderr)[0]) > 30


def test_a_test_database_in_memory(tmp_path: Path) -> None:
    own = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.sqlite3")}
    here = {"driver": "database", "django": "default", "synchronous": "full"}
    for mode in ("on_commit", "within"):
        settings = {"connections": {"database": here}, "DISPATCH": mode}
        shop = DjangoShop(tmp_path, databases={"default": own}, qframe=settings)
        ran = shop.manage("test", "suite.dispatching.InTestCase", "--noinput")
        assert ran.returncode == 0, ran.stderr
        assert not (tmp_path / "shop.sqlite3").exists()


@pytest.mark.slow
def test_a_new_project(tmp_path: Path) -> None:
    shop = DjangoShop(tmp_path)
    assert "no issues" in shop.done("check")
    assert "No changes detected" in shop.done("makemigrations", "--check", "--dry-run")
    shop.done("migrate", "--verbosity", "0")
    assert "nothing to do" in shop.done("qframe", "migrate")
    assert "Usage: qframe" in shop.done("qframe", "--help")
    task = shop.run("Ship.dispatch(order=1).send(); print(receipt.enqueue(order=1).id)")
    said = shop.done("qframe", "work", "--stop-when-empty", "--isolate")
    assert "shop.tasks.receipt" in said
    assert "DONE" in said
    assert "SUCCESSFUL" in shop.run(f"print(receipt.get_result({task!r}).status)")


SCHEDULED = """
from qframe import Queueable, schedule


class Tick(Queueable):
    def handle(self):
        print("ticked for", self.scheduled_for.tzname())


schedule(Tick()).every_second().timezone("Asia/Kolkata")
"""
LISTED_AND_RUN = """
from django.core.management import call_command, execute_from_command_line
call_command("migrate", verbosity=0)
for words in ("schedule list", "work --max-jobs 1 --sleep 0.1"):
    try:
        execute_from_command_line(["manage.py", "qframe", *words.split()])
    except SystemExit as ended:
        assert not ended.code, ended
"""


def test_a_schedule_in_the_jobs_of_an_app(tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "__init__.py").touch()
    (tmp_path / "clock" / "jobs.py").write_text(SCHEDULED)
    (tmp_path / "with_clock.py").write_text(
        "from project.settings import *\nINSTALLED_APPS.append('clock')"
    )
    shop = DjangoShop(tmp_path, DJANGO_SETTINGS_MODULE="with_clock")
    shop.environment["PYTHONPATH"] += f":{tmp_path}"
    said = shop.run(LISTED_AND_RUN)
    assert "every 1s Asia/Kolkata" in said.partition("ticked")[0], said
    assert "ticked for IST" in said


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    shop = DjangoShop(tmp_path, qframe={"defualt": "redis"})
    ran = shop.manage("qframe", "size")
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert "settings.QFRAME: unknown key 'defualt'" in ran.stderr
    assert "Traceback" not in ran.stderr
