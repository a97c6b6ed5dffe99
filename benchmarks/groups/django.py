"""A Django request that writes a row and dispatches: qframe, Celery, django-tasks-db."""

from __future__ import annotations

import json
import os
import statistics
import subprocess

from benchmarks.environments import pinned, programs
from benchmarks.places import REPOSITORY, BenchmarkError, NotHereError
from benchmarks.plan import Plan
from benchmarks.redis_server import RedisServer
from benchmarks.rows import Row, alternated, milliseconds, noted
from benchmarks.said import versions
from benchmarks.sql.postgres import PostgresServer

TITLE = "A Django request that dispatches, on PostgreSQL"

_SIDES = {
    "nothing": "django_qframe",
    "qframe-on-commit": "django_qframe",
    "qframe-within": "django_qframe",
    "qframe-now": "django_qframe",
    "qframe-tasks": "django_qframe",
    "qframe-redis-on-commit": "django_qframe",
    "qframe-redis-within": "django_qframe",
    "celery": "django_celery",
    "django-tasks-db": "django",
}
"""What is measured, and the environment it is in."""
_COMPARED = (
    ("on_commit, jobs in the same PostgreSQL; peer: no dispatch", "qframe-on-commit", "nothing"),
    ("within, jobs in the same PostgreSQL; peer: no dispatch", "qframe-within", "nothing"),
    ("now, jobs in the same PostgreSQL; peer: no dispatch", "qframe-now", "nothing"),
    ("on_commit, Redis; peer: Celery's delay_on_commit", "qframe-redis-on-commit", "celery"),
    ("within, by the outbox to Redis; peer: as above", "qframe-redis-within", "celery"),
    ("within; peer: django-tasks-db", "qframe-within", "django-tasks-db"),
    ("a task with a result, within; peer: django-tasks-db", "qframe-tasks", "django-tasks-db"),
)


def facts() -> dict[str, str]:
    """Name the versions compared."""
    celery, tasks = pinned("django_celery"), pinned("django")
    return {
        **versions("PostgreSQL", "Redis"),
        "Django": celery["Django"],
        "Celery": celery["celery"],
        "django-tasks-db": tasks["django-tasks-db"],
    }


def rows(plan: Plan) -> list[Row]:
    """Measure all sides in turns."""
    if plan.alone:
        raise NotHereError("Django 6 needs an environment of its own")
    places = {name: programs(name) for name in dict.fromkeys(_SIDES.values())}
    times: dict[str, list[float]] = {name: [] for name in _SIDES}
    count = max(20, plan.few // 2)
    with PostgresServer() as postgres, RedisServer() as redis:
        for number, side in enumerate(alternated([*_SIDES], plan.rounds)):
            database = f"bench_{number}"
            postgres.create(database)
            environment = {
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "BENCH_DATABASE": postgres.url(database),
                "BENCH_REDIS": f"redis://127.0.0.1:{redis.port}/0",
            }
            command = [str(places[_SIDES[side]] / "python"), "-m", "benchmarks.apps.django_request"]
            ran = subprocess.run(
                [*command, side, str(count)],
                env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if ran.returncode:
                raise BenchmarkError(f"{side}: {ran.stderr.strip()[-2000:]}")
            times[side].append(statistics.median(json.loads(ran.stdout)))
    found = [
        noted(what, times[ours], milliseconds, peer=times[peer]) for what, ours, peer in _COMPARED
    ]
    return [noted("a request that dispatches nothing", times["nothing"], milliseconds), *found]
