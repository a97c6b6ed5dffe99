"""Stored texts that are refused when their turn comes: recorded, logged and reported."""

from __future__ import annotations

import hashlib
import logging
import time
from functools import partial
from typing import NamedTuple

from qframe import events
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import History
from qframe.contracts.step import Record
from qframe.exceptions import QframeError
from qframe.features.base import Plan
from qframe.features.context import Context

log = logging.getLogger("qframe")

REFUSED = "(refused)"
"""Display name of a job without a valid signature."""


class RefusedText(NamedTuple):
    """A stored text that is not used."""

    key: str
    """The key that it is stored under."""
    text: str
    what: str
    """What it should be, in a few words."""
    error: QframeError


def refuse(context: Context, plan: Plan, refused: RefusedText, queue: str) -> str:
    """Record the text as a failed job, in the step of a plan. Returns the record's id."""
    record = record_of(context.connection, refused, queue)
    plan.add(Record(record))
    plan.then(partial(log_refused, context.connection, refused))
    return record.uuid


def record_of(connection: str, refused: RefusedText, queue: str) -> FailedJob:
    """Return the record of a refused text, the same each time."""
    identity = f"{connection}\0{refused.key}\0{refused.text}".encode("utf-8", "replace")
    error = refused.error
    return FailedJob(
        uuid=f"refused-{hashlib.sha256(identity).hexdigest()[:24]}",
        connection=connection,
        queue=queue,
        payload=refused.text.encode("utf-8", "replace"),
        exception=f"{type(error).__module__}.{type(error).__name__}: {refused.what}: {error}",
        name=REFUSED,
        attempts=0,
        history=History(),
        failed_at=time.time(),
    )


def log_refused(connection: str, refused: RefusedText) -> None:
    log.error("%s: %s is refused: %s", connection, refused.what, refused.error)
    events.fire(events.StoredRefused, connection, refused.key, refused.what, refused.error)
