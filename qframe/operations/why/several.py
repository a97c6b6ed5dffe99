"""Several: what is said of the id of a batch, flow or chain, which is no job but several."""

from __future__ import annotations

from contextlib import suppress

from qframe.contracts.flow import NodeState
from qframe.exceptions import QframeError
from qframe.features import chain as chains
from qframe.operations.why.before import (
    batch_retry,
    batch_words,
    chain_words,
    node_words,
    nodes_of,
)
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.reason import Reasons, command, together


def explain(look: ConnectionLook, identity: str, why: Reasons) -> str:
    """Says how far a batch, flow or chain with this id is. Returns what it is; "" for nothing."""
    if not (look.keeps_facts and chains.is_id(identity)):
        return ""
    for what, explained in (("batch", _batch), ("flow", _flow), ("chain", _chain)):
        with suppress(QframeError):  # what is kept of it cannot be read: `qframe flow` says why
            if explained(look, identity, why):
                return what
    return ""


def _batch(look: ConnectionLook, identity: str, why: Reasons) -> bool:
    kept = look.connection.batches()
    if kept is None:
        return False
    found = look.read(("batch", identity), lambda: kept.read(identity))
    record = found.value
    if record is None:
        return False
    mend = batch_retry(record)
    kind = "blocked" if mend else "ended" if record.is_finished else "before it"
    why.add(kind, f"it is a batch, {batch_words(record)}", found.at, mend)
    return True


def _flow(look: ConnectionLook, identity: str, why: Reasons) -> bool:
    kept = look.connection.flows()
    if kept is None:
        return False
    found = look.read(("flow of", identity), lambda: kept.read(identity))
    record = found.value
    if record is None:
        return False
    nodes = nodes_of(look, kept, identity)
    far = (
        f"it is a flow, which is {record.state}: {record.settled:,} of {record.total:,} nodes ended"
    )
    failed = [each for each in nodes.value if each.state is NodeState.FAILED]
    if failed and not record.is_finished:
        retry = next((command("retry", each.uuid) for each in failed if each.uuid), "")
        text = f"{far}; it waits for {together(map(node_words, failed))}"
        why.add("blocked", text, nodes.at, retry or command("flow", identity))
    elif record.is_finished:
        why.add("ended", far, nodes.at)
    else:
        now = [each for each in nodes.value if each.state is NodeState.PUSHED]
        why.add("before it", f"{far}; now {together(map(node_words, now))}", nodes.at)
    return True


def _chain(look: ConnectionLook, identity: str, why: Reasons) -> bool:
    found = chain_words(look, identity)
    if found is None:
        return False
    mend = command("retry", found.uuid) if found.failed else ""
    kind = "blocked" if found.failed else "before it"
    why.add(kind, f"it is a chain, {found.words}", found.at, mend)
    return True
