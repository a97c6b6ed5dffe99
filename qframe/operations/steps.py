"""Steps of one job: what is kept of it, as people see it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from qframe.exceptions import QframeError
from qframe.features import steps
from qframe.features.context import Context
from qframe.features.steps import KeptStep, Waiting
from qframe.payload import secret
from qframe.payload.text import one_line
from qframe.payload.timing import iso


class StepState(BaseModel):
    """One durable step, sleep, event or cursor of a job.

    `kind`: `step`, `step within` (a transaction), `sleep`, `wait` (for an event), `event`,
    `timed out`, `cursor`. `until` is when a sleep or wait ends. Secret and encrypted values are
    stars.
    """

    name: str
    kind: str
    at: str
    value: Any
    until: str | None = None


def listed(context: Context, uuid: str) -> list[StepState]:
    """Returns what is kept of a job, in the order in which it was kept.

    Raises `BackendUnavailable`.
    """
    (text,) = context.backend.read(steps.index_key(uuid))
    try:
        index = steps.read_index(context, uuid, text)
    except QframeError as error:
        return [StepState(name="(not readable)", kind="", at="", value=one_line(str(error), 200))]
    texts = context.backend.read(*(steps.value_key(uuid, name) for name in index))
    rows = zip(index.items(), texts, strict=True)
    return [_state(context, uuid, name, kept, text) for (name, kept), text in rows]


def _state(context: Context, uuid: str, name: str, kept: KeptStep, text: str | None) -> StepState:
    value: Any = None
    if kept.hidden:
        value = secret.SHOWN
    elif text is not None:
        try:
            key = steps.value_key(uuid, name)
            value = from_json(steps.opened_value(context, key, text))
        except QframeError as error:
            value = f"({one_line(str(error), 200)})"
    state = StepState(name=name, kind=kept.kind, at=iso(kept.at), value=value)
    if kept.kind in steps.WITH_TIME and isinstance(value, float | int):
        state.until, state.value = iso(value), None
    return state


def waiting(context: Context, uuid: str) -> Waiting | None:
    """Returns where a job is that sleeps or waits for an event; None if it does neither."""
    (text,) = context.backend.read(steps.waits_key(uuid))
    try:
        return Waiting.read(context, uuid, text)
    except QframeError:
        return None
