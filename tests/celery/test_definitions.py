"""Apps: their settings, brokers and schedules; what is not there is refused by name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe import QueueManager, manager
from qframe.celery import Celery
from qframe.celery.exceptions import ImproperlyConfigured, NotSupported
from qframe.celery.schedules import crontab, schedule
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.exceptions import ConfigurationError
from qframe.hooks import of_process
from qframe.jobs import syntax
from qframe.schedules.definition import book
from tests.celery import tasks


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that makes apps, which are forgotten."""
    from qframe.celery.apps import apps

    monkeypatch.setattr(apps, "all", [*apps.all])
    monkeypatch.setattr(book, "sources", [])
    monkeypatch.setattr(book, "_all", [])
    monkeypatch.setattr(of_process, "modules", ())
    return Celery


# -- settings -------------------------------------------------------------------------------------


def test_settings_are_attributes_and_keys(made: Any) -> None:
    app = made("x", task_default_queue="slow")
    app.conf.update(timezone="Europe/Oslo", accept_content=["json"], enable_utc=True)
    app.conf["task_time_limit"] = 30
    assert (app.conf.timezone, app.conf["task_default_queue"]) == ("Europe/Oslo", "slow")
    assert (app.conf.task_time_limit, app.conf.result_expires) == (30, 86400)
    app.conf.beat_schedule["each"] = {}
    assert app.conf.beat_schedule == {"each": {}}


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("task_serializer", "pickle", "pickle is refused"),
        ("accept_content", ["json", "pickle"], "pickle is refused"),
        ("task_acks_late", False, "for at most one start, max_retries=0"),
        ("worker_prefetch_multiplier", 1, "use nothing: only short jobs are reserved ahead"),
        ("worker_concurrency", 4, "use qframe work --concurrency N, or --workers N"),
        ("worker_any_other", 4, "use the options of qframe work"),
        ("broker_transport_options", {}, "retry_after"),
        ("task_annotations", {}, "use options of the tasks"),
        ("beat_scheduler", "x", "qframe schedule add"),
        ("task_default_queu", "x", "did you mean 'task_default_queue'"),
        ("task_routes", {"a.*": {"exchange": "x"}}, "exchange in task_routes"),
        ("broker_url", "pyamqp+x://guest@localhost//", "has no broker 'pyamqp.x': use redis://"),
        ("broker_url", "sqs://", "has no broker 'sqs'"),
        ("result_backend", "amqp://", "results are kept beside the jobs"),
        ("result_backend", "rpc://", "results are kept beside the jobs"),
        ("result_backend", "django-db", "results are kept beside the jobs"),
    ],
)
def test_settings_without_a_counterpart_are_refused(
    made: Any, setting: str, value: Any, told: str
) -> None:
    with pytest.raises(NotSupported, match=told):
        made("x").conf[setting] = value
    with pytest.raises(NotSupported, match=told):
        made("x", **{setting: value})


def test_settings_come_from_modules_objects_and_django(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "celeryconfig_of_test.py").write_text(
        "import os\ntimezone = 'Europe/Oslo'\ntask_serializer = 'json'\ntask_time_limit = 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = made("x")
    app.config_from_object("celeryconfig_of_test")
    assert (app.conf.timezone, app.conf.task_time_limit) == ("Europe/Oslo", 5)
    app = made("x")
    settings = SimpleNamespace(CELERY_TIMEZONE="Europe/Rome", CELERY_TASK_TIME_LIMIT=7, OTHER=1)
    app.config_from_object(settings, namespace="CELERY")
    app.conf.task_time_limit = 9  # after the object
    assert (app.conf.timezone, app.conf.task_time_limit) == ("Europe/Rome", 9)
    monkeypatch.setenv("CELERY_CONFIG_MODULE", "celeryconfig_of_test")
    app = made("x")
    app.config_from_envvar("CELERY_CONFIG_MODULE")
    assert app.conf.timezone == "Europe/Oslo"


def test_wrong_objects_are_told_of(made: Any) -> None:
    app = made("x")
    app.config_from_object("no_such_module")
    with pytest.raises(ImproperlyConfigured, match="'no_such_module' cannot be imported"):
        _ = app.conf.timezone
    app.config_from_object(SimpleNamespace(CELERY_WORKER_CONCURRENCY=4), namespace="CELERY")
    with pytest.raises(NotSupported, match="worker_concurrency"):
        _ = app.connection_name
    app = made("x")
    app.config_from_object(SimpleNamespace(CELERYD_CONCURRENCY=4))
    with pytest.raises(NotSupported, match="CELERYD_CONCURRENCY: write it in lower case"):
        _ = app.connection_name


# -- brokers --------------------------------------------------------------------------------------


def test_a_broker_is_a_connection_of_qframes(made: Any, tmp_path: Path) -> None:
    connections = {
        "mine": {"driver": "redis", "url": "redis://:secret@cache:6380/2"},
        "rows": {"driver": "database", "url": "sqlite:///jobs.sqlite3"},
        "hare": {"driver": "rabbitmq", "url": "amqp://app:secret@hare/%2F"},
    }
    manager.use(QueueManager({"default": "rows", "connections": connections}))
    for url, name in [
        (None, None),
        ("redis://:secret@cache:6380/2", "mine"),
        ("redis://localhost", "redis"),
        ("redis://localhost:6379/0", "redis"),
        ("sqla+sqlite:///jobs.sqlite3", "rows"),
        ("memory://", "memory"),
        ("amqp://", "rabbitmq"),
        ("amqp://guest:guest@localhost:5672//", "rabbitmq"),
        ("pyamqp://app:secret@hare//", "hare"),
        ("amqp://app:secret@hare:5672;amqp://app:secret@rabbit", "hare"),
    ]:
        assert made("x", broker=url).connection_name == name
    for url in (
        "redis://:secret@cache:6380/3", "redis://other:6380/2", "amqp://app:secret@hare/other",
        "amqps://app:secret@hare", "amqp://app:secret@a;amqp://app:secret@b",
    ):  # fmt: skip
        with pytest.raises(ImproperlyConfigured, match="no connection of qframe's") as told:
            _ = made("x", broker=url).connection_name
        assert "secret" not in str(told.value)


def test_without_any_configuration_a_broker_makes_its_connection(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manager.use(QueueManager())
    app = made("x", broker="redis://far:6400/1")
    assert app.connection_name == "celery"
    connection = manager.default().connection("celery")
    assert (connection.settings.driver, connection.settings.url) == ("redis", "redis://far:6400/1")  # type: ignore[attr-defined] # a Redis one's


def test_without_any_configuration_amqp_makes_a_connection_to_rabbitmq(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manager.use(QueueManager())
    made("x", broker="pyamqp://a:b@far:5673/v;pyamqp://a:b@[::1]/v").connection_name  # noqa: B018 (it makes it)
    values = manager.default().settings.connection("celery")
    settings = RabbitmqSettings.model_validate(values)
    assert settings.addresses() == [("far", 5673), ("::1", 5672)]
    assert settings.login() == ("a", "b", "v")


def test_results_are_beside_the_jobs(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    made("x", broker="redis://localhost", backend="redis://localhost")
    assert not caplog.records
    made("x", broker="redis://localhost/0", backend="redis://127.0.0.1:6379/1")
    assert "results are kept beside the jobs" in caplog.text
    with pytest.raises(NotSupported, match="leave result_backend out"):
        made("x", broker="redis://localhost", backend="redis://elsewhere")


# -- schedules ------------------------------------------------------------------------------------


def planned(app: Any, entry: Any) -> Any:
    """Give the schedule that an entry becomes."""
    app.conf.beat_schedule = {"entry": {"task": "tests.celery.tasks.add", "args": (1, 1), **entry}}
    (found,) = book.finished("UTC")
    return found


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute="0,30", hour=[7, 8], day_of_month="1-7"), "0,30 7,8 1-7 * *"),
        (crontab(0, 0, month_of_year={6, 12}), "0 0 * 6,12 *"),
        (crontab(hour=7, minute=30, day_of_week=1), "30 7 * * *; days 1"),
        (crontab(0, 9, day_of_week="mon-fri"), "0 9 * * *; weekdays"),
        (crontab(0, 9, day_of_week="fri-mon"), "0 9 * * *; days 0,1,5,6"),
        (crontab(0, 9, day_of_week="*/2", day_of_month=13), "0 9 13 * *; days 0,2,4,6"),
        (crontab.from_string("5 4 * * sun"), "5 4 * * *; days 0"),
        (30, "every 30s"),
        (timedelta(minutes=5), "every 5m"),
        (schedule(90.0), "every 90s"),
    ],
)
def test_times_of_beat_are_those_of_a_schedule(made: Any, times: Any, text: str) -> None:
    found = planned(made("x", timezone="Europe/Oslo"), {"schedule": times})
    calendar = found.options.calendar
    days = calendar.days
    shown = calendar.text().replace(" ", "")
    assert found.options.zone == "Europe/Oslo"
    assert found.title == "entry"
    expected = text.split("; ")
    assert expected[0].replace(" ", "") in shown
    assert (days is not None) == (len(expected) > 1)


def test_days_of_week_and_month_must_both_fit(made: Any) -> None:
    friday_13th = crontab(0, 0, day_of_week="fri", day_of_month=13)
    calendar = planned(made("x"), {"schedule": friday_13th}).options.calendar
    at = calendar.next(datetime(2026, 4, 1, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(at, UTC) == datetime(2026, 11, 13, tzinfo=UTC)


def test_an_entry_is_a_call_of_its_task(made: Any) -> None:
    app = made("x")
    entry = {"schedule": 30, "kwargs": {"z": 1}, "options": {"queue": "beat", "expires": 15}}
    found = planned(app, entry)
    assert (found.job.args, found.job.kwargs) == ([1, 1], {"z": 1})
    assert (found.job.queue, found.job.expires, found.job_name) == ("beat", 15, tasks.add.name)
    assert found.module == __name__
    assert book.finished("UTC") == [found]  # asked again, it is the same


def test_periodic_tasks_are_added_when_the_app_is_configured(made: Any) -> None:
    app = made("x")

    def setup_periodic_tasks(sender: Any, **_: Any) -> None:
        sender.add_periodic_task(10.0, tasks.add.s(1, 1), name="add every 10")
        sender.add_periodic_task(crontab(hour=7), tasks.add.s(2, 2), expires=10)

    app.on_after_configure.connect(setup_periodic_tasks)
    found = {each.title: each for each in book.finished("UTC")}
    assert sorted(found) == ["add every 10", "tests.celery.tasks.add(2, 2)"]
    assert found["tests.celery.tasks.add(2, 2)"].job.expires == 10


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"schedule": crontab(), "relative": True}, "relative"),
        ({"schedule": crontab(), "options": {"exchange": "x"}}, "use queue"),
        ({"schedule": crontab(), "options": {"countdown": 1}}, r"countdown in beat_schedule\['e"),
        ({"schedule": "hourly"}, "schedule str in beat_schedule"),
        ({"schedule": crontab(), "when": 1}, "when in beat_schedule"),
        ({}, "needs a task and a schedule"),
        ({"schedule": 0.5}, "whole number of seconds"),
        ({"schedule": crontab(day_of_week="someday")}, "no day of the week"),
        ({"schedule": crontab(minute="61")}, "no cron expression"),
    ],
)
def test_entries_that_cannot_be_planned_are_told_of(made: Any, entry: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        planned(made("x"), entry)


# -- imports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("from qframe.celery import uuid", "qframe.celery has no uuid: use uuid.uuid4"),
        ("from qframe.celery import beat", "qframe.celery has no beat: use app.conf.beat_schedule"),
        ("import qframe.celery.bin.celery", "has no module bin: use the command qframe"),
        ("from qframe.celery.contrib.abortable import A", "has no module contrib: use"),
        ("from qframe.celery.signals import task_received", "has no task_received: use events."),
        ("from qframe.celery.schedules import solar", "has no solar: use crontab"),
        ("from qframe.celery import nonsense", "cannot import name 'nonsense'"),
    ],
)
def test_names_that_are_not_there_are_refused_at_import(line: str, told: str) -> None:
    with pytest.raises(ImportError, match=told):
        exec(line, {})


def test_the_names_of_the_documentation_are_there() -> None:
    exec(
        "from qframe.celery import Celery, Task, chain, chord, current_app, current_task, group\n"
        "from qframe.celery import app_or_default, maybe_signature, shared_task, signature\n"
        "from qframe.celery import subtask\n"
        "from qframe.celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry\n"
        "from qframe.celery.exceptions import SoftTimeLimitExceeded, TimeoutError\n"
        "from qframe.celery.result import AsyncResult, GroupResult\n"
        "from qframe.celery.schedules import crontab\n"
        "from qframe.celery.signals import task_failure, task_postrun, task_prerun, task_success\n"
        "from qframe.celery.utils.log import get_task_logger\n"
        "get_task_logger('x').info('well')\n",
        {},
    )


def test_it_imports_neither_django_nor_celery() -> None:
    code = "import qframe.celery, sys; print({'django', 'celery', 'redis'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


# -- what a worker may import ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("from qframe.celery import shared_task\n@shared_task\ndef f(): ...", True),
        ("from qframe.celery import shared_task\n@shared_task(bind=True)\ndef f(self): ...", True),
        ("import qframe.celery as celery\n@celery.shared_task\ndef f(): ...", True),
        ("from qframe.celery import Celery\napp = Celery()\n@app.task\ndef f(): ...", True),
        ("import qframe.celery as c\napp = c.Celery()\n@app.task()\ndef f(): ...", True),
        ("from made import app\n@app.task(name='f')\ndef f(): ...", True),
        ("from made import app as mine\n@mine.task\ndef f(): ...", True),
        ("import made\n@made.app.task\ndef f(): ...", True),
        ("from qframe.celery import current_app\n@current_app.task\ndef f(): ...", True),
        ("from qframe.celery import Celery\napp = Celery()\n@app.tasks\ndef f(): ...", False),
        ("from made import other\n@other.task\ndef f(): ...", False),
        ("from celery import Celery\napp = Celery()\n@app.task\ndef f(): ...", False),
        ("from qframe.celery import Celery\napp = Celery()\ndef f(): ...", False),
    ],
)
def test_a_file_shows_its_tasks(fresh: Path, text: str, shows: bool) -> None:
    (fresh / "made.py").write_text(
        "from qframe.celery import Celery\napp = Celery()\nother = dict()\n"
    )
    (fresh / "shown.py").write_text(text)
    from qframe.jobs import project

    project.set_root(fresh)
    assert syntax.shows_job(fresh / "shown.py", "shown", "f") is shows


def test_modules_of_an_app_may_run(made: Any, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = fresh / "celery_package_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "from qframe.celery import shared_task\n"
        "@shared_task(name='by.name')\ndef f(): return 'found'\n"
    )
    (fresh / "celery_app_of_test.py").write_text(
        "from qframe.celery import Celery\napp = Celery()\n"
        "app.autodiscover_tasks(['celery_package_of_test', 'json'])\n"
    )
    monkeypatch.syspath_prepend(fresh)
    queues = QueueManager({"jobs": ["celery_app_of_test"], "root": str(fresh)})
    queues.registry.load()
    assert "celery_package_of_test.tasks" in of_process.modules
    assert queues.registry.find("by.name").__name__ == "f"
    assert importlib.import_module("celery_package_of_test.tasks").f() == "found"
