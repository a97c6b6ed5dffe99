"""Celery's own tutorials, as it prints them, with the one line changed, run by real workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Project, wait_for
from tests.support.projects import RedisProject
from tests.support.redis_server import RedisServer

TASKS = """\
from qframe.celery import Celery

app = Celery('tasks', backend='{url}', broker='{url}')

@app.task
def add(x, y):
    return x + y
"""
SETTINGS = """
app.conf.task_serializer = 'json'
app.conf.update(
    task_serializer='json',
    accept_content=['json'],  # Ignore other content
    result_serializer='json',
    timezone='Europe/Oslo',
    enable_utc=True,
)
app.conf.task_routes = {
    'tasks.add': 'low-priority',
}
app.conf.beat_schedule = {
    'add-every-second': {
        'task': 'tasks.add',
        'schedule': 1.0,
        'args': (16, 16)
    },
}

from qframe.celery.signals import task_success

@task_success.connect
def note(sender, result, **kwargs):
    if result == 32:
        with open("by_beat", "w") as file:
            file.write(sender.name)
"""
SESSION = """\
from tasks import add
first = add.delay(4, 4)
print(first.get(timeout=60), first.ready(), first.state)
wrong = add.delay(4, "four")
print(type(wrong.get(timeout=60, propagate=False)).__name__, "return x + y" in wrong.traceback)
first.forget()
print(first.state)
"""


@pytest.fixture(params=["sqlite", "redis"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Give a project with the tutorial's module, on each kind of broker."""
    toml = 'jobs = ["tasks"]'
    made: Project
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_running")
        with server.client() as client:
            client.flushall()
        made = RedisProject(tmp_path / "project", toml, url=server.url)
        url = server.url
    else:
        made = Project(tmp_path / "project", toml)
        url = "sqla+sqlite:///qframe.sqlite3"
    with made:
        made.write("tasks.py", TASKS.format(url=url) + SETTINGS)
        yield made


def test_first_steps_with_celery(project: Project) -> None:
    worker = project.work("--queue", "low-priority,default")
    ran = project.python(SESSION)
    assert ran.out.splitlines() == ["8 True SUCCESS", "TypeError True", "PENDING"], ran.err
    # Each run of the task writes it anew, so it may be empty for a moment.
    by_beat = project.root / "by_beat"
    wait_for(
        lambda: by_beat.exists() and by_beat.read_text() == "tasks.add", "the task of beat_schedule"
    )
    assert worker.stop() == 0


# -- Django ---------------------------------------------------------------------------------------

MANAGE = """\
import os
import sys

if __name__ == '__main__':
    os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'proj.settings')
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""
INIT = """\
# This will make sure the app is always imported when
# Django starts so that shared_task will use this app.
from .celery import app as celery_app

__all__ = ('celery_app',)
"""
APP = """\
import os

from qframe.celery import Celery

# Set the default Django settings module for the 'celery' program.
os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'proj.settings')

app = Celery('proj')

# Using a string here means the worker doesn't have to serialize
# the configuration object to child processes.
# - namespace='CELERY' means all celery-related configuration keys
#   should have a `CELERY_` prefix.
app.config_from_object('django.conf:settings', namespace='CELERY')

# Load task modules from all registered Django apps.
app.autodiscover_tasks()


@app.task(bind=True, ignore_result=True)
def debug_task(self):
    print(f'Request: {self.request!r}')
"""
PROJECT = """\
import os

# Celery Configuration Options
CELERY_TIMEZONE = "Australia/Tasmania"
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_TIME_LIMIT = 30 * 60
#: Only add pickle to this list if your broker is secured
#: from unwanted access (see userguide/security.html)
CELERY_ACCEPT_CONTENT = ['json']
CELERY_TASK_SERIALIZER = 'json'

BASE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECRET_KEY = 'l!t+dmzf97rt9s*yrsux1py_1@odvz1szr&6&m!f@-nxq6k%%p'
DEBUG = True
INSTALLED_APPS = [
    'django.contrib.auth',
    'django.contrib.contenttypes',
    'demoapp',
]
DATABASES = {
    'default': {
        'ENGINE': 'django.db.backends.sqlite3',
        'NAME': os.path.join(BASE_DIR, 'db.sqlite3'),
    }
}
USE_TZ = True
DEFAULT_AUTO_FIELD = 'django.db.models.AutoField'
"""
MODELS = """\
from django.db import models


class Widget(models.Model):
    name = models.CharField(max_length=140)
"""
DEMO = """\
# Create your tasks here

from demoapp.models import Widget

from qframe.celery import shared_task


@shared_task
def add(x, y):
    return x + y


@shared_task
def mul(x, y):
    return x * y


@shared_task
def xsum(numbers):
    return sum(numbers)


@shared_task
def count_widgets():
    return Widget.objects.count()


@shared_task
def rename_widget(widget_id, name):
    w = Widget.objects.get(id=widget_id)
    w.name = name
    w.save()


@shared_task(
    bind=True,
    autoretry_for=(Exception,),
    retry_kwargs={"max_retries": 2, "countdown": 10 * 60},  # retry up to 2 times
)
def error_task(self):
    raise Exception("Test error")


@shared_task(
    bind=True,
    autoretry_for=(Exception,),
    retry_backoff=5,  # Factor in seconds (first retry: 5s, second: 10s, third: 20s, etc.)
    retry_jitter=False,  # Set False to disable randomization (use exact values: 5s, 10s, 20s)
    retry_kwargs={"max_retries": 3},
)
def error_backoff_test(self):
    raise Exception("Test error")
"""
SHELL = """\
from demoapp.models import Widget
from demoapp.tasks import add, count_widgets, error_task, rename_widget
from proj.celery import debug_task
widget = Widget.objects.create(name="old")
add.delay_on_commit(2, 3)
rename_widget.delay(widget.id, "new")
ids = [add.delay(2, 3).id, count_widgets.delay().id, error_task.delay().id]
debug_task.delay()
print(*ids)
"""
LOOK = """\
from celery_ids import ids
from demoapp.models import Widget
from qframe.celery.result import AsyncResult
print(*(AsyncResult(each).state for each in ids))
print(AsyncResult(ids[0]).get(), AsyncResult(ids[1]).get(), Widget.objects.get().name)
"""


class TutorialProject:
    """The tutorial's project in a folder."""

    def __init__(self, folder: Path, settings: str, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        for name, text in {
            "manage.py": MANAGE,
            "proj/__init__.py": INIT,
            "proj/celery.py": APP,
            "proj/settings.py": PROJECT + settings,
            "demoapp/__init__.py": "",
            "demoapp/models.py": MODELS,
            "demoapp/tasks.py": DEMO,
        }.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def run(self, *command: str) -> str:
        """Run a command to its end, and give what it prints."""
        own = ("QFRAME_", "DJANGO_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        ran = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**inherited, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def manage(self, *words: str) -> str:
        """Run a command of `manage.py`."""
        return self.run("manage.py", *words)


@pytest.mark.parametrize(
    "how", ["with the app", pytest.param("with the line alone", marks=pytest.mark.slow)]
)
def test_first_steps_with_django(how: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if how == "with the app":
        settings = (
            'INSTALLED_APPS.append("qframe.django")\n'
            'QFRAME = {"connections": {"database": {"django": "default"}}}\n'
        )
        project = TutorialProject(tmp_path, settings, {})
    else:
        server: RedisServer = request.getfixturevalue("redis_running")
        with server.client() as client:
            client.flushall()
        environment = {
            "QFRAME_JOBS": "proj.celery",
            "QFRAME_DEFAULT": "redis",
            "QFRAME_CONNECTIONS__REDIS__URL": server.url,
        }
        settings = f"CELERY_BROKER_URL = {server.url!r}\n"
        project = TutorialProject(tmp_path, settings, environment)
    project.manage("migrate", "--run-syncdb", "-v", "0")
    ids = project.manage("shell", "-c", SHELL).split()[-3:]
    if how == "with the app":
        out = project.manage("qframe", "work", "--stop-when-empty")
        assert "INSTALLED_APPS" not in out
    else:
        out = project.run("-m", "qframe", "work", "--stop-when-empty")
        assert 'add "qframe.django" to INSTALLED_APPS' in out
    assert "Request: TaskRequest(id=" in out
    (tmp_path / "celery_ids.py").write_text(f"ids = {ids!r}\n")
    lines = project.manage("shell", "-c", LOOK).splitlines()[-2:]
    assert lines == ["SUCCESS SUCCESS RETRY", "5 1 new"]
