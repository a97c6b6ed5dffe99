"""Receivers of Django's signals in a worker: what they hear is written into a file."""

import os
from pathlib import Path

from qframe.django.compat import task_finished


def connect(_):
    """Connect them; a listener of WorkerStarting."""
    task_finished.connect(note)


def note(task_result, **_):
    """Write that a task has ended, and in which process."""
    error = task_result.errors[-1].exception_class_path if task_result.errors else ""
    with Path(os.environ["SHOP_FOLDER"], "finished").open("a") as file:
        file.write(f"{task_result.id} {task_result.status} {error} {os.getpid()}\n")
