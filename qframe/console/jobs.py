"""`qframe dispatch`: queue a job by its name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qframe.console import completion
from qframe.console.connections import configured
from qframe.console.numbers import CENTURY, seconds
from qframe.console.options import Config, ConnectionOption, QueueOption
from qframe.console.place import print_hint
from qframe.console.text import print_error, say
from qframe.dispatch.pending import dispatch as dispatch_job
from qframe.exceptions import ConfigurationError, InvalidArguments, InvalidJob, UnknownJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.uniqueness import once_rule_of
from qframe.manager import QueueManager
from qframe.payload.text import nearest, one_line

_DAY = 86400.0


def dispatch(  # noqa: PLR0913 (one for each option of the command)
    job: Annotated[
        str,
        typer.Argument(
            help="Module and class: app.jobs.SendWelcome", autocompletion=completion.jobs
        ),
    ],
    data: Annotated[str, typer.Argument(help="Its fields as a JSON object.")] = "{}",
    *,
    queue: QueueOption = None,
    delay: Annotated[float, seconds(most=CENTURY, help="Seconds until it is ready.")] = 0,
    track: Annotated[bool, typer.Option("--track", help="Track the status of the job.")] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--once",
            metavar="KEY",
            help="Queue nothing if a job of this name was dispatched with this key shortly before.",
            show_default=False,
        ),
    ] = None,
    within: Annotated[
        float | None,
        seconds(
            "--once-for",
            most=CENTURY,
            help="Seconds for which the key is valid; default: the class's `once`, or a day.",
            show_default=False,
        ),
    ] = None,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Dispatch a job by its class name and print its id.

    qframe dispatch app.jobs.SendWelcome '{"user_id": 7}' --queue high --delay 10
    qframe status $(qframe dispatch app.jobs.Import '{}' --track) --follow
    qframe dispatch app.jobs.Report '{"day": "mon"}' --once report-mon --once-for 3600
    """
    if within is not None and key is None:
        raise ConfigurationError("--once-for needs --once KEY")
    queues = configured(config)
    print_hint(queues.settings.root, "dispatch")
    queues.registry.load()
    made = _made(queues, job, data)
    pending = dispatch_job(made)
    if connection:
        pending.on_connection(connection)
    if queue:
        pending.on_queue(queue)
    if delay:
        pending.delay(delay)
    if track:
        pending.track()
    if key is not None:
        pending.once(key, within=_usual(made) if within is None else within)
    uuid = pending.send()
    say(uuid)
    if pending.is_duplicate:
        print_error(f"nothing was queued: {uuid} was dispatched before", 0)


def _made(queues: QueueManager, name: str, data: str) -> JobDefinition:
    """Returns a job of a class with this data. Raises `InvalidJob`."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the data is not JSON: {one_line(str(error))}") from None
    if not isinstance(fields, dict):
        raise InvalidJob('the data must be a JSON object, like {"user_id": 7}')
    try:
        job_class = queues.registry.find(name)
        known = job_class.field_names()
        for field in fields:
            if field not in known:
                raise InvalidJob(
                    f"{job_class.__name__} has no field {one_line(field, 60)!r}"
                    f"{nearest(field, known)}"
                )
        return job_class.from_data(fields)
    except (UnknownJob, InvalidArguments) as error:
        raise InvalidJob(str(error)) from None


def _usual(job: JobDefinition) -> float:
    """Returns for how many seconds a key of a job counts if nothing else is given."""
    rule = once_rule_of(type(job))
    return _DAY if rule is None else rule.seconds
