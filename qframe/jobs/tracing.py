"""Where traces are made of jobs, if anybody asks for them: `qframe.otel` puts itself here."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

from qframe.contracts.job import Job


class Tracing(Protocol):
    """What is told of each dispatch and attempt. It raises nothing."""

    def sending(self, connection: Any, *, many: bool) -> AbstractContextManager[None]:  # noqa: ANN401 (of a layer above)
        """Surround a push: of one job, or of `many` that are made within it."""

    def queueing(self, connection: Any, queue: str, payload: dict[str, Any]) -> None:  # noqa: ANN401 (as above)
        """Put the context of a job about to be pushed into its payload."""

    def resending(
        self,
        connection: Any,  # noqa: ANN401 (as above)
        queue: str,
        payload: dict[str, Any],
    ) -> AbstractContextManager[None]:
        """Surround the push of a payload that stays as it is."""

    def processing(self, connection: Any, job: Job, *, here: bool) -> None:  # noqa: ANN401 (as above)
        """Hear that an attempt starts: `here`, in the caller's context, or in another process."""

    def forked(self, job: Job) -> None:
        """Hear that this process was forked for a job whose attempt has started."""

    def attempted(self, job: Job, outcome: str, error: BaseException | None) -> None:
        """Hear that the attempt has ended, where it began."""

    def leaving(self) -> None:
        """Hear that this process ends at once: send what is to be sent, in a moment."""

    def log_fields(self) -> dict[str, str | int]:
        """Give `trace_id` and `span_id` of what is done now; {} outside of a trace."""


class _Active:
    tracing: Tracing | None = None


active = _Active()
"""Whose `tracing` is told, None: nobody."""


def sending(connection: Any, *, many: bool = False) -> AbstractContextManager[None]:  # noqa: ANN401 (of a layer above)
    """Surround a push."""
    tracing = active.tracing
    return _NOTHING if tracing is None else tracing.sending(connection, many=many)


def resending(
    connection: Any,  # noqa: ANN401 (as above)
    queue: str,
    payload: dict[str, Any],
) -> AbstractContextManager[None]:
    """Surround the push of a payload that was made before."""
    tracing = active.tracing
    return _NOTHING if tracing is None else tracing.resending(connection, queue, payload)


_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
