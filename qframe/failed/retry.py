"""Queues failed jobs again."""

from __future__ import annotations

import json
import time
from typing import Any

from qframe import events, payload, tracking
from qframe.contracts import FailedJob, FailedStore
from qframe.exceptions import InvalidPayload, InvalidSignature
from qframe.manager import QueueManager
from qframe.signing import Signer, is_signed


def retry(queues: QueueManager, store: FailedStore, record: FailedJob) -> bool:
    """Push a failed job to the connection and queue it came from, and remove its record.

    Its attempts begin anew and its deadlines are as far away as they were at dispatch. False when
    another call has retried or removed it meanwhile. Raises `ConfigurationError` when its
    connection is no longer configured, and `InvalidSignature` when its payload is refused where a
    signing key is configured, or cannot be signed anew; the record stays.
    """
    queue = queues.connection(record.connection)
    message = _signed(queue.signer, record)
    events.fire(events.JobRetryRequested, record.uuid, record.connection, record.queue)
    # A wish to cancel that came too late was about the life before.
    queues.store(queue.name).delete(tracking.cancel_key(record.uuid))
    done = queue.requeue(record, message, store)
    if done and not queue.noting:
        queue.note_queued(message, record.uuid, record.queue)
    return done


def _signed(signer: Signer | None, record: FailedJob) -> bytes:
    """Give the renewed payload, signed where it was."""
    message = renewed(record.payload)
    if signer is not None:
        return signer.renewed(record.payload, message, record.queue)
    if message != record.payload and is_signed(record.payload):
        raise InvalidSignature(
            "the payload is signed, and no signing_key is configured here to sign it anew"
        )
    return message


def renewed(raw: bytes) -> bytes:
    """Give the payload as if dispatched now; bytes that are no payload stay as they are."""
    try:
        message = payload.parse(raw)
    except InvalidPayload:
        return raw
    changes: dict[str, Any] = {}
    if tracking.KEY in message:
        changes[tracking.LIFE] = tracking.life_of(message) + 1
        changes[tracking.SINCE] = time.time()
    if message.get("attempts"):
        changes["attempts"] = 0
    created = payload.number(message, "createdAt")
    for key in ("retryUntil", "expiresAt"):
        moment = payload.number(message, key)
        if moment is not None and created is not None:
            changes[key] = time.time() + max(0, moment - created)
    if not changes:
        return raw
    if "createdAt" in message:
        changes["createdAt"] = int(time.time())
    message.update(changes)
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate, which only its escape can carry
        return json.dumps(message, separators=(",", ":")).encode()
