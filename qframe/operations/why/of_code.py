"""OfCode: what the class of a job declares that keeps it waiting, and who cannot run the class."""

from __future__ import annotations

import time

from qframe.exceptions import BackendUnavailable, QframeError
from qframe.features.reserved import ReservedJob
from qframe.jobs.definition import JobDefinition
from qframe.jobs.execution import own_middleware
from qframe.middleware.holding import HoldsBack
from qframe.operations.why import permits
from qframe.operations.why.look import ConnectionLook
from qframe.operations.why.of_group import standing
from qframe.operations.why.reason import Reasons, ago, together, until
from qframe.operations.why.takers import alive, named
from qframe.payload import tracebacks
from qframe.payload.text import one_line
from qframe.worker import refusals

_DEPLOY = (
    "deploy code that can run it (`qframe check --payloads` tries it), and restart the workers"
)


def explain(look: ConnectionLook, reserved: ReservedJob, name: str, why: Reasons) -> None:
    """Says which limits of its class hold a job back, and which workers do not know the class."""
    found = declared(look, name, why)
    if found is not None:
        if found.concurrency is not None:
            permits.of_class(look, found.own_name(), found.concurrency, why)
        _middleware(look, reserved, found, why)
    unknown(look, name, reserved.queue, why)


def declared(look: ConnectionLook, name: str, why: Reasons) -> type[JobDefinition] | None:
    """Returns the class of a name, imported if that is allowed; None if it is not known."""
    registry = look.board.manager.registry
    found = registry.known(name)
    if found is None and look.imports:
        try:
            found = registry.find(name)
        except QframeError as error:
            text = f"the limits that its class declares: its code is not here: {error}"
            why.cannot_know(one_line(text, 300))
    elif found is None:
        why.cannot_know(
            "the limits that its class declares: its code is not imported here; the command "
            "qframe why, beside the code, looks at them"
        )
    return found


def _middleware(
    look: ConnectionLook, reserved: ReservedJob, kind: type[JobDefinition], why: Reasons
) -> None:
    """Asks its middleware whether it would let the job run now."""
    every = [*look.connection.middleware()]
    try:
        instance = kind.from_data(reserved.data_for(kind))
        object.__setattr__(instance, "_reserved", reserved)  # also on a frozen job
        every += own_middleware(instance)
    except Exception as error:  # noqa: BLE001 (its own code may raise anything)
        why.cannot_know(f"its middleware cannot be asked: {tracebacks.brief(error, 200)}")
        return
    for each in every:
        if not isinstance(each, HoldsBack):
            continue
        at = time.time()
        try:
            held = each.holding(instance)
        except BackendUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 (as above)
            shown = type(each).__name__
            why.cannot_know(f"{shown} cannot be asked: {tracebacks.brief(error, 200)}")
            continue
        if held is None:
            continue
        text = f"{type(each).__name__} holds it back: {held.why}"
        if held.seconds is not None:
            text += f", {until(at + held.seconds)}"
        if held.holder and held.holder != reserved.uuid:
            text += f": {held.holder}, {standing(look, held.holder)[0]}"
        why.add(held.kind, text, at)


def unknown(look: ConnectionLook, name: str, queue: str, why: Reasons) -> None:
    """Says which workers of a queue cannot run a class, as they noted themselves."""
    if not look.keeps_facts:
        return
    store = look.connection.store
    noted = look.read(("refusals", name), lambda: refusals.read(store, look.name, name))
    by_process = {(each.host, each.pid): each for each in noted.value}
    working = alive(look, queue)
    cannot = [each for each in working if (each.host, each.pid) in by_process]
    if not cannot:
        return
    last = max((by_process[each.host, each.pid] for each in cannot), key=lambda each: each.at)
    names = together(map(named, cannot))
    said = f"{one_line(last.why, 200)} ({ago(last.at)})"
    shown = one_line(name, 150)
    if len(cannot) == len(working):
        text = f"no live worker of {queue} can run {shown}: {names} gave it back: {said}"
        why.add("unknown class", text, noted.at, _DEPLOY)
    else:
        some = f"{len(cannot)} of {len(working)} workers"
        text = f"{some} of {queue} cannot run {shown}: {names}: {said}"
        why.add("fewer workers", text, noted.at, "restart them with the new code")
