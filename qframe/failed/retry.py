"""Queues failed jobs again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qframe import events
from qframe.contracts.failed import FailedJob
from qframe.contracts.step import Forget, Operation, Outcome, Unset
from qframe.drivers.failed_store import FailedStore
from qframe.exceptions import BackendUnavailable, DuplicateJob, InvalidPayload, InvalidSignature
from qframe.failed.causes import noted_first
from qframe.features import status
from qframe.features.all import FEATURES
from qframe.features.base import Plan, Pushing
from qframe.features.context import Context, PushFeature
from qframe.features.debounce import DebounceFeature
from qframe.features.status import StatusFeature
from qframe.features.steps import KEY as STEPS
from qframe.features.steps import removed
from qframe.jobs.tracing import resending
from qframe.payload import envelope
from qframe.payload.signature import is_signed

if TYPE_CHECKING:
    from qframe.connection import Connection
    from qframe.manager import QueueManager

_TRIES = 20


class Anew(NamedTuple):
    """What a retried job with durable steps does again."""

    fresh: bool = False
    """Everything."""
    first: str = ""
    """The step of this name, and all steps that were kept after it; "": none."""


def retry(
    queues: QueueManager,
    store: FailedStore,
    record: FailedJob,
    anew: Anew = Anew(),  # noqa: B008 (a value)
    *,
    track: float = 0.0,
) -> bool:
    """Push a failed job to its old connection and queue, and remove its record.

    If pushes for the queue are forwarded, it goes there; to another connection only without
    features, whose facts are on the old one.

    A job with durable steps goes on where it stopped, unless `anew` says otherwise. With `track`
    the job has a status for so many seconds, at least, even if it was dispatched without.

    Both happen in one step if the connection keeps its failed jobs there. Attempts start again, and
    deadlines are as far away as at the dispatch. Returns False if another call has retried or
    removed it. Raises `ConfigurationError` if its connection is no longer configured,
    `DuplicateJob` if it is unique and another job has its lock, `InvalidStep` if no step has the
    name in `anew`, and `InvalidSignature` if its payload is refused or cannot be signed again; the
    record then stays.
    """
    connection, queue = destination(queues, record)
    message = _signed(connection.context, record, queue, track)
    connection.check_size(len(message))
    events.fire(events.JobRetryRequested, record.uuid, record.connection, record.queue)
    together = store.place is connection.failed.place
    if not together:
        kept = store.find(record.uuid)
        if kept is None or not kept.is_of(record.failed_at):
            return False
    steps: Sequence[Operation] = ()
    if anew.first or (anew.fresh and record.history.steps):
        steps = removed(connection.context, record.uuid, anew.first, events=False)
    pushed = _push(
        connection, dataclasses.replace(record, queue=queue), message, steps, forget=together
    )
    if together or not pushed:
        return pushed
    # There is one all the same if the job has failed anew meanwhile.
    return store.drop(record) or store.find(record.uuid) is not None


def destination(queues: QueueManager, record: FailedJob) -> tuple[Connection, str]:
    """Return the connection and queue to which `retry` pushes a failed job.

    Raises `ConfigurationError` if its connection is no longer configured.
    """
    connection, queue = queues.connection(record.connection), record.queue
    if queues.places is not None:
        if not _has_features(connection.context, record):
            connection = queues.forwarded(connection, queue)
        queue = queues.places.on(queue, connection.name)
    return connection, queue


def _push(
    connection: Connection,
    record: FailedJob,
    message: bytes,
    more: Sequence[Operation],
    *,
    forget: bool,
) -> bool:
    """Push the job, in the step that removes its record. Returns False if that is gone."""
    context = connection.context
    pushing = context.as_it_is(message, record.queue, uuid=record.uuid)
    pushing = dataclasses.replace(pushing, retried=True)
    with resending(connection, record.queue, pushing.message):
        first = Plan(None, *more)
        if forget:
            first.add(Forget(record.uuid, record.failed_at))
        return _pushed(connection, record, pushing, first.operations)


def _pushed(
    connection: Connection, record: FailedJob, pushing: Pushing, first: Sequence[Operation]
) -> bool:
    context = connection.context
    for _ in range(_TRIES):
        plan = Plan(None, *first)
        for key in (
            status.cancel_key(record.uuid),
            status.cancelled_key(connection.name, record.uuid),
        ):  # requests to cancel it that came too late
            plan.add(Unset(key))
        plan.add(noted_first(record))
        context.plan_push(pushing, plan)
        result = context.apply(plan)
        if result.applied:
            return True
        if result.outcome is Outcome.REFUSED and result.key == record.uuid:
            return False
        if context.may_be_tried_again(result):
            continue
        holder = context.holder(pushing, result)
        if holder not in {"", record.uuid}:
            raise _duplicate(record, pushing, holder)
    raise BackendUnavailable(f"the lock of {record.uuid} is changed again and again")


def _duplicate(record: FailedJob, pushing: Pushing, holder: str) -> DuplicateJob:
    if DebounceFeature.key in pushing.message:
        return DuplicateJob(f"{record.uuid} is debounced and {holder} was dispatched after it")
    return DuplicateJob(
        f"{record.uuid} is unique and {holder}, which waits or runs, has its lock; retry it when "
        "that one has ended"
    )


def _has_features(context: Context, record: FailedJob) -> bool:
    pushing = context.as_it_is(record.payload, record.queue)
    return bool(record.history.steps) or not context.keys.isdisjoint(pushing.message)


def _signed(context: Context, record: FailedJob, queue: str, track: float) -> bytes:
    """Return the renewed payload, signed for the queue if it was."""
    more: dict[str, Any] = {STEPS: True} if record.history.steps else {}
    if track:
        more[StatusFeature.key] = track
    message = renewed(record.payload, context.features, more)
    if context.signer is not None:
        return context.signer.renewed(record.payload, message, record.queue, queue)
    if message != record.payload and is_signed(record.payload):
        raise InvalidSignature(
            "the payload is signed, and no signing_key is configured here to sign it anew"
        )
    return message


def renewed(
    raw: bytes, features: Sequence[PushFeature] = FEATURES, more: Mapping[str, Any] | None = None
) -> bytes:
    """Return the payload as if dispatched now, with `more` keys; other bytes stay unchanged."""
    try:
        message = envelope.parse(raw)
    except InvalidPayload:
        return raw
    changes: dict[str, Any] = {**(more or {})}
    if track := changes.get(StatusFeature.key):
        changes[StatusFeature.key] = max(track, envelope.number(message, StatusFeature.key) or 0)
    if any(each.keeps_result and (each.key in message or each.key in changes) for each in features):
        changes[status.RETRIED] = status.life_of(message) + 1
        changes[status.SINCE] = time.time()
    if message.get("attempts"):
        changes["attempts"] = 0
    created = envelope.number(message, "createdAt")
    for key in ("retryUntil", "expiresAt"):
        moment = envelope.number(message, key)
        if moment is not None and created is not None:
            changes[key] = time.time() + max(0, moment - created)
    if not changes:
        return raw
    if "createdAt" in message:
        changes["createdAt"] = int(time.time())
    message.update(changes)
    return envelope.encode(message)
