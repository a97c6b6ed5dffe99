"""send_event: an event for a job that waits for it, or will."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json

from qframe import manager
from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.step import Expect, Set, Step
from qframe.dispatch.calls import Apply, Call, Read, run
from qframe.dispatch.sender import awaited
from qframe.dispatch.status import connections
from qframe.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    InvalidStep,
    QframeError,
    ResultTooLarge,
)
from qframe.features import steps
from qframe.features.context import Context
from qframe.features.steps import Waiting
from qframe.jobs.execution import refuse_on_loop
from qframe.jobs.roundtrip import same
from qframe.payload.text import one_line


def send_event(
    id: str,  # noqa: A002 (as `send()` calls it)
    name: str,
    value: Any = None,  # noqa: ANN401 (any JSON value)
    connection: str | None = None,
) -> bool:
    """Send an event to a job, which gets `value` from `wait_for_event(name)`.

    It is kept until the job waits for it, for 90 days and as long as the job sleeps besides; a job
    that waits already is woken. `value` is anything that JSON carries, up to 64 KB. Of several
    events of one name the job gets the first. Returns False if there was one before, or if the job
    has waited for it in vain.

    The event goes to the connection that knows the job; to all configured connections if none does
    yet, or to the named one. Raises `InvalidStep`, `ResultTooLarge`, `BackendUnavailable`, and
    `SynchronousOnly` on a running event loop: await `asend_event` there.
    """
    refuse_on_loop("send_event()", "asend_event()")
    return run(_sending(id, name, value, connection))


async def asend_event(
    id: str,  # noqa: A002 (as above)
    name: str,
    value: Any = None,  # noqa: ANN401 (any JSON value)
    connection: str | None = None,
) -> bool:
    """As `send_event`, without blocking the event loop."""
    return await awaited(_sending(id, name, value, connection), is_long=True)


def _sending(uuid: str, name: str, value: object, only: str | None) -> Call[bool]:
    steps.check_name(name)
    text = encoded(name, value)
    places = [each for each in connections(manager.default(), only) if _keeps_facts(each)]
    if not places:
        raise QframeError("no configured connection keeps events")
    known, trouble = list[Connection](), None
    for place in places:
        try:
            found = yield Read(place.backend, (steps.index_key(uuid), steps.waits_key(uuid)))
        except BackendUnavailable as error:
            trouble = trouble or error
        else:
            if any(each is not None for each in found):
                known.append(place)
    if not known and trouble is not None:
        raise trouble
    was_sent = False
    for place in known or _distinct(places):
        was_sent |= yield from send_on(place, uuid, name, text)
    return was_sent


def _keeps_facts(place: Connection) -> bool:
    return Capability.FACTS in place.capabilities


def _distinct(places: Sequence[Connection]) -> list[Connection]:
    return list({each.backend.described(): each for each in places}.values())


def send_on(place: Connection, uuid: str, name: str, value: str) -> Call[bool]:
    """Send an event, as JSON, on one connection. Returns False if there was one before."""
    context, backend = place.context, place.backend
    key = steps.event_key(uuid, name)
    index, waiting = yield from _known(context, uuid)
    if name in index and index[name].kind in {steps.EVENT, steps.TIMED_OUT}:
        return False
    ttl = steps.KEPT + (max(0.0, waiting.until - time.time()) if waiting else 0.0)
    encrypt, by = context.keyring.has_keys, secrets.token_hex(4)
    text = steps.sealed_value(context, key, value, encrypt=encrypt, by=by)
    (result,) = yield Apply(backend, (Step(None, Expect(key, None), Set(key, text, ttl)),))
    index, waiting = yield from _known(context, uuid)  # a job that began to wait before that
    if name in index and index[name].kind == steps.TIMED_OUT:
        return False
    if waiting is not None and waiting.event == name and Capability.WAKE in backend.capabilities:
        backend.wake(waiting.queue, waiting.handle)
    return bool(result.applied or result.holds == text)


def _known(context: Context, uuid: str) -> Call[tuple[dict[str, steps.KeptStep], Waiting | None]]:
    index, where = yield Read(context.backend, (steps.index_key(uuid), steps.waits_key(uuid)))
    return steps.read_index(context, uuid, index), Waiting.read(context, uuid, where)


def json_value(text: str) -> Any:  # noqa: ANN401 (any JSON value)
    """Parse the JSON of an event. Raises `ConfigurationError`."""
    try:
        return from_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{one_line(repr(text), 80)} is no JSON ({error}): a text needs quotes, '\"paid\"'"
        ) from None


def encoded(name: str, value: object) -> str:
    """Return the JSON of an event. Raises `InvalidStep` or `ResultTooLarge`."""
    try:
        text = to_json(value)
        arrives = same(value, from_json(text))
    except ValueError as error:
        raise InvalidStep(f"the event {name}: {one_line(str(error), 200)}") from None
    if not arrives:
        shown = one_line(repr(value), 80)
        raise InvalidStep(f"the event {name}: JSON would change {shown}")
    if len(text) > steps.MAX_VALUE:
        raise ResultTooLarge(
            f"the event {name} has {len(text):,} bytes of JSON, more than {steps.MAX_VALUE:,}"
        )
    return text.decode()
