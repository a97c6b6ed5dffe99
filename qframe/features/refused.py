"""What is kept in a store until its turn and is refused then: recorded, logged and told."""

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
"""What is shown as the name of a job that nobody vouches for."""


class RefusedText(NamedTuple):
    """A text that was kept, and is not acted on."""

    key: str
    """Under which it is kept."""
    text: str
    what: str
    """What it would have been, in a few words."""
    error: QframeError


def refuse(context: Context, plan: Plan, refused: RefusedText, queue: str) -> str:
    """Record the text among the failed jobs, in the step of a plan; gives the record's id."""
    record = record_of(context.connection, refused, queue)
    plan.add(Record(record))
    plan.then(partial(tell_refused, context.connection, refused))
    return record.uuid


def record_of(connection: str, refused: RefusedText, queue: str) -> FailedJob:
    """Give the record of a refused text, the same each time."""
    said = f"{connection}\0{refused.key}\0{refused.text}".encode("utf-8", "replace")
    error = refused.error
    return FailedJob(
        uuid=f"refused-{hashlib.sha256(said).hexdigest()[:24]}",
        connection=connection,
        queue=queue,
        payload=refused.text.encode("utf-8", "replace"),
        exception=f"{type(error).__module__}.{type(error).__name__}: {refused.what}: {error}",
        name=REFUSED,
        attempts=0,
        history=History(),
        failed_at=time.time(),
    )


def tell_refused(connection: str, refused: RefusedText) -> None:
    """Log it, and tell the listeners."""
    log.error("%s: %s is refused: %s", connection, refused.what, refused.error)
    events.fire(events.StoredRefused, connection, refused.key, refused.what, refused.error)
