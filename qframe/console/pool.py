"""`qframe work --workers N`: runs a pool of the workers this very command describes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qframe.console import title
from qframe.console.common import configured
from qframe.console.output import Output, duration
from qframe.exceptions import ConfigurationError
from qframe.jobs import project
from qframe.payload.text import one_line
from qframe.worker import StopReason, WorkerOptions
from qframe.worker.options import USAGE
from qframe.worker.pool import reload
from qframe.worker.pool.rescuer import Fate, Rescue, Rescuer
from qframe.worker.pool.scoreboard import JobState
from qframe.worker.pool.slot import WorkerExit
from qframe.worker.pool.supervisor import Supervisor

_OURS = {"--workers": True, "--stop-timeout": True, "--watch": False}
"""The options of the pool itself, and whether each takes a value."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How many workers, how long their jobs have when the pool stops, whether files are watched."""

    workers: int
    stop_timeout: float
    watch: bool

    @classmethod
    def of(cls, workers: int | None, stop_timeout: float, *, watch: bool) -> PoolOptions | None:
        """Check what was given on the command line; None where no pool is asked for."""
        if workers is not None and workers < 1:
            raise ConfigurationError(f"--workers must be 1 or more, not {workers}")
        if not 0 <= stop_timeout < float("inf"):
            raise ConfigurationError(f"--stop-timeout must be 0 or more, not {stop_timeout:g}")
        if workers is None and not watch:
            if stop_timeout:
                raise ConfigurationError("--stop-timeout is for a pool: give --workers as well")
            return None
        return cls(workers or 1, stop_timeout, watch)


def run(
    pool: PoolOptions, options: WorkerOptions, config: Path | None, *, as_json: bool, quiet: bool
) -> int:
    """Run the pool and give its exit code."""
    queues = configured(config)
    queues.settings.listeners = {}  # they are the workers': nothing of the application is imported
    connection = options.connection or queues.settings.default
    queues.settings.connection(connection)
    watch = reload.watching(project.root()) if pool.watch else None
    report = _Report(Output(as_json=as_json, quiet=quiet, verbose=False))
    title.say(f"pool of {pool.workers} on {connection}")
    made = Supervisor(
        _command(),
        pool.workers,
        options,
        Rescuer(lambda: queues.connection(connection), options, report.rescued),
        report,
        stop_timeout=pool.stop_timeout,
        changes=watch,
    )
    named = {} if options.name == "default" else {"name": options.name}
    report.output.header(
        connection,
        workers=pool.workers,
        **named,
        **({"queues": ",".join(options.queues)} if options.queues else {}),
        timeout=f"{options.timeout:g}s",
        tries=options.tries,
        pid=os.getpid(),
    )
    code = made.run()
    if code != USAGE:  # else a worker has said it, and that is enough
        report.output.totals = made.totals
        report.output.closing(StopReason.INTERRUPTED if made.was_stopped else "all have ended")
    return code


def _command() -> list[str]:
    """Give the command this process was started by, without the options that are the pool's."""
    if not sys.executable:
        raise ConfigurationError("--workers needs to know the Python interpreter, and does not")
    given = sys.orig_argv[1:]
    own = len(given) - len(sys.argv) + 1
    return [sys.executable, *given[:own], *_without_ours(given[own:])]


def _without_ours(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in _OURS:
            skip = _OURS[name] and not equals
        else:
            kept.append(argument)
    return kept


class _Report:
    """Prints what happens to the workers of a pool, a line each."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._printing = threading.Lock()

    def started(self, number: int, pid: int) -> None:
        """Say that a worker was started; its own lines tell as much where people read."""
        if self.output.as_json:
            self._say("started", f"worker {number}", "", worker=number, pid=pid)

    def ended(self, exit_: WorkerExit, delay: float | None) -> None:
        """Say why a worker ended, and what follows; not where it has itself, and that is all."""
        if exit_.code == USAGE and delay is None:
            return
        how = exit_.reason or (
            exit_.words if exit_.signal or exit_.code else "exited without a word"
        )
        parts = [f"worker {exit_.number} (pid {exit_.pid}): {how}"]
        if exit_.reason and exit_.code:
            parts[0] += f", exit {exit_.code}"
        if exit_.late:
            parts.append("its job had reached its hard timeout")
        elif exit_.left is not None and exit_.left.state is not JobState.DEFERRED:
            parts.append("in a job")
        parts.append(_follows(exit_, delay))
        self._say(
            "exited",
            ", ".join(part for part in parts if part),
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
        """Say that a worker could not be started."""
        what = f"worker {number} could not be started: {error.strerror}; again in {delay:g} s"
        self._say("not started", what, "red", worker=number, delay=delay)

    def told(self, what: str) -> None:
        """Say what is done to all workers."""
        self._say("told", what, "yellow")

    def rescued(self, rescue: Rescue) -> None:
        """Say what became of a dead worker's job; nothing where it was settled before."""
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
        with self._printing:
            self.output.notice(status, what, colour, **fields)


def _follows(exit_: WorkerExit, delay: float | None) -> str:
    if delay is None:
        return ""
    if not delay:
        return "replaced"
    times = "" if exit_.attempt == 1 else f" {exit_.attempt} times in a row"
    return f"after {duration(exit_.lived)}{times}: replaced in {delay:g} s"
