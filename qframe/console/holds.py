"""Commands about holds: hold, unhold, holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.connections import JobConnections, configured
from qframe.console.options import Config, ConnectionOption, Json
from qframe.console.person import person
from qframe.console.text import print_error, print_json, print_rows, say
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import HELD, Filter, seconds_of_span
from qframe.operations import holds as operations
from qframe.operations.actions.background import log_action
from qframe.payload.text import one_line, queue_name
from qframe.worker.options import NO_ANSWER

_COLUMNS = ("id", "connection", "filter", "queues", "until", "who", "why", "aside")


def hold(
    where: Annotated[str, typer.Argument(metavar="FILTER", help="Which jobs, as with --where.")],
    *,
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90s, 10m, 2h, 3d.")
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="NAME", help="Only this queue; may be repeated.", show_default=False
        ),
    ] = None,
    why: Annotated[
        str, typer.Option("--why", help="The reason, for others.", show_default=False)
    ] = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Set aside the jobs that a filter chooses.

    Each is set aside when its turn comes, without an attempt; pushes and schedules go on. The jobs
    come back by themselves when the time is over, or by `qframe unhold ID`. Exits 69 if a
    connection does not answer; the others hold them.

      qframe hold 'class:app.Charge args.shop:7' --for 2h
      qframe hold tag:tenant:7 --for 30m --queue mail --why 'their bank is down'
    """
    chosen, seconds = Filter(where, HELD), seconds_of_span("--for", lasts)
    names, who = [queue_name(each) for each in queue or ()], person()

    def begin(found: Connection) -> operations.HoldState | None:
        if not {Capability.RESERVE, Capability.FACTS} <= {*found.capabilities}:
            return None
        if not chosen.allows("connection", found.name):
            return None
        made = operations.begin(found, where, seconds, who, why, names)
        return operations.state(found, made)

    connections = JobConnections(configured(config), connection)
    done = connections.each(begin)
    made = [(found, state) for found, state in done if state is not None]
    silent = [each for each in connections.silent(done) if chosen.allows("connection", each)]
    if not made and silent:
        return NO_ANSWER
    if not made:
        raise ConfigurationError("the filter allows no connection that workers take jobs from")
    for found, state in made:
        log_action(who, "hold", f"connection {found.name} filter {state.filter}", 1)
    if as_json:
        print_json([state.model_dump() for _, state in made])
    else:
        _tell(made)
        if chosen.asks_data:
            print_error("arguments that are secret or encrypted match no args.NAME: term", 0)
    return NO_ANSWER if silent else 0


def _tell(made: Sequence[tuple[Connection, operations.HoldState]]) -> None:
    for found, state in made:
        say(
            f"{state.id}: {found.name} holds {state.filter} until {state.until} UTC; "
            f"qframe unhold {state.id} ends it"
        )
        if operations.comes_back_late(found):
            print_error(f"{found.name}: after unhold, its jobs are back within a minute", 0)


def unhold(
    identity: Annotated[str, typer.Argument(metavar="ID", help="The hold; `qframe holds`.")],
    *,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """End a hold: its jobs come back within seconds.

    Exits 69 if it may be on a connection that does not answer.

      qframe unhold 3f9c01aa
    """

    def end(found: Connection) -> int | None:
        return operations.end(found, identity)

    connections = JobConnections(configured(config), connection)
    done = connections.each(end)
    ended = [(found, count) for found, count in done if count is not None]
    if not ended and connections.silent(done):
        return NO_ANSWER
    if not ended:
        raise ConfigurationError(f"there is no hold {one_line(identity, 40)!r}: qframe holds")
    for found, count in ended:
        log_action(person(), "unhold", f"connection {found.name} id {identity}", count)
    if as_json:
        print_json(
            [{"id": identity, "connection": each.name, "back": count} for each, count in ended]
        )
        return 0
    for found, count in ended:
        say(f"ended {identity} of {found.name}: {operations.said(found, count)}")
    return 0


def holds(
    *, connection: ConnectionOption = None, as_json: Json = False, config: Config = None
) -> None:
    """List the holds: which jobs, until when, by whom.

    qframe holds
    qframe holds --json
    """
    done = JobConnections(configured(config), connection).each(operations.listed)
    rows = [state.model_dump() for _, states in done for state in states]
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            **row,
            "queues": ", ".join(row["queues"]),
            "until": "ending" if row["ending"] else row["until"],
        }
        for row in rows
    ]
    print_rows(shown, _COLUMNS, empty="nothing is held")
