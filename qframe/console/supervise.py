"""`qframe supervise`: the pools of the configuration, of as many workers as queues need."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from qframe import events
from qframe.config import SupervisorSettings
from qframe.connection import Connection
from qframe.console import place, title
from qframe.console.connections import configured
from qframe.console.health import HealthFileOption
from qframe.console.numbers import FOR_THIS_MACHINE
from qframe.console.options import Config
from qframe.console.output import Output
from qframe.console.pool import PoolReport
from qframe.console.stream import log_to_stderr
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.payload.text import nearest, one_line
from qframe.worker import StopReason, WorkerOptions, balance, machine, roster
from qframe.worker import queues as queue_names
from qframe.worker.health import HealthFile
from qframe.worker.options import USAGE
from qframe.worker.pool.balancing import Balancing, ScaleChange
from qframe.worker.pool.child import PoolMember
from qframe.worker.pool.rescuer import Rescuer
from qframe.worker.pool.supervisor import Supervisor
from qframe.worker.pool.together import NoPresence, NoRescuer

_LISTENED = events.SupervisorScaled.__name__
_COMMAND = "supervise"


def supervise(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of supervisors; default: all.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only failures.")] = False,
    health_file: HealthFileOption = "",
    config: Config = None,
) -> int:
    """Run pools of workers that grow and shrink with their queues.

    [supervisors.NAME] in the configuration names their queues and limits their workers.

      qframe supervise
      qframe supervise mail --json

    \b
    Signals and exit codes are those of `qframe work`.
    """  # noqa: D301 (\b keeps typer from folding the lines)
    if sys.platform == "win32":
        raise ConfigurationError("supervise needs signals and runs on Linux and macOS")
    log_to_stderr(logging.WARNING, as_lines_of_json=as_json)
    member = PoolMember.joined()
    queues = configured(config)
    listeners = queues.settings.listeners  # the workers call them: nothing of theirs is imported
    queues.settings.listeners = {name: listeners[name] for name in listeners if name == _LISTENED}
    known = [*queues.settings.supervisors]
    if not known:
        raise ConfigurationError("no supervisor is configured: add [supervisors.NAME] with queues")
    for name in names or ():
        if name not in known:
            raise ConfigurationError(
                f"no supervisor is called {one_line(name, 60)!r}{nearest(name, known)}; "
                f"configured are {', '.join(known)}"
            )
    chosen = [*dict.fromkeys(names or known)]
    for name in chosen:  # mistakes are reported before any begins
        described(name, queues)
    output = Output(as_json=as_json, quiet=quiet)
    health = HealthFile(health_file) if member is None else None
    if len(chosen) > 1:
        return _together(chosen, output, config, health)
    return _alone(chosen[0], queues, output, config, member, health)


def described(name: str, queues: QueueManager) -> tuple[WorkerOptions, balance.BalancePlan]:
    """Returns the options of its workers, and the plan. Raises `ConfigurationError`."""
    supervisor = queues.settings.supervisors[name]
    connection = supervisor.connection or queues.settings.default
    try:
        queues.settings.connection(connection)
        options = _options(name, connection, supervisor)
    except ConfigurationError as error:
        raise ConfigurationError(f"supervisors.{name}: {error}") from None
    for given in supervisor.queues:
        if queue_names.bounded([given])[1]:  # as a worker would read it
            bare, _, most = given.rpartition(":")
            raise ConfigurationError(
                f"supervisors.{name}: queues: {given!r} has a bound: name {bare!r}, "
                f"and say per_worker = {most} in [queues.{bare}]"
            )
    processes = supervisor.max_processes * (supervisor.concurrency if supervisor.isolate else 1)
    if processes > (bound := machine.most_processes(forked=supervisor.isolate)):
        raise ConfigurationError(
            f"supervisors.{name}: max_processes: {processes:,} processes are more than {bound:,}: "
            f"{FOR_THIS_MACHINE}"
        )
    worked = tuple(supervisor.queues) or (queues.connection(connection).default_queue,)
    plan = balance.BalancePlan(
        queues=(",".join(worked),) if supervisor.balance == "off" else worked,
        balance=supervisor.balance,
        strategy=supervisor.strategy,
        order=supervisor.order,
        weights=supervisor.weights,
        least=supervisor.min_processes,
        most=supervisor.max_processes,
        shift=supervisor.balance_max_shift,
        clear_within=supervisor.clear_within,
        slots=supervisor.concurrency,
    )
    return options, plan


def _options(name: str, connection: str, supervisor: SupervisorSettings) -> WorkerOptions:
    return WorkerOptions(
        connection=connection,
        queues=tuple(supervisor.queues),
        name=name,
        timeout=supervisor.timeout,
        tries=supervisor.tries,
        backoff=tuple(supervisor.backoff),
        grace=supervisor.grace,
        sleep=supervisor.sleep,
        rest=supervisor.rest,
        memory=supervisor.memory,
        max_jobs=supervisor.max_jobs,
        max_time=supervisor.max_time,
        force=supervisor.force,
        concurrency=supervisor.concurrency,
        isolate=supervisor.isolate,
        preload=supervisor.preload,
        schedule=supervisor.schedule,
    )


def _alone(
    name: str,
    queues: QueueManager,
    output: Output,
    config: Path | None,
    member: PoolMember | None,
    health: HealthFile | None,
) -> int:
    options, plan = described(name, queues)
    supervisor = queues.settings.supervisors[name]
    connection = options.connection or queues.settings.default
    where = place.of(queues, _COMMAND, connection)
    report = PoolReport(output)

    def scaled(change: ScaleChange) -> None:
        report.scaled(change)
        events.fire(events.SupervisorScaled, name, connection, *_facts(change))

    def connect() -> Connection:
        return queues.connection(connection)

    sizes = balance.begin(plan)
    least = plan.least * len(plan.queues)
    entry = roster.introduced_pool(options, connection, sum(sizes.values()), least, plan.most)
    entry = entry.model_copy(update={"queues": plan.queues, "shares": sizes})
    title.say(f"supervisor {name} on {connection}")
    os.nice(supervisor.nice)  # its workers inherit it
    pool = Supervisor(
        {group: _worker(options, group, output, config) for group in plan.queues},
        sizes,
        options,
        Rescuer(connect, options, report.rescued),
        Balancing(connect, queues.close, entry, plan, supervisor.balance_cooldown, scaled),
        report,
        stop_timeout=supervisor.stop_timeout,
        # Ending workers still run a job, and must not keep others from starting; but with jobs that
        # last hours, their number would grow without limit.
        bound=2 * plan.most,
        member=member,
        health=health,
    )
    output.header(
        where, options, plan.queues, supervisor=name, balance=plan.balance,
        processes=f"{least} to {plan.most}",
    )  # fmt: skip
    return _ended(pool, output, member)


def _facts(change: ScaleChange) -> tuple[str, int, int, str]:
    return change.queue, change.processes, change.before, change.why


def _ended(pool: Supervisor, output: Output, member: PoolMember | None) -> int:
    """Runs a pool, and prints how it ended."""
    code = pool.run()
    reason = StopReason.INTERRUPTED if pool.was_stopped else "all have ended"
    if member is not None:
        member.scoreboard.farewell(reason, pool.totals)
    if code != USAGE:  # otherwise a worker has printed it, and that is enough
        output.closing(reason, pool.totals)
    output.finish()
    return code


def _together(
    names: Sequence[str], output: Output, config: Path | None, health: HealthFile | None
) -> int:
    """Runs several, each in a process of its own, which is restarted when it dies."""
    commands = {name: [*_program(), _COMMAND, name, *_common(output, config)] for name in names}
    title.say(f"supervisors {', '.join(names)}")
    options = WorkerOptions(timeout=0, schedule=False)
    report = PoolReport(output, "supervisor")
    sizes = dict.fromkeys(names, 1)
    pool = Supervisor(commands, sizes, options, NoRescuer(), NoPresence(), report, health=health)
    return _ended(pool, output, None)


def _worker(options: WorkerOptions, group: str, output: Output, config: Path | None) -> list[str]:
    backoff = ",".join(f"{each:g}" for each in options.backoff)
    command = [*_program(), "work", str(options.connection), "--queue", group]
    command += ["--name", options.name, "--backoff", backoff, *_common(output, config)]
    for option in ("timeout", "tries", "grace", "sleep", "rest", "memory"):
        command += [f"--{option}", f"{getattr(options, option)}"]
    command += ["--max-jobs", str(options.max_jobs), "--max-time", str(options.max_time)]
    command += ["--concurrency", str(options.concurrency)]
    for option in ("isolate", "preload", "force"):
        command += [f"--{option}"] * bool(getattr(options, option))
    return command + ["--no-schedule"] * (not options.schedule)


def _common(output: Output, config: Path | None) -> list[str]:
    given = ["--config", os.fspath(config)] if config is not None else []
    return [*given, *["--json"] * output.as_json, *["--quiet"] * output.quiet]


def _program() -> list[str]:
    """Returns the words that started this process, up to the name of the command."""
    if not sys.executable or _COMMAND not in sys.orig_argv:
        raise ConfigurationError("supervise needs to know how it was started, and does not")
    return [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index(_COMMAND)]]
