"""Commands about flows: flow, flows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qframe.connection import Connection
from qframe.console import stored
from qframe.console.connections import JobConnections, configured
from qframe.console.follow import FollowState, followed_to_end
from qframe.console.options import Config, ConnectionOption, Json, Limit, Where, first
from qframe.console.text import print_error, print_facts, print_json, print_rows, say
from qframe.contracts.flow import NodeState
from qframe.dispatch.flow import FlowRun
from qframe.exceptions import ConfigurationError
from qframe.features.flows import FlowStore
from qframe.operations import lists
from qframe.operations.flows import MOST_LISTED, FlowNodes, FlowState, NodeRow
from qframe.payload.text import count_of, one_line

_COLUMNS = ("id", "name", "state", "progress", "ended", "failed", "total", "created_at")
_NODES = ("number", "name", "state", "after", "job", "remark")
_NAMED = 50
"""So many nodes are listed; `--json` lists more."""


def flow(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the flow: `FlowRun.id`.")
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "--watch", help="Refresh until every node has ended.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the nodes that have not begun.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Queue the failed jobs of the flow again.")
    ] = False,
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Show a flow and its nodes, cancel it, or retry it.

    With --follow the exit code is 0 when every node is done, 1 when one has failed and nothing
    runs, or the flow was cancelled. --cancel exits 1 if the flow is over or cancelled already.

      qframe flow 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3
      qframe flow 8a4f0e2c-6b1d-4c3e-9f57-20d1c5b7a9e3 --retry --follow
    """
    if cancel and retry:
        raise ConfigurationError("give --cancel or --retry, not both")
    if cancel and follow:
        raise ConfigurationError("give --cancel or --follow, not both")
    found = _found(JobConnections(configured(config), connection), identity)
    if cancel:
        if found.cancel():
            say(f"cancelled {found.id}")
            return 0
        how = "cancelled" if found.record.cancelled_at is not None else "finished"
        return print_error(f"{found.id} is {how} already", 1)
    if retry:
        say(f"{found.id}: queued {count_of(found.retry(), 'failed job', 'failed jobs')} again")
        if not follow:
            return 0
    code = 0
    if follow:
        found, code = followed_to_end(
            found, FlowRun.fresh, _standing, lambda run: run.state != "done", as_json=as_json
        )
    _show(found, as_json=as_json)
    return code


def flows(
    *,
    limit: Limit = 50,
    where: Where = "",
    connection: ConnectionOption = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List the flows, latest first.

    qframe flows
    qframe flows --where 'name:order* state:failed'
    """
    lists.FLOWS.chosen((), where)  # fails even if no store answers
    known = (
        state
        for record in stored.everything(JobConnections(configured(config), connection), _kept)
        for state in lists.FLOWS.chosen([FlowState.of(record)], where)
    )
    rows = [state.model_dump() for state in first(known, limit)]
    if not as_json:
        rows = [{**row, "progress": f"{row['progress']:.0%}"} for row in rows]
    print_rows(rows, _COLUMNS, empty="no flows", as_json=as_json)
    if not as_json and next(known, None) is not None:
        say("and more: --limit 0 shows all")


# -- finding them ---------------------------------------------------------------------------------


def _kept(queue: Connection) -> FlowStore:
    kept = queue.flows()
    if kept is None:
        raise ConfigurationError(f"the connection {queue.name!r} keeps no flows")
    return kept


def _found(connections: JobConnections, identity: str) -> FlowRun:
    queue, record = stored.find(connections, identity, _kept, "flow", "qframe flows")
    return FlowRun(queue, record.id, record)


# -- how it is shown ------------------------------------------------------------------------------


def _show(found: FlowRun, *, as_json: bool) -> None:
    if as_json:
        print_json(FlowNodes.of(found).model_dump())
        return
    state = FlowState.of(found.record)
    rows = [NodeRow.of(node) for node in found.nodes(_NAMED)]
    print_facts({**state.model_dump(), "progress": f"{state.progress:.0%}"})
    say("")
    print_rows([_row(row) for row in rows], _NODES, empty="no nodes", as_json=False)
    if state.total > len(rows):
        say(f"and {state.total - len(rows):,} more: --json lists up to {MOST_LISTED:,}")


def _row(row: NodeRow) -> dict[str, Any]:
    jobs = "" if row.jobs is None else f"{row.ended} of {row.jobs} jobs ended"
    return {
        "number": row.number,
        "name": row.name,
        "state": row.state,
        "after": ", ".join(map(str, row.after)),
        "job": row.uuid,
        "remark": one_line(row.error or row.remark or jobs, 80),
    }


def _standing(found: FlowRun) -> FollowState:
    record = found.record
    is_stuck = record.failed > 0 and not any(
        node.state is NodeState.PUSHED for node in found.nodes()
    )
    failed = f"{record.failed} failed  " if record.failed else ""
    return FollowState(
        record.is_finished or is_stuck,
        record.state,
        record.settled,
        record.total,
        failed + one_line(record.name, 60),
        f"{record.state} {record.settled} of {record.total}  {failed}".rstrip(),
    )
