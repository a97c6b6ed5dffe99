"""`qframe work`: run the worker."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Annotated

import typer

from qframe.console import completion, numbers, place, pool, title, unworked
from qframe.console.connections import configured
from qframe.console.health import HealthFileOption
from qframe.console.numbers import MANY, seconds, whole
from qframe.console.options import (
    Config,
    ConnectionOption,
    named_connection,
)
from qframe.console.output import Output, short
from qframe.console.place import JobsPlace
from qframe.console.stream import log_to_stderr
from qframe.console.text import print_error
from qframe.console.threads import favour_those_that_wait
from qframe.exceptions import ConfigurationError
from qframe.jobs import project
from qframe.jobs.current import JobLogFilter
from qframe.work import Worker
from qframe.worker import WorkerOptions, handlers
from qframe.worker.health import HealthFile
from qframe.worker.options import MOST_AT_ONCE, MOST_MEMORY, MOST_TRIES
from qframe.worker.pool.child import PoolMember
from qframe.worker.queues import bounded

_COMMAND = "work"
# Windows, where the commands that need no worker run, has not all of them.
_TOLD = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def work(  # noqa: PLR0913 (one for each option of the command)
    name_of_connection: Annotated[
        str | None,
        typer.Argument(hidden=True, metavar="CONNECTION", autocompletion=completion.connections),
    ] = None,
    *,
    queue: Annotated[
        str,
        typer.Option(
            help="Queues or patterns by priority, comma-separated.",
            autocompletion=completion.queues,
        ),
    ] = "",
    timeout: Annotated[float, seconds(help="Seconds a job may run; 0: no limit.")] = 60,
    tries: Annotated[int, whole(MOST_TRIES, help="Attempts a job has; 0: no limit.")] = 1,
    backoff: Annotated[str, typer.Option(help="Seconds before each retry: 1,5,10.")] = "0",
    sleep: Annotated[float, seconds(help="Seconds to wait when no job is ready.")] = 3,
    rest: Annotated[float, seconds(help="Seconds to rest between jobs.")] = 0,
    memory: Annotated[
        float, seconds(most=MOST_MEMORY, help="Stop above this many MB; 0: never.")
    ] = 256,
    max_jobs: Annotated[int, whole(MANY, help="Stop after this many jobs.")] = 0,
    max_time: Annotated[float, seconds(help="Stop after this many seconds.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Run one job, then stop.")] = False,
    stop_when_empty: Annotated[
        bool, typer.Option("--stop-when-empty", help="Stop when no job is ready.")
    ] = False,
    grace: Annotated[float, seconds(help="Seconds a timed-out job has to end.")] = 5,
    concurrency: Annotated[int, whole(MOST_AT_ONCE, help="Jobs one worker runs at once.")] = 1,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Run each job in a process of its own.")
    ] = False,
    preload: Annotated[
        bool, typer.Option("--preload", help="Import the modules of `jobs` before --isolate forks.")
    ] = False,
    name: Annotated[str, typer.Option(help="The worker's name.")] = "default",
    schedule: Annotated[bool, typer.Option("--schedule", hidden=True)] = True,
    no_schedule: Annotated[
        bool, typer.Option("--no-schedule", help="Do not dispatch scheduled jobs.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Work even while everything is paused.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only failures.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")] = False,
    workers: Annotated[
        int | None,
        numbers.workers(
            help="Worker processes; each uses two SQL connections.",
            show_default=False,
        ),
    ] = None,
    least: Annotated[
        int | None, numbers.workers("--min", help="Lower limit for `qframe scale`.")
    ] = None,
    most: Annotated[
        int | None, numbers.workers("--max", help="Upper limit for `qframe scale`.")
    ] = None,
    stop_timeout: Annotated[float, seconds(help="Seconds jobs have when a pool stops.")] = 0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Restart workers when source files change.")
    ] = False,
    health_file: HealthFileOption = "",
    connection: ConnectionOption = None,
    config: Config = None,
) -> int:
    """Run a worker: process the jobs of one or more queues.

      qframe work                                     the default connection and queue
      qframe work --queue 'high,mail-*:5,!mail-slow'  high first; each mail 5 at once; ! skips
      qframe work redis --tries 5 --backoff 1,5,10 --workers 4 --concurrency 50

    \b
    Signals: TERM, INT stop after the job (twice: at once); USR1 ends it; USR2 pauses, CONT resumes.
    Exit codes: 0 stopped, 1 timed out, 2 usage, 12 memory, 69 backend gone.
    """  # noqa: D301 (\b keeps typer from folding the lines)
    if sys.platform == "win32":
        raise ConfigurationError("work needs signals and runs on Linux and macOS; dispatch works")
    member = PoolMember.joined()
    names, bounds = bounded([part.strip() for part in queue.split(",")] if queue else ())
    connection = named_connection(name_of_connection, connection)
    options = WorkerOptions(
        connection=connection,
        queues=names,
        bounds=bounds,
        name=name,
        timeout=timeout,
        tries=tries,
        backoff=_backoff(backoff),
        grace=grace,
        sleep=sleep,
        rest=rest,
        memory=memory,
        max_jobs=max_jobs,
        max_time=max_time,
        once=once,
        stop_when_empty=stop_when_empty,
        force=force,
        concurrency=concurrency,
        isolate=isolate,
        preload=preload,
        schedule=schedule and not no_schedule,
    )
    overlapping = options.concurrency > 1
    _log(
        logging.INFO if verbose else logging.WARNING,
        naming_jobs=overlapping or verbose,
        as_json=as_json,
    )
    size = pool.Size(workers, least, most)
    isolated = options.concurrency * max(workers or 1, most or 1) if isolate else 0
    pool.check(size, stop_timeout, isolated, watch=watch)
    if member is None and (workers is not None or watch):
        output = Output(as_json=as_json, quiet=quiet)
        health = HealthFile(health_file)
        return pool.run(
            size, stop_timeout, options, configured(config), output, health, watch=watch
        )
    queues = configured(config)
    where = place.of(queues, _COMMAND, connection) if member is None else None
    if member is not None and not quiet:
        project.announce()  # the pool has announced it for all
    worker = Worker(queues, options)
    worker.member = member
    worker.health = HealthFile(health_file) if member is None else None
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose, overlapping=overlapping)
    return _run(worker, output, where)


def _log(level: int, *, naming_jobs: bool, as_json: bool) -> None:
    """Writes log records to stderr, a line each, with the job's name if several run."""
    named = "%(qframe_job)s" if naming_jobs else ""
    form = f"  %(asctime)s %(levelname)s {named}%(message)s"
    log_to_stderr(level, form, as_lines_of_json=as_json)
    for handler in logging.getLogger().handlers:
        handler.addFilter(JobLogFilter())
        handler.addFilter(_name_job)


def _name_job(record: logging.LogRecord) -> bool:
    uuid, attempt = record.__dict__["job_uuid"], record.__dict__["job_attempt"]
    record.__dict__["qframe_job"] = f"{short(uuid)}#{attempt} " if uuid else ""
    return True


def _run(worker: Worker, output: Output, where: JobsPlace | None) -> int:
    options = worker.options
    if where is not None:  # otherwise the pool prints it for all
        output.header(where, options, queues=worker.queues)
        unworked.tell(worker, output)
    title.show(worker)
    _leave_quietly(worker)
    try:
        worker.load()
    except BaseException:
        for number in _TOLD:
            handlers.give_back(number)
        raise
    favour_those_that_wait()
    code = worker.run()
    for number in _TOLD:
        signal.signal(number, signal.SIG_IGN)
    if worker.stop_reason is not None:
        if worker.member is None:
            output.closing(worker.stop_reason, worker.outcomes)
        else:
            worker.member.scoreboard.farewell(worker.stop_reason, worker.outcomes)
    output.finish()
    _leave_in_time(code, options.grace)
    return code


def _leave_quietly(worker: Worker) -> None:
    """Makes a signal that comes after the worker has stopped change nothing, not even the code.

    A signal from before it has begun ends the process.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if worker.stop_reason is None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in _TOLD:
        handlers.take(number, handle)


def _leave_in_time(code: int, grace: float) -> None:
    """Ends the process although a thread, or an exit handler, does not end."""

    def leave() -> None:
        what = "a thread left by a job, or what a library does at exit,"
        print_error(f"{what} did not end: leaving without it", code)
        os._exit(code)

    timer = threading.Timer(max(grace, 1), leave)
    timer.daemon = True
    timer.start()


def _backoff(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(
            f"--backoff takes seconds by commas, like 1,5,10, not {text!r}"
        ) from None
