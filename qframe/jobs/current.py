"""The running job: `current_job()`, and its fields in log records."""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar, copy_context

from qframe.contracts.job import Job
from qframe.jobs.tracing import active
from qframe.payload.text import one_line

running: ContextVar[Job | None] = ContextVar("qframe_current_job", default=None)
"""Set in the context in which a job runs, so its tasks and `asyncio.to_thread` have it, too."""


def current_job() -> Job | None:
    """Return the job whose code calls this; None outside of a job.

    A job of `@queueable` has no `self`: `current_job().release(10)` is its `self.job.release(10)`.
    A thread that a job starts knows its job if it gets the context, as `asyncio.to_thread` does:
    `Thread(target=copy_context().run, args=(work,))`.
    """
    return running.get()


def context_of(job: Job, base: Context | None = None) -> Context:
    """Return a context in which this job runs: a copy of `base`, or of the current one.

    Context variables that the job sets stay in the job.
    """
    context = copy_context() if base is None else base.copy()
    context.run(running.set, job)
    return context


def job_log_fields() -> dict[str, str | int]:
    """Return `job_uuid`, `job_name`, `job_queue` and `job_attempt`; {} outside of a job.

    With OpenTelemetry on, also `trace_id` and `span_id` of the current span.
    """
    job = running.get()
    if job is None:
        return {}
    fields: dict[str, str | int] = {
        "job_uuid": one_line(job.uuid, 80),
        "job_name": one_line(job.name, 200),
        "job_queue": job.queue,
        "job_attempt": job.attempts(),
    }
    return fields if active.tracing is None else fields | active.tracing.log_fields()


_NONE: dict[str, str | int] = {"job_uuid": "", "job_name": "", "job_queue": "", "job_attempt": 0}
_NO_TRACE: dict[str, str | int] = {"trace_id": "", "span_id": ""}


class JobLogFilter(logging.Filter):
    """Adds `job_uuid`, `job_name`, `job_queue` and `job_attempt` to each record; drops none.

    `handler.addFilter(JobLogFilter())`, then `logging.Formatter("%(job_uuid)s %(message)s")`.
    Outside of a job they are "", "", "" and 0. Existing attributes stay. It also adds `trace_id`
    and `span_id`: "" without a trace.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the missing attributes."""
        for name, value in (_NO_TRACE | (job_log_fields() or _NONE)).items():
            record.__dict__.setdefault(name, value)
        return True
