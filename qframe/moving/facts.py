"""Facts: what is kept of a waiting job, to move with it if the target has another store."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence

from qframe.connection import Connection
from qframe.contracts.backend import Backend
from qframe.contracts.facts import FactCopy
from qframe.contracts.failed import FailedJob
from qframe.contracts.history import STEPS
from qframe.contracts.step import Raise, Set, Step, Unset
from qframe.exceptions import InvalidPayload
from qframe.features import batch, flow
from qframe.features.base import Pushing
from qframe.features.chain import KEY as CHAIN
from qframe.features.chain import named_id
from qframe.features.context import PushFeature
from qframe.features.steps import StepsFeature

_INTERNAL = "qframe.features."
"""How the names of the jobs begin by which batches, flows and groups go on."""
SHARED = "debounce:"
"""How the keys begin that several jobs have: they stay, too."""
_PROBE = 60.0


def share_store(source: Backend, target: Backend) -> bool:
    """Whether both backends keep their facts in one place, whatever they call it."""
    key, word = f"same:{secrets.token_hex(8)}", secrets.token_hex(8)
    source.apply(Step(None, Set(key, word, _PROBE)))
    try:
        return target.read(key) == [word]
    finally:
        source.apply(Step(None, Unset(key)))


def facts_of(
    source: Connection, job: Pushing, notes: bytes, *, as_whole: bool = False
) -> list[FactCopy]:
    """Return what is kept of a waiting job. Raises `InvalidPayload` if it cannot move, and why.

    `as_whole`: a job of a batch or flow moves together with that.
    """
    message, context = job.message, source.context
    name = message.get("job")
    if not as_whole and batch.KEY in message:
        raise InvalidPayload("it belongs to a batch, which ends where it began")
    if isinstance(name, str) and name.startswith(_INTERNAL) and not as_whole:
        raise InvalidPayload("a batch, a flow or a group goes on by it")
    if not as_whole and flow.KEY in message:
        raise InvalidPayload("it belongs to a flow, which ends where it began")
    said = message.get(CHAIN)
    if not as_whole and isinstance(said, dict) and named_id(said, "batch"):
        raise InvalidPayload("it begins a batch, which ends where it began")
    features: list[PushFeature] = [*context.features_of(message)]
    if STEPS in notes and StepsFeature.key not in message:
        features.append(StepsFeature())
    keys = [key for feature in features for key in feature.kept(context, job)]
    return copied(source, keys)


def copied(source: Connection, keys: Sequence[str]) -> list[FactCopy]:
    """Return those of some facts that are there."""
    found = source.backend.copy(*keys) if keys else []
    return [each for each in found if each is not None]


def steps_of(source: Connection, record: FailedJob) -> list[FactCopy]:
    """Return what is kept of the durable steps of a failed job."""
    if not record.history.steps:
        return []
    job = source.context.as_it_is(record.payload, record.queue)
    return copied(source, StepsFeature().kept(source.context, job))


def written(copies: Iterable[FactCopy], target: Connection) -> list[Set | Raise]:
    """Return the operations that write facts at the target."""
    made: list[Set | Raise] = []
    for each in copies:
        if each.rank is None:
            made.append(Set(each.key, each.value, each.ttl))
        elif each.ttl is not None:
            value = (
                _status(each.value, target.name) if each.key.startswith("status:") else each.value
            )
            made.append(Raise(each.key, each.rank, value, each.ttl))
    return made


def _status(text: str, connection: str) -> str:
    """Return a status that names another connection."""
    try:
        fields = json.loads(text)
        return json.dumps({**fields, "connection": connection}, separators=(",", ":"))
    except (ValueError, TypeError):
        return text
