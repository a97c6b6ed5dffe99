"""The tests that are Django's own way to test, run as a project runs its tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.django_shop import DjangoShop, in_database, to_be_tested
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer

pytest.importorskip("django")


MODULES = sorted(path.stem for path in (Path(__file__).parent / "suite").glob("*ing.py"))
PARTS = (MODULES[::2], MODULES[1::2])  # each with a time limit of its own
CENTRAL = ("suite.calling", "suite.dispatching.InTestCase", "suite.dispatching.InTransactions")


@pytest.mark.parametrize("part", PARTS, ids=" ".join)
def test_the_suite(postgres_running: PostgresServer, tmp_path: Path, part: Sequence[str]) -> None:
    """It ends well only if the test databases can be dropped: no session is left in one."""
    shop = DjangoShop(tmp_path, databases=to_be_tested(postgres_running), qframe=in_database())
    assert shop.tested(*(f"suite.{each}" for each in part)) > 20
    there = postgres_running.sql("select datname from pg_database where datname ~ 'test'")
    assert there == []


def test_the_central_ones_on_sqlite_in_a_file(tmp_path: Path) -> None:
    assert DjangoShop(tmp_path).tested(*CENTRAL) > 20


@pytest.mark.slow
def test_the_central_ones_on_mariadb(mariadb_running: MariadbServer, tmp_path: Path) -> None:
    shop = DjangoShop(tmp_path, databases=to_be_tested(mariadb_running), qframe=in_database())
    assert shop.tested(*CENTRAL) > 20


PUSHED = """
from django.apps import apps
from django.db.models.signals import post_migrate
from django.test import TestCase, TransactionTestCase
from shop.jobs import Ship
from qframe import abulk
from asgiref.sync import async_to_sync


def push(using, **_):
    # As a migration may: in the runner's own process, before it copies the database.
    if using == "default":
        Ship.dispatch(order=0).send()


async def dispatched():
    await Ship.dispatch(order=2)
    await abulk([Ship(order=3)])


class Pushes(TransactionTestCase):
    def test_it(self):
        Ship.dispatch(order=1)      # by the pusher's thread
        async_to_sync(dispatched)() # by a sender's
        Ship.dispatch(order=4).send()


class PushesInATransaction(TestCase):
    def test_it(self):
        Ship.dispatch(order=1).before_commit().send()


post_migrate.connect(push, sender=apps.get_app_config("shop"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--parallel", "2")])
def test_a_test_that_pushes_leaves_no_session(
    postgres_running: PostgresServer, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "pushing.py").write_text(PUSHED)
    shop = DjangoShop(tmp_path, databases=to_be_tested(postgres_running), qframe=in_database())
    shop.environment["PYTHONPATH"] += f":{tmp_path}"
    assert shop.tested("pushing", *options) == 2
    there = postgres_running.sql("select datname from pg_database where datname ~ 'test'")
    assert there == []


BY_PYTEST = """
import pytest
from django.db import connection
from shop.jobs import Ship
from shop.models import Order
from qframe import dispatch_sync, manager
from qframe.testing import drain, run


@pytest.mark.django_db
def test_in_a_transaction():
    order = Order.objects.create(article="lamp")
    own = connection.connection
    assert run(Ship(order=order.pk)).result == 1
    assert dispatch_sync(Ship(order=order.pk)) == 1
    Ship.dispatch(order=order.pk).before_commit().send()
    assert drain().done == 1
    order.refresh_from_db()
    assert order.shipped == 3
    assert connection.connection is own


@pytest.mark.django_db(transaction=True)
def test_without_one():
    assert Order.objects.count() == 0
    order = Order.objects.create(article="lamp")
    Ship.dispatch(order=order.pk)
    assert drain().done == 1
    order.refresh_from_db()
    assert order.shipped == 1


def test_callbacks(db, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        Ship.dispatch(order=1)
    assert len(callbacks) == 1
    assert manager.default().connection().size() == 1
    manager.default().connection().clear()
"""


def test_pytest_django(postgres_running: PostgresServer, tmp_path: Path) -> None:
    pytest.importorskip("pytest_django")
    (tmp_path / "test_shop.py").write_text(BY_PYTEST)
    (tmp_path / "pytest.ini").touch()  # so that it is the root
    shop = DjangoShop(tmp_path, databases=to_be_tested(postgres_running), qframe=in_database())
    assert "3 passed" in shop.pytest(str(tmp_path))
    there = postgres_running.sql("select datname from pg_database where datname ~ 'test'")
    assert there == []


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
