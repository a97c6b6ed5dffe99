"""`qframe forecast`: whether queues will be behind within the coming hours, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console import completion
from qframe.console.connections import JobConnections, configured
from qframe.console.numbers import CENTURY, seconds
from qframe.console.options import Config, ConnectionOption, Json, seconds_of
from qframe.console.text import print_json, say
from qframe.exceptions import ConfigurationError
from qframe.forecast.reading import LONGEST
from qframe.operations import forecast as operations
from qframe.operations.forecast import BEHIND, HOURS, ForecastState
from qframe.payload.text import queue_name


def forecast(
    queue: Annotated[
        str, typer.Argument(help="Queue; default: all queues.", autocompletion=completion.queues)
    ] = "",
    *,
    hours: Annotated[
        float, seconds("--hours", most=int(LONGEST), help="Hours to look ahead.")
    ] = HOURS,
    behind: Annotated[
        float,
        seconds("--behind", most=CENTURY, help="Seconds of waiting that count as behind."),
    ] = BEHIND,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Say whether queues will be behind, when and why.

    From the arrivals and run times of two weeks, what waits, the workers, delayed jobs and
    schedules. Exits 1 if one will be.

      qframe forecast
      qframe forecast mail --hours 12 --behind 600
      qframe forecast --json
    """
    if hours <= 0:
        raise ConfigurationError(f"--hours must be above 0, got {hours:g}")
    limit = seconds_of("--behind", behind)
    queues = configured(config)
    name = queue_name(queue) if queue else ""

    def read(each: Connection) -> list[ForecastState]:
        return operations.states(queues, each, name, hours, limit)

    found = [one for _, several in JobConnections(queues, connection).each(read) for one in several]
    if as_json:
        print_json([each.model_dump() for each in found])
    else:
        for each in found:
            say(f"{each.connection}:{each.queue}: {each.text}")
        if found:
            say(f"read at {found[0].read_at} UTC, for {hours:g} h")
    return int(any(each.behind_at for each in found))
