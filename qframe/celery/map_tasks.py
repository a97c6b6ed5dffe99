"""The tasks of maps, which call another task for each item; every worker of an app has them."""

from __future__ import annotations

from typing import Any

from qframe.celery.apps import tasks
from qframe.celery.maps import MAP, STARMAP
from qframe.celery.running import finished
from qframe.celery.task import task_of


def _map(task: dict[str, Any], it: list[Any]) -> list[Any]:
    called = tasks[task["task"]]
    return [finished(called(item)) for item in it]


def _starmap(task: dict[str, Any], it: list[list[Any]]) -> list[Any]:
    called = tasks[task["task"]]
    return [finished(called(*item)) for item in it]


task_of(None, _map, {"name": MAP})
task_of(None, _starmap, {"name": STARMAP})
