"""Reports jobs that could not be pushed where no caller can receive an exception."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from qframe import events
from qframe.connection import Connection
from qframe.payload import tracebacks

log = logging.getLogger("qframe")


class Unpushed(NamedTuple):
    """A job that was not pushed; `payload` is empty if it could not be built."""

    connection: Connection
    queue: str
    job: Any
    payload: dict[str, Any]
    delay: float = 0.0

    @classmethod
    def unbuilt(cls, connection: Connection, job: Any, queue: str | None = None) -> Unpushed:  # noqa: ANN401 (what was to be a job)
        own = queue or getattr(job, "queue", None)
        return cls(connection, own or connection.default_queue, job, {})


def report(what: str, unpushed: Sequence[Unpushed], error: BaseException) -> None:
    """Report an error: an event for each job, a log record, and `sys.unraisablehook`."""
    for connection, queue, job, payload, delay in unpushed:
        events.fire(
            events.JobDispatchFailed, connection.name, queue, job, payload, delay, error
        )  # fmt: skip
    places = dict.fromkeys(f"{each.connection.name}:{each.queue}" for each in unpushed)
    log.critical(
        "%s could not be pushed to %s: %s", what, ", ".join(places), tracebacks.brief(error)
    )
    raise_unraisably(error)


def report_undone(what: str, error: BaseException) -> None:
    """Report the error of a call that pushes no job."""
    log.critical("%s failed, and nobody has heard of it: %s", what, tracebacks.brief(error))
    raise_unraisably(error)


def raise_unraisably(error: BaseException) -> None:
    """Let the interpreter call `sys.unraisablehook`: only it can create the hook's argument."""

    class DroppedDispatch:
        def __del__(self) -> None:
            raise error

    DroppedDispatch()
