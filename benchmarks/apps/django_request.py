"""One Django request that writes a row and dispatches, again and again: `... SIDE COUNT`.

It prints the seconds of each as JSON. The request goes through Django's own handler, in this
process: what a web server adds is the same for all.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

SIDE, COUNT = sys.argv[1], int(sys.argv[2])
DATABASE, REDIS = os.environ["BENCH_DATABASE"], os.environ["BENCH_REDIS"]
WARM_UP = 50
_MODES = {"qframe-on-commit": "on_commit", "qframe-within": "within", "qframe-now": "now"}
_ON_REDIS = {"qframe-redis-on-commit": "on_commit", "qframe-redis-within": "within"}
_TASKS = {
    "qframe-tasks": "qframe.django.tasks.QframeBackend",
    "django-tasks-db": "django_tasks_db.DatabaseBackend",
}


def settings_of() -> dict[str, Any]:
    """Give the settings of this side."""
    address = urlsplit(DATABASE)
    found: dict[str, Any] = {
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": address.path.strip("/"),
                "HOST": address.hostname,
                "PORT": address.port,
                "USER": address.username,
                "PASSWORD": address.password,
                "CONN_MAX_AGE": None,
            }
        },
        "INSTALLED_APPS": ["django.contrib.contenttypes"],
        "ROOT_URLCONF": __name__,
        "ALLOWED_HOSTS": ["*"],
        "SECRET_KEY": "of a benchmark",
        "USE_TZ": True,
        "LOGGING_CONFIG": None,
    }
    if SIDE.startswith("qframe"):
        found["INSTALLED_APPS"].append("qframe.django")
        found["QFRAME"] = {
            "default": "redis" if SIDE in _ON_REDIS else "database",
            "DISPATCH": {**_MODES, **_ON_REDIS}.get(SIDE, "within"),
            "connections": {
                "database": {"driver": "database", "django": "default"},
                "redis": {"driver": "redis", "url": REDIS},
            },
            "outbox": {"connection": "database"},
        }
    if SIDE == "django-tasks-db":
        found["INSTALLED_APPS"].append("django_tasks_db")
    if SIDE in _TASKS:
        found["TASKS"] = {"default": {"BACKEND": _TASKS[SIDE], "QUEUES": []}}
    return found


def dispatcher() -> Callable[[int], object]:
    """Give what dispatches a job about a row."""
    if SIDE in {*_MODES, *_ON_REDIS}:
        from benchmarks.apps.django_jobs import Ship

        return lambda order: Ship.dispatch(order=order).send()
    if SIDE in _TASKS:
        from benchmarks.apps.django_tasks_of import ship

        enqueue: Callable[[int], object] = ship.enqueue
        return enqueue
    if SIDE == "celery":
        from celery import Celery
        from celery.contrib.django.task import DjangoTask

        app = Celery(broker=REDIS, task_cls=DjangoTask)
        app.conf.task_ignore_result = True

        def ship(order: int) -> None:
            """Ship an order."""

        task = app.task(name="ship")(ship)
        delay: Callable[[int], object] = task.delay_on_commit
        return delay
    return lambda _: None


def main() -> None:
    """Measure."""
    import django
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.http import HttpResponse
    from django.urls import path

    settings.configure(**settings_of())
    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, article text)")
    dispatch = dispatcher()

    def place(_: Any) -> HttpResponse:  # noqa: ANN401 (a request)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (article) VALUES ('lamp') RETURNING id")
            dispatch(cursor.fetchone()[0])
        return HttpResponse(b"placed")

    sys.modules[__name__].urlpatterns = [path("", place)]  # type: ignore[attr-defined]
    handler = WSGIHandler()
    times = []
    for _ in range(WARM_UP + COUNT):
        environ = {
            "REQUEST_METHOD": "POST", "PATH_INFO": "/", "SERVER_NAME": "bench",
            "SERVER_PORT": "80", "wsgi.input": io.BytesIO(), "wsgi.url_scheme": "http",
        }  # fmt: skip
        began = time.perf_counter()
        response = handler(environ, lambda *_: None)
        body = b"".join(response)
        response.close()
        times.append(time.perf_counter() - began)
        if body != b"placed":
            sys.exit(f"the request was not answered: {body[:2000].decode()}")
    sys.stdout.write(json.dumps(times[WARM_UP:]))


if __name__ == "__main__":
    sys.modules["benchmarks.apps.django_request"] = sys.modules[__name__]
    main()
