"""The hooks for traces of jobs; `qframe.otel` installs itself here."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

from qframe.contracts.job import Job


class Tracing(Protocol):
    """Gets a call for each dispatch and attempt. Its methods must not raise."""

    def sending(self, connection: Any, *, many: bool) -> AbstractContextManager[None]:  # noqa: ANN401 (of a layer above)
        """Wrap a push of one job, or of `many` inside it."""

    def queueing(self, connection: Any, queue: str, payload: dict[str, Any]) -> None:  # noqa: ANN401 (as above)
        """Add the trace context of a job to its payload, before the push."""

    def resending(
        self,
        connection: Any,  # noqa: ANN401 (as above)
        queue: str,
        payload: dict[str, Any],
    ) -> AbstractContextManager[None]:
        """Wrap the push of an unchanged payload."""

    def processing(self, connection: Any, job: Job, *, here: bool) -> None:  # noqa: ANN401 (as above)
        """Called when an attempt starts, in the caller's context (`here`) or another process."""

    def forked(self, job: Job) -> None:
        """Called in a process that was forked for a job whose attempt has started."""

    def attempted(self, job: Job, outcome: str, error: BaseException | None) -> None:
        """Called at the end of the attempt, where it began."""

    def leaving(self) -> None:
        """Called when this process ends at once: export what is left, quickly."""

    def log_fields(self) -> dict[str, str | int]:
        """Return `trace_id` and `span_id` of the current span; {} without a trace."""


class _Active:
    tracing: Tracing | None = None


active = _Active()
"""Its `tracing` gets the calls; None for none."""


def sending(connection: Any, *, many: bool = False) -> AbstractContextManager[None]:  # noqa: ANN401 (of a layer above)
    """Wrap a push."""
    tracing = active.tracing
    return _NOTHING if tracing is None else tracing.sending(connection, many=many)


def resending(
    connection: Any,  # noqa: ANN401 (as above)
    queue: str,
    payload: dict[str, Any],
) -> AbstractContextManager[None]:
    """Wrap the push of a payload that was made before."""
    tracing = active.tracing
    return _NOTHING if tracing is None else tracing.resending(connection, queue, payload)


_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
