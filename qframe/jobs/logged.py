"""Collects the log lines of jobs: for their status, and for what their supervisor records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from qframe.jobs.current import running
from qframe.payload.text import one_line

_LONGEST = 500
_RECORDS = "qframe_keeps_log"


def capture() -> None:
    """Collect log records for running jobs from now on; call it once in a process.

    It hooks the creation of records, so handlers stay as they are.
    """
    make: Callable[..., logging.LogRecord] = logging.getLogRecordFactory()
    if getattr(make, _RECORDS, False):
        return

    def made(*args: Any, **more: Any) -> logging.LogRecord:  # noqa: ANN401 (the factory's)
        record = make(*args, **more)
        job = running.get()
        if job is not None:
            if job.keeps_log:
                job.note_log(line_of(record))
            if job.records is not None:
                job.records(record)
        return record

    setattr(made, _RECORDS, True)
    logging.setLogRecordFactory(made)


def text_of(record: logging.LogRecord) -> str:
    """Return the message of a record, and its error; never raises."""
    try:
        shown_text = record.getMessage()
    except Exception:  # noqa: BLE001 (arguments that do not fit, or cannot be shown)
        try:
            shown_text = str(record.msg)
        except Exception:  # noqa: BLE001 (its own __str__ may do anything)
            shown_text = "(no message)"
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        try:
            shown_text += f" ({type(error).__name__}: {error})"
        except Exception:  # noqa: BLE001 (an exception's own __str__ may do anything)
            shown_text += f" ({type(error).__name__})"
    return shown_text


def line_of(record: logging.LogRecord) -> str:
    """Format a record as one line: time, level, logger, message, and its error."""
    shown_text = text_of(record)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
    head = f"{at}.{int(record.msecs):03} {record.levelname} {record.name}:"
    return one_line(f"{head} {shown_text[: 2 * _LONGEST]}", _LONGEST)
