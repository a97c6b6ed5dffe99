"""Output: what a worker prints: Laravel's two columns, or JSON lines."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import typer

from qframe import events
from qframe.console.place import JobsPlace
from qframe.console.stream import Stream
from qframe.console.text import as_json, clock
from qframe.contracts import Job
from qframe.exceptions import LOST_LEASE, InvalidPayload
from qframe.jobs import project
from qframe.payload import envelope, tags, tracebacks
from qframe.payload.text import count_of, one_line
from qframe.worker import WorkerOptions, memory
from qframe.worker.queues import shown

_WIDEST = 150
_SHORT = 8
_JOBS: dict[type[events.JobEvent], tuple[str, str]] = {
    events.JobProcessing: ("RUNNING", "yellow"),
    events.JobProcessed: ("DONE", "green"),
    events.JobSkipped: ("SKIPPED", "cyan"),
    events.JobReleased: ("RELEASED", "cyan"),
    events.JobReleasedAfterException: ("RETRY", "yellow"),
    events.JobFailed: ("FAIL", "red"),
    events.AttemptGivenBack: ("GIVEN BACK", "cyan"),
    events.AttemptCancelled: ("CANCELLED", "cyan"),
    events.JobLeaseLost: ("LOST", "red"),
}
"""The mark and colour of each event's line."""
_ORDINARY = {events.JobProcessing, events.JobProcessed, events.JobSkipped, events.JobReleased}
"""Not printed with --quiet."""


class Output:
    """Prints the events of one worker, a line each. `overlapping`: its jobs may run at once."""

    def __init__(
        self, *, as_json: bool, quiet: bool, verbose: bool = False, overlapping: bool = False
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.as_json = as_json
        self.overlapping = overlapping
        self._stream = Stream(sys.stdout, self._left_out)
        self.coloured = self._stream.isatty()
        self.began = time.monotonic()
        # With overlapping jobs, only a line at the start shows which runs.
        starts = as_json or (verbose if overlapping else self.coloured)
        silent = _ORDINARY if quiet else set() if starts else {events.JobProcessing}
        for kind in _JOBS.keys() - silent:  # an event without listeners costs a job nothing
            events.listen(kind)(self._job)
        events.listen(events.BackendLost)(self._gone)
        events.listen(events.BackendRestored)(self._back)
        events.listen(events.WorkerPaused)(self._paused)
        events.listen(events.WorkerResumed)(self._resumed)
        events.listen(events.WorkerScaled)(self._scaled)

    # -- the worker -----------------------------------------------------------------------------

    def header(
        self, where: JobsPlace, options: WorkerOptions, queues: Sequence[str], **more: object
    ) -> None:
        """Prints what the worker works, how, and by which configuration."""
        if self.quiet:
            return
        facts = {
            **more,
            **({"name": options.name} if options.name != "default" else {}),
            **({"queues": ",".join(shown(queues, options.bounds))} if queues else {}),
            "timeout": f"{options.timeout:g}s",
            "tries": options.tries,
            "pid": os.getpid(),
        }
        if self.as_json:
            self._write_json("starting", connection=where.title(), **facts, **where.fields())
        else:
            words = "  ".join(f"{key} {value}" for key, value in facts.items())
            self._write(f"  qframe  {where.first_line()}  {words}")
            for key, text in where.lines():
                self._write(f"  {key:<6}  {text}")
        project.announce()

    def closing(self, reason: str, outcomes: Mapping[str, int]) -> None:
        """Prints why the worker ended, and how often each outcome came."""
        seconds = time.monotonic() - self.began
        if self.quiet:
            return
        if self.as_json:
            self._write_json("stopped", reason=reason, seconds=round(seconds, 3), **outcomes)
            return
        words = ", ".join(f"{count} {what}" for what, count in outcomes.items()) or "no jobs"
        self._write(f"  stopped ({reason}): {words} in {duration(seconds)}")

    def _gone(self, event: events.BackendLost) -> None:
        self.notice("gone", f"{event.connection} gone: {one_line(str(event.error))}", "red")

    def _back(self, event: events.BackendRestored) -> None:
        after = duration(event.seconds)
        self.notice("back", f"{event.connection} back after {after}", "green")

    def _paused(self, event: events.WorkerPaused) -> None:
        self.notice("paused", f"{event.connection}: paused", "yellow")

    def _resumed(self, event: events.WorkerResumed) -> None:
        self.notice("resumed", f"{event.connection}: resumed", "yellow")

    def _scaled(self, event: events.WorkerScaled) -> None:
        slots = event.concurrency
        words = f"scaled to {slots} at once"
        self.notice("scaled", f"{event.connection}: {words}", "yellow", concurrency=slots)

    # -- jobs -----------------------------------------------------------------------------------

    def _job(self, event: events.JobEvent) -> None:
        kind = type(event)
        status, colour = _JOBS[kind]
        if self.quiet and kind in _ORDINARY:
            return
        job, words = event.job, _words(event)
        seconds, delay = getattr(event, "seconds", None), getattr(event, "delay", None)
        if self.as_json:
            self._write_json(
                status.lower(),
                uuid=job.uuid,
                id=job.id,
                connection=job.connection_name,
                queue=job.queue,
                job=job.name,
                attempts=job.attempts(),
                tags=tags.of_reserved(job),
                duration=None if seconds is None else round(seconds, 6),
                delay=delay,
                message=words or None,
                **self._traceback(event),
            )
            return
        stamp = clock()
        name = job.name
        if self.verbose:
            uuid = short(job.uuid) if self.overlapping else one_line(job.uuid, 80)
            name += f" {uuid} {one_line(job.queue, 128)} #{job.attempts()}"
            name += f" waited {waited(job)} {memory.resident():.0f}MB{_tagged(job)}"
        if delay is not None:
            status += f" in {delay:g} s"
        took = f"{duration(seconds)} " if seconds is not None else ""
        width = min(_WIDEST, shutil.get_terminal_size().columns)
        dots = "." * max(3, width - len(stamp) - len(name) - len(took) - len(status) - 7)
        if self.coloured:
            stamp, dots = typer.style(stamp, dim=True), typer.style(dots, dim=True)
            took, status = typer.style(took, dim=True), typer.style(status, fg=colour, bold=True)
        tail = f"  {one_line(words, 200)}" if words else ""
        trace = "".join(f"\n    {line}" for line in self._traceback(event).get("traceback", ()))
        self._write(f"  {stamp} {name} {dots} {took}{status}{tail}{trace}")

    def _traceback(self, event: events.JobEvent) -> dict[str, list[str]]:
        """Returns the lines of the job's traceback if they are to be printed."""
        error: BaseException | None = getattr(event, "error", None)
        if error is None or not self.verbose:
            return {}
        return {"traceback": tracebacks.lines(error)}

    def notice(self, status: str, text: str, colour: str, **fields: object) -> None:
        """Prints an extraordinary event in a line; `fields` go into a JSON line only."""
        if self.as_json:
            self._write_json(status, message=text, **fields)
        else:
            stamp = clock()
            self._write(f"  {stamp} {typer.style(text, fg=colour) if self.coloured else text}")

    def finish(self) -> None:
        """Writes pending lines, as far as possible now."""
        self._stream.finish()

    def _left_out(self, count: int, why: str) -> str:
        lines = count_of(count, "line", "lines")
        if self.as_json:
            return f"{self._json('left out', message=f'{lines} left out: {why}', lines=count)}\n"
        return f"  {clock()} {lines} left out: {why}\n"

    def _json(self, status: str, **fields: object) -> str:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return as_json({"time": now, "status": status, **fields}, encoding=self._stream.encoding)

    def _write_json(self, status: str, **fields: object) -> None:
        self._write(self._json(status, **fields))

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")


def short(uuid: str) -> str:
    """Returns the end of a uuid: uuids of jobs dispatched in one minute begin alike."""
    return one_line(uuid[-_SHORT:], _SHORT)


def _words(event: events.JobEvent) -> str:
    if isinstance(event, events.JobLeaseLost):
        return LOST_LEASE
    error: BaseException | None = getattr(event, "error", None)
    return getattr(event, "reason", "") if error is None else tracebacks.brief(error, 160)


def _tagged(job: Job) -> str:
    return "".join(f" [{one_line(each, 60)}]" for each in tags.of_reserved(job))


def waited(job: Job) -> str:
    """Returns how long a job waited for its first start, to the second, if known."""
    ran = job.history.attempts
    try:
        message = job.payload
    except InvalidPayload:
        return "?"
    created = envelope.number(message, "createdAt")
    delay = envelope.number(message, "delay") or 0
    if created is None or not ran:
        return "?"
    return f"{max(0, ran[0].started_at - created - delay):.0f}s"


def duration(seconds: float) -> str:
    """Formats a duration as Laravel does: `12.34ms`, `1.20s`, `3m 5s`."""
    if seconds < 1:
        return f"{seconds * 1000:.2f}ms"
    if seconds < 60:  # noqa: PLR2004 (seconds in a minute)
        return f"{seconds:.2f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"
