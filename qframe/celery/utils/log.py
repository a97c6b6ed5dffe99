"""get_task_logger: the logger of a module with tasks."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """Return `logging.getLogger(name)`.

    `qframe.JobLogFilter` adds the task's id and name to its records.
    """
    return logging.getLogger(name)
