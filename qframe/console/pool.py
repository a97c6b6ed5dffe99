"""`qframe work --workers N`: runs a pool of workers with the options of this command."""

from __future__ import annotations

import sys
from typing import NamedTuple

from qframe.console import place, title
from qframe.console.numbers import FOR_THIS_MACHINE
from qframe.console.output import Output, duration
from qframe.exceptions import ConfigurationError
from qframe.jobs import project
from qframe.manager import QueueManager
from qframe.payload.text import one_line
from qframe.worker import StopReason, WorkerOptions, machine, roster
from qframe.worker.health import HealthFile
from qframe.worker.options import USAGE
from qframe.worker.pool import reload
from qframe.worker.pool.balancing import ScaleChange
from qframe.worker.pool.presence import PoolPresence
from qframe.worker.pool.rescuer import Fate, Rescue, Rescuer
from qframe.worker.pool.scoreboard import JobPhase
from qframe.worker.pool.slot import WorkerExit
from qframe.worker.pool.supervisor import Supervisor


class Size(NamedTuple):
    """How many workers, None if not given; `qframe scale` stays between the other two."""

    workers: int | None
    least: int | None
    most: int | None


def check(size: Size, stop_timeout: float, isolated: int, *, watch: bool) -> None:
    """Raises `ConfigurationError` for wrong options; `isolated`: processes of jobs."""
    workers, least, most = size
    if workers is None and (least is not None or most is not None):
        raise ConfigurationError("--min and --max are for a pool: give --workers as well")
    for option, value in (("--workers", workers), ("--min", least), ("--max", most)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{option} must be 1 or more, not {value}")
    if workers is not None and not (least or 1) <= workers <= (most or workers):
        between = f"--min {least or 1}" + (f" and --max {most}" if most else "")
        raise ConfigurationError(f"--workers {workers} is not within {between}")
    if isolated > (bound := machine.most_processes(forked=True)):
        raise ConfigurationError(
            f"{isolated} isolated jobs at once are more than {bound:,}: {FOR_THIS_MACHINE}"
        )
    if not 0 <= stop_timeout < float("inf"):
        raise ConfigurationError(f"--stop-timeout must be 0 or more, not {stop_timeout:g}")
    if stop_timeout and workers is None and not watch:
        raise ConfigurationError("--stop-timeout is for a pool: give --workers as well")


def run(
    size: Size,
    stop_timeout: float,
    options: WorkerOptions,
    queues: QueueManager,
    output: Output,
    health: HealthFile,
    *,
    watch: bool,
) -> int:
    """Runs the pool and returns its exit code."""
    queues.settings.listeners = {}  # the workers call them: nothing of the application is imported
    connection = options.connection or queues.settings.default
    where = place.of(queues, "work", connection)
    queues.settings.connection(connection)
    workers = size.workers or 1
    entry = roster.introduced_pool(options, connection, workers, size.least or 1, size.most)
    changes = reload.watching(project.root()) if watch else None
    report = PoolReport(output)
    title.say(f"pool of {workers} on {connection}")
    made = Supervisor(
        {"": _command()},
        {"": workers},
        options,
        Rescuer(lambda: queues.connection(connection), options, report.rescued),
        PoolPresence(lambda: queues.connection(connection).store, queues.close, entry),
        report,
        stop_timeout=stop_timeout,
        changes=changes,
        health=health,
    )
    output.header(where, options, options.queues, workers=workers)
    code = made.run()
    if code != USAGE:  # otherwise a worker has printed it, and that is enough
        reason = StopReason.INTERRUPTED if made.was_stopped else "all have ended"
        output.closing(reason, made.totals)
    output.finish()
    return code


def _command() -> list[str]:
    """Returns the command of this process; in a member of a pool it starts no pool."""
    if not sys.executable:
        raise ConfigurationError("--workers needs to know the Python interpreter, and does not")
    return [sys.executable, *sys.orig_argv[1:]]


class PoolReport:
    """Prints what happens to the workers of a pool, a line each."""

    def __init__(self, output: Output, each: str = "worker") -> None:
        self.output = output
        self._each = each

    def started(self, number: int, pid: int) -> None:
        """Reports a start in JSON; people see the worker's own lines."""
        if self.output.as_json:
            self._say("started", f"{self._each} {number}", "", worker=number, pid=pid)

    def ended(self, exit_: WorkerExit, delay: float | None) -> None:
        """Reports why a worker ended, and what follows, unless its own line says all."""
        if exit_.code == USAGE and delay is None:
            return
        words = exit_.words if exit_.signal or exit_.code else "exited without a word"
        what = f"{self._each} {exit_.number} (pid {exit_.pid}): {exit_.reason or words}"
        if exit_.reason and exit_.code:
            what += f", exit {exit_.code}"
        if exit_.late:
            what += ", its job had reached its hard timeout"
        else:
            jobs = sum(each.state is not JobPhase.DEFERRED for each in exit_.left)
            what += f", in {jobs} jobs" if jobs > 1 else ", in a job" * jobs
        if delay:
            times = "" if exit_.attempt == 1 else f" {exit_.attempt} times in a row"
            what += f", after {duration(exit_.lived)}{times}: replaced in {delay:g} s"
        elif delay is not None:
            what += ", replaced"
        self._say(
            "exited",
            what,
            "yellow" if exit_.reason else "red",
            worker=exit_.number,
            pid=exit_.pid,
            code=exit_.code,
            signal=exit_.signal or None,
            reason=exit_.reason or None,
            jobs=exit_.jobs,
            seconds=round(exit_.lived, 3),
            delay=delay,
        )

    def not_started(self, number: int, error: OSError, delay: float) -> None:
        what = f"{self._each} {number} could not be started: {error.strerror}; again in {delay:g} s"
        self._say("not started", what, "red", worker=number, delay=delay)

    def ordered(self, what: str) -> None:
        self._say("told", what, "yellow")

    def scaled(self, change: ScaleChange) -> None:
        """Reports that a queue has more processes, or fewer, and why."""
        queue, before, processes, why = change
        text = f"{queue}: {before} -> {processes} processes ({why})"
        fields = {"before": before, "processes": processes, "why": why}
        self._say("scaled", one_line(text, 300), "cyan", queue=queue, **fields)

    def rescued(self, rescue: Rescue) -> None:
        """Reports the outcome of a dead worker's job; nothing if it was settled before."""
        if rescue.fate is Fate.GONE:
            return
        worker = rescue.orphan.worker
        name = one_line(f"{rescue.name} {rescue.uuid}", 200) if rescue.name else "the job"
        fate = rescue.fate.value
        if rescue.fate is Fate.RETRIED:
            fate += f" in {rescue.delay:g} s"
        self._say(
            "recovered",
            f"{name} of worker {worker}: {fate}",
            "yellow",
            worker=worker,
            uuid=rescue.uuid or None,
            job=rescue.name or None,
            fate=rescue.fate.value,
            delay=rescue.delay,
        )

    def _say(self, status: str, what: str, colour: str, **fields: object) -> None:
        self.output.notice(status, what, colour, **fields)
