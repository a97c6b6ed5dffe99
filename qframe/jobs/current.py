"""The job whose code runs: whoever asks is given it, and what is logged meanwhile carries it."""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar, copy_context

from qframe.contracts.job import Job
from qframe.jobs.tracing import active
from qframe.payload.text import one_line

running: ContextVar[Job | None] = ContextVar("qframe_current_job", default=None)
"""Set by what runs a job, in the job's own context: its tasks have it, and `asyncio.to_thread`."""


def current_job() -> Job | None:
    """Give the job whose code calls this; None outside of one.

    A job of `@queueable` has no `self`: `current_job().release(10)` is its `self.job.release(10)`.
    A thread that a job starts knows its job where it was given the context, as `asyncio.to_thread`
    does: `Thread(target=copy_context().run, args=(work,))`.
    """
    return running.get()


def context_of(job: Job, base: Context | None = None) -> Context:
    """Give a context in which this job is the one that runs: a copy of `base`, or of the one here.

    What the job sets in a context variable is the job's alone.
    """
    context = copy_context() if base is None else base.copy()
    context.run(running.set, job)
    return context


def job_log_fields() -> dict[str, str | int]:
    """Give `job_uuid`, `job_name`, `job_queue` and `job_attempt` of that job; {} outside of one.

    Where OpenTelemetry is on, also `trace_id` and `span_id` of what is done now.
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
    """Gives each record `job_uuid`, `job_name`, `job_queue` and `job_attempt`; it drops none.

    `handler.addFilter(JobLogFilter())`, then `logging.Formatter("%(job_uuid)s %(message)s")`.
    Outside of a job they are "", "", "" and 0. What a record has already it keeps. Each has
    `trace_id` and `span_id`, too: "" where nothing is traced.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what the record has not."""
        for name, value in (_NO_TRACE | (job_log_fields() or _NONE)).items():
            record.__dict__.setdefault(name, value)
        return True
