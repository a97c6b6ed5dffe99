"""Django's tasks on its database backend, django-tasks-db; what is done stays in the table."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command

from benchmarks.apps import effects
from benchmarks.apps.producing import Producer
from benchmarks.peers import SQL

if not settings.configured:
    _address = urlsplit(SQL)
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": f"django.db.backends.{_address.scheme}",
                "NAME": _address.path.strip("/"),
                "HOST": _address.hostname,
                "PORT": _address.port,
                "USER": _address.username,
                "PASSWORD": _address.password,
                "CONN_MAX_AGE": None,
            }
        },
        INSTALLED_APPS=["django_tasks_db"],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()

from django.tasks import task


def _append() -> None:
    effects.write_byte()


def _since(moment: float) -> None:
    effects.write_since(moment)


_append.__qualname__ = _append.__name__ = "append"
_since.__qualname__ = _since.__name__ = "since"
append = task()(_append)
since = task()(_since)


class DjangoProducer(Producer):
    """Dispatches as Django's users do."""

    def dispatch(self) -> None:
        """Queue one no-op job."""
        append.enqueue()

    def dispatch_since(self, moment: float, delay: float) -> None:
        """Queue a job that notes the time since `moment`."""
        if delay:
            raise NotImplementedError
        since.enqueue(moment)


PRODUCER = DjangoProducer

if __name__ == "__main__":
    if sys.argv[1] == "tables":
        call_command("migrate", verbosity=0)
    else:
        call_command("db_worker", verbosity=0, startup_delay=False)
