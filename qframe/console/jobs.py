"""`qframe dispatch`: queue a job by its name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qframe.console.connections import configured
from qframe.console.numbers import CENTURY, seconds
from qframe.console.options import Config, ConnectionOption, QueueOption
from qframe.console.place import print_hint
from qframe.console.text import say
from qframe.dispatch.pending import dispatch as dispatch_job
from qframe.exceptions import InvalidArguments, InvalidJob, UnknownJob
from qframe.payload.text import nearest, one_line


def dispatch(
    job: Annotated[str, typer.Argument(help="Module and class: app.jobs.SendWelcome")],
    data: Annotated[str, typer.Argument(help="Its fields as a JSON object.")] = "{}",
    *,
    queue: QueueOption = None,
    delay: Annotated[float, seconds(most=CENTURY, help="Seconds until it is ready.")] = 0,
    track: Annotated[bool, typer.Option("--track", help="Track the status of the job.")] = False,
    connection: ConnectionOption = None,
    config: Config = None,
) -> None:
    """Dispatch a job by its class name and print its id.

    qframe dispatch app.jobs.SendWelcome '{"user_id": 7}' --queue high --delay 10
    qframe status $(qframe dispatch app.jobs.Import '{}' --track) --follow
    """
    queues = configured(config)
    print_hint(queues.settings.root, "dispatch")
    queues.registry.load()
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the data is not JSON: {one_line(str(error))}") from None
    if not isinstance(fields, dict):
        raise InvalidJob('the data must be a JSON object, like {"user_id": 7}')
    try:
        job_class = queues.registry.find(job)
        known = job_class.field_names()
        for field in fields:
            if field not in known:
                raise InvalidJob(
                    f"{job_class.__name__} has no field {one_line(field, 60)!r}"
                    f"{nearest(field, known)}"
                )
        made = job_class.from_data(fields)
    except (UnknownJob, InvalidArguments) as error:
        raise InvalidJob(str(error)) from None
    pending = dispatch_job(made)
    if connection:
        pending.on_connection(connection)
    if queue:
        pending.on_queue(queue)
    if delay:
        pending.delay(delay)
    if track:
        pending.track()
    say(pending.send())
