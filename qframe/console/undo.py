"""The command `undo`: takes back what clear, flush, forget or cancel removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from qframe.connection import Connection
from qframe.console.confirm import stopped
from qframe.console.connections import JobConnections, configured
from qframe.console.options import Config, ConnectionOption, DryRun, Json, Yes
from qframe.console.person import person
from qframe.console.text import print_error, print_json, print_rows, say
from qframe.contracts.backend import Capability
from qframe.exceptions import ConfigurationError
from qframe.operations import undo as operations
from qframe.operations.actions.background import log_action
from qframe.payload.text import count_of, one_line

_COLUMNS = ("id", "at", "who", "action", "of", "jobs", "until")


def undo(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="The act; default: the last one.")
    ] = "",
    *,
    listing: Annotated[
        bool, typer.Option("--list", help="List the acts that can be taken back.")
    ] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Empty the bin, or what ID has in it, for good.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Take back the last clear, flush, forget or cancel --where.

    On a terminal it asks first. Exits 1 if some jobs stay in the bin, as when another dispatch has
    the lock of one.

      qframe undo
      qframe undo --list
      qframe undo 5a0c9d1e --yes
    """
    connections = JobConnections(configured(config), connection)
    read = connections.each(operations.acts_of)
    by_name = {found.name: found for found, _ in read}
    acts = operations.put_together(read)
    if listing:
        rows = [each.model_dump() for each in acts]
        print_rows(rows, _COLUMNS, empty="nothing can be taken back", as_json=as_json)
        return 0
    if purge:
        if identity and all(identity != each.id for each in acts):
            shown = one_line(identity, 40)
            raise ConfigurationError(f"the act {shown!r} has nothing in a bin: qframe undo --list")
        return _purged(by_name, connections.silent(read), identity, dry_run=dry_run, yes=yes)
    act = _chosen(acts, identity)

    def what() -> str:
        jobs = count_of(act.jobs, "job", "jobs") if act.jobs else "what is in the bin"
        lost = f"; {act.lost:,} more are gone for good" if act.lost else ""
        return f"bring back {jobs} of `{act.action}` {act.of} by {act.who} at {act.at} UTC{lost}"

    if (code := stopped(what, dry_run=dry_run, yes=yes)) is not None:
        return code
    done = operations.Undone()
    for name in act.connections:
        operations.undo(by_name[name], act.id, done)
    log_action(person(), "undo", f"id {act.id} {act.action} {act.of}", done.back)
    if as_json:
        counts = {"back": done.back, "there": done.there, "left": done.left}
        print_json({**act.model_dump(), **counts})
    else:
        of = f" of `{act.action}` {act.of} by {act.who} at {act.at} UTC"
        say(f"{done.said}{of}")
    for each in done.troubles:
        print_error(each, 0)
    if done.left:
        return print_error(f"{done.left:,} stay in the bin until {act.until} UTC", 1)
    return 0


def _chosen(acts: Sequence[operations.ActState], identity: str) -> operations.ActState:
    """Returns the act with this id, or the last one."""
    for each in acts:
        if identity in {"", each.id}:
            return each
    if identity:
        shown = one_line(identity, 40)
        raise ConfigurationError(f"the act {shown!r} cannot be taken back: qframe undo --list")
    raise ConfigurationError("nothing can be taken back")


def _purged(
    by_name: dict[str, Connection],
    silent: Sequence[str],
    identity: str,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    what = f"empty the bin{f' of the act {one_line(identity, 40)}' if identity else ''} for good"
    if (code := stopped(lambda: what, dry_run=dry_run, yes=yes)) is not None:
        return code
    able = [each for each in by_name.values() if Capability.FACTS in each.capabilities]
    count = sum(operations.purge(each, identity) for each in able)
    say(f"removed {count_of(count, 'act', 'acts')} from the bin")
    if silent:  # what is secret is still there
        return print_error(f"the bin of {', '.join(silent)} was not emptied", 1)
    return 0
