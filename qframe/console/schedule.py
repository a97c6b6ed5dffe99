"""`qframe schedule`: list, run, pause, resume, next, test, add, remove, sign, work."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer

from qframe.console.connections import JobConnections, configured, names
from qframe.console.numbers import YEAR, Number, whole
from qframe.console.options import Config, ConnectionOption, Json, QueueOption, Where, not_negative
from qframe.console.scheduling import work
from qframe.console.text import print_error, print_json, print_rows, say
from qframe.dispatch.sync import SyncConnection
from qframe.exceptions import ConfigurationError, InvalidJob
from qframe.jobs.foreign import Foreign
from qframe.manager import QueueManager
from qframe.operations import lists
from qframe.operations import schedules as operations
from qframe.operations.planned import PlannedSchedules, payload_of
from qframe.operations.schedules import ScheduleState
from qframe.payload.text import one_line
from qframe.payload.timing import iso
from qframe.schedules.calendar import shown
from qframe.schedules.options import DAY
from qframe.schedules.rows import row_of
from qframe.schedules.schedulers import able
from qframe.worker.options import NO_ANSWER

_MOST = 10_000
"""At most so many planned times are shown."""
Name = Annotated[str, typer.Argument(help="The schedule's name or the start of it, or its job.")]
Optional = Annotated[str, typer.Argument(help="The schedule's name; default: all.")]


def list_(
    *,
    where: Where = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """List the schedules in the code and those added at run time, next first.

    qframe schedule list
    qframe schedule list --json
    qframe schedule list --where 'state:late,failed'
    """
    planned = PlannedSchedules(configured(config), connection)
    found = lists.SCHEDULES.chosen(planned.states(), where)
    for error in dict.fromkeys(map(str, planned.silent)):
        print_error(error, 0)
    if as_json:
        print_json([each.model_dump() for each in found])
    elif found or not planned.silent:
        print_rows([_row(each) for each in found], empty="there are no schedules")
    return NO_ANSWER if planned.silent else 0


def _row(state: ScheduleState) -> dict[str, Any]:
    last = state.runs[0] if state.runs else None
    ended = "" if last is None else f"{last.state} {last.error}".strip()
    zone = "" if state.timezone == "UTC" else f" {state.timezone}"
    return {
        "name": state.name,
        "when": state.when + zone,
        "job": state.job,
        "to": f"{state.connection}:{state.queue}",
        "next (UTC)": operations.coming(state),
        "last (UTC)": "" if last is None else last.planned_at,
        "ended": one_line(ended, 60),
    }


def run(
    name: Name,
    *,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Dispatch a schedule's job now, ignoring its conditions, and print its id.

    qframe schedule run nightly
    """
    to, schedule, uuid = PlannedSchedules(configured(config), connection).run(name)
    if as_json:
        print_json({"uuid": uuid, "schedule": schedule.title, "connection": to.name})
    else:
        say(uuid)


def try_(name: Name, *, connection: ConnectionOption = None, config: Config = None) -> int:
    """Run a schedule's job now, in this process, as `dispatch_sync` does.

    qframe schedule test nightly
    """
    queues = configured(config)
    _, schedule = PlannedSchedules(queues, connection).find(name)
    if isinstance(schedule.job, Foreign):
        raise ConfigurationError(f"{schedule.job.name} runs in another program: use run")
    sync = queues.connection("sync")
    if not isinstance(sync, SyncConnection):
        raise ConfigurationError("the connection 'sync' is configured with another driver")
    began = time.monotonic()
    try:
        result = sync.run(schedule.job, payload_of(schedule))
    except Exception as error:  # noqa: BLE001 (the job's own)
        return print_error(f"{schedule.title}: {type(error).__name__}: {error}", 1)
    say(f"{schedule.title}: done in {time.monotonic() - began:.3f} s")
    if result is not None:
        say(one_line(repr(result), 500))
    return 0


def next_(
    count: Annotated[
        int,
        typer.Argument(parser=Number(_MOST), metavar="count", help="How many run times to show."),
    ] = 10,
    name: Optional = "",
    *,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show the next run times of one schedule, or of all.

    qframe schedule next
    qframe schedule next 5 nightly
    """
    not_negative("the number", count)
    planned = PlannedSchedules(configured(config), connection)
    rows = [
        {
            "at": iso(moment) if as_json else shown(moment, schedule.options.calendar.zone),
            "name": schedule.title,
            "job": schedule.job_name,
            "connection": to.name,
        }
        for moment, to, schedule in islice(planned.coming(name), count)
    ]
    print_rows(rows, empty="nothing is planned", as_json=as_json)


def pause(
    name: Optional = "", *, connection: ConnectionOption = None, config: Config = None
) -> int:
    """Pause one schedule, or all; runs that fall due are skipped.

    qframe schedule pause nightly
    qframe schedule pause
    """
    return _each(operations.pause, "paused", name, connection, configured(config))


def resume(
    name: Optional = "", *, connection: ConnectionOption = None, config: Config = None
) -> int:
    """Resume one schedule, or all that are paused.

    qframe schedule resume nightly
    qframe schedule resume
    """
    return _each(operations.resume, "resumed", name, connection, configured(config))


def _each(
    act: Callable[..., None], done: str, name: str, only: str | None, queues: QueueManager
) -> int:
    """Acts on a schedule, or on all of each connection, or of the `only` one. Returns the code."""
    if name:
        connection, schedule = PlannedSchedules(queues, only).find(name)
        act(queues, connection, schedule.title)
        say(f"{done} {schedule.title}")
        return 0
    connections = JobConnections(queues, only)
    answers = connections.each(lambda each: act(queues, each))
    say(f"{done} every schedule of {names(answers)}")
    return connections.code(answers)


def add(  # noqa: PLR0913 (one for each option of the command)
    name: Annotated[str, typer.Argument(help="A new name.")],
    job: Annotated[str, typer.Argument(help="Module and class: app.jobs.SendReport")],
    when: Annotated[str, typer.Argument(help="A cron expression, or Laravel's methods.")],
    *,
    data: Annotated[str, typer.Option(help="The job's fields as a JSON object.")] = "{}",
    timezone: Annotated[str, typer.Option(help="Such as Europe/Vienna.")] = "",
    queue: QueueOption = None,
    missed: Annotated[
        str, typer.Option(help="Missed runs to make up for: none, last, all.")
    ] = "last",
    grace: Annotated[int, whole(YEAR, help="Oldest missed run to make up for, in seconds.")] = 3600,
    overlap: Annotated[
        bool, typer.Option("--without-overlapping", help="Skip a run while the previous one runs.")
    ] = False,
    overlap_expires: Annotated[
        int | None, whole(YEAR, help="Longest overlap lock, in seconds [default: a day].")
    ] = None,
    spread: Annotated[int, whole(YEAR, help="Delay each run by up to this many seconds.")] = 0,
    maintenance: Annotated[
        bool,
        typer.Option("--even-in-maintenance-mode", help="Run even while the connection is paused."),
    ] = False,
    foreign: Annotated[bool, typer.Option("--foreign", help="Laravel runs the job.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the schedule of this name.")
    ] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Add a schedule at run time; workers use it within seconds.

    qframe schedule add nightly app.jobs.SendReport 'daily_at 13:00; weekdays'
    qframe schedule add sync app.jobs.Sync '*/5 * * * *' --data '{"shop": 7}' --spread 60
    qframe schedule add import app.jobs.Import hourly --without-overlapping --overlap-expires 7200
    """
    queues = configured(config)
    planned = PlannedSchedules(queues)
    if any(each.title == name and each.row is None for _, each in planned.all):
        raise ConfigurationError(f"the code has a schedule {one_line(name, 150)!r} already")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the data is not JSON: {one_line(str(error))}") from None
    row = row_of(
        job=job,
        data=fields,
        when=when,
        timezone=timezone,
        queue=queue,
        missed=missed,
        grace=grace,
        overlap=_overlap_of(overlap_expires, wanted=overlap),
        maintenance=maintenance,
        spread=spread,
        foreign=foreign,
        added_at=round(time.time(), 3),
        added_by=_who(),
    )
    to = queues.connection(connection)
    if not connection:
        planned_job = planned.rows.schedule("x", planned.rows.now(row)).job
        found = queues.connection_of(planned_job, None, row.queue)
        to = queues.connection(found.name)
        if found is not to:  # pushes for its queue are forwarded there
            row = row.model_copy(update={"queue": found.queue_for(planned_job, row.queue)})
    made = planned.rows.add(to, name, row, replace=replace)
    coming = made.options.calendar.next(time.time())
    say(f"added {name} to {to.name}: next at {shown(coming, made.options.calendar.zone)}")


def _overlap_of(expires: int | None, *, wanted: bool) -> float:
    """Returns the `overlap` of a row from two options. Raises `ConfigurationError`."""
    if not wanted and expires is not None:
        raise ConfigurationError("--overlap-expires says for how long: add --without-overlapping")
    if expires is not None and expires < 1:
        raise ConfigurationError(f"--overlap-expires must be at least 1, got {expires}")
    return float(DAY if expires is None else expires) if wanted else 0.0


def remove(name: Name, *, connection: ConnectionOption = None, config: Config = None) -> None:
    """Remove a schedule that was added at run time.

    qframe schedule remove nightly
    """
    planned = PlannedSchedules(configured(config), connection)
    there = [each for each in able(planned.queues) if connection in {None, each.name}]
    removed = [each for each in there if planned.rows.remove(each, name)]
    if not removed:
        _, schedule = planned.find(name)
        if schedule.row is None:
            raise ConfigurationError(
                f"{schedule.title!r} is in the code, at {schedule.place}: remove it there, or "
                "pause it"
            )
        raise ConfigurationError(f"say its whole name: {schedule.title!r}")
    say(f"removed {name} from {names((each, None) for each in removed)}")


def sign(
    name: Annotated[str, typer.Argument(help="The name of a schedule that was added at run time.")],
    *,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Sign a schedule that was added without the signing key, or with an old one.

    Check it first with `list`: it is signed as it is, whoever wrote it.

    qframe schedule sign nightly
    """
    planned = PlannedSchedules(configured(config))
    queues = planned.queues
    every = [queues.connection(connection)] if connection else able(queues)
    signed = [(each, made) for each in every if (made := planned.rows.sign(each, name)) is not None]
    if not signed:
        raise ConfigurationError(f"no schedule {one_line(name, 150)!r} was added at run time")
    for each, made in signed:
        calendar = made.options.calendar
        job = one_line(repr(made.job), 500)
        say(f"signed {made.title} of {each.name}: {job}, {calendar.text()} {calendar.zone}")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


COMMANDS: dict[str, Callable[..., object]] = {
    "list": list_,
    "next": next_,
    "run": run,
    "test": try_,
    "pause": pause,
    "resume": resume,
    "add": add,
    "remove": remove,
    "sign": sign,
    "work": work,
}
"""The commands of the group, in the order of its help."""
