"""Before: what a job waits for that has no message yet: links, nodes, members, the outbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from qframe.contracts.batch import BatchRecord
from qframe.contracts.flow import FlowNode, NodeState
from qframe.exceptions import BackendUnavailable, QframeError
from qframe.features import chain as chains
from qframe.features.flows import FlowStore
from qframe.operations.batches import state_of
from qframe.operations.why.look import ConnectionLook, ReadAt
from qframe.operations.why.of_group import standing
from qframe.operations.why.reason import Reasons, ago, command, together
from qframe.payload.text import count_of, one_line
from qframe.payload.timing import lasting

_PAGE = 500
_SECONDS = 1.0
"""How long the facts of one connection are searched."""
_PREFIXES = ("chain:", "flow:", "batch:")
_MOST_NODES = 2000


class KeptPlace(NamedTuple):
    """The fact in which a job waits that is not pushed yet."""

    kind: str
    """`chain`, `flow` or `batch`."""
    id: str
    key: str
    at: float


def find(look: ConnectionLook, uuid: str, why: Reasons) -> KeptPlace | None:
    """Finds the chain, flow or batch that keeps a job for later; for about a second."""
    if not look.keeps_facts:
        return None
    ends = time.monotonic() + _SECONDS
    for prefix in _PREFIXES:
        for key, text in _facts(look, prefix, ends, why):
            if uuid in text:
                kind, identity, *_ = key.split(":")
                is_later = kind != "flow" or f"flow:{identity}:j:" in key
                if is_later and key != f"chain:{identity}":
                    return KeptPlace(kind, identity, key, time.time())
    return None


def _facts(
    look: ConnectionLook, prefix: str, ends: float, why: Reasons
) -> Iterator[tuple[str, str]]:
    after = ""
    while True:
        scan = partial(look.connection.backend.scan, prefix, _PAGE, after)
        page = look.board.ask(look.connection, scan)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1][0]
        if time.monotonic() >= ends:
            why.cannot_know(
                f"not all chains, flows and batches of {look.name} were looked at: there are many"
            )
            return


def explain(look: ConnectionLook, uuid: str, found: KeptPlace, why: Reasons) -> None:
    """Says what a job that is kept for later waits for."""
    explained = {"chain": _chain, "flow": _flow, "batch": _batch}[found.kind]
    try:
        explained(look, uuid, found, why)
    except BackendUnavailable:
        raise
    except QframeError as error:
        text = f"it is kept in the {found.kind} {found.id}, which cannot be read: {error}"
        why.add("blocked", text, found.at, f"look at the {found.kind}")


def _chain(look: ConnectionLook, _uuid: str, found: KeptPlace, why: Reasons) -> None:
    if found.key.endswith(":catch"):
        text = f"it runs only if a link of the chain {found.id} fails"
        why.add("before it", text, found.at)
        return
    where = chain_words(look, found.id)
    if where is None:
        text = f"it is a link of the chain {found.id}, of which the rest is not kept any more"
        why.add("blocked", text, found.at, "dispatch it anew")
        return
    mend = command("retry", where.uuid) if where.failed else ""
    text = f"it is a later link of the chain {found.id}, {where.words}"
    why.add("blocked" if where.failed else "before it", text, where.at, mend)


class ChainWords(NamedTuple):
    """Where a chain is, in words."""

    words: str
    failed: bool
    """Whether the link has failed."""
    uuid: str
    """That of the link."""
    at: float


def chain_words(look: ConnectionLook, identity: str) -> ChainWords | None:
    """Returns at which link a chain is, and how that stands; None if nothing is kept of it."""
    stands = look.read(
        ("chain", identity),
        lambda: chains.standing(look.connection.backend, {"chain": {"id": identity}}),
    )
    where = stands.value
    if where is None:
        return None
    text, failed = standing(look, where.at)
    words = f"whose link {where.position} is {where.at}, {text}"
    return ChainWords(words, failed, where.at, stands.at)


def _flow(look: ConnectionLook, _uuid: str, found: KeptPlace, why: Reasons) -> None:
    kept = look.connection.flows()
    if kept is None:
        return
    nodes = nodes_of(look, kept, found.id)
    number = int(found.key.rpartition(":")[2])
    by_number = {each.number: each for each in nodes.value}
    node = by_number.get(number)
    if node is None:
        why.cannot_know(f"the flow {found.id} has more nodes than were looked at")
        return
    its = f"it is the node {one_line(node.name, 100)} of the flow {found.id}"
    missing = [by_number[each] for each in node.after if each in by_number]
    missing = [each for each in missing if each.state not in {NodeState.DONE, NodeState.SKIPPED}]
    failed = [each for each in missing if each.state in {NodeState.FAILED, NodeState.CANCELLED}]
    if not missing:
        why.add("before it", f"{its}, about to be pushed", nodes.at)
        return
    text = f"{its}, which waits for {together(map(node_words, failed or missing))}"
    retry = next((each.uuid for each in failed if each.uuid), "")
    mend = command("retry", retry) if retry else command("flow", found.id)
    why.add("blocked" if failed else "before it", text, nodes.at, mend if failed else "")


def nodes_of(look: ConnectionLook, kept: FlowStore, identity: str) -> ReadAt[list[FlowNode]]:
    """Reads the nodes of a flow, the first ones if there are very many."""
    return look.read(("flow", identity), lambda: kept.nodes(identity, _MOST_NODES))


def node_words(node: FlowNode) -> str:
    """Returns how a node of a flow stands."""
    name = one_line(node.name, 100)
    if node.state is NodeState.FAILED:
        error = f" with {one_line(node.error, 150)}" if node.error else ""
        return f"{name}, which failed {ago(node.at)}{error}"
    if node.state is NodeState.PUSHED:
        return f"{name}, which waits or runs"
    return f"{name}, which is {node.state.value}"


def _batch(look: ConnectionLook, _uuid: str, found: KeptPlace, why: Reasons) -> None:
    kept = look.connection.batches()
    if kept is None:
        return
    record = look.read(("batch", found.id), lambda: kept.read(found.id))
    if record.value is None:
        return
    text = f"it follows the batch {found.id}, {batch_words(record.value)}"
    mend = batch_retry(record.value)
    why.add("blocked" if mend else "before it", text, record.at, mend)


def batch_retry(record: BatchRecord) -> str:
    """Returns the command that a batch needs of which only failed members are left; else ""."""
    return command("retry-batch", record.id) if record.failed and not record.pending else ""


def batch_words(record: BatchRecord) -> str:
    """Returns how far a batch is."""
    failed = f", {record.failed:,} failed" if record.failed else ""
    return (
        f"which is {state_of(record)}: {record.pending:,} of "
        f"{count_of(record.total, 'member', 'members')} pending{failed}"
    )


def outbox(look: ConnectionLook, why: Reasons) -> None:
    """Says how many dispatches for the connection wait in the outbox."""
    found = look.board.manager.outbox()
    if found is None:
        return
    at = time.time()
    with suppress(BackendUnavailable):
        for lag in found.lags():
            if lag.connection != look.name:
                continue
            if lag.waiting:
                many = count_of(lag.waiting, "dispatch for", "dispatches for")
                text = (
                    f"the outbox has {many} {look.name}, the oldest for {lasting(lag.oldest)}: "
                    "it may be among them"
                )
                why.add("not relayed", text, at, "qframe relay, or a worker that reaches both")
            if lag.set_aside:
                text = (
                    f"{count_of(lag.set_aside, 'dispatch', 'dispatches')} for {look.name} were set "
                    f"aside in the outbox: {one_line(lag.error, 200)}"
                )
                why.add("not relayed", text, at, "qframe relay --retry")
